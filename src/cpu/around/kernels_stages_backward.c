/* The backward of the stages around a norm, for rows in the compute type: a unit of kernels
 * (cpu/common/unit.h). Every element by itself, so that the bits are the same on every tier. */
#include "cpu/around/backward_kernels.h"
#include "cpu/common/unit.h"

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

/* silu(gate), and d * silu'(gate). */
INLINE VEC NAME(silu)(VEC gate) {
    return NAME(activated)(PLANISH_SILU, gate);
}
INLINE VEC NAME(through_silu)(VEC d, VEC gate) {
    const NAME(epilogue) of = {PLANISH_SILU, V(set1)(1), V(set1)((REAL)-0.0)};
    return NAME(through)(of, d, gate);
}

/* ---- Behind the norm --------------------------------------------------------------------------
 */

/* What the loop reads is local: a store could change what a pointer reaches. */
typedef struct NAME(behind) {
    const REAL *s, *dy, *weight, *bias, *scale, *shift, *gate;
    REAL *dz, *dgate, *dscale, *dshift;
    NAME(scale) norm;
    VEC offset;
    bool rms;
    planish_activation f;
} NAME(behind);

INLINE void NAME(behind_vector)(NAME(behind) b, int64_t i, int64_t left, const bool part) {
    const VEC one = V(set1)(1);
    const VEC xhat = NAME(normalize)(NAME(row_at)(b.s, i, left, part, 0), b.norm, b.rms);
    const VEC weight = b.weight ? V(add)(NAME(row_at)(b.weight, i, left, part, 0), b.offset) : one;
    const VEC z = V(fma)(xhat, weight, NAME(row_at)(b.bias, i, left, part, (REAL)-0.0));
    const VEC factor = b.scale ? V(add)(one, NAME(row_at)(b.scale, i, left, part, 0)) : one;
    const VEC m = V(fma)(z, factor, NAME(row_at)(b.shift, i, left, part, (REAL)-0.0));
    VEC d = NAME(row_at)(b.dy, i, left, part, 0);
    if (b.gate) {
        const VEC gate = NAME(row_at)(b.gate, i, left, part, 0);
        if (b.dgate)
            NAME(put)(b.dgate, i, left, part,
                      NAME(through_silu)(V(mul)(d, NAME(activated)(b.f, m)), gate));
        d = V(mul)(d, NAME(silu)(gate));
    }
    if (b.f != PLANISH_IDENTITY)
        d = NAME(through)((NAME(epilogue)){b.f, one, V(set1)((REAL)-0.0)}, d, m);
    if (b.dscale)
        NAME(put)(b.dscale, i, left, part, V(fma)(d, z, NAME(row_at)(b.dscale, i, left, part, 0)));
    if (b.dshift)
        NAME(put)(b.dshift, i, left, part, V(add)(d, NAME(row_at)(b.dshift, i, left, part, 0)));
    if (b.dz)
        NAME(put)(b.dz, i, left, part, b.scale ? V(mul)(d, factor) : d);
}

static void NAME(behind_row)(const behind_args *a) {
    const NAME(behind) b = {
        .s = a->s,
        .dy = a->dy,
        .weight = a->weight,
        .bias = a->bias,
        .scale = a->scale,
        .shift = a->shift,
        .gate = a->gate,
        .dz = a->dz,
        .dgate = a->dgate,
        .dscale = a->dscale,
        .dshift = a->dshift,
        .norm = {V(set1)((REAL)a->mean), V(set1)((REAL)a->rstd), V(set1)((REAL)a->rest)},
        .offset = V(set1)((REAL)a->weight_offset),
        .rms = a->rms,
        .f = a->activation,
    };
    const int64_t cols = a->cols;
#define BEHIND(i, left, part) NAME(behind_vector)(b, i, left, part)
    EACH_VECTOR(cols, BEHIND)
}

/* ---- Before it --------------------------------------------------------------------------------
 */

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
INLINE VEC NAME(by_gate)(NAME(factors) by, VEC v, int64_t i, int64_t left, const bool part) {
    return by.gate ? V(mul)(v, NAME(silu)(NAME(row_at)(by.gate, i, left, part, 0))) : v;
}
INLINE VEC NAME(by_all)(NAME(factors) by, VEC v, int64_t i, int64_t left, const bool part) {
    v = NAME(by_column)(by, NAME(by_gate)(by, v, i, left, part), i, left, part);
    return NAME(by_row)(by, v, i, left, part);
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
    if (r.dcolumn) {
        const VEC branch = NAME(row_at)(r.branch, i, left, part, 0);
        const VEC u = NAME(by_row)(by, NAME(by_gate)(by, branch, i, left, part), i, left, part);
        NAME(put)(r.dcolumn, i, left, part,
                  V(fma)(ds, u, NAME(row_at)(r.dcolumn, i, left, part, 0)));
    }
    /* Either may lie over what the other is made of. */
    const VEC dx = NAME(by_all)(by, ds, i, left, part);
    if (r.dgate) {
        const VEC x = NAME(row_at)(r.x, i, left, part, 0);
        const VEC gate = NAME(row_at)(by.gate, i, left, part, 0);
        const VEC d = NAME(through_silu)(V(mul)(ds, x), gate);
        NAME(put)(r.dgate, i, left, part,
                  NAME(by_row)(by, NAME(by_column)(by, d, i, left, part), i, left, part));
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

/* In chains of their own, so that the order is the same however wide a vector is. */
static double NAME(distance)(const void *s, int64_t cols, double mean) {
    enum { CHAINS = 16 };
    const REAL *const row = s;
    double sum[CHAINS] = {0};
    int64_t i = 0;
    for (; i + CHAINS <= cols; i += CHAINS)
        for (int k = 0; k < CHAINS; k++)
            sum[k] += (double)row[i + k] - mean;
    for (int k = 0; i < cols; i++, k++)
        sum[k] += (double)row[i] - mean;
    for (int half = CHAINS / 2; half; half /= 2)
        for (int k = 0; k < half; k++)
            sum[k] += sum[k + half];
    return sum[0];
}

DECLARE_REAL(ELEMENT, TIER)
const stages_backward_kernels EXPORT(stages_backward) = {
    .behind = NAME(behind_row),
    .before = NAME(before_row),
    .distance = NAME(distance),
};
