/* The sums that a row's gradient is made of; part of cpu/rows/rows.h, whose parameters and helpers
 * it uses. */
#include "cpu/common/saved_mean.h"

/* How far from its row's a saved mean may be; RMSNorm has none. */
INLINE mean_reach NAME(reach_of)(const backward_args *a, bool rms) {
    return mean_reach_of(rms || a->x_is_xhat ? DTYPE_OF(REAL_TOKEN) : a->mean.type,
                         DTYPE_OF(REAL_TOKEN) == DTYPE_F64);
}

/* What a row's gradient is made of: xhat = (x - mean) * xhat_rstd + minus_delta and
 * dx = (dy * weight - c1 - xhat * c2) * rstd. xhat_rstd is rstd, or 1 where x is xhat. */
typedef struct NAME(row_gradient) {
    REAL mean, xhat_rstd, minus_delta, rstd, c1, minus_c2;
} NAME(row_gradient);

INLINE VEC NAME(xhat_of)(VEC x, NAME(row_gradient) row, const bool rms) {
    const NAME(normalizer)
        s = {V(set1)(row.mean), V(set1)(row.xhat_rstd), V(set1)(row.minus_delta)};
    return NAME(normalize)(x, s, rms);
}

/* dx of one element vector, from dy, weight and xhat. */
INLINE VEC NAME(gradient_of)(VEC dy, VEC weight, VEC xhat, NAME(row_gradient) row, const bool rms) {
    VEC g = V(mul)(dy, weight);
    if (!rms)
        g = V(sub)(g, V(set1)(row.c1));
    return V(mul)(V(fma)(xhat, V(set1)(row.minus_c2), g), V(set1)(row.rstd));
}

/* The sums over a row of xhat, g = dy * weight and g * xhat, with xhat by the saved mean; where an
 * activation follows, of the gradient of what goes into it, in place of dy. */
typedef struct NAME(gradient_sums) {
    NAME(lanes) xhat, g, gxhat;
} NAME(gradient_sums);

INLINE void NAME(add_gradient_sums)(NAME(gradient_sums) * sums, int k, VEC x, VEC dy, VEC weight,
                                    NAME(row_gradient) row, const bool rms, int64_t left,
                                    const NAME(epilogue) * of, REAL *kept) {
    if (of)
        dy = NAME(through)(*of, dy, NAME(xhat_of)(x, row, rms));
    if (of && kept)
        STORE_REAL(kept, dy);
    const VEC g = V(mul)(dy, weight);
    VEC xhat = V(mul)(rms ? x : V(sub)(x, V(set1)(row.mean)), V(set1)(row.xhat_rstd));
    if (!rms) {
        sums->xhat.part[k] = V(add)(sums->xhat.part[k], NAME(keep)(xhat, left));
        sums->g.part[k] = V(add)(sums->g.part[k], g);
    }
    sums->gxhat.part[k] = V(fma)(g, xhat, sums->gxhat.part[k]);
}

/* Those of one chain in every lane. What an activation's gradient is made to be is kept, in the
 * order of the vectors. */
INLINE NAME(gradient_sums)
    NAME(chain_gradient_sums)(const backward_args *a, const ELEMENT_T *x, const ELEMENT_T *dy,
                              const WEIGHT_T *weight, int64_t n, NAME(row_gradient) row,
                              const bool rms, const bool is_short, const NAME(epilogue) * of,
                              REAL *kept) {
    const VEC offset = V(set1)((REAL)a->weight_offset);
    NAME(gradient_sums) sums = {NAME(lanes_zero)(), NAME(lanes_zero)(), NAME(lanes_zero)()};
    VEC w = V(set1)(1);
    int64_t i = 0;
    for (; !is_short && i + LANES <= n; i += LANES) {
        const NAME(lanes) xs = NAME(load_lanes)(x + i), dys = NAME(load_lanes)(dy + i);
        NAME(lanes) ws;
        if (weight)
            ws = NAME(load_weight_lanes)(weight + i);
        UNROLL for (int k = 0; k < NAME(PARTS); k++) {
            if (weight)
                w = V(add)(ws.part[k], offset);
            NAME(add_gradient_sums)(&sums, k, xs.part[k], dys.part[k], w, row, rms, VEC_LANES, of,
                                    kept ? kept + i + k * VEC_LANES : NULL);
        }
    }
    NAME(lanes_in_order)(&sums.xhat);
    NAME(lanes_in_order)(&sums.g);
    NAME(lanes_in_order)(&sums.gxhat);
    UNROLL for (int k = 0; k < NAME(PARTS) && i < n; k++, i += VEC_LANES) {
        if (weight)
            w = V(add)(NAME(load_weight)(weight + i, n - i), offset);
        NAME(add_gradient_sums)(&sums, k, NAME(load_x)(x + i, n - i), NAME(load_x)(dy + i, n - i),
                                w, row, rms, n - i, of, kept ? kept + i : NULL);
    }
    return sums;
}

