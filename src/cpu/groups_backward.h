/* Backward of rows of channels; part of cpu/groups.h. */

OUTLINE void NAME(group_wide_backward)(const group_backward_args *a, bool rms) {
    backward_args row = {
        .rows = 1,
        .cols = a->channels * a->span,
        .dy = a->dy,
        .x = a->x,
        .dx = a->dx,
        .weight = a->weight,
        .weight_offset = a->weight_offset,
        .mean = a->mean,
        .rstd = a->rstd,
        .weight_span = a->span,
        .bias = a->bias,
        .activation = a->activation,
    };
    /* The sums of a channel are made in double whatever the element is. */
    wide_backward_sums(&row, rms ? PLANISH_RMS : PLANISH_LAYER, DTYPE_OF(ELEMENT),
                       DTYPE_OF(REAL_TOKEN), a->dweight, a->dbias);
}

/* A segment's, with channel c's weight, bias and activation where there is one. */
OUTLINE void NAME(active_gradient_sums)(const group_backward_args *a, const ELEMENT_T *x,
                                        const ELEMENT_T *dy, int64_t n, NAME(row_gradient) row,
                                        int64_t c, VEC *xhat, VEC *g, VEC *gxhat) {
    REAL *const kept = a->kept ? (REAL *)a->kept + (x - (const ELEMENT_T *)a->x) : NULL;
    const backward_args none = {0};
    const NAME(active) of = NAME(active_at)(a->weight, a->bias, a->weight_offset, c, a->activation);
    NAME(segment_gradient_sums)(&none, x, dy, NULL, n, row, false, &of, kept, xhat, g, gxhat);
}
INLINE void NAME(channel_gradient_sums)(const group_backward_args *a, const ELEMENT_T *x,
                                        const ELEMENT_T *dy, int64_t n, NAME(row_gradient) row,
                                        int64_t c, const planish_activation f, VEC *xhat, VEC *g,
                                        VEC *gxhat) {
    const backward_args none = {0};
    if (f == PLANISH_IDENTITY)
        NAME(row_gradient_sums)(&none, x, dy, NULL, n, row, false, xhat, g, gxhat);
    else
        NAME(active_gradient_sums)(a, x, dy, n, row, c, xhat, g, gxhat);
}

/* Sums over each of `count` channels of xhat, dy and dy * xhat, with xhat by the saved mean. */
INLINE void NAME(group_long_sums)(const group_backward_args *a, NAME(row_gradient) row,
                                  int64_t first, int64_t count, const planish_activation f,
                                  double sums[3][GROUP]) {
    for (int64_t i = 0; i < count; i++) {
        const ELEMENT_T *const x = (const ELEMENT_T *)a->x + (first + i) * a->span;
        const ELEMENT_T *const dy = (const ELEMENT_T *)a->dy + (first + i) * a->span;
        double sum[3] = {0}, rest[3] = {0};
        for (int64_t at = 0; at < a->span; at += NAME(SEGMENT)) {
            const int64_t n = NAME(min)(a->span - at, NAME(SEGMENT));
            VEC lanes[3];
            REAL folded[GROUP];
            NAME(channel_gradient_sums)(a, x + at, dy + at, n, row, first + i, f, &lanes[0],
                                        &lanes[1], &lanes[2]);
            NAME(fold_rows)(lanes, 3, folded);
            for (int s = 0; s < 3; s++)
                exact_add(&sum[s], &rest[s], folded[s]);
        }
        for (int s = 0; s < 3; s++)
            sums[s][i] = sum[s] + rest[s];
    }
}

/* The same of channels of one segment, whose lanes are folded together. */
INLINE void NAME(group_short_sums)(const group_backward_args *a, NAME(row_gradient) row,
                                   int64_t first, int64_t count, const planish_activation f,
                                   double sums[3][GROUP]) {
    const VEC zero = V(set1)(0);
    VEC lanes[3][GROUP] = {
        {zero, zero, zero, zero}, {zero, zero, zero, zero}, {zero, zero, zero, zero}};
    for (int64_t i = 0; i < count; i++) {
        const int64_t c = first + i, at = c * a->span;
        NAME(channel_gradient_sums)(a, (const ELEMENT_T *)a->x + at, (const ELEMENT_T *)a->dy + at,
                                    a->span, row, c, f, &lanes[0][i], &lanes[1][i], &lanes[2][i]);
    }
    for (int s = 0; s < 3; s++) {
        REAL folded[GROUP];
        NAME(fold_rows)(lanes[s], GROUP, folded);
        for (int i = 0; i < GROUP; i++)
            sums[s][i] = 0.0 + folded[i]; /* never -0 */
    }
}

