/* The reference; see reference.h. */
#include "reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "activation.h"
#include "kinds.h"
#include "tensor.h"

static real *zeros(int64_t count) {
    return calloc((size_t)count + 1, sizeof(real));
}

/* The elements of a tensor in row-major order, or `count` times `otherwise` where it is absent. */
static real *values(const DLTensor *t, int64_t count, real otherwise) {
    real *v = zeros(count);
    if (t)
        tensor_read(t, v);
    else
        for (int64_t i = 0; i < count; i++)
            v[i] = otherwise;
    return v;
}

static void raise_to(real *largest, real value) {
    if (fabsl(value) > *largest)
        *largest = fabsl(value);
}

geometry geometry_make(int ndim, const int64_t *shape, uint64_t reduce_axes, uint64_t affine_axes) {
    geometry g = {.elements = 1, .rows = 1, .cols = 1, .channels = 1};
    for (int i = 0; i < ndim; i++) {
        g.elements *= shape[i];
        *(reduce_axes >> i & 1 ? &g.cols : &g.rows) *= shape[i];
        if (affine_axes >> i & 1)
            g.channels *= shape[i];
    }
    g.row = malloc(((size_t)g.elements + 1) * sizeof *g.row);
    g.channel = malloc(((size_t)g.elements + 1) * sizeof *g.channel);
    int64_t index[PLANISH_MAX_NDIM] = {0};
    for (int64_t e = 0; e < g.elements; e++) {
        g.row[e] = g.channel[e] = 0;
        for (int i = 0; i < ndim; i++) {
            if (!(reduce_axes >> i & 1))
                g.row[e] = g.row[e] * shape[i] + index[i];
            if (affine_axes >> i & 1)
                g.channel[e] = g.channel[e] * shape[i] + index[i];
        }
        for (int i = ndim - 1; i >= 0 && ++index[i] == shape[i]; i--)
            index[i] = 0;
    }
    return g;
}

void geometry_free(geometry *g) {
    free(g->row);
    free(g->channel);
    *g = (geometry){0};
}

/* Fills in mean, m2 and rstd of every row. */
static void moments(reference *r, const planish_norm *op, const real *x) {
    const geometry *g = &r->geometry;
    r->mean = zeros(g->rows);
    r->m2 = zeros(g->rows);
    r->rstd = zeros(g->rows);
    r->mean_scale = zeros(g->rows);
    /* Around the row's first element, so that a constant row has exactly its mean; and once more
     * around what that gives, for the first element may lie far from the others. */
    real *center = zeros(g->rows);
    for (int64_t e = g->elements - 1; e >= 0; e--) {
        center[g->row[e]] = x[e];
        r->mean_scale[g->row[e]] += x[e] * x[e] / (real)g->cols;
    }
    for (int turn = 0; turn < 2 && op->kind == PLANISH_LAYER; turn++) {
        real *sum = zeros(g->rows);
        for (int64_t e = 0; e < g->elements; e++)
            sum[g->row[e]] += x[e] - center[g->row[e]];
        for (int64_t i = 0; i < g->rows; i++)
            center[i] += sum[i] / (real)g->cols;
        free(sum);
    }
    for (int64_t i = 0; i < g->rows; i++)
        r->mean[i] = op->kind == PLANISH_LAYER ? center[i] : 0;
    free(center);
    for (int64_t e = 0; e < g->elements; e++) {
        real d = x[e] - r->mean[g->row[e]];
        r->m2[g->row[e]] += d * d;
    }
    for (int64_t i = 0; i < g->rows; i++) {
        r->mean_scale[i] = sqrtl(r->mean_scale[i]);
        r->rstd[i] = kind_rstd(op, r->m2[i], g->cols);
        if (g->cols == 0)
            r->mean[i] = r->rstd[i] = NAN;
    }
}

