/*
 * Backward of rows of a few hundred bytes; part of cpu/rows/rows.h, and to rows_backward.h what
 * rows_step.h is to rows_forward.h: the rows of a step are taken through their sums and constants
 * together, and weight, dweight and dbias are loaded once for all of them. For gradients of
 * everything there is; others are left to rows_backward.h.
 */

/* What the gradients of a step's rows are made of, as row_gradient for each of them. */
typedef struct NAME(row_gradients) {
    REAL mean[SHORT_ROWS], xhat_rstd[SHORT_ROWS], minus_delta[SHORT_ROWS], rstd[SHORT_ROWS],
        c1[SHORT_ROWS], minus_c2[SHORT_ROWS];
} NAME(row_gradients);

INLINE NAME(row_gradient) NAME(gradient_at)(const NAME(row_gradients) * rows, int r) {
    return (NAME(row_gradient)){rows->mean[r], rows->xhat_rstd[r], rows->minus_delta[r],
                                rows->rstd[r], rows->c1[r],        rows->minus_c2[r]};
}

/* The saved statistics of a step's rows. */
INLINE void NAME(saved_of)(const backward_args *a, int64_t first, const int count, const bool rms,
                           NAME(row_gradients) * rows) {
    double mean[SHORT_ROWS] = {0}, rstd[SHORT_ROWS];
    stat_load_rows(&a->rstd, first, count, rstd);
    if (!rms && !a->x_is_xhat)
        stat_load_rows(&a->mean, first, count, mean);
    for (int r = 0; r < count; r++) {
        rows->mean[r] = (REAL)mean[r];
        rows->rstd[r] = (REAL)rstd[r];
        rows->xhat_rstd[r] = a->x_is_xhat ? 1 : (REAL)rstd[r];
    }
}

/* `mended` of TOGETHER rows: the same arithmetic. */
INLINE void NAME(mend)(const mean_reach *reach, rows_f64 *delta, const REAL means[],
                       const REAL rstds[]) {
    const rows_f64 minus_zero = {-0.0, -0.0, -0.0, -0.0};
    const rows_mask magnitude = ~(rows_mask)minus_zero;
    NAME(rows_real) mean, rstd;
    memcpy(&mean, means, sizeof mean);
    memcpy(&rstd, rstds, sizeof rstd);
    const rows_f64 size =
        (rows_f64)((rows_mask) __builtin_convertvector(mean, rows_f64) & magnitude);
    const rows_f64 most =
        (size + reach->least) * reach->ulps * __builtin_convertvector(rstd, rows_f64);
    const rows_mask beyond = (rows_f64)((rows_mask)*delta & magnitude) > most;
    *delta = (rows_f64)((rows_mask)*delta & ~beyond);
}

/* The constants of TOGETHER rows of a step that begins with row `first`, from row r of it on, from
 * their sums. False where one left the range. */
