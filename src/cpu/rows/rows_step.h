/*
 * Forward of rows of a few hundred bytes; part of cpu/rows/rows.h. They cost less for their
 * elements than for waiting: y waits for the root, the root for the squares, the squares for the
 * mean. So the rows of a step are taken through each of these together, weight and bias are loaded
 * once for all of them, and the lines of this step's y and of the next step's x are prefetched
 * between. The bits are those of rows_moments.h, whose sums these are.
 *
 * A step is STEP_ROWS rows, or TOGETHER where they come from memory and are more than 3 * LANES:
 * reads and writes then alternate often enough that memory does not wait for either.
 */

INLINE void NAME(step_moments)(const ELEMENT_T *const x[], ELEMENT_T *const y[], const int count,
                               int64_t n, const bool rms, int64_t x_ahead, bool prefetches_x,
                               bool prefetches_y, double mean[], double excess[], double m2[]) {
    const double inverse = 1.0 / (double)n, first = (double)NAME(summed_first)(n, false);
    VEC sums[STEP_ROWS], squares[STEP_ROWS];
    REAL total[STEP_ROWS], center[STEP_ROWS], deviation[STEP_ROWS];
    double rest[TOGETHER];
    for (int r = 0; r < count; r++) {
        sums[r] = rms         ? NAME(row_squares_as)(x[r], n)
                  : n < LANES ? NAME(row_sum_as)(x[r], n, true)
                              : NAME(row_sum_as)(x[r], LANES, false);
        NAME(prefetch_row)(y[r], 0, n, prefetches_y, 1);
        NAME(prefetch_row)(x[r], x_ahead, n, prefetches_x && rms, 0);
    }
    NAME(fold_step)(sums, count, total);
    for (int r = 0; r < count; r++)
        if (rms)
            m2[r] = total[r];
    for (int r = 0; r < count && !rms; r += TOGETHER)
        NAME(scale_totals)(total + r, 1.0 / first, center + r);
    for (int r = 0; r < count && !rms; r++) {
        NAME(row_centered_sums_as)(x[r], n, center[r], &sums[r], &squares[r], false);
        NAME(prefetch_row)(x[r], x_ahead, n, prefetches_x, 0);
    }
    if (!rms) {
        NAME(fold_step)(sums, count, deviation);
        NAME(fold_step)(squares, count, total);
    }
    for (int r = 0; r < count && !rms; r += TOGETHER) {
        const unsigned far = NAME(center_moments)(deviation + r, total + r, inverse, rest, m2 + r);
        if (__builtin_expect(far != 0, 0))
            NAME(recenter)(far, x + r, n, center + r, rest, m2 + r);
        NAME(mean_of)(center + r, rest, mean + r, excess + r);
    }
}

/* `vecs` vectors of y of every row, from element i on; the last has `last` elements. */
INLINE void NAME(step_apply)(const forward_args *a, const ELEMENT_T *const x[],
                             ELEMENT_T *const y[], const int count, int64_t i, const int vecs,
                             int last, const NAME(row_normalizers) * by, const bool rms,
                             const traffic t) {
    const WEIGHT_T *const weights = a->weight ? (const WEIGHT_T *)a->weight + i : NULL;
    const WEIGHT_T *const biases = a->bias ? (const WEIGHT_T *)a->bias + i : NULL;
    const VEC offset = V(set1)((REAL)a->weight_offset);
    VEC weight[NAME(PARTS)], bias[NAME(PARTS)];
    UNROLL for (int k = 0; k < vecs; k++) {
        const int left = NAME(short_left)(k, vecs, last), at = k * VEC_LANES;
        weight[k] = weights ? V(add)(NAME(load_weight)(weights + at, left), offset) : V(set1)(1);
        bias[k] = biases ? NAME(load_weight)(biases + at, left) : V(set1)((REAL)-0.0);
    }
    for (int r = 0; r < count; r++) {
        const NAME(row_normalizer) own = NAME(normalizer_at)(by, r);
        UNROLL for (int k = 0; k < vecs; k++) {
            const int left = NAME(short_left)(k, vecs, last);
            const int64_t at = i + k * VEC_LANES;
            const VEC v = NAME(load_x)(x[r] + at, left);
            NAME(store_as)(y[r] + at,
                           NAME(row_result)(v, own, weight[k], bias[k], rms, PLANISH_IDENTITY),
                           left, t);
        }
    }
}