/* How far z is from where the slope jumps. */
static real from_jump(planish_activation f, real z) {
    return f == PLANISH_RELU        ? fabsl(z)
           : f == PLANISH_RELU6     ? fminl(fabsl(z), fabsl(z - 6))
           : f == PLANISH_HARDSWISH ? fminl(fabsl(z + 3), fabsl(z - 3))
                                    : INFINITY;
}

static void apply(reference *r, const planish_norm *op, const planish_tensors *t, const real *x,
                  const real *mean, const real *rstd) {
    const geometry *g = &r->geometry;
    real *weight = values(t->weight, g->channels, 1 - op->weight_offset);
    real *bias = values(t->bias, g->channels, 0);
    r->y = zeros(g->elements);
    r->y_scale = zeros(g->rows);
    /* What an error of z becomes in y, at most: no other slope is much more than 1. */
    const real steepest = op->activation == PLANISH_HARDSWISH ? 1.5L : 1;
    for (int64_t e = 0; e < g->elements; e++) {
        int64_t row = g->row[e], c = g->channel[e];
        real xhat = (x[e] - mean[row]) * rstd[row];
        real w = op->weight_offset + weight[c], scaled = xhat * w;
        r->y[e] = activated(op->activation, scaled + bias[c]);
        raise_to(&r->y_scale[row], steepest * (scaled + bias[c]));
        raise_to(&r->y_scale[row], steepest * scaled);
        raise_to(&r->y_scale[row], steepest * bias[c]);
        if (r->is_double)
            raise_to(&r->y_scale[row], steepest * mean[row] * rstd[row] * w);
    }
    free(weight);
    free(bias);
}

/* xhat of every element for the backward pass from y. */
static real *xhat_from_y(const geometry *g, const planish_norm *op, const planish_tensors *t) {
    real *y = values(t->y, g->elements, 0);
    real *weight = values(t->weight, g->channels, 1 - op->weight_offset);
    real *bias = values(t->bias, g->channels, 0);
    real unit = element_ulp(element_of(t->y->dtype), 1);
    for (int64_t e = 0; e < g->elements; e++) {
        real w = op->weight_offset + weight[g->channel[e]], b = bias[g->channel[e]];
        y[e] = w == 0 || fabsl(w) <= unit * fabsl(b) ? 0 : (y[e] - b) / w;
    }
    free(weight);
    free(bias);
    return y;
}

/*
 * The magnitude that an xhat is known to a few ULP of. Where a mean was subtracted it is at least
 * 1, the root mean square of a row's xhat: the mean is known to a few ULP of the standard
 * deviation. In f64, where there is no wider type for its last digits, to a few ULP of itself.
 */
static real xhat_scale(const reference *r, int64_t row, real xhat, const real *rstd,
                       bool centered) {
    real scale = centered ? fmaxl(1, fabsl(xhat)) : fabsl(xhat);
    return centered && r->is_double ? scale + fabsl(r->mean[row] * rstd[row]) : scale;
}

/*
 * Takes dy, where an activation follows, to what went into it; and the magnitude that the result is
 * known to a few ULP of: a slope is known so to a few of 1, and changes by no more than a half of
 * what z does (GELU's: by no more than that), which is known to a few ULP of what it is added up
 * from. Those of ReLU, ReLU6 and Hardswish jump: where z is nothing beside that of the row, either
 * is right.
 */