/* The sums of a row that is one chain. */
INLINE void NAME(gradient_sums_as)(const backward_args *a, const ELEMENT_T *x, const ELEMENT_T *dy,
                                   const WEIGHT_T *weight, int64_t n, NAME(row_gradient) row,
                                   const bool rms, const bool is_short, VEC *xhat, VEC *g,
                                   VEC *gxhat) {
    const NAME(gradient_sums) sums =
        NAME(chain_gradient_sums)(a, x, dy, weight, n, row, rms, is_short, NULL, NULL);
    *xhat = NAME(lanes_fold)(sums.xhat);
    *g = NAME(lanes_fold)(sums.g);
    *gxhat = NAME(lanes_fold)(sums.gxhat);
}

/*
 * Finishes the constants of one row from its sums. These stay in registers: where something wider
 * than a store is read back from it, a CPU waits until all that was stored before is in the cache,
 * and that is dx of the rows before, whose lines may come from afar.
 */
INLINE bool NAME(constants_of_one)(const backward_args *a, int64_t row, VEC xhat, VEC g, VEC gxhat,
                                   const bool rms, NAME(row_gradient) * of) {
    const double inverse = a->rule.inverse;
    const mean_reach reach = NAME(reach_of)(a, rms);
    const VEC zero = V(set1)(0);
    double delta = 0;
    REAL sums[TOGETHER];
    V(fold4)(rms ? zero : xhat, rms ? zero : g, gxhat, zero, sums);
    if (!rms && !a->x_is_xhat)
        delta = rest_of_mean(&reach, &a->mean, row, (double)sums[0] * inverse, of->mean, of->rstd);
    const double c1 = (double)sums[1] * inverse;
    const double c2 = rule_c2(&a->rule, (double)sums[2] * inverse - c1 * delta, of->rstd);
    of->minus_delta = (REAL)-delta;
    of->c1 = (REAL)c1;
    of->minus_c2 = (REAL)-c2;
    return (fabs(delta) < BIG) & (fabs(c1) < BIG) & (fabs(c2) < BIG);
}

/* Prefetches a chain's x and dy `ahead` rows on; 0: nothing. */
INLINE void NAME(prefetch_chains)(const backward_args *a, const ELEMENT_T *x, const ELEMENT_T *dy,
                                  int64_t ahead, int64_t n) {
    NAME(prefetch_chain)(x, ahead * a->x_pitch, n);
    NAME(prefetch_chain)(dy, ahead * a->dy_pitch, n);
}

/* And of a segment: its chains, added in order. What lies `ahead` rows on is prefetched. */
INLINE void NAME(segment_gradient_sums)(const backward_args *a, const ELEMENT_T *x,
                                        const ELEMENT_T *dy, const WEIGHT_T *weight, int64_t n,
                                        NAME(row_gradient) row, const bool rms,
                                        const NAME(epilogue) * of, REAL *kept, int64_t ahead,
                                        VEC *xhat, VEC *g, VEC *gxhat) {
    NAME(prefetch_chains)(a, x, dy, ahead, NAME(min)(n, NAME(CHAINED)));
    NAME(gradient_sums)
    total = NAME(chain_gradient_sums)(a, x, dy, weight, NAME(min)(n, NAME(CHAINED)), row, rms,
                                      false, of, kept);
    for (int64_t at = NAME(CHAINED); at < n; at += NAME(CHAINED)) {
        const int64_t length = NAME(min)(n - at, NAME(CHAINED));
        NAME(prefetch_chains)(a, x + at, dy + at, ahead, length);
        const NAME(gradient_sums) sums =
            NAME(chain_gradient_sums)(a, x + at, dy + at, weight ? weight + at : NULL, length, row,
                                      rms, false, of, kept ? kept + at : NULL);
        NAME(lanes_add)(&total.gxhat, sums.gxhat);
        if (rms)
            continue;
        NAME(lanes_add)(&total.xhat, sums.xhat);
        NAME(lanes_add)(&total.g, sums.g);
    }
    *xhat = NAME(lanes_fold)(total.xhat);
    *g = NAME(lanes_fold)(total.g);
    *gxhat = NAME(lanes_fold)(total.gxhat);
}

