/*
 * Backward of rows of a few hundred bytes, one by one; part of cpu/rows/rows_step_backward.h, whose
 * words these are. Each row is read, and its dx written, from its first byte to its last before the
 * next is begun: where rows come from beyond a near cache, that is faster than the parts of a
 * step's rows by turns, though each row waits for its own constants. Same bits.
 */

/* Of the CPUs and problems that cpu/hints.c says so of; timed with f32 and the widest vectors.
 * dx past the cache goes line by line or not so. */
INLINE bool NAME(go_singly)(const backward_args *a, bool by_line) {
    return LINE_VECTORS && DTYPE_OF(ELEMENT) == DTYPE_F32 && a->hints->single_ahead &&
           (a->traffic == TRAFFIC_AHEAD || by_line);
}

/* The constants of a row, as the only one of a step. False where one left the range. */
INLINE bool NAME(single_constants)(const backward_args *a, int64_t row, const ELEMENT_T *x,
                                   const ELEMENT_T *dy, const bool rms, NAME(row_gradients) * of) {
    VEC xhat, g, gxhat;
    NAME(row_gradient) one = {.rstd = (REAL)stat_load(&a->rstd, row)};
    one.mean = rms || a->x_is_xhat ? 0 : (REAL)stat_load(&a->mean, row);
    one.xhat_rstd = a->x_is_xhat ? 1 : one.rstd;
    NAME(gradient_sums_as)(a, x, dy, a->weight, a->cols, one, rms, false, &xhat, &g, &gxhat);
    const bool in_range = NAME(constants_of_one)(a, row, xhat, g, gxhat, rms, &one);
    of->mean[0] = one.mean;
    of->xhat_rstd[0] = one.xhat_rstd;
    of->minus_delta[0] = one.minus_delta;
    of->rstd[0] = one.rstd;
    of->c1[0] = one.c1;
    of->minus_c2[0] = one.minus_c2;
    return in_range;
}

INLINE void NAME(single_rows_as)(const backward_args *a, const bool rms, const traffic t) {
    const int64_t n = a->cols, ahead = a->hints->single_ahead;
    const int vecs = (int)(n % LANES + VEC_LANES - 1) / VEC_LANES;
    const int last = (int)(n % LANES) - (vecs - 1) * VEC_LANES;
    for (int64_t row = 0; row < a->rows; row++) {
        const ELEMENT_T *const x = (const ELEMENT_T *)(a->x + row * a->x_pitch);
        const ELEMENT_T *const dy = (const ELEMENT_T *)(a->dy + row * a->dy_pitch);
        ELEMENT_T *const dx = (ELEMENT_T *)(a->dx + row * a->dx_pitch);
        NAME(row_gradients) of;
        if (__builtin_expect(!NAME(single_constants)(a, row, x, dy, rms, &of), 0)) {
            EXPORT(one_by_one)(a, row, 1, rms);
            continue;
        }
        int64_t i = 0;
        for (; i + LANES <= n; i += LANES)
            NAME(step_gradient)(a, &x, &dy, NULL, &dx, 1, i, NAME(PARTS), VEC_LANES, rms, &of,
                                ahead, t);
        UNROLL for (int v = 1; v <= NAME(PARTS); v++) if (v == vecs)
            NAME(step_gradient)(a, &x, &dy, NULL, &dx, 1, i, v, last, rms, &of, ahead, t);
    }
}

/* Does all rows, and returns how many. */
INLINE int64_t NAME(single_rows)(const backward_args *a, const bool rms, bool by_line) {
    if (by_line)
        NAME(single_rows_as)(a, rms, TRAFFIC_LINES);
    else
        NAME(single_rows_as)(a, rms, TRAFFIC_AHEAD);
    return a->rows;
}
