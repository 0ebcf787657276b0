/* The backward of the stages around a norm, for rows in the compute type: a unit of kernels
 * (cpu/common/unit.h). Every element by itself, so that the bits are the same on every tier. */
#include "cpu/common/unit.h"
#include "cpu/stages/backward_kernels.h"

#include "cpu/common/epilogue.h"

/* A vector of a row, of which `left` elements are there; where the row is absent `otherwise`. */
INLINE VEC NAME(row_at)(const REAL *row, int64_t i, int64_t left, const bool part, REAL otherwise) {
    if (!row)
        return V(set1)(otherwise);
    return part ? LOAD_REAL_PART(row + i, (int)left) : LOAD_REAL(row + i);
}
INLINE void NAME(put)(REAL *row, int64_t i, int64_t left, const bool part, VEC v) {
    if (part)
        STORE_REAL_PART(row + i, v, (int)left);
    else
        STORE_REAL(row + i, v);
}

/* Runs TEXT for each vector at i, `part` being a constant there. */
#define EACH_VECTOR(cols, TEXT)                                                                    \
    {                                                                                              \
        int64_t i = 0;                                                                             \
        for (; i + VEC_LANES <= (cols); i += VEC_LANES)                                            \
            TEXT(i, VEC_LANES, false);                                                             \
        if (i < (cols))                                                                            \
            TEXT(i, (cols) - i, true);                                                             \
    }

/* f(z) and f'(z), of one exponential where that is what either takes. */
typedef struct NAME(slope) {
    VEC value, slope;
} NAME(slope);

INLINE NAME(slope) NAME(slope_at)(const planish_activation f, VEC z, const bool wants_value) {
    const VEC one = V(set1)(1);
    if (f == PLANISH_SILU) {
        const VEC near = NAME(limited)(z), e = NAME(exp_minus)(near);
        const VEC s = V(div)(one, V(add)(one, e));
        return (NAME(slope)){V(mul)(V(most)(V(set1)(-EXP(LIMIT)), z), s),
                             V(mul)(s, V(fma)(V(mul)(e, s), near, one))};
    }
    const NAME(epilogue) of = {f, one, V(set1)((REAL)-0.0)};
    return (NAME(slope)){wants_value ? NAME(activated)(f, z) : z, NAME(through)(of, one, z)};
}

/* ---- Behind the norm ------------------------------------------------------------------------- */

/* What the loop reads is local: a store could change what a pointer reaches. */
typedef struct NAME(behind) {
    const REAL *s, *dy, *weight, *bias, *scale, *shift, *addend, *gate, *y;
    REAL *dz, *dgate, *daddend, *dscale, *dshift;
    NAME(normalizer) norm;
    VEC offset, least;
    bool rms;
} NAME(behind);

INLINE void NAME(behind_vector)(NAME(behind) b, int64_t i, int64_t left, const bool part,
                                const planish_activation f, const bool gated) {
    const VEC one = V(set1)(1);
    const VEC xhat = NAME(normalize)(NAME(row_at)(b.s, i, left, part, 0), b.norm, b.rms);
    const VEC weight = b.weight ? V(add)(NAME(row_at)(b.weight, i, left, part, 0), b.offset) : one;
    const VEC z = V(fma)(xhat, weight, NAME(row_at)(b.bias, i, left, part, (REAL)-0.0));
    const VEC factor = b.scale ? V(add)(one, NAME(row_at)(b.scale, i, left, part, 0)) : one;
    const VEC m = V(fma)(z, factor, NAME(row_at)(b.shift, i, left, part, (REAL)-0.0));
    const VEC a = b.addend ? V(add)(m, NAME(row_at)(b.addend, i, left, part, 0)) : m;
    VEC d = NAME(row_at)(b.dy, i, left, part, 0);
    const NAME(slope) v = f == PLANISH_IDENTITY || f == PLANISH_RELU
                              ? (NAME(slope)){NAME(activated)(f, a), one}
                              : NAME(slope_at)(f, a, gated && b.dgate);
    if (gated) {
        const NAME(slope) gate =
            NAME(slope_at)(PLANISH_SILU, NAME(row_at)(b.gate, i, left, part, 0), true);
        if (b.dgate)
            NAME(put)(b.dgate, i, left, part, V(mul)(V(mul)(d, v.value), gate.slope));
        d = V(mul)(d, gate.value);
    }
    if (b.y)
        d = V(drop)(d, NAME(row_at)(b.y, i, left, part, 0), V(set1)(0));
    else if (f == PLANISH_RELU)
        d = V(drop)(d, a, b.least);
    else if (f != PLANISH_IDENTITY)
        d = V(mul)(d, v.slope);
    if (b.daddend)
        NAME(put)(b.daddend, i, left, part, d);
    if (b.dscale)
        NAME(put)(b.dscale, i, left, part, V(fma)(d, z, NAME(row_at)(b.dscale, i, left, part, 0)));
    if (b.dshift)
        NAME(put)(b.dshift, i, left, part, V(add)(d, NAME(row_at)(b.dshift, i, left, part, 0)));
    if (b.dz)
        NAME(put)(b.dz, i, left, part, b.scale ? V(mul)(d, factor) : d);
}

