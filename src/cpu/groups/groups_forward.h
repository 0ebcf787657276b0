/* Forward of rows of channels; part of cpu/groups/groups.h. */

INLINE NAME(epilogue) NAME(channel_epilogue)(const group_forward_args *a, int row, int64_t c,
                                             const planish_activation f) {
    return NAME(epilogue_at)(a->weight, a->bias, a->weight_offset, row * a->weight_step + c, f);
}

/* y of a vector of a row, of which `n` elements are there. */
INLINE void NAME(group_apply_vector)(const ELEMENT_T *x, ELEMENT_T *y, int64_t n,
                                     NAME(row_normalizer) s, NAME(epilogue) of, const bool rms) {
    NAME(store_x)(y, NAME(result)(NAME(load_x)(x, n), NAME(spread)(s), of, rms), n);
}

/* n elements of a channel's y. */
INLINE void NAME(group_apply)(const ELEMENT_T *x, ELEMENT_T *y, int64_t n, NAME(row_normalizer) s,
                              NAME(epilogue) of, int64_t ahead, const bool rms) {
    int64_t i = 0;
    for (; NAME(PAIRED) && i + 2 * VEC_LANES <= n; i += 2 * VEC_LANES) {
        VEC v[2];
        LOAD_X_PAIR(x + i, v);
        UNROLL for (int k = 0; k < 2; k++) v[k] = NAME(result)(v[k], NAME(spread)(s), of, rms);
        STORE_X_PAIR(y + i, v);
        if (ahead)
            NAME(prefetch_vector)(x + i, ahead, TRAFFIC_AHEAD);
    }
    for (; i + VEC_LANES <= n; i += VEC_LANES) {
        NAME(group_apply_vector)(x + i, y + i, VEC_LANES, s, of, rms);
        if (ahead)
            NAME(prefetch_vector)(x + i, ahead, TRAFFIC_AHEAD);
    }
    if (i == n)
        return;
    /* The last whole vector again, where x is still there, for parts of vectors are slow. */
    const bool again = n >= VEC_LANES && (const void *)x != (const void *)y;
    const int left = again ? VEC_LANES : (int)(n - i);
    i = n - left;
    NAME(group_apply_vector)(x + i, y + i, left, s, of, rms);
}

/*
 * y of a row whose channels are no whole vectors but no shorter than one, in the row's vectors:
 * those that two channels share by the weights of both. Vectors that begin with each channel would
 * not lie in whole lines.
 */
INLINE void NAME(group_apply_across)(const group_forward_args *a, int row, NAME(row_normalizer) s,
                                     const bool rms, const planish_activation f) {
    const ELEMENT_T *const x = (const ELEMENT_T *)(a->x + row * a->x_pitch);
    ELEMENT_T *const y = (ELEMENT_T *)(a->y + row * a->y_pitch);
    NAME(epilogue) of = NAME(channel_epilogue)(a, row, 0, f);
    int64_t i = 0, end = a->span;
    for (int64_t c = 1; c < a->channels; c++, end += a->span) {
        const NAME(epilogue) next = NAME(channel_epilogue)(a, row, c, f);
        for (; i + VEC_LANES <= end; i += VEC_LANES)
            NAME(group_apply_vector)(x + i, y + i, VEC_LANES, s, of, rms);
        if (i < end) {
            const int own = (int)(end - i);
            const NAME(epilogue)
                both = {f, V(join)(of.weight, next.weight, own), V(join)(of.bias, next.bias, own)};
            NAME(group_apply_vector)(x + i, y + i, VEC_LANES, s, both, rms);
            i += VEC_LANES;
        }
        of = next;
    }
    for (; i < end; i += VEC_LANES)
        NAME(group_apply_vector)(x + i, y + i, end - i, s, of, rms);
}

OUTLINE void NAME(group_wide_forward)(const group_forward_args *a, int row, bool rms) {
    const int64_t first = row * a->weight_step;
    const REAL *const weights = a->weight, *const biases = a->bias;
    const forward_args alone = {
        .rows = 1,
        .cols = a->channels * a->span,
        .x = a->x + row * a->x_pitch,
        .y = a->y ? a->y + row * a->y_pitch : NULL,
        .weight = weights ? weights + first : NULL,
        .bias = biases ? biases + first : NULL,
        .weight_offset = a->weight_offset,
        .rule = a->rule,
        .mean = stat_at(&a->mean, row),
        .rstd = stat_at(&a->rstd, row),
        .m2 = stat_at(&a->m2, row),
        .given = a->given,
        .weight_span = a->span,
        .activation = a->activation,
    };
    overflow_forward_row(&alone, 0, rms ? PLANISH_RMS : PLANISH_LAYER, DTYPE_OF(ELEMENT),
                         DTYPE_OF(REAL_TOKEN));
}