INLINE bool NAME(constants_of)(const backward_args *a, int64_t first, const mean_reach *reach,
                               const REAL xhat[], const REAL g[], const REAL gxhat[], int r,
                               const bool rms, NAME(row_gradients) * rows) {
    const double inverse = a->rule.inverse, inverse_delta = a->x_is_xhat ? 0 : inverse;
    NAME(rows_real) sum_xhat, sum_g, sum_gxhat;
    memcpy(&sum_xhat, xhat + r, sizeof sum_xhat);
    memcpy(&sum_g, g + r, sizeof sum_g);
    memcpy(&sum_gxhat, gxhat + r, sizeof sum_gxhat);
    rows_f64 delta = __builtin_convertvector(sum_xhat, rows_f64) * inverse_delta;
    if (__builtin_expect(reach->is_exact, 0))
        for (int i = 0; i < TOGETHER; i++)
            delta[i] = rest_of_mean(reach, &a->mean, first + r + i, delta[i], rows->mean[r + i],
                                    rows->rstd[r + i]);
    else if (!rms)
        NAME(mend)(reach, &delta, rows->mean + r, rows->rstd + r);
    const rows_f64 c1 = __builtin_convertvector(sum_g, rows_f64) * inverse;
    rows_f64 c2 = __builtin_convertvector(sum_gxhat, rows_f64) * inverse - c1 * delta;
    NAME(rows_real) rstd;
    memcpy(&rstd, rows->rstd + r, sizeof rstd);
    const rows_mask clamped = __builtin_convertvector(rstd, rows_f64) >= a->rule.clamped;
    c2 = (rows_f64)((rows_mask)c2 & ~clamped);
    const NAME(rows_real) minus_delta = __builtin_convertvector(-delta, NAME(rows_real));
    const NAME(rows_real) mean_g = __builtin_convertvector(c1, NAME(rows_real));
    const NAME(rows_real) minus_c2 = __builtin_convertvector(-c2, NAME(rows_real));
    memcpy(rows->minus_delta + r, &minus_delta, sizeof minus_delta);
    memcpy(rows->c1 + r, &mean_g, sizeof mean_g);
    memcpy(rows->minus_c2 + r, &minus_c2, sizeof minus_c2);
    const rows_mask in_range =
        (delta < BIG) & (delta > -BIG) & (c1 < BIG) & (c1 > -BIG) & (c2 < BIG) & (c2 > -BIG);
    return group_all(&in_range);
}

/* Finishes the constants of a step's rows, `first` and those behind it, from their sums. False
 * where one left the range. */
INLINE bool NAME(finish_constants)(const backward_args *a, int64_t first, const REAL xhat[],
                                   const REAL g[], const REAL gxhat[], const int count,
                                   const bool rms, NAME(row_gradients) * rows) {
    const mean_reach reach = NAME(reach_of)(a, rms);
    bool in_range = true;
    for (int r = 0; r < count; r += TOGETHER)
        in_range &= NAME(constants_of)(a, first, &reach, xhat, g, gxhat, r, rms, rows);
    return in_range;
}

/* The same from the rows; the lines of dx are prefetched between. */
INLINE bool NAME(step_constants)(const backward_args *a, int64_t first, const ELEMENT_T *const x[],
                                 const ELEMENT_T *const dy[], ELEMENT_T *const dx[],
                                 const int count, const bool rms, bool prefetches_dx,
                                 NAME(row_gradients) * rows) {
    VEC sums[3][STEP_ROWS];
    REAL xhat[STEP_ROWS] = {0}, g[STEP_ROWS] = {0}, gxhat[STEP_ROWS];
    for (int r = 0; r < count; r++) {
        NAME(gradient_sums_as)(a, x[r], dy[r], a->weight, a->cols, NAME(gradient_at)(rows, r), rms,
                               false, &sums[0][r], &sums[1][r], &sums[2][r]);
        NAME(prefetch_row)(dx[r], 0, a->cols, prefetches_dx, 1);
    }
    if (!rms) {
        NAME(fold_step)(sums[0], count, xhat);
        NAME(fold_step)(sums[1], count, g);
    }
    NAME(fold_step)(sums[2], count, gxhat);
    return NAME(finish_constants)(a, first, xhat, g, gxhat, count, rms, rows);
}

INLINE VEC NAME(load_real)(const REAL *p, int64_t left) {
    return left >= VEC_LANES ? LOAD_REAL(p) : LOAD_REAL_PART(p, (int)left);
}
INLINE void NAME(store_real)(REAL *p, VEC v, int64_t left) {
    if (left >= VEC_LANES)
        STORE_REAL(p, v);
    else
        STORE_REAL_PART(p, v, (int)left);
}

/* `vecs` vectors of every row, from element i on; the last has `last` elements. dsum is added to
 * dx, where that is not a constant NULL. What lies `ahead` rows on is prefetched; 0: nothing. */