/* With the activation and the gate constants, where that was worth a text. */
INLINE void NAME(behind_as)(const behind_args *a, const planish_activation f, const bool gated) {
    const NAME(behind) b = {
        .s = a->s,
        .dy = a->dy,
        .weight = a->weight,
        .bias = a->bias,
        .scale = a->scale,
        .shift = a->shift,
        .addend = a->addend,
        .gate = a->gate,
        .y = a->y,
        .least = V(set1)((REAL)a->least),
        .dz = a->dz,
        .dgate = a->dgate,
        .daddend = a->daddend,
        .dscale = a->dscale,
        .dshift = a->dshift,
        .norm = {V(set1)((REAL)a->mean), V(set1)((REAL)a->rstd), V(set1)((REAL)a->minus_delta)},
        .offset = V(set1)((REAL)a->weight_offset),
        .rms = a->rms,
    };
    const int64_t cols = a->cols;
#define BEHIND(i, left, part) NAME(behind_vector)(b, i, left, part, f, gated)
    EACH_VECTOR(cols, BEHIND)
}

static void NAME(behind_row)(const behind_args *a) {
    const planish_activation f = a->activation;
    if (a->gate)
        f ? NAME(behind_as)(a, f, true) : NAME(behind_as)(a, PLANISH_IDENTITY, true);
    else
        f ? NAME(behind_as)(a, f, false) : NAME(behind_as)(a, PLANISH_IDENTITY, false);
}

/* ---- Before it ------------------------------------------------------------------------------- */

/* The typed rows of factor_rows. */
typedef struct NAME(factors) {
    const REAL *gate, *column, *keep;
    bool has_row_scale;
    VEC row_scale;
} NAME(factors);

INLINE NAME(factors) NAME(factors_of)(const factor_rows *by) {
    return (NAME(factors)){by->gate, by->column, by->keep, by->has_row_scale,
                           V(set1)((REAL)by->row_scale)};
}

/* v times row_scale and keep. */
INLINE VEC NAME(by_row)(NAME(factors) by, VEC v, int64_t i, int64_t left, const bool part) {
    if (by.has_row_scale)
        v = V(mul)(v, by.row_scale);
    if (by.keep) {
        const VEC keep = NAME(row_at)(by.keep, i, left, part, 0);
        v = V(drop)(V(mul)(v, keep), keep, V(set1)(0));
    }
    return v;
}
INLINE VEC NAME(by_column)(NAME(factors) by, VEC v, int64_t i, int64_t left, const bool part) {
    return by.column ? V(mul)(v, NAME(row_at)(by.column, i, left, part, 0)) : v;
}
typedef struct NAME(gradient_rows) {
    const REAL *dsum, *x, *branch;
    REAL *ds, *dx, *dgate, *dcolumn;
} NAME(gradient_rows);

INLINE void NAME(before_vector)(NAME(gradient_rows) r, NAME(factors) by, int64_t i, int64_t left,
                                const bool part) {
    VEC ds = NAME(row_at)(r.ds, i, left, part, 0);
    if (r.dsum) {
        ds = V(add)(ds, NAME(row_at)(r.dsum, i, left, part, 0));
        NAME(put)(r.ds, i, left, part, ds);
    }
    const VEC one = V(set1)(1);
    const NAME(slope) gate =
        by.gate ? NAME(slope_at)(PLANISH_SILU, NAME(row_at)(by.gate, i, left, part, 0), true)
                : (NAME(slope)){one, one};
    if (r.dcolumn) {
        VEC u = NAME(row_at)(r.branch, i, left, part, 0);
        u = NAME(by_row)(by, by.gate ? V(mul)(u, gate.value) : u, i, left, part);
        NAME(put)(r.dcolumn, i, left, part,
                  V(fma)(ds, u, NAME(row_at)(r.dcolumn, i, left, part, 0)));
    }
    /* Either may lie over what the other is made of. */
    VEC dx = NAME(by_column)(by, by.gate ? V(mul)(ds, gate.value) : ds, i, left, part);
    dx = NAME(by_row)(by, dx, i, left, part);
    if (r.dgate) {
        const VEC x = NAME(row_at)(r.x, i, left, part, 0);
        const VEC d = NAME(by_column)(by, V(mul)(V(mul)(ds, x), gate.slope), i, left, part);
        NAME(put)(r.dgate, i, left, part, NAME(by_row)(by, d, i, left, part));
    }
    if (r.dx)
        NAME(put)(r.dx, i, left, part, dx);
}

