/*
 * Channels whose arithmetic would leave the range of the compute type though the result does not,
 * and those with NaN or infinity: scaled by a power of two so that the largest magnitude is near 1,
 * and done in f64, element by element. Slow and rare; the same bits on every tier.
 */
#include "cpu/batch/batch_run.h"
#include "cpu/common/exact.h"
#include "cpu/common/formulas.h"
#include "cpu/common/saved_mean.h"

#include <math.h>

/* A row's elements: `inner` neighbours, or one, of each of the outer axis. */
typedef struct wide_row {
    const cpu_job *job;
    row_run run;
    int64_t count, inner;
    int exponent; /* of x; it is taken times 2 to its negative */
} wide_row;

static char *at(const wide_row *w, role r, int64_t i) {
    const problem *p = w->job->problem;
    const int last = p->reduced_count - 1;
    int64_t offset = i % w->inner * reduced_stride(p, last, r);
    if (last > 0)
        offset += i / w->inner * reduced_stride(p, 0, r);
    return w->run.data[r] + offset * dtype_bytes(p->dtypes[r]);
}

static double load(const wide_row *w, role r, int64_t i) {
    return element_load(at(w, r, i), w->job->problem->dtypes[r]);
}

/* Through the compute type, as the vector kernels do. */
static void store(const wide_row *w, role r, int64_t i, double value) {
    element_store(at(w, r, i), w->job->problem->dtypes[r],
                  w->job->plan->is_double ? value : (double)(float)value);
}

/* In two steps, so that neither factor leaves the range before the product does. */
static double scale_by(double value, int exponent) {
    return ldexp(ldexp(value, exponent / 2), exponent - exponent / 2);
}

static double scaled_x(const wide_row *w, int64_t i) {
    return scale_by(load(w, ROLE_X, i), -w->exponent);
}

static wide_row wide_row_of(const cpu_job *job, int64_t row) {
    const problem *p = job->problem;
    wide_row w = {.job = job,
                  .run = row_run_at(job, row, row + 1),
                  .count = p->cols,
                  .inner = p->reduced[p->reduced_count - 1].size};
    double largest = 0;
    for (int64_t i = 0; i < w.count; i++)
        largest = fmax(largest, fabs(load(&w, ROLE_X, i)));
    w.exponent = largest > 0 && isfinite(largest) ? ilogb(largest) : 0;
    return w;
}

static double parameter(const wide_row *w, role r, double otherwise, double offset) {
    const row_stat s = run_stat(w->job->problem, &w->run, r);
    return s.data ? stat_load(&s, 0) + offset : otherwise;
}

/* A sum that keeps what its roundings lost. */
typedef struct exact_sum {
    double sum, rest;
} exact_sum;

static void add(exact_sum *s, double value) {
    exact_add(&s->sum, &s->rest, value);
}
static double total(exact_sum s) {
    return isfinite(s.rest) ? s.sum + s.rest : s.sum;
}

void batch_wide_forward(const cpu_job *job, int64_t row, double *mean, double *rstd, double *m2) {
    const problem *p = job->problem;
    const wide_row w = wide_row_of(job, row);
    const double n = (double)w.count;
    double m, r; /* of x scaled */
    if (p->pass == PLANISH_APPLY) {
        m = scale_by(*mean, -w.exponent);
        r = scale_by(*rstd, w.exponent);
    } else {
        exact_sum sum = {0}, squares = {0};
        for (int64_t i = 0; i < w.count; i++)
            add(&sum, scaled_x(&w, i));
        m = total(sum) / n;
        for (int64_t i = 0; i < w.count; i++) {
            const double d = scaled_x(&w, i) - m;
            add(&squares, d * d);
        }
        const double s = total(squares), var = scale_by(s / n, 2 * w.exponent);
        /* Where the variance leaves the range of f64 itself, eps is scaled down to it instead. */
        r = isfinite(var) && var + p->rule.eps > 1e-290
                ? scale_by(1 / sqrt(var + p->rule.eps), w.exponent)
                : 1 / sqrt(s / n + scale_by(p->rule.eps, -2 * w.exponent));
        *mean = scale_by(m, w.exponent);
        *rstd = scale_by(r, -w.exponent);
        *m2 = scale_by(s, 2 * w.exponent);
    }
    const double weight = parameter(&w, ROLE_WEIGHT, 1, p->weight_offset);
    const double bias = parameter(&w, ROLE_BIAS, 0, 0);
    for (int64_t i = 0; i < w.count && has(p, ROLE_Y); i++) {
        double z = (scaled_x(&w, i) - m) * r * weight + bias;
        if (has(p, ROLE_ADDEND))
            z += load(&w, ROLE_ADDEND, i);
        store(&w, ROLE_Y, i, activated_value(p->activation, z));
    }
}

/* The gradient of what the norm returns. */
static double gradient(const wide_row *w, int64_t i, double xhat, double weight, double bias) {
    const problem *p = w->job->problem;
    const double dy = load(w, ROLE_DY, i);
    if (problem_masks_by_y(p))
        return load(w, ROLE_Y, i) <= 0 ? 0 : dy;
    if (p->activation == PLANISH_IDENTITY)
        return dy;
    double z = xhat * weight + bias;
    if (has(p, ROLE_ADDEND))
        z += load(w, ROLE_ADDEND, i);
    if (p->activation == PLANISH_RELU)
        return z <= rounds_to_zero(p->dtypes[ROLE_DY]) ? 0 : dy;
    return dy * activated_slope(p->activation, z);
}

void batch_wide_backward(const cpu_job *job, int64_t row, double mean, double rstd, double c1,
                         double c2, double *dweight, double *dbias) {
    const problem *p = job->problem;
    const wide_row w = wide_row_of(job, row);
    const double n = (double)w.count, m = scale_by(mean, -w.exponent);
    const double r = scale_by(rstd, w.exponent);
    const double weight = parameter(&w, ROLE_WEIGHT, 1, p->weight_offset);
    const double bias = parameter(&w, ROLE_BIAS, 0, 0);
    double delta = 0;
    if (!problem_is_given(p)) {
        const mean_reach reach = mean_reach_of(p->dtypes[ROLE_MEAN], true);
        exact_sum xhat = {0};
        for (int64_t i = 0; i < w.count; i++)
            add(&xhat, (scaled_x(&w, i) - m) * r);
        delta = total(xhat) / n;
        if (isfinite(delta)) /* else the row is to become NaN */
            delta = mended(&reach, delta, mean, rstd);
    }
    exact_sum sum = {0}, product = {0};
    for (int64_t i = 0; i < w.count; i++) {
        const double xhat = (scaled_x(&w, i) - m) * r - delta;
        const double d = gradient(&w, i, xhat, weight, bias);
        add(&sum, d);
        add(&product, d * xhat);
    }
    *dbias = total(sum);
    *dweight = total(product);
    if (has(p, ROLE_RUNNING_MEAN)) {
        c1 = c2 = 0;
    } else if (!has(p, ROLE_C2)) {
        c1 = weight * *dbias / n;
        c2 = weight * *dweight / n;
    }
    for (int64_t i = 0; i < w.count && (has(p, ROLE_DX) || has(p, ROLE_DADDEND)); i++) {
        const double xhat = (scaled_x(&w, i) - m) * r - delta;
        const double d = gradient(&w, i, xhat, weight, bias);
        /* dx may be dy or x itself: nothing of element i is read after this. */
        if (has(p, ROLE_DADDEND))
            store(&w, ROLE_DADDEND, i, d);
        if (has(p, ROLE_DX))
            store(&w, ROLE_DX, i, rstd * (d * weight - c1 - xhat * c2));
    }
}