INLINE void NAME(channels_sums)(const group_backward_args *a, NAME(row_gradient) row, int64_t first,
                                int64_t count, const planish_activation f, double sums[3][GROUP]) {
    if (a->span <= NAME(SEGMENT) && count > 1)
        NAME(group_short_sums)(a, row, first, count, f, sums);
    else
        NAME(group_long_sums)(a, row, first, count, f, sums);
}

/* The sum of a row's xhat by the saved mean. */
OUTLINE double NAME(group_xhat_sum)(const group_backward_args *a, NAME(row_gradient) row) {
    group_backward_args of_x = *a;
    double delta = 0;
    of_x.dy = a->x;
    for (int64_t first = 0; first < a->channels; first += GROUP) {
        const int64_t count = NAME(min)(a->channels - first, GROUP);
        double sums[3][GROUP];
        NAME(channels_sums)(&of_x, row, first, count, PLANISH_IDENTITY, sums);
        for (int64_t i = 0; i < count; i++)
            delta += sums[0][i];
    }
    return delta;
}

/* The rest of the saved mean, which an activation wants before anything is summed. */
INLINE REAL NAME(group_shift)(const group_backward_args *a, NAME(row_gradient) row,
                              double inverse) {
    if (a->mean.type == DTYPE_F64 && sizeof(REAL) < sizeof(double))
        return (REAL)((row.mean - stat_load(&a->mean, 0)) * stat_load(&a->rstd, 0));
    return (REAL) - (NAME(group_xhat_sum)(a, row) * inverse);
}

/* The row's constants and its sums for dweight and dbias. False where one left the range. */
INLINE bool NAME(group_constants)(const group_backward_args *a, const bool rms,
                                  const planish_activation f, NAME(row_gradient) * row) {
    const REAL *const weights = a->weight;
    const double inverse = 1.0 / (double)(a->channels * a->span);
    double delta = 0, c1 = 0, c2 = 0;
    row->rstd = row->scale = (REAL)stat_load(&a->rstd, 0);
    row->mean = rms ? 0 : (REAL)stat_load(&a->mean, 0);
    row->shift = f == PLANISH_IDENTITY || rms ? 0 : NAME(group_shift)(a, *row, inverse);
    for (int64_t first = 0; first < a->channels; first += GROUP) {
        const int64_t count = NAME(min)(a->channels - first, GROUP);
        double sums[3][GROUP];
        NAME(channels_sums)(a, *row, first, count, f, sums);
        for (int64_t i = 0; i < count; i++) {
            const int64_t c = first + i;
            const double weight = weights ? weights[c] + (REAL)a->weight_offset : 1;
            delta += sums[0][i];
            c1 += weight * sums[1][i];
            c2 += weight * sums[2][i];
            a->dbias[c] = sums[1][i];
            a->dweight[c] = sums[2][i];
        }
    }
    delta = rms ? 0 : delta * inverse;
    c1 = rms ? 0 : c1 * inverse;
    c2 = c2 * inverse - c1 * delta;
    for (int64_t c = 0; c < a->channels; c++)
        a->dweight[c] -= delta * a->dbias[c];
    row->shift = (REAL)-delta;
    row->c1 = (REAL)c1;
    row->minus_c2 = (REAL)-c2;
    return fabs(delta) < BIG && fabs(c1) < BIG && fabs(c2) < BIG;
}

INLINE VEC NAME(group_gradient_of)(VEC dy, NAME(active) of, VEC xhat, NAME(row_gradient) row,
                                   const bool rms) {
    return NAME(gradient_of)(NAME(through)(of, dy, xhat), of.weight, xhat, row, rms);
}