/* Whether the moments of `count` rows are in range; then they are written out and the rows'
 * normalizers are known. */
INLINE bool NAME(group_normalizers)(const group_forward_args *a, int first, int count,
                                    const bool rms, NAME(row_normalizer) by[]) {
    const forward_args row = {
        .cols = a->channels * a->span, .rule = a->rule, .mean = a->mean, .rstd = a->rstd};
    const ELEMENT_T *x[TOGETHER];
    double mean[TOGETHER] = {0}, excess[TOGETHER] = {0}, m2[TOGETHER], rstd[TOGETHER];
    if (count < 1) /* as in segment_moments */
        __builtin_unreachable();
    for (int r = 0; r < count; r++)
        x[r] = (const ELEMENT_T *)(a->x + (first + r) * a->x_pitch);
    if (a->given) {
        if (!NAME(given_moments)(&row, first, count, rms, mean, rstd))
            return false;
    } else {
        NAME(moments)(x, count, row.cols, 0, rms, mean, excess, m2);
        for (int r = count; r < TOGETHER; r++)
            m2[r] = m2[0];
        if (!NAME(finish_moments)(&row, m2, rstd))
            return false;
        stat_store_rows(&a->mean, first, count, mean);
        stat_store_rows(&a->rstd, first, count, rstd);
        stat_store_rows(&a->m2, first, count, m2);
    }
    NAME(normalizers_of)(by, count, mean, excess, rstd);
    return true;
}

/* y of one row. */
INLINE void NAME(group_make)(const group_forward_args *a, int row, NAME(row_normalizer) by,
                             const traffic t, const bool rms, const planish_activation f) {
    const int64_t span = a->span, all = a->channels * span;
    const int64_t ahead =
        t == TRAFFIC_CACHED || !a->hints->prefetch_groups || all > NAME(GROUP_AHEAD)
            ? 0
            : a->rows * all * (int64_t)sizeof(ELEMENT_T);
    _Alignas(64) ELEMENT_T piece[4 * NAME(PIECE)];
    /* Elements that are converted wait for that, not for lines. */
    if (t != TRAFFIC_STREAM && DTYPE_OF(ELEMENT) == DTYPE_OF(REAL_TOKEN) && span > VEC_LANES &&
        span % VEC_LANES) {
        NAME(group_apply_across)(a, row, by, rms, f);
        return;
    }
    for (int64_t c = 0; c < a->channels; c++) {
        const ELEMENT_T *const x = (const ELEMENT_T *)(a->x + row * a->x_pitch) + c * span;
        ELEMENT_T *const y = (ELEMENT_T *)(a->y + row * a->y_pitch) + c * span;
        const NAME(epilogue) own = NAME(channel_epilogue)(a, row, c, f);
        if (t != TRAFFIC_STREAM) {
            NAME(group_apply)(x, y, span, by, own, ahead, rms);
            continue;
        }
        for (int64_t at = 0; at < span; at += 4 * NAME(PIECE)) {
            const int64_t n = NAME(min)(span - at, 4 * NAME(PIECE));
            NAME(group_apply)(x + at, piece, n, by, own, ahead, rms);
            stream_lines(y + at, piece, n * (int64_t)sizeof(ELEMENT_T));
        }
    }
}

INLINE void NAME(group_forward)(const group_forward_args *a, const bool rms,
                                const planish_activation f) {
    NAME(row_normalizer) by[TOGETHER];
    /* One row's moments are a text of their own. */
    const bool in_range = a->rows == 1 ? NAME(group_normalizers)(a, 0, 1, rms, by)
                                       : NAME(group_normalizers)(a, 0, a->rows, rms, by);
    const traffic t = NAME(group_traffic)(a->traffic, a->y, a->y_pitch, a->rows, a->span);
    /* With its mean and minus_delta of 0 the layer's formula is RMSNorm's. */
    const bool plain_rms = rms && f == PLANISH_IDENTITY;
    for (int row = 0; row < a->rows; row++)
        if (__builtin_expect(!in_range, 0) &&
            (a->rows == 1 || !NAME(group_normalizers)(a, row, 1, rms, &by[row])))
            NAME(group_wide_forward)(a, row, rms);
        else if (a->y)
            NAME(group_make)(a, row, by[row], t, plain_rms, f);
}