/* Does what it can of the rows, in steps of `count`, and returns how many. */
INLINE int64_t NAME(steps_of)(const forward_args *a, const bool rms, const int count,
                              const traffic t) {
    const int64_t n = a->cols;
    _Alignas(64) ELEMENT_T piece[TOGETHER * NAME(STEP_COLS)];
    /* Fewer bytes at once than 2 KB are slower by non-temporal stores. */
    const bool lines = t != TRAFFIC_LINES && n >= 2 * LANES &&
                       NAME(rows_are_lines)(a->traffic, a->y, a->y_pitch, n, TOGETHER);
    const int64_t ahead = (a->hints->rows_ahead ? a->hints->rows_ahead : count) * a->x_pitch;
    const bool prefetches_x = a->hints->prefetch_steps;
    const bool prefetches_y = t != TRAFFIC_LINES && a->traffic != TRAFFIC_CACHED && !lines;
    int64_t row = 0;
    for (; row + count <= a->rows; row += count) {
        const ELEMENT_T *x[STEP_ROWS];
        ELEMENT_T *y[STEP_ROWS];
        double mean[STEP_ROWS] = {0}, excess[STEP_ROWS] = {0}, m2[STEP_ROWS];
        NAME(row_normalizers) by;
        NAME(x_rows)(a, row, count, x);
        for (int r = 0; r < count; r++)
            y[r] = lines ? piece + r * n : (ELEMENT_T *)(a->y + (row + r) * a->y_pitch);
        NAME(step_moments)(x, y, count, n, rms, ahead, prefetches_x, prefetches_y, mean, excess,
                           m2);
        if (!NAME(finish_step)(a, row, count, rms, mean, excess, m2, &by))
            continue;
        int64_t i = 0;
        for (; i + LANES <= n; i += LANES)
            NAME(step_apply)(a, x, y, count, i, NAME(PARTS), VEC_LANES, &by, rms, t);
        const int vecs = (int)(n - i + VEC_LANES - 1) / VEC_LANES;
        const int last = (int)(n - i) - (vecs - 1) * VEC_LANES;
        UNROLL for (int v = 1; v <= NAME(PARTS); v++) if (v == vecs)
            NAME(step_apply)(a, x, y, count, i, v, last, &by, rms, t);
        if (lines)
            stream_lines(a->y + row * a->y_pitch, piece, count * a->y_pitch);
    }
    return row;
}

INLINE int64_t NAME(step_rows_of)(const forward_args *a, const bool rms) {
    const int64_t n = a->cols;
    const bool large = a->traffic != TRAFFIC_STREAM || n <= 3 * LANES;
    if (NAME(goes_by_line)(a->hints, NAME(traffic_to)(a->traffic, a->y, a->y_pitch, n)))
        return large ? NAME(steps_of)(a, rms, STEP_ROWS, TRAFFIC_LINES)
                     : NAME(steps_of)(a, rms, TOGETHER, TRAFFIC_LINES);
    return large ? NAME(steps_of)(a, rms, STEP_ROWS, TRAFFIC_STREAM)
                 : NAME(steps_of)(a, rms, TOGETHER, TRAFFIC_STREAM);
}

ONE_COPY int64_t NAME(step_rows)(const forward_args *a, bool rms) {
    return rms ? NAME(step_rows_of)(a, true) : NAME(step_rows_of)(a, false);
}
