/* The reference of a forward, but for its statistics: the sum before the norm, and y. */
#include "activation.h"
#include "reference_steps.h"

/* ---- Arithmetic of the compute type ---------------------------------------------------------- */

static real rounded(bool is_double, real value) {
    return is_double ? (real)(double)value : (real)(float)(double)value;
}
static real times(bool is_double, real a, real b) {
    return is_double ? (real)((double)a * (double)b) : (real)((float)a * (float)b);
}
static real plus(bool is_double, real a, real b) {
    return is_double ? (real)((double)a + (double)b) : (real)((float)a + (float)b);
}

/* ---- Dropout --------------------------------------------------------------------------------- */

/* Philox4x32-10, word by word. */
static uint32_t philox_word(const uint64_t rng[2], uint64_t index) {
    uint32_t c[4] = {(uint32_t)(index / 4), (uint32_t)(index / 4 >> 32), (uint32_t)rng[1],
                     (uint32_t)(rng[1] >> 32)};
    uint32_t k[2] = {(uint32_t)rng[0], (uint32_t)(rng[0] >> 32)};
    for (int i = 0; i < 10; i++) {
        const uint64_t a = (uint64_t)c[0] * 0xd2511f53u, b = (uint64_t)c[2] * 0xcd9e8d57u;
        const uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k[0], (uint32_t)b,
                                  (uint32_t)(a >> 32) ^ c[3] ^ k[1], (uint32_t)a};
        for (int j = 0; j < 4; j++)
            c[j] = next[j];
        k[0] += 0x9e3779b9u;
        k[1] += 0xbb67ae85u;
    }
    return c[index % 4];
}

static bool kept(const inputs *in, int64_t e) {
    return philox_word(in->rng, (uint64_t)e) >= (uint64_t)ceil(in->op->dropout_p * 0x1p32);
}

real dropout_factor(const inputs *in, int64_t e) {
    if (!(in->op->dropout_p > 0))
        return 1;
    return kept(in, e) ? 1 / (1 - (real)in->op->dropout_p) : 0;
}

/* ---- The sum --------------------------------------------------------------------------------- */

void reference_sum(reference *r, const inputs *in) {
    const DLTensor *column = in->tensors.column_scale;
    const bool d = r->is_double || (column && element_of(column->dtype) == F64);
    const DLTensor *to = has(in, SUM) ? in->tensors.sum : in->tensors.residual;
    const int64_t count = r->geometry.elements;
    r->exact_sum = !gate_before(in);
    r->value[SUM] = zeros(count);
    r->value[MASK] = has(in, MASK) ? zeros(count) : NULL;
    for (int64_t e = 0; e < count; e++) {
        real u = at(in, X, e);
        if (gate_before(in))
            u *= silu(at(in, GATE, e));
        if (has(in, COLUMN_SCALE))
            u = times(d, u, at(in, COLUMN_SCALE, e));
        if (has(in, ROW_SCALE))
            u = times(d, u, rounded(d, at(in, ROW_SCALE, e)));
        if (in->op->dropout_p > 0)
            u = kept(in, e) ? times(d, u, rounded(d, 1 / (1 - in->op->dropout_p))) : 0;
        if (has(in, RESIDUAL))
            u = plus(d, u, at(in, RESIDUAL, e));
        r->value[SUM][e] = to && r->exact_sum ? element_round(element_of(to->dtype), u) : u;
        if (has(in, MASK))
            r->value[MASK][e] = kept(in, e);
    }
}

/* ---- y --------------------------------------------------------------------------------------- */

/* Of a row: the largest term that a z is made of, and the largest z. */
typedef struct magnitudes {
    real term, z;
} magnitudes;

/* z of every element, in the place of y. */
static magnitudes *weighted(reference *r, const inputs *in, const real *s, const real *mean,
                            const real *rstd) {
    const geometry *g = &r->geometry;
    magnitudes *rows = calloc((size_t)g->rows + 1, sizeof *rows);
    for (int64_t e = 0; e < g->elements; e++) {
        const int64_t row = g->row[e];
        const real w = weight_at(in, e), scaled = (s[e] - mean[row]) * rstd[row] * w;
        r->value[Y][e] = scaled + at(in, BIAS, e);
        raise_to(&rows[row].term, scaled);
        raise_to(&rows[row].term, at(in, BIAS, e));
        raise_to(&rows[row].z, r->value[Y][e]);
        if (r->is_double && g->cols > 1)
            raise_to(&rows[row].term, mean[row] * rstd[row] * w);
    }
    return rows;
}

/* What becomes of z, in the place of it, and the magnitude that the error is measured against. */
static void make_y(const inputs *in, int64_t e, const magnitudes *row, real *y, real *scale,
                   bool has_stages) {
    const planish_activation f = in->op->activation;
    const real by = 1 + at(in, SCALE, e), shift = at(in, SHIFT, e);
    if (!has_stages) {
        *y = activated(f, *y);
        /* What an error of z becomes in y, at most: no other slope is much more than 1. */
        *scale = fmaxl(row->term, row->z) * (f == PLANISH_HARDSWISH ? 1.5L : 1);
        return;
    }
    *y *= by;
    *scale = row->term * fabsl(by) + (fabsl(*y) + fabsl(shift)) / 4;
    *y = activated(f, *y + shift);
    if (f)
        *scale = 1.2L * *scale + fabsl(*y) / 2;
    if (gate_after(in)) {
        const real gate = silu(at(in, GATE, e));
        *y *= gate;
        *scale = *scale * fabsl(gate) + .75L * fabsl(*y);
    }
}

void reference_apply(reference *r, const inputs *in, const real *s, const real *mean,
                     const real *rstd) {
    const geometry *g = &r->geometry;
    free(r->value[Y]), free(r->scale[Y]);
    r->value[Y] = zeros(g->elements);
    r->scale[Y] = zeros(g->elements);
    magnitudes *rows = weighted(r, in, s, mean, rstd);
    for (int64_t e = 0; e < g->elements; e++) {
        make_y(in, e, &rows[g->row[e]], &r->value[Y][e], &r->scale[Y][e], r->has_stages);
        if (!r->exact_sum) /* a silu is in s */
            r->scale[Y][e] *= 3;
    }
    free(rows);
}