INLINE void NAME(step_gradient)(const backward_args *a, const ELEMENT_T *const x[],
                                const ELEMENT_T *const dy[], const ELEMENT_T *const dsum[],
                                ELEMENT_T *const dx[], const int count, int64_t i, const int vecs,
                                int last, const bool rms, const NAME(row_gradients) * rows,
                                int64_t ahead, const traffic t) {
    const WEIGHT_T *const weights = (const WEIGHT_T *)a->weight + i;
    REAL *const dweights = (REAL *)a->dweight + i, *const dbiases =
                                                       rms ? NULL : (REAL *)a->dbias + i;
    const VEC offset = V(set1)((REAL)a->weight_offset);
    VEC weight[NAME(PARTS)], dweight[NAME(PARTS)], dbias[NAME(PARTS)];
    UNROLL for (int k = 0; k < vecs; k++) {
        const int left = NAME(short_left)(k, vecs, last), at = k * VEC_LANES;
        weight[k] = V(add)(NAME(load_weight)(weights + at, left), offset);
        dweight[k] = NAME(load_real)(dweights + at, left);
        if (!rms)
            dbias[k] = NAME(load_real)(dbiases + at, left);
    }
    for (int r = 0; r < count; r++) {
        const NAME(row_gradient) row = NAME(gradient_at)(rows, r);
        UNROLL for (int k = 0; k < vecs; k++) {
            const int left = NAME(short_left)(k, vecs, last);
            const int64_t at = i + k * VEC_LANES;
            const VEC d = NAME(load_x)(dy[r] + at, left);
            const VEC xhat = NAME(xhat_of)(NAME(load_x)(x[r] + at, left), row, rms);
            const VEC ds = NAME(gradient_of)(d, weight[k], xhat, row, rms);
            NAME(store_as)(dx[r] + at, NAME(with_sum)(ds, dsum ? dsum[r] + at : NULL, left), left,
                           t);
            dweight[k] = V(fma)(d, xhat, dweight[k]);
            if (!rms)
                dbias[k] = V(add)(d, dbias[k]);
        }
        NAME(prefetch_row)(x[r] + i, ahead * a->x_pitch, vecs * VEC_LANES, ahead, 0);
        NAME(prefetch_row)(dy[r] + i, ahead * a->dy_pitch, vecs * VEC_LANES, ahead, 0);
        if (dsum)
            NAME(prefetch_row)(dsum[r] + i, ahead * a->dsum_pitch, vecs * VEC_LANES, ahead, 0);
    }
    UNROLL for (int k = 0; k < vecs; k++) {
        const int left = NAME(short_left)(k, vecs, last), at = k * VEC_LANES;
        NAME(store_real)(dweights + at, dweight[k], left);
        if (!rms)
            NAME(store_real)(dbiases + at, dbias[k], left);
    }
}

/* Does what it can of the rows, in steps of `count`, and returns how many. */
INLINE int64_t NAME(steps_of_backward)(const backward_args *a, const bool rms, const int count,
                                       const bool summed, const traffic t) {
    const int64_t n = a->cols;
    _Alignas(64) ELEMENT_T piece[STEP_ROWS * NAME(STEP_COLS)];
    /* As in rows_step.h. */
    const bool lines = t != TRAFFIC_LINES && count * n >= 16 * LANES &&
                       NAME(rows_are_lines)(a->traffic, a->dx, a->dx_pitch, n, TOGETHER);
    const bool prefetches = a->hints->prefetch_steps;
    const int64_t step = a->hints->rows_ahead ? a->hints->rows_ahead : count;
    const int64_t ahead = prefetches ? step : 0;
    int64_t done = 0;
    for (; done + count <= a->rows; done += count) {
        const ELEMENT_T *x[STEP_ROWS], *dy[STEP_ROWS], *dsum[STEP_ROWS];
        ELEMENT_T *dx[STEP_ROWS];
        NAME(row_gradients) rows;
        for (int r = 0; r < count; r++) {
            x[r] = (const ELEMENT_T *)(a->x + (done + r) * a->x_pitch);
            dy[r] = (const ELEMENT_T *)(a->dy + (done + r) * a->dy_pitch);
            if (summed)
                dsum[r] = (const ELEMENT_T *)(a->dsum + (done + r) * a->dsum_pitch);
            dx[r] = lines ? piece + r * n : (ELEMENT_T *)(a->dx + (done + r) * a->dx_pitch);
        }
        NAME(saved_of)(a, done, count, rms, &rows);
        if (__builtin_expect(!NAME(step_constants)(a, done, x, dy, dx, count, rms,
                                                   prefetches && !lines && t != TRAFFIC_LINES,
                                                   &rows),
                             0)) {
            EXPORT(one_by_one)(a, done, count, rms);
            continue;
        }
        int64_t i = 0;
        for (; i + LANES <= n; i += LANES)
            NAME(step_gradient)(a, x, dy, summed ? dsum : NULL, dx, count, i, NAME(PARTS),
                                VEC_LANES, rms, &rows, ahead, t);
        const int vecs = (int)(n - i + VEC_LANES - 1) / VEC_LANES;
        const int last = (int)(n - i) - (vecs - 1) * VEC_LANES;
        UNROLL for (int v = 1; v <= NAME(PARTS); v++) if (v == vecs) NAME(step_gradient)(
            a, x, dy, summed ? dsum : NULL, dx, count, i, v, last, rms, &rows, ahead, t);
        if (lines)
            stream_lines(a->dx + done * a->dx_pitch, piece, count * a->dx_pitch);
    }
    return done;
}

