/*
 * Rows of channels, each with one weight and bias (GroupNorm and InstanceNorm of images stored by
 * channel); part of cpu/rows.h, whose parameters and helpers it uses, once for each element dtype.
 * The statistics of a row are those of a dense row. Backward sums over each channel first, for that
 * gives dweight, dbias and the row's constants at once.
 */

/* Elements of a row from which on the next one is not asked for: both would not fit a cache. */
enum { NAME(GROUP_AHEAD) = 131072 / sizeof(ELEMENT_T) };

INLINE traffic NAME(group_traffic)(traffic t, const char *output, int64_t span) {
    const int64_t bytes = span * (int64_t)sizeof(ELEMENT_T);
    return t == TRAFFIC_STREAM && ((uintptr_t)output | (uintptr_t)bytes) % 64 ? TRAFFIC_AHEAD : t;
}

/* Weight and bias of a channel, in every lane. */
typedef struct NAME(channel_affine) {
    VEC weight, bias;
} NAME(channel_affine);

INLINE NAME(channel_affine) NAME(affine_at)(const group_forward_args *a, int64_t c) {
    const REAL *const weights = a->weight, *const biases = a->bias;
    return (NAME(channel_affine)){
        V(set1)(weights ? weights[c] + (REAL)a->weight_offset : 1),
        V(set1)(biases ? biases[c] : (REAL)-0.0),
    };
}

/* y of a vector of a row, of which `n` elements are there. */
INLINE void NAME(group_apply_vector)(const ELEMENT_T *x, ELEMENT_T *y, int64_t n, NAME(row_scale) s,
                                     NAME(channel_affine) of, const bool rms) {
    const VEC xhat = NAME(normalize)(NAME(load_x)(x, n), s, rms);
    NAME(store_x)(y, V(fma)(xhat, of.weight, of.bias), n);
}

