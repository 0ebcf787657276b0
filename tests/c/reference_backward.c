/* The reference of the gradients: from dy, through what stands behind the norm, the norm itself and
 * what stands before it. */
#include "activation.h"
#include "kinds.h"
#include "reference_steps.h"

/* How far z is from where the slope jumps. */
static real from_jump(planish_activation f, real z) {
    return f == PLANISH_RELU        ? fabsl(z)
           : f == PLANISH_RELU6     ? fminl(fabsl(z), fabsl(z - 6))
           : f == PLANISH_HARDSWISH ? fminl(fabsl(z + 3), fabsl(z - 3))
                                    : INFINITY;
}

/* Of every element: the gradient of z, and the magnitude that it is known to a few ULP of; and of
 * every row the mean of the gradients of xhat and of their products with it. */
typedef struct gradients {
    real *dz, *dz_scale, *xhat_scale, *c1, *c2, *c1_scale, *c2_scale;
} gradients;

static void add(reference *r, part p, int64_t i, real value, real scale) {
    if (!r->value[p])
        return;
    r->value[p][i] += value;
    r->scale[p][i] += fabsl(scale);
}

/*
 * The magnitude that an xhat is known to a few ULP of. Where a mean was subtracted it is at least
 * 1, the root mean square of a row's xhat: the mean is known to a few ULP of the standard
 * deviation. In f64, where there is no wider type for its last digits, to a few ULP of itself.
 */
static real xhat_scale(const reference *r, const inputs *in, int64_t e, real xhat) {
    const bool centered = in->op->kind == PLANISH_LAYER && r->value[MEAN];
    const real scale = centered ? fmaxl(1, fabsl(xhat)) : fabsl(xhat);
    return centered && r->is_double
               ? scale + fabsl(r->value[MEAN][r->geometry.row[e]] * at(in, RSTD, e))
               : scale;
}

/* ---- Behind the norm ------------------------------------------------------------------------- */

/* Of one element: z and m, and the magnitudes that they are added up from. */
typedef struct behind {
    real z, z_scale, m, m_scale;
} behind;

static behind behind_of(const inputs *in, int64_t e, real xhat, real scale) {
    const real w = weight_at(in, e), b = at(in, BIAS, e);
    const real by = 1 + at(in, SCALE, e), shift = at(in, SHIFT, e);
    behind h = {.z = xhat * w + b, .z_scale = scale * fabsl(w) + fabsl(b)};
    h.m = h.z * by + shift;
    h.m_scale = h.z_scale * fabsl(by) + fabsl(shift);
    return h;
}

/*
 * How much larger than a gradient itself the magnitude is that it is known to a few ULP of, when it
 * went through the activation: a slope is known so to a few of 1, and changes by no more than a
 * half of what z does (GELU's: by no more than that), which is known to a few ULP of what it is
 * added up from. Those of ReLU, ReLU6 and Hardswish jump: where z is nothing beside that of the
 * row, either is right.
 */
static real slope_scale(planish_activation f, const behind *h, real of_row, bool is_double) {
    const real digits = is_double ? 0x1p53L : 0x1p24L;
    real scale = 1;
    if (f == PLANISH_SILU)
        scale += h->m_scale / 2;
    if (f == PLANISH_GELU || f == PLANISH_GELU_TANH)
        scale += h->m_scale;
    if (f == PLANISH_HARDSWISH)
        scale += h->m_scale / 3;
    return from_jump(f, h->m) * digits < 8 * of_row ? scale * digits : scale;
}

/* From dy to the gradients of z, with those of gate, scale and shift. */
static void through(reference *r, const inputs *in, const real *xhat, gradients *d) {
    const geometry *g = &r->geometry;
    real *of_row = zeros(g->rows);
    for (int64_t e = 0; e < g->elements; e++) {
        d->xhat_scale[e] = xhat_scale(r, in, e, xhat[e]);
        raise_to(&of_row[g->row[e]], behind_of(in, e, xhat[e], d->xhat_scale[e]).m_scale);
    }
    for (int64_t e = 0; e < g->elements; e++) {
        const behind h = behind_of(in, e, xhat[e], d->xhat_scale[e]);
        const planish_activation f = in->op->activation;
        const int64_t k = in->modulation.channel ? in->modulation.channel[e] : 0;
        real dm = at(in, DY, e);
        if (gate_after(in)) {
            const real gate = at(in, GATE, e), v = activated(f, h.m);
            add(r, DGATE, e, dm * v * silu_slope(gate), dm * (fabsl(v) + h.m_scale) * 1.1L);
            dm *= silu(gate);
        }
        real scale = fabsl(dm) * slope_scale(f, &h, of_row[g->row[e]], r->is_double);
        dm *= activated_slope(f, h.m);
        add(r, DSCALE, k, dm * h.z, scale * h.z_scale);
        add(r, DSHIFT, k, dm, scale);
        const real by = 1 + at(in, SCALE, e);
        d->dz[e] = dm * by;
        d->dz_scale[e] = scale * fabsl(by);
    }
    free(of_row);
}

/* ---- The norm -------------------------------------------------------------------------------- */