OUTLINE void NAME(row_gradient_sums)(const backward_args *a, const ELEMENT_T *x,
                                     const ELEMENT_T *dy, const WEIGHT_T *weight, int64_t n,
                                     NAME(row_gradient) row, bool rms, int64_t ahead, VEC *xhat,
                                     VEC *g, VEC *gxhat) {
    if (rms)
        NAME(segment_gradient_sums)(a, x, dy, weight, n, row, true, NULL, NULL, ahead, xhat, g,
                                    gxhat);
    else
        NAME(segment_gradient_sums)(a, x, dy, weight, n, row, false, NULL, NULL, ahead, xhat, g,
                                    gxhat);
}

INLINE void NAME(fold_gradient_sums)(VEC sums[3][TOGETHER], int count, bool rms,
                                     double total[3][TOGETHER]) {
    REAL folded[3][TOGETHER];
    for (int s = rms ? 2 : 0; s < 3; s++)
        NAME(fold_rows)(sums[s], count, folded[s]);
    for (int s = rms ? 2 : 0; s < 3; s++)
        for (int r = 0; r < TOGETHER; r++)
            total[s][r] = folded[s][r];
}

/* Adds the segments after the first. */
OUTLINE void NAME(add_segments)(const backward_args *a, const ELEMENT_T *const x[],
                                const ELEMENT_T *const dy[], int count, bool rms, int64_t ahead,
                                const NAME(row_gradient) row[], double total[3][TOGETHER]) {
    double rest[3][TOGETHER] = {{0}}, segment[3][TOGETHER] = {{0}};
    for (int64_t at = NAME(SEGMENT); at < a->cols; at += NAME(SEGMENT)) {
        const int64_t n = NAME(min)(a->cols - at, NAME(SEGMENT));
        const WEIGHT_T *weight = a->weight ? (const WEIGHT_T *)a->weight + at : NULL;
        VEC sums[3][TOGETHER];
        for (int r = 0; r < count; r++)
            NAME(row_gradient_sums)(a, x[r] + at, dy[r] + at, weight, n, row[r], rms, ahead,
                                    &sums[0][r], &sums[1][r], &sums[2][r]);
        NAME(fold_gradient_sums)(sums, count, rms, segment);
        for (int s = 0; s < 3; s++)
            for (int r = 0; r < TOGETHER; r++)
                exact_add(&total[s][r], &rest[s][r], segment[s][r]);
    }
    for (int s = 0; s < 3; s++)
        for (int r = 0; r < TOGETHER; r++)
            total[s][r] += rest[s][r];
}

/* The sums of xhat, g and g * xhat of up to TOGETHER rows; with RMSNorm the last alone. */
INLINE void NAME(gradient_totals)(const backward_args *a, const ELEMENT_T *const x[],
                                  const ELEMENT_T *const dy[], int count, bool rms,
                                  const NAME(row_gradient) row[], double total[3][TOGETHER]) {
    const int64_t n = NAME(min)(a->cols, NAME(SEGMENT));
    /* Rows that are alone, or wait for their conversions, have no use for it. */
    const int64_t ahead = a->hints->prefetch_sums && count > 1 && !NAME(CONVERTS) ? count : 0;
    VEC sums[3][TOGETHER];
    for (int r = 0; r < count; r++)
        if (n < LANES && !rms)
            NAME(gradient_sums_as)(a, x[r], dy[r], a->weight, n, row[r], false, true, &sums[0][r],
                                   &sums[1][r], &sums[2][r]);
        else
            NAME(row_gradient_sums)(a, x[r], dy[r], a->weight, n, row[r], rms, ahead, &sums[0][r],
                                    &sums[1][r], &sums[2][r]);
    NAME(fold_gradient_sums)(sums, count, rms, total);
    if (a->cols > NAME(SEGMENT))
        NAME(add_segments)(a, x, dy, count, rms, ahead, row, total);
}