/* n elements of a channel's y. */
INLINE void NAME(group_apply)(const ELEMENT_T *x, ELEMENT_T *y, int64_t n, NAME(row_scale) s,
                              NAME(channel_affine) of, int64_t ahead, const bool rms) {
    int64_t i = 0;
    for (; NAME(PAIRED) && i + 2 * VEC_LANES <= n; i += 2 * VEC_LANES) {
        VEC v[2];
        LOAD_X_PAIR(x + i, v);
        UNROLL for (int k = 0; k < 2; k++) v[k] =
            V(fma)(NAME(normalize)(v[k], s, rms), of.weight, of.bias);
        STORE_X_PAIR(y + i, v);
        if (ahead)
            NAME(ask_for)(x + i, ahead, TRAFFIC_AHEAD);
    }
    for (; i + VEC_LANES <= n; i += VEC_LANES) {
        NAME(group_apply_vector)(x + i, y + i, VEC_LANES, s, of, rms);
        if (ahead)
            NAME(ask_for)(x + i, ahead, TRAFFIC_AHEAD);
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
INLINE void NAME(group_apply_across)(const group_forward_args *a, NAME(row_scale) s,
                                     const bool rms) {
    const ELEMENT_T *const x = (const ELEMENT_T *)a->x;
    ELEMENT_T *const y = (ELEMENT_T *)a->y;
    NAME(channel_affine) of = NAME(affine_at)(a, 0);
    int64_t i = 0, end = a->span;
    for (int64_t c = 1; c < a->channels; c++, end += a->span) {
        const NAME(channel_affine) next = NAME(affine_at)(a, c);
        for (; i + VEC_LANES <= end; i += VEC_LANES)
            NAME(group_apply_vector)(x + i, y + i, VEC_LANES, s, of, rms);
        if (i < end) {
            const int own = (int)(end - i);
            const NAME(channel_affine)
                both = {V(join)(of.weight, next.weight, own), V(join)(of.bias, next.bias, own)};
            NAME(group_apply_vector)(x + i, y + i, VEC_LANES, s, both, rms);
            i += VEC_LANES;
        }
        of = next;
    }
    for (; i < end; i += VEC_LANES)
        NAME(group_apply_vector)(x + i, y + i, end - i, s, of, rms);
}

OUTLINE void NAME(group_wide_forward)(const group_forward_args *a, bool rms) {
    const forward_args row = {
        .rows = 1,
        .cols = a->channels * a->span,
        .x = a->x,
        .y = a->y,
        .weight = a->weight,
        .bias = a->bias,
        .weight_offset = a->weight_offset,
        .eps = a->eps,
        .mean = a->mean,
        .rstd = a->rstd,
        .m2 = a->m2,
        .given = a->given,
        .weight_span = a->span,
    };
    wide_forward_row(&row, 0, rms ? PLANISH_RMS : PLANISH_LAYER, DTYPE_OF(ELEMENT),
                     DTYPE_OF(REAL_TOKEN));
}

/* Whether the moments are in range; then they are written out and the row's scale is known. */
INLINE bool NAME(group_scale)(const group_forward_args *a, const bool rms,
                              NAME(row_scale) * scale) {
    const forward_args row = {
        .rows = 1, .cols = a->channels * a->span, .eps = a->eps, .mean = a->mean, .rstd = a->rstd};
    const ELEMENT_T *const x[1] = {(const ELEMENT_T *)a->x};
    double mean[GROUP] = {0}, m2[GROUP], rstd[GROUP];
    if (a->given) {
        if (!NAME(given_moments)(&row, 0, 1, rms, mean, rstd))
            return false;
    } else {
        NAME(moments)(x, 1, row.cols, rms, mean, m2);
        for (int r = 1; r < GROUP; r++)
            m2[r] = m2[0];
        if (!NAME(finish_moments)(&row, m2, rstd))
            return false;
        stat_store(&a->mean, 0, mean[0]);
        stat_store(&a->rstd, 0, rstd[0]);
        stat_store(&a->m2, 0, m2[0]);
    }
    NAME(scale_rows)(scale, 1, mean, rstd);
    return true;
}

INLINE void NAME(group_forward)(const group_forward_args *a, const bool rms) {
    NAME(row_scale) scale;
    if (__builtin_expect(!NAME(group_scale)(a, rms, &scale), 0)) {
        NAME(group_wide_forward)(a, rms);
        return;
    }
    if (!a->y)
        return;
    const int64_t span = a->span, all = a->channels * span;
    const traffic t = NAME(group_traffic)(a->traffic, a->y, span);
    const int64_t ahead = t == TRAFFIC_CACHED || !a->asks || all > NAME(GROUP_AHEAD)
                              ? 0
                              : all * (int64_t)sizeof(ELEMENT_T);
    _Alignas(64) ELEMENT_T piece[4 * NAME(PIECE)];
    /* Elements that are converted wait for that, not for lines. */
    if (t != TRAFFIC_STREAM && DTYPE_OF(ELEMENT) == DTYPE_OF(REAL_TOKEN) && span > VEC_LANES &&
        span % VEC_LANES) {
        NAME(group_apply_across)(a, scale, rms);
        return;
    }
    for (int64_t c = 0; c < a->channels; c++) {
        const ELEMENT_T *const x = (const ELEMENT_T *)a->x + c * span;
        ELEMENT_T *const y = (ELEMENT_T *)a->y + c * span;
        const NAME(channel_affine) own = NAME(affine_at)(a, c);
        if (t != TRAFFIC_STREAM) {
            NAME(group_apply)(x, y, span, scale, own, ahead, rms);
            continue;
        }
        for (int64_t at = 0; at < span; at += 4 * NAME(PIECE)) {
            const int64_t n = NAME(min)(span - at, 4 * NAME(PIECE));
            NAME(group_apply)(x + at, piece, n, scale, own, ahead, rms);
            stream_lines(y + at, piece, n * (int64_t)sizeof(ELEMENT_T));
        }
    }
    if (t == TRAFFIC_STREAM)
        VEC_FENCE();
}

/* ---- Backward -------------------------------------------------------------------------------- */

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
    };
    /* The sums of a channel are made in double whatever the element is. */
    wide_backward_sums(&row, rms ? PLANISH_RMS : PLANISH_LAYER, DTYPE_OF(ELEMENT),
                       DTYPE_OF(REAL_TOKEN), a->dweight, a->dbias);
}