static real *through(const reference *r, const planish_norm *op, const planish_tensors *t, real *dy,
                     const real *xhat, const real *rstd, bool centered) {
    const geometry *g = &r->geometry;
    real *weight = values(t->weight, g->channels, 1 - op->weight_offset);
    real *bias = values(t->bias, g->channels, 0);
    real *scale = zeros(g->elements), *row_scale = zeros(g->rows);
    for (int64_t e = 0; e < g->elements; e++) {
        real w = op->weight_offset + weight[g->channel[e]], b = bias[g->channel[e]];
        scale[e] = xhat_scale(r, g->row[e], xhat[e], rstd, centered) * fabsl(w) + fabsl(b);
        raise_to(&row_scale[g->row[e]], scale[e]);
    }
    for (int64_t e = 0; e < g->elements; e++) {
        real w = op->weight_offset + weight[g->channel[e]], b = bias[g->channel[e]];
        real z = xhat[e] * w + b, z_scale = scale[e], digits = r->is_double ? 0x1p53L : 0x1p24L;
        scale[e] = fabsl(dy[e]);
        if (op->activation == PLANISH_SILU)
            scale[e] *= 1 + z_scale / 2;
        if (op->activation == PLANISH_GELU || op->activation == PLANISH_GELU_TANH)
            scale[e] *= 1 + z_scale;
        if (op->activation == PLANISH_HARDSWISH)
            scale[e] *= 1 + z_scale / 3;
        if (from_jump(op->activation, z) * digits < 8 * row_scale[g->row[e]])
            scale[e] *= digits;
        dy[e] *= activated_slope(op->activation, z);
    }
    free(weight);
    free(bias);
    free(row_scale);
    return scale;
}

static void backward(reference *r, const planish_norm *op, planish_pass pass,
                     const planish_tensors *t, const real *xhat, const real *rstd) {
    const geometry *g = &r->geometry;
    const bool centered = op->kind == PLANISH_LAYER && r->mean;
    real *dy = values(t->dy, g->elements, 0);
    real *weight = values(t->weight, g->channels, 1 - op->weight_offset);
    real *dy_scale = through(r, op, t, dy, xhat, rstd, centered);
    /* Of this part; or given, of the whole row. */
    const bool given = pass == PLANISH_BACKWARD && t->c2;
    real *c1 = given ? values(t->c1, g->rows, 0) : zeros(g->rows);
    real *c2 = given ? values(t->c2, g->rows, 0) : zeros(g->rows);
    real *c1_scale = zeros(g->rows), *c2_scale = zeros(g->rows);
    for (int64_t i = 0; i < g->rows; i++) {
        c1_scale[i] = fabsl(c1[i]);
        c2_scale[i] = fabsl(c2[i]);
    }
    r->dx = zeros(g->elements);
    r->dx_scale = zeros(g->rows);
    r->dweight = zeros(g->channels);
    r->dbias = zeros(g->channels);
    r->dweight_scale = zeros(g->channels);
    r->dbias_scale = zeros(g->channels);
    const real count = kind_count(op, g->cols);
    for (int64_t e = 0; e < g->elements; e++) {
        int64_t row = g->row[e], c = g->channel[e];
        real gradient = dy[e] * (op->weight_offset + weight[c]) / count;
        real gradient_scale = dy_scale[e] * fabsl(op->weight_offset + weight[c]) / count;
        real scale = xhat_scale(r, row, xhat[e], rstd, centered);
        if (op->kind == PLANISH_LAYER && !given) {
            c1[row] += gradient;
            c1_scale[row] += gradient_scale;
        }
        if (!given) {
            c2[row] += gradient * xhat[e];
            c2_scale[row] += gradient_scale * scale;
        }
        r->dweight[c] += dy[e] * xhat[e];
        r->dweight_scale[c] += dy_scale[e] * scale;
        r->dbias[c] += dy[e];
        r->dbias_scale[c] += dy_scale[e];
    }
    for (int64_t i = 0; i < g->rows && !given; i++)
        if (kind_clamps(op, rstd[i], element_of(t->rstd->dtype), r->is_double))
            c2[i] = c2_scale[i] = 0;
    for (int64_t e = 0; e < g->elements; e++) {
        int64_t row = g->row[e], c = g->channel[e];
        real gradient = dy[e] * (op->weight_offset + weight[c]);
        r->dx[e] = rstd[row] * (gradient - c1[row] - xhat[e] * c2[row]);
        raise_to(&r->dx_scale[row], r->dx[e]);
        raise_to(&r->dx_scale[row], rstd[row] * dy_scale[e] * fabsl(op->weight_offset + weight[c]));
        raise_to(&r->dx_scale[row], rstd[row] * c1_scale[row]);
        raise_to(&r->dx_scale[row],
                 rstd[row] * xhat_scale(r, row, xhat[e], rstd, centered) * c2_scale[row]);
    }
    free(dy);
    free(dy_scale);
    free(weight);
    r->c1 = c1;
    r->c2 = c2;
    r->c1_scale = c1_scale;
    r->c2_scale = c2_scale;
}