/* n elements of a channel's dx. What was kept of the gradient is taken in place of dy. */
INLINE void NAME(group_gradient)(const ELEMENT_T *x, const ELEMENT_T *dy, const REAL *kept,
                                 ELEMENT_T *dx, int64_t n, NAME(row_gradient) row, NAME(active) of,
                                 int64_t ahead, const bool rms) {
    /* What is kept has the order that its vectors had in the sums. */
    const int64_t paired = kept ? n / LANES * LANES : n;
    int64_t i = 0;
    for (; NAME(PAIRED) && i + 2 * VEC_LANES <= paired; i += 2 * VEC_LANES) {
        VEC v[2], d[2];
        LOAD_X_PAIR(x + i, v);
        if (kept)
            UNROLL for (int k = 0; k < 2; k++) d[k] = LOAD_REAL(kept + i + k * VEC_LANES);
        else
            LOAD_X_PAIR(dy + i, d);
        UNROLL for (int k = 0; k < 2; k++) v[k] =
            NAME(group_gradient_of)(d[k], of, NAME(xhat_of)(v[k], row, rms), row, rms);
        STORE_X_PAIR(dx + i, v);
        if (ahead) {
            NAME(ask_for)(x + i, ahead, TRAFFIC_AHEAD);
            NAME(ask_for)(dy + i, ahead, TRAFFIC_AHEAD);
        }
    }
    for (; i + VEC_LANES <= n; i += VEC_LANES) {
        const VEC d = kept ? LOAD_REAL(kept + i) : LOAD_X(dy + i);
        const VEC xhat = NAME(xhat_of)(LOAD_X(x + i), row, rms);
        STORE_X(dx + i, NAME(group_gradient_of)(d, of, xhat, row, rms));
        if (ahead) {
            NAME(ask_for)(x + i, ahead, TRAFFIC_AHEAD);
            NAME(ask_for)(dy + i, ahead, TRAFFIC_AHEAD);
        }
    }
    if (i == n)
        return;
    /* As in group_apply. */
    const bool again = n >= VEC_LANES && !kept && (const void *)x != (const void *)dx &&
                       (const void *)dy != (const void *)dx;
    const int left = again ? VEC_LANES : (int)(n - i);
    i = n - left;
    const VEC d = kept ? LOAD_REAL(kept + i) : NAME(load_x)(dy + i, left);
    const VEC xhat = NAME(xhat_of)(NAME(load_x)(x + i, left), row, rms);
    NAME(store_x)(dx + i, NAME(group_gradient_of)(d, of, xhat, row, rms), left);
}

/* n elements of channel c, from `at` on. */
INLINE void NAME(channel_gradient)(const group_backward_args *a, int64_t c, int64_t at,
                                   ELEMENT_T *dx, int64_t n, NAME(row_gradient) row, int64_t ahead,
                                   const bool rms, const planish_activation f) {
    const int64_t from = c * a->span + at;
    const ELEMENT_T *const x = (const ELEMENT_T *)a->x + from;
    const ELEMENT_T *const dy = (const ELEMENT_T *)a->dy + from;
    NAME(active) of = NAME(active_at)(a->weight, a->bias, a->weight_offset, c, f);
    if (f == PLANISH_IDENTITY || !a->kept) {
        NAME(group_gradient)(x, dy, NULL, dx, n, row, of, ahead, rms);
        return;
    }
    of.kind = PLANISH_IDENTITY;
    NAME(group_gradient)(x, dy, (const REAL *)a->kept + from, dx, n, row, of, ahead, rms);
}

INLINE void NAME(group_backward)(const group_backward_args *a, const bool rms,
                                 const planish_activation f) {
    NAME(row_gradient) row;
    if (__builtin_expect(!NAME(group_constants)(a, rms, f, &row), 0)) {
        NAME(group_wide_backward)(a, rms);
        return;
    }
    if (!a->dx)
        return;
    const int64_t span = a->span, all = a->channels * span;
    const traffic t = NAME(group_traffic)(a->traffic, a->dx, span);
    const int64_t ahead = t == TRAFFIC_CACHED || !a->asks || 2 * all > NAME(GROUP_AHEAD)
                              ? 0
                              : all * (int64_t)sizeof(ELEMENT_T);
    const bool plain_rms = rms && f == PLANISH_IDENTITY; /* as in group_forward */
    _Alignas(64) ELEMENT_T piece[4 * NAME(PIECE)];
    for (int64_t c = 0; c < a->channels; c++) {
        ELEMENT_T *const dx = (ELEMENT_T *)a->dx + c * span;
        if (t != TRAFFIC_STREAM) {
            NAME(channel_gradient)(a, c, 0, dx, span, row, ahead, plain_rms, f);
            continue;
        }
        for (int64_t at = 0; at < span; at += 4 * NAME(PIECE)) {
            const int64_t n = NAME(min)(span - at, 4 * NAME(PIECE));
            NAME(channel_gradient)(a, c, at, piece, n, row, ahead, plain_rms, f);
            stream_lines(dx + at, piece, n * (int64_t)sizeof(ELEMENT_T));
        }
    }
    if (t == TRAFFIC_STREAM)
        VEC_FENCE();
}
