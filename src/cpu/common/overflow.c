/*
 * Rows whose arithmetic would leave the range of the compute type though the result does not:
 * squares of 1e30 in f32, of 1e200 in f64, differences above the largest float. They are scaled by
 * a power of two so that the largest magnitude is near 1, and done in f64 with compensated sums.
 * Rows with NaN or infinity come here too and leave as NaN. Slow and rare; the same bits on every
 * tier.
 */
#include "cpu/common/formulas.h"
#include "cpu/common/saved_mean.h"

#include <math.h>

/* A sum that carries its rounding error along (Neumaier 1974). */
typedef struct compensated {
    double sum, rest;
} compensated;

static void add(compensated *c, double value) {
    const double sum = c->sum + value;
    c->rest += fabs(c->sum) >= fabs(value) ? c->sum - sum + value : value - sum + c->sum;
    c->sum = sum;
}

static double total(compensated c) {
    return c.sum + c.rest;
}

static double at(const void *data, dtype type, int64_t i) {
    return element_load((const char *)data + i * dtype_bytes(type), type);
}

/* A row's elements in memory: dense, or (span > 0) by pixel, each channel's `span` of them a pitch
 * apart. */
typedef struct places {
    char *data;
    dtype type;
    int64_t span, pitch;
} places;

static char *place_of(const places *p, int64_t i) {
    const int64_t bytes = dtype_bytes(p->type);
    return p->data + (p->span ? i % p->span * p->pitch + i / p->span * bytes : i * bytes);
}

static double load(const places *p, int64_t i) {
    return element_load(place_of(p, i), p->type);
}

/* The exponent that brings the largest magnitude of a row near 1; 0 for a row of zeros. */
static int row_exponent(const places *x, int64_t n) {
    double largest = 0;
    for (int64_t i = 0; i < n; i++)
        largest = fmax(largest, fabs(load(x, i)));
    return largest > 0 && isfinite(largest) ? ilogb(largest) : 0;
}

/* ldexp in two steps, so that neither factor leaves the range before the product does. */
static double scale_by(double value, int exponent) {
    return ldexp(ldexp(value, exponent / 2), exponent - exponent / 2);
}

/* Through the compute type, as the vector kernels do: the bits must not depend on where a row is
 * run. */
static void store(const places *p, int64_t i, double value) {
    element_store(place_of(p, i), p->type, p->type == DTYPE_F64 ? value : (double)(float)value);
}

static double weight_at(const void *weight, int offset, dtype type, int64_t i) {
    return weight ? at(weight, type, i) + offset : 1.0;
}

/* The weight that element i has. */
static int64_t weight_of(int64_t i, int64_t span) {
    return span ? i / span : i;
}

/* rstd of a row that was scaled by 2^-exponent, from its sum of squares. */
static double scaled_rstd(const norm_rule *rule, double m2, int exponent) {
    const double var = scale_by(m2 / rule->count, 2 * exponent);
    norm_rule scaled = *rule;
    /* Where the variance leaves the range of f64 itself, eps is scaled down to it instead. */
    if (isfinite(var) && var + rule->eps > 1e-290)
        return scale_by(rule_rstd(rule, sqrt(var + rule->eps)), exponent);
    scaled.least = scale_by(rule->least, -exponent);
    return rule_rstd(&scaled, sqrt(m2 / rule->count + scale_by(rule->eps, -2 * exponent)));
}

static double rounded(dtype type, double value) {
    double room;
    element_store(&room, type, value);
    return element_load(&room, type);
}

void overflow_forward_row(const forward_args *a, int64_t row, planish_kind kind, dtype element,
                          dtype weight) {
    const int64_t n = a->cols, span = a->by_pixel ? a->weight_span : 0;
    const places x = {(char *)a->x + row * a->x_pitch, element, span, a->x_pitch};
    const places y = {a->y ? a->y + row * a->y_pitch : NULL, element, span, a->y_pitch};
    const int exponent = row_exponent(&x, n);
    double mean = 0, rstd; /* of x scaled by 2^-exponent */
    if (a->given) {
        mean = kind == PLANISH_RMS ? 0 : scale_by(stat_load(&a->mean, row), -exponent);
        rstd = scale_by(stat_load(&a->rstd, row), exponent);
    } else {
        compensated sum = {0}, squares = {0};
        for (int64_t i = 0; i < n && kind == PLANISH_LAYER; i++)
            add(&sum, scale_by(load(&x, i), -exponent));
        mean = total(sum) / (double)n;
        for (int64_t i = 0; i < n; i++) {
            const double d = scale_by(load(&x, i), -exponent) - mean;
            add(&squares, d * d);
        }
        const double m2 = total(squares);
        rstd = scaled_rstd(&a->rule, m2, exponent);
        stat_store(&a->mean, row, scale_by(mean, exponent));
        stat_store(&a->rstd, row, scale_by(rstd, -exponent));
        stat_store(&a->m2, row, scale_by(m2, 2 * exponent));
    }
    for (int64_t i = 0; i < n && y.data; i++) {
        const double xhat = (scale_by(load(&x, i), -exponent) - mean) * rstd;
        const int64_t c = weight_of(i, a->weight_span);
        const double w = weight_at(a->weight, a->weight_offset, weight, c);
        const double b = a->bias ? at(a->bias, weight, c) : 0;
        if ((int)a->activation == ROUNDED_XHAT)
            store(&y, i, rounded(element, rounded(element, xhat) * w) + b);
        else
            store(&y, i, activated_value(a->activation, xhat * w + b));
    }
}