real mean_reach(element type, real mean) {
    static const real least_normal[ELEMENT_COUNT] = {
        [F32] = 0x1p-126L, [F16] = 0x1p-14L, [BF16] = 0x1p-126L, [F64] = 0x1p-1022L};
    return 4 * element_ulp(type, 1) * (fabsl(mean) + least_normal[type]);
}

/* Puts the means that backward is given in the place of the rows' own, but where they are those,
 * rounded. */
static void take_given_means(reference *r, const planish_tensors *t, const real *given) {
    for (int64_t i = 0; t->mean && i < r->geometry.rows; i++)
        if (!(fabsl(given[i] - r->mean[i]) <= mean_reach(element_of(t->mean->dtype), given[i])))
            r->mean[i] = given[i];
}

/* Whether a tensor other than the statistics is f64. */
static bool has_double(const planish_tensors *t) {
    const DLTensor *all[] = {t->x, t->weight, t->bias, t->y, t->dy, t->dx, t->dweight, t->dbias};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i] && element_of(all[i]->dtype) == F64)
            return true;
    return false;
}

reference reference_run(const planish_norm *op, planish_pass pass, const planish_tensors *t) {
    const DLTensor *shape = t->x ? t->x : t->dy;
    reference r = {.geometry =
                       geometry_make(shape->ndim, shape->shape, op->reduce_axes, op->affine_axes)};
    const geometry *g = &r.geometry;
    r.is_double = has_double(t);
    real *x = t->x ? values(t->x, g->elements, 0) : NULL;
    real *mean = t->mean ? values(t->mean, g->rows, 0) : zeros(g->rows);
    real *rstd = t->rstd ? values(t->rstd, g->rows, 0) : NULL;
    switch (pass) {
    case PLANISH_FORWARD:
        moments(&r, op, x);
        apply(&r, op, t, x, r.mean, r.rstd);
        break;
    case PLANISH_STATISTICS:
        moments(&r, op, x);
        break;
    case PLANISH_APPLY:
        apply(&r, op, t, x, mean, rstd);
        break;
    case PLANISH_BACKWARD:
        moments(&r, op, x);
        if (t->c2)
            memcpy(r.mean, mean, (size_t)g->rows * sizeof *mean);
        else
            take_given_means(&r, t, mean);
        for (int64_t e = 0; e < g->elements; e++)
            x[e] = (x[e] - r.mean[g->row[e]]) * rstd[g->row[e]];
        backward(&r, op, pass, t, x, rstd);
        break;
    case PLANISH_BACKWARD_STATISTICS:
        r.mean = mean;
        mean = NULL;
        for (int64_t e = 0; e < g->elements; e++)
            x[e] = (x[e] - r.mean[g->row[e]]) * rstd[g->row[e]];
        backward(&r, op, pass, t, x, rstd);
        break;
    case PLANISH_BACKWARD_FROM_Y:
        free(x);
        x = xhat_from_y(g, op, t);
        backward(&r, op, pass, t, x, rstd);
        break;
    }
    free(x);
    free(mean);
    free(rstd);
    return r;
}

void reference_free(reference *r) {
    geometry_free(&r->geometry);
    real *all[] = {r->y,        r->mean,       r->rstd,          r->m2,
                   r->dx,       r->dweight,    r->dbias,         r->y_scale,
                   r->dx_scale, r->mean_scale, r->dweight_scale, r->dbias_scale,
                   r->c1,       r->c2,         r->c1_scale,      r->c2_scale};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    *r = (reference){0};
}