#include "cpu/rows/rows_single_backward.h"

/* Whether these are the gradients that steps make. */
INLINE bool NAME(usual_gradients)(const backward_args *a, const bool rms) {
    return a->dx && a->weight && a->dweight && !a->dbias == rms;
}

INLINE int64_t NAME(step_rows_backward_of)(const backward_args *a, const bool rms) {
    const bool by_line =
        NAME(goes_by_line)(a->hints, NAME(traffic_to)(a->traffic, a->dx, a->dx_pitch, a->cols));
    if (NAME(go_singly)(a, by_line))
        return NAME(single_rows)(a, rms, by_line);
    /* Longer rows that come from far go alone, for a step of them, their dx and the next step's do
     * not fit the first-level cache. From memory only where some of them together are not lines. */
    const bool parts = a->hints->steps_of_parts && a->cols * (int64_t)sizeof(ELEMENT_T) % 64 != 0;
    const bool fewer = a->hints->far || (a->traffic == TRAFFIC_STREAM && !parts);
    const int64_t most = fewer ? NAME(STEP_COLS) / 2 : NAME(STEP_COLS);
    if (a->cols > most)
        return 0;
    const bool large = a->traffic != TRAFFIC_STREAM || a->cols <= LANES;
    if (by_line)
        return large ? NAME(steps_of_backward)(a, rms, STEP_ROWS, false, TRAFFIC_LINES)
                     : NAME(steps_of_backward)(a, rms, TOGETHER, false, TRAFFIC_LINES);
    return large ? NAME(steps_of_backward)(a, rms, STEP_ROWS, false, TRAFFIC_STREAM)
                 : NAME(steps_of_backward)(a, rms, TOGETHER, false, TRAFFIC_STREAM);
}

ONE_COPY int64_t NAME(step_rows_summed)(const backward_args *a, bool rms) {
    if (NAME(goes_by_line)(a->hints, NAME(traffic_to)(a->traffic, a->dx, a->dx_pitch, a->cols)))
        return rms ? NAME(steps_of_backward)(a, true, TOGETHER, true, TRAFFIC_LINES)
                   : NAME(steps_of_backward)(a, false, TOGETHER, true, TRAFFIC_LINES);
    return rms ? NAME(steps_of_backward)(a, true, STEP_ROWS, true, TRAFFIC_STREAM)
               : NAME(steps_of_backward)(a, false, STEP_ROWS, true, TRAFFIC_STREAM);
}

ONE_COPY int64_t NAME(step_rows_backward)(const backward_args *a, bool rms) {
    return rms ? NAME(step_rows_backward_of)(a, true) : NAME(step_rows_backward_of)(a, false);
}