static void add_to_partial(void *partial, dtype type, int64_t i, double value) {
    if (!partial)
        return;
    if (type == DTYPE_F64)
        ((double *)partial)[i] += value;
    else
        ((float *)partial)[i] += (float)value;
}

/* The gradient of what the norm returns for element i. */
static double gradient_of(const backward_args *a, const places *dy, int64_t i, double xhat,
                          double w, dtype weight) {
    const double d = load(dy, i);
    if (a->activation == PLANISH_IDENTITY)
        return d;
    const double b = a->bias ? at(a->bias, weight, weight_of(i, a->weight_span)) : 0;
    return d * activated_slope(a->activation, xhat * w + b);
}

static void backward(const backward_args *a, int64_t row, planish_kind kind, dtype element,
                     dtype weight, dtype partial) {
    const int64_t n = a->cols, span = a->by_pixel ? a->weight_span : 0;
    const places x = {(char *)a->x + row * a->x_pitch, element, span, a->x_pitch};
    const places dy = {(char *)a->dy + row * a->dy_pitch, element, span, a->dy_pitch};
    const places dx = {a->dx ? a->dx + row * a->dx_pitch : NULL, element, span, a->dx_pitch};
    const places dsum = {a->dsum ? (char *)a->dsum + row * a->dsum_pitch : NULL, element, span,
                         a->dsum_pitch};
    const bool centered = kind == PLANISH_LAYER && !a->x_is_xhat;
    const double rstd = stat_load(&a->rstd, row);
    const double mean = centered ? stat_load(&a->mean, row) : 0;
    const double factor = a->x_is_xhat ? 1 : rstd;

    compensated sum_xhat = {0}, sum_g = {0}, sum_gxhat = {0};
    for (int64_t i = 0; i < n; i++)
        add(&sum_xhat, (load(&x, i) - mean) * factor);
    const mean_reach reach = mean_reach_of(a->mean.type, true);
    double delta = centered && a->half == HALF_NONE ? total(sum_xhat) / (double)n : 0;
    if (a->half == HALF_NONE && centered && isfinite(delta)) /* else the row is to become NaN */
        delta = mended(&reach, delta, mean, rstd);
    for (int64_t i = 0; i < n; i++) {
        const double xhat = (load(&x, i) - mean) * factor;
        const int64_t c = weight_of(i, a->weight_span);
        const double w = weight_at(a->weight, a->weight_offset, weight, c);
        const double g = gradient_of(a, &dy, i, xhat - delta, w, weight) * w;
        add(&sum_g, g);
        add(&sum_gxhat, g * xhat);
    }
    double c1 = kind == PLANISH_RMS ? 0 : total(sum_g) / (double)n;
    double c2 = total(sum_gxhat) / a->rule.count - (centered ? delta * c1 : 0);
    c2 = rule_c2(&a->rule, c2, rstd);
    if (a->half == HALF_STATISTICS) {
        stat_store(&a->c1, row, c1);
        stat_store(&a->c2, row, c2);
    }
    if (a->half == HALF_APPLY) {
        c1 = kind == PLANISH_RMS ? 0 : stat_load(&a->c1, row);
        c2 = stat_load(&a->c2, row);
    }
    for (int64_t i = 0; i < n; i++) {
        const double xhat = (load(&x, i) - mean) * factor - delta;
        const int64_t c = weight_of(i, a->weight_span);
        const double w = weight_at(a->weight, a->weight_offset, weight, c);
        const double d = gradient_of(a, &dy, i, xhat, w, weight), g = d * w;
        /* dx may be dy, x or dsum itself: nothing of element i is read after this. */
        if (dx.data)
            store(&dx, i, rstd * (g - c1 - xhat * c2) + (dsum.data ? load(&dsum, i) : 0));
        add_to_partial(a->dweight, partial, c, d * xhat);
        add_to_partial(a->dbias, partial, c, d);
    }
}

void overflow_backward_row(const backward_args *a, int64_t row, planish_kind kind, dtype element,
                           dtype weight) {
    backward(a, row, kind, element, weight, element);
}

void overflow_backward_sums(const backward_args *a, planish_kind kind, dtype element, dtype weight,
                            double *dweight, double *dbias) {
    backward_args with_sums = *a;
    const size_t bytes = (size_t)(a->cols / a->weight_span) * sizeof(double);
    memset(dweight, 0, bytes);
    memset(dbias, 0, bytes);
    with_sums.dweight = dweight;
    with_sums.dbias = dbias;
    backward(&with_sums, 0, kind, element, weight, DTYPE_F64);
}