static void NAME(before_row)(const before_args *a) {
    const NAME(gradient_rows) r = {a->dsum, a->x, a->branch, a->ds, a->dx, a->dgate, a->dcolumn};
    const NAME(factors) by = NAME(factors_of)(&a->by);
    const int64_t cols = a->cols;
#define GRADIENT(i, left, part) NAME(before_vector)(r, by, i, left, part)
    EACH_VECTOR(cols, GRADIENT)
}

/* ---- The norm itself, by given sums --------------------------------------------------------- */

static void NAME(given_row)(const given_args *a) {
    const REAL *const s = a->s, *const dz = a->dz, *const weights = a->weight;
    REAL *const ds = a->ds, *const dweight = a->dweight, *const dbias = a->dbias;
    const NAME(normalizer)
        norm = {V(set1)((REAL)a->mean), V(set1)((REAL)a->rstd), V(set1)((REAL)a->minus_delta)};
    const VEC offset = V(set1)((REAL)a->weight_offset), one = V(set1)(1);
    const VEC ds_rstd = V(set1)((REAL)a->ds_rstd), c1 = V(set1)((REAL)a->c1);
    const VEC minus_c2 = V(set1)((REAL)-a->c2);
    const int64_t cols = a->cols;
    const bool rms = a->rms, fixed = a->c1 == 0 && a->c2 == 0;
#define GIVEN(i, left, part)                                                                       \
    do {                                                                                           \
        const VEC d = NAME(row_at)(dz, i, left, part, 0);                                          \
        const VEC xhat = NAME(normalize)(NAME(row_at)(s, i, left, part, 0), norm, rms);            \
        const VEC w = weights ? V(add)(NAME(row_at)(weights, i, left, part, 0), offset) : one;     \
        VEC g = V(mul)(d, w);                                                                      \
        if (!fixed)                                                                                \
            g = V(fma)(xhat, minus_c2, V(sub)(g, c1));                                             \
        if (dweight)                                                                               \
            NAME(put)(dweight, i, left, part,                                                      \
                      V(fma)(d, xhat, NAME(row_at)(dweight, i, left, part, 0)));                   \
        if (dbias)                                                                                 \
            NAME(put)(dbias, i, left, part, V(add)(d, NAME(row_at)(dbias, i, left, part, 0)));     \
        if (ds)                                                                                    \
            NAME(put)(ds, i, left, part, V(mul)(g, ds_rstd));                                      \
    } while (0)
    EACH_VECTOR(cols, GIVEN)
}

/* As the row kernels sum: lanes that are the same however wide a vector is, chains of CHAIN
 * elements in each, and these in f64. */
static double NAME(distance)(const void *s, int64_t cols, double mean) {
    enum { PARTS = LANES / VEC_LANES };
    const REAL *const row = s, center = (REAL)mean;
    const VEC centers = V(set1)(center);
    double total[LANES] = {0};
    REAL chain[LANES];
    int64_t i = 0;
    while (i + LANES <= cols) {
        VEC sum[PARTS];
        for (int k = 0; k < PARTS; k++)
            sum[k] = V(set1)(0);
        for (int link = 0; link < CHAIN && i + LANES <= cols; link++, i += LANES)
            UNROLL for (int k = 0; k < PARTS; k++) sum[k] =
                V(add)(sum[k], V(sub)(LOAD_REAL(row + i + k * VEC_LANES), centers));
        UNROLL for (int k = 0; k < PARTS; k++) STORE_REAL(chain + k * VEC_LANES, sum[k]);
        for (int k = 0; k < LANES; k++)
            total[k] += (double)chain[k];
    }
    for (int k = 0; i < cols; i++, k++)
        total[k] += (double)(row[i] - center);
    for (int half = LANES / 2; half; half /= 2)
        for (int k = 0; k < half; k++)
            total[k] += total[k + half];
    return total[0];
}

DECLARE_REAL(ELEMENT, TIER)
const stages_backward_kernels EXPORT(stages_backward) = {
    .behind = NAME(behind_row),
    .before = NAME(before_row),
    .given = NAME(given_row),
    .distance = NAME(distance),
};
