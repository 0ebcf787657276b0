/*
 * Forward of rows that something follows in the same pass (cpu/common/epilogue.h); part of
 * cpu/rows/kernels_rows_forward.c, beside rows_forward.h, whose moments these are. What follows
 * takes longer than memory does, so there is one text for rows of any length and norms of either
 * kind, and none for rows of few columns.
 */

static void NAME(activated_row)(const forward_args *a, int64_t row, traffic t);

/* y of a row: in place, or a piece at a time where non-temporal stores write it. */
ONE_COPY void NAME(activated_apply)(const forward_args *a, const ELEMENT_T *x, ELEMENT_T *y,
                                    NAME(row_normalizer) by, int64_t ahead, traffic t) {
    _Alignas(64) ELEMENT_T piece[4 * NAME(PIECE)];
    const int64_t most = t == TRAFFIC_STREAM ? 4 * NAME(PIECE) : a->cols;
    for (int64_t at = 0; at < a->cols; at += most) {
        const int64_t n = NAME(min)(a->cols - at, most);
        ELEMENT_T *const to = t == TRAFFIC_STREAM ? piece : y + at;
        NAME(apply_as)(a, &x, to, to, 1, at, n, &by, false, a->weight, a->bias, ahead,
                       TRAFFIC_STREAM, a->activation);
        if (t == TRAFFIC_STREAM)
            stream_lines(y + at, piece, n * (int64_t)sizeof(ELEMENT_T));
    }
}

/* Rows [row, row + count), count 1 or TOGETHER. */
INLINE void NAME(activated_group)(const forward_args *a, int64_t row, const int count,
                                  const traffic t) {
    const bool rms = a->kind == PLANISH_RMS;
    const int64_t ahead = t == TRAFFIC_CACHED ? 0 : NAME(bytes_ahead)(a, count);
    NAME(group_moments) g;
    if (rms)
        NAME(group_moments_of)(a, row, count, true, &g);
    else
        NAME(group_moments_of)(a, row, count, false, &g);
    if (__builtin_expect(!g.in_range, 0)) {
        for (int r = 0; r < count && count > 1; r++)
            NAME(activated_row)(a, row + r, t);
        if (count == 1)
            overflow_forward_row(a, row, a->kind, DTYPE_OF(ELEMENT), DTYPE_OF(WEIGHT));
        return;
    }
    NAME(store_moments)(a, row, count, &g);
    NAME(row_normalizer) by[TOGETHER];
    NAME(normalizers_of)(by, count, g.mean, g.excess, g.rstd);
    for (int r = 0; r < count && a->y; r++) {
        /* With a mean of 0 and this minus_delta the layer's formula is RMSNorm's, to the sign of 0.
         */
        if (rms)
            by[r].minus_delta = (REAL)-0.0;
        NAME(activated_apply)(a, g.x[r], (ELEMENT_T *)(a->y + (row + r) * a->y_pitch), by[r], ahead,
                              t);
    }
}

ONE_COPY void NAME(activated_row)(const forward_args *a, int64_t row, traffic t) {
    NAME(activated_group)(a, row, 1, t);
}

static void NAME(activated_rows)(const forward_args *a) {
    const traffic t = NAME(traffic_to)(a->traffic, a->y, a->y_pitch, a->cols);
    const int64_t most = t == TRAFFIC_STREAM ? STREAM_ROW_BYTES : GROUP_ROW_BYTES;
    const int64_t grouped =
        a->cols * (int64_t)sizeof(ELEMENT_T) <= most ? a->rows / TOGETHER * TOGETHER : 0;
    int64_t row = 0;
    for (; row < grouped; row += TOGETHER)
        NAME(activated_group)(a, row, TOGETHER, t);
    for (; row < a->rows; row++)
        NAME(activated_row)(a, row, t);
}

static void NAME(forward_activated)(const forward_args *a) {
    NAME(forward_sums_or)(a, NAME(activated_rows), a->kind == PLANISH_RMS);
}