/* The sums over rows, of this part; or given, of the whole row. */
static void sum_rows(reference *r, const inputs *in, const real *xhat, gradients *d, bool given) {
    const geometry *g = &r->geometry;
    const real count = kind_count(in->op, g->cols);
    for (int64_t e = 0; e < g->elements; e++) {
        const int64_t row = g->row[e];
        const real w = weight_at(in, e) / count;
        if (given) {
            d->c1[row] = at(in, C1, e), d->c1_scale[row] = fabsl(d->c1[row]);
            d->c2[row] = at(in, C2, e), d->c2_scale[row] = fabsl(d->c2[row]);
            continue;
        }
        if (in->op->kind == PLANISH_LAYER) {
            d->c1[row] += d->dz[e] * w;
            d->c1_scale[row] += d->dz_scale[e] * fabsl(w);
        }
        d->c2[row] += d->dz[e] * w * xhat[e];
        d->c2_scale[row] += d->dz_scale[e] * fabsl(w) * d->xhat_scale[e];
    }
    for (int64_t e = 0; e < g->elements && !given; e++)
        if (kind_clamps(in->op, at(in, RSTD, e), element_of(in->tensors.rstd->dtype), r->is_double))
            d->c2[g->row[e]] = d->c2_scale[g->row[e]] = 0;
}

/* The gradient of s but for what reaches it by another way; of every row the largest term. */
static real *of_norm(const reference *r, const inputs *in, const real *xhat, const gradients *d,
                     real *largest) {
    const geometry *g = &r->geometry;
    real *ds = zeros(g->elements);
    for (int64_t e = 0; e < g->elements; e++) {
        const int64_t row = g->row[e];
        const real w = weight_at(in, e), rstd = at(in, RSTD, e);
        ds[e] = rstd * (d->dz[e] * w - d->c1[row] - xhat[e] * d->c2[row]);
        raise_to(&largest[row], ds[e]);
        raise_to(&largest[row], rstd * d->dz_scale[e] * fabsl(w));
        raise_to(&largest[row], rstd * d->c1_scale[row]);
        raise_to(&largest[row], rstd * d->xhat_scale[e] * d->c2_scale[row]);
    }
    return ds;
}

/* ---- Before the norm ------------------------------------------------------------------------- */

static void before(reference *r, const inputs *in, const real *xhat, const gradients *d) {
    const geometry *g = &r->geometry;
    real *largest = zeros(g->rows), *norm = of_norm(r, in, xhat, d, largest);
    for (int64_t e = 0; e < g->elements; e++) {
        const int64_t k = in->column.channel ? in->column.channel[e] : g->channel[e];
        const real ds = norm[e] + at(in, DSUM, e);
        const real scale = largest[g->row[e]] + fabsl(at(in, DSUM, e));
        const real column = at(in, COLUMN_SCALE, e), gate = at(in, GATE, e);
        const real by_row = at(in, ROW_SCALE, e) * dropout_factor(in, e);
        const real by_gate = gate_before(in) ? silu(gate) : 1;
        const real by = by_gate * column * by_row, branch = at(in, BRANCH, e) * by_gate * by_row;
        add(r, DRESIDUAL, e, ds, scale);
        add(r, DX, e, ds * by, scale * by);
        add(r, DCOLUMN_SCALE, k, ds * branch, scale * branch);
        if (gate_before(in)) {
            const real x = at(in, X, e) * column * by_row;
            add(r, DGATE, e, ds * x * silu_slope(gate), scale * x * 1.1L);
        }
    }
    free(largest), free(norm);
}

/* ---- All of it ------------------------------------------------------------------------------- */

void reference_backward(reference *r, const inputs *in, planish_pass pass, const real *xhat) {
    const geometry *g = &r->geometry;
    const DLTensor *x = in->tensors.x ? in->tensors.x : in->tensors.dy;
    const bool given = pass == PLANISH_BACKWARD && has(in, C2);
    gradients d = {zeros(g->elements), zeros(g->elements), zeros(g->elements), zeros(g->rows),
                   zeros(g->rows),     zeros(g->rows),     zeros(g->rows)};
    for (part p = 0; p < PARTS; p++)
        if (part_is_output(PLANISH_BACKWARD, p) && has(in, p)) {
            const int64_t count = part_count(in->op, x->ndim, x->shape, p);
            r->value[p] = zeros(count);
            r->scale[p] = zeros(count);
        }
    through(r, in, xhat, &d);
    for (int64_t e = 0; e < g->elements; e++) {
        add(r, DWEIGHT, g->channel[e], d.dz[e] * xhat[e], d.dz_scale[e] * d.xhat_scale[e]);
        add(r, DBIAS, g->channel[e], d.dz[e], d.dz_scale[e]);
    }
    sum_rows(r, in, xhat, &d, given);
    before(r, in, xhat, &d);
    r->value[C1] = d.c1, r->scale[C1] = d.c1_scale;
    r->value[C2] = d.c2, r->scale[C2] = d.c2_scale;
    free(d.dz), free(d.dz_scale), free(d.xhat_scale);
}