/* Sums over each of `count` channels of xhat, dy and dy * xhat, with xhat by the saved mean. */
INLINE void NAME(group_long_sums)(const group_backward_args *a, NAME(row_gradient) row,
                                  int64_t first, int64_t count, double sums[3][GROUP]) {
    const backward_args none = {0};
    for (int64_t i = 0; i < count; i++) {
        const ELEMENT_T *const x = (const ELEMENT_T *)a->x + (first + i) * a->span;
        const ELEMENT_T *const dy = (const ELEMENT_T *)a->dy + (first + i) * a->span;
        double sum[3] = {0}, rest[3] = {0};
        for (int64_t at = 0; at < a->span; at += NAME(SEGMENT)) {
            const int64_t n = NAME(min)(a->span - at, NAME(SEGMENT));
            VEC lanes[3];
            REAL folded[GROUP];
            NAME(row_gradient_sums)(&none, x + at, dy + at, NULL, n, row, false, &lanes[0],
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
                                   int64_t first, int64_t count, double sums[3][GROUP]) {
    const backward_args none = {0};
    VEC lanes[3][GROUP];
    for (int64_t i = 0; i < GROUP; i++) {
        const int64_t at = (first + NAME(min)(i, count - 1)) * a->span;
        NAME(row_gradient_sums)(&none, (const ELEMENT_T *)a->x + at, (const ELEMENT_T *)a->dy + at,
                                NULL, a->span, row, false, &lanes[0][i], &lanes[1][i],
                                &lanes[2][i]);
    }
    for (int s = 0; s < 3; s++) {
        REAL folded[GROUP];
        NAME(fold_rows)(lanes[s], GROUP, folded);
        for (int i = 0; i < GROUP; i++)
            sums[s][i] = 0.0 + folded[i]; /* never -0 */
    }
}

/* The row's constants and its sums for dweight and dbias. False where one left the range. */
INLINE bool NAME(group_constants)(const group_backward_args *a, const bool rms,
                                  NAME(row_gradient) * row) {
    const REAL *const weights = a->weight;
    const double inverse = 1.0 / (double)(a->channels * a->span);
    double delta = 0, c1 = 0, c2 = 0;
    row->rstd = row->scale = (REAL)stat_load(&a->rstd, 0);
    row->mean = rms ? 0 : (REAL)stat_load(&a->mean, 0);
    for (int64_t first = 0; first < a->channels; first += GROUP) {
        const int64_t count = NAME(min)(a->channels - first, GROUP);
        double sums[3][GROUP];
        if (a->span <= NAME(SEGMENT) && count > 1)
            NAME(group_short_sums)(a, *row, first, count, sums);
        else
            NAME(group_long_sums)(a, *row, first, count, sums);
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

INLINE void NAME(group_gradient)(const ELEMENT_T *x, const ELEMENT_T *dy, ELEMENT_T *dx, int64_t n,
                                 NAME(row_gradient) row, VEC weight, int64_t ahead,
                                 const bool rms) {
    int64_t i = 0;
    for (; NAME(PAIRED) && i + 2 * VEC_LANES <= n; i += 2 * VEC_LANES) {
        VEC v[2], d[2];
        LOAD_X_PAIR(x + i, v);
        LOAD_X_PAIR(dy + i, d);
        UNROLL for (int k = 0; k < 2; k++) v[k] =
            NAME(gradient_of)(d[k], weight, NAME(xhat_of)(v[k], row, rms), row, rms);
        STORE_X_PAIR(dx + i, v);
        if (ahead) {
            NAME(ask_for)(x + i, ahead, TRAFFIC_AHEAD);
            NAME(ask_for)(dy + i, ahead, TRAFFIC_AHEAD);
        }
    }
    for (; i + VEC_LANES <= n; i += VEC_LANES) {
        const VEC d = LOAD_X(dy + i), xhat = NAME(xhat_of)(LOAD_X(x + i), row, rms);
        STORE_X(dx + i, NAME(gradient_of)(d, weight, xhat, row, rms));
        if (ahead) {
            NAME(ask_for)(x + i, ahead, TRAFFIC_AHEAD);
            NAME(ask_for)(dy + i, ahead, TRAFFIC_AHEAD);
        }
    }
    if (i == n)
        return;
    /* As in group_apply. */
    const bool again = n >= VEC_LANES && (const void *)x != (const void *)dx &&
                       (const void *)dy != (const void *)dx;
    const int left = again ? VEC_LANES : (int)(n - i);
    i = n - left;
    const VEC d = NAME(load_x)(dy + i, left);
    const VEC xhat = NAME(xhat_of)(NAME(load_x)(x + i, left), row, rms);
    NAME(store_x)(dx + i, NAME(gradient_of)(d, weight, xhat, row, rms), left);
}

INLINE void NAME(group_backward)(const group_backward_args *a, const bool rms) {
    NAME(row_gradient) row;
    if (__builtin_expect(!NAME(group_constants)(a, rms, &row), 0)) {
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
    const REAL *const weights = a->weight;
    _Alignas(64) ELEMENT_T piece[4 * NAME(PIECE)];
    for (int64_t c = 0; c < a->channels; c++) {
        const ELEMENT_T *const x = (const ELEMENT_T *)a->x + c * span;
        const ELEMENT_T *const dy = (const ELEMENT_T *)a->dy + c * span;
        ELEMENT_T *const dx = (ELEMENT_T *)a->dx + c * span;
        const VEC weight = V(set1)(weights ? weights[c] + (REAL)a->weight_offset : 1);
        if (t != TRAFFIC_STREAM) {
            NAME(group_gradient)(x, dy, dx, span, row, weight, ahead, rms);
            continue;
        }
        for (int64_t at = 0; at < span; at += 4 * NAME(PIECE)) {
            const int64_t n = NAME(min)(span - at, 4 * NAME(PIECE));
            NAME(group_gradient)(x + at, dy + at, piece, n, row, weight, ahead, rms);
            stream_lines(dx + at, piece, n * (int64_t)sizeof(ELEMENT_T));
        }
    }
    if (t == TRAFFIC_STREAM)
        VEC_FENCE();
}

static void NAME(group_forward_layer)(const group_forward_args *a) {
    NAME(group_forward)(a, false);
}
static void NAME(group_forward_rms)(const group_forward_args *a) {
    NAME(group_forward)(a, true);
}
static void NAME(group_backward_layer)(const group_backward_args *a) {
    NAME(group_backward)(a, false);
}
static void NAME(group_backward_rms)(const group_backward_args *a) {
    NAME(group_backward)(a, true);
}
