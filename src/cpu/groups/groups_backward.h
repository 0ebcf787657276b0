/* Backward of rows of channels; part of cpu/groups/groups.h. */
#include "cpu/common/saved_mean.h"

/* A channel of one of the rows. */
typedef struct NAME(channel_place) {
    int row;
    int64_t channel;
} NAME(channel_place);

/* The next one; a row that is alone does not end before its caller does. */
INLINE NAME(channel_place)
    NAME(next_channel)(const group_backward_args *a, NAME(channel_place) p, const bool alone) {
    const bool ends = !alone && p.channel + 1 == a->channels;
    return (NAME(channel_place)){p.row + ends, ends ? 0 : p.channel + 1};
}

/* Where its elements from `at` on are. */
INLINE const ELEMENT_T *NAME(x_at)(const group_backward_args *a, NAME(channel_place) p,
                                   int64_t at) {
    return (const ELEMENT_T *)(a->x + p.row * a->x_pitch) + p.channel * a->span + at;
}
INLINE const ELEMENT_T *NAME(dy_at)(const group_backward_args *a, NAME(channel_place) p,
                                    int64_t at) {
    return (const ELEMENT_T *)(a->dy + p.row * a->dy_pitch) + p.channel * a->span + at;
}
INLINE const ELEMENT_T *NAME(dsum_at)(const group_backward_args *a, NAME(channel_place) p,
                                      int64_t at) {
    return (const ELEMENT_T *)(a->dsum + p.row * a->dsum_pitch) + p.channel * a->span + at;
}
INLINE REAL *NAME(kept_at)(const group_backward_args *a, NAME(channel_place) p, int64_t at) {
    const int64_t channel = p.row * a->channels + p.channel;
    return a->kept ? (REAL *)a->kept + channel * a->span + at : NULL;
}
INLINE NAME(epilogue) NAME(epilogue_of)(const group_backward_args *a, NAME(channel_place) p,
                                        const planish_activation f) {
    return NAME(epilogue_at)(a->weight, a->bias, a->weight_offset,
                             p.row * a->weight_step + p.channel, f);
}

OUTLINE void NAME(group_wide_backward)(const group_backward_args *a, int row, bool rms) {
    const int64_t first = row * a->weight_step, sums = row * a->channels;
    const REAL *const weights = a->weight, *const biases = a->bias;
    const backward_args alone = {
        .rows = 1,
        .cols = a->channels * a->span,
        .dy = a->dy + row * a->dy_pitch,
        .x = a->x + row * a->x_pitch,
        .dx = a->dx ? a->dx + row * a->dx_pitch : NULL,
        .weight = weights ? weights + first : NULL,
        .weight_offset = a->weight_offset,
        .rule = a->rule,
        .mean = stat_at(&a->mean, row),
        .rstd = stat_at(&a->rstd, row),
        .weight_span = a->span,
        .bias = biases ? biases + first : NULL,
        .activation = a->activation,
        .dsum = a->dsum ? a->dsum + row * a->dsum_pitch : NULL,
    };
    /* The sums of a channel are made in double whatever the element is. */
    overflow_backward_sums(&alone, rms ? PLANISH_RMS : PLANISH_LAYER, DTYPE_OF(ELEMENT),
                           DTYPE_OF(REAL_TOKEN), a->dweight + sums, a->dbias + sums);
}

/* Sums over n elements of a channel, no more than a segment, of xhat, dy and dy * xhat, with xhat
 * by the saved mean: of what the activation makes of dy, where one follows. */
OUTLINE void NAME(active_gradient_sums)(const group_backward_args *a, NAME(channel_place) p,
                                        int64_t at, int64_t n, NAME(row_gradient) row, VEC *xhat,
                                        VEC *g, VEC *gxhat) {
    const backward_args none = {0};
    const NAME(epilogue) of = NAME(epilogue_of)(a, p, a->activation);
    NAME(segment_gradient_sums)(&none, NAME(x_at)(a, p, at), NAME(dy_at)(a, p, at), NULL, n, row,
                                false, &of, NAME(kept_at)(a, p, at), 0, xhat, g, gxhat);
}
INLINE void NAME(part_gradient_sums)(const group_backward_args *a, NAME(channel_place) p,
                                     int64_t at, int64_t n, NAME(row_gradient) row,
                                     const planish_activation f, VEC *xhat, VEC *g, VEC *gxhat) {
    const backward_args none = {0};
    if (f == PLANISH_IDENTITY)
        NAME(row_gradient_sums)(&none, NAME(x_at)(a, p, at), NAME(dy_at)(a, p, at), NULL, n, row,
                                false, 0, xhat, g, gxhat);
    else
        NAME(active_gradient_sums)(a, p, at, n, row, xhat, g, gxhat);
}

/* Those of `count` channels from p on, which may be of several rows. */
INLINE void NAME(group_long_sums)(const group_backward_args *a, const NAME(row_gradient) rows[],
                                  NAME(channel_place) p, int64_t count, const bool alone,
                                  const planish_activation f, double sums[3][TOGETHER]) {
    for (int64_t i = 0; i < count; i++, p = NAME(next_channel)(a, p, alone)) {
        double sum[3] = {0}, rest[3] = {0};
        for (int64_t at = 0; at < a->span; at += NAME(SEGMENT)) {
            const int64_t n = NAME(min)(a->span - at, NAME(SEGMENT));
            VEC lanes[3];
            REAL folded[TOGETHER];
            NAME(part_gradient_sums)(a, p, at, n, rows[p.row], f, &lanes[0], &lanes[1], &lanes[2]);
            NAME(fold_rows)(lanes, 3, folded);
            for (int s = 0; s < 3; s++)
                exact_add(&sum[s], &rest[s], folded[s]);
        }
        for (int s = 0; s < 3; s++)
            sums[s][i] = sum[s] + rest[s];
    }
}

/* The same of channels of one segment, whose lanes are folded together. */
INLINE void NAME(group_short_sums)(const group_backward_args *a, const NAME(row_gradient) rows[],
                                   NAME(channel_place) p, int64_t count, const bool alone,
                                   const planish_activation f, double sums[3][TOGETHER]) {
    const VEC zero = V(set1)(0);
    VEC lanes[3][TOGETHER] = {
        {zero, zero, zero, zero}, {zero, zero, zero, zero}, {zero, zero, zero, zero}};
    for (int64_t i = 0; i < count; i++, p = NAME(next_channel)(a, p, alone))
        NAME(part_gradient_sums)(a, p, 0, a->span, rows[p.row], f, &lanes[0][i], &lanes[1][i],
                                 &lanes[2][i]);
    for (int s = 0; s < 3; s++) {
        REAL folded[TOGETHER];
        NAME(fold_rows)(lanes[s], TOGETHER, folded);
        for (int i = 0; i < TOGETHER; i++)
            sums[s][i] = 0.0 + folded[i]; /* never -0 */
    }
}

INLINE void NAME(channels_sums)(const group_backward_args *a, const NAME(row_gradient) rows[],
                                NAME(channel_place) p, int64_t count, const bool alone,
                                const planish_activation f, double sums[3][TOGETHER]) {
    if (a->span <= NAME(SEGMENT) && count > 1)
        NAME(group_short_sums)(a, rows, p, count, alone, f, sums);
    else
        NAME(group_long_sums)(a, rows, p, count, alone, f, sums);
}

/* The sum of a row's xhat by the saved mean. */
OUTLINE double NAME(group_xhat_sum)(const group_backward_args *a, int row,
                                    const NAME(row_gradient) rows[]) {
    group_backward_args of_x = *a;
    double delta = 0;
    of_x.dy = a->x;
    of_x.dy_pitch = a->x_pitch;
    for (int64_t first = 0; first < a->channels; first += TOGETHER) {
        const int64_t count = NAME(min)(a->channels - first, TOGETHER);
        const NAME(channel_place) at = {row, first};
        double sums[3][TOGETHER];
        NAME(channels_sums)(&of_x, rows, at, count, true, PLANISH_IDENTITY, sums);
        for (int64_t i = 0; i < count; i++)
            delta += sums[0][i];
    }
    return delta;
}

/* What the saved mean of a row lacks, from the sum of its xhat by it. */
INLINE double NAME(group_mean_rest)(const group_backward_args *a, int row,
                                    NAME(row_gradient) constants, double sum) {
    const mean_reach reach = mean_reach_of(a->mean.type, DTYPE_OF(REAL_TOKEN) == DTYPE_F64);
    const double inverse = a->rule.inverse;
    return rest_of_mean(&reach, &a->mean, row, sum * inverse, constants.mean, constants.rstd);
}

/* The saved mean and rstd of every row; and the rest of the mean where an activation follows, which
 * wants it before anything is summed. */
INLINE void NAME(load_group_rows)(const group_backward_args *a, const bool rms,
                                  const planish_activation f, NAME(row_gradient) rows[]) {
    for (int r = 0; r < a->rows; r++) {
        const double mean = rms ? 0 : stat_load(&a->mean, r), rstd = stat_load(&a->rstd, r);
        rows[r].rstd = rows[r].xhat_rstd = (REAL)rstd;
        rows[r].mean = (REAL)mean;
        rows[r].minus_delta = 0;
        if (f == PLANISH_IDENTITY || rms)
            continue;
        const bool is_exact = a->mean.type == DTYPE_F64 && NAME(REAL_BYTES) < 8;
        const double sum = is_exact ? 0 : NAME(group_xhat_sum)(a, r, rows);
        rows[r].minus_delta = (REAL)-NAME(group_mean_rest)(a, r, rows[r], sum);
    }
}

INLINE VEC NAME(group_gradient_of)(VEC dy, NAME(epilogue) of, VEC xhat, NAME(row_gradient) row,
                                   const bool rms) {
    return NAME(gradient_of)(NAME(through)(of, dy, xhat), of.weight, xhat, row, rms);
}

/* dx of a vector of a row, of which `n` elements are there; with dsum unless that is NULL. */
INLINE void NAME(group_gradient_vector)(const ELEMENT_T *x, const ELEMENT_T *dy,
                                        const ELEMENT_T *dsum, ELEMENT_T *dx, int64_t n,
                                        NAME(row_gradient) row, NAME(epilogue) of, const bool rms) {
    const VEC d = NAME(load_x)(dy, n), xhat = NAME(xhat_of)(NAME(load_x)(x, n), row, rms);
    NAME(store_x)(dx, NAME(with_sum)(NAME(group_gradient_of)(d, of, xhat, row, rms), dsum, n), n);
}

#include "cpu/groups/groups_across.h"

/* The constants of the rows and their sums for dweight and dbias; which of them left the range. */
INLINE void NAME(group_constants)(const group_backward_args *a, const bool rms,
                                  const planish_activation f, const bool alone,
                                  NAME(row_gradient) rows[], bool in_range[]) {
    const REAL *const weights = a->weight;
    const double inverse = a->rule.inverse;
    const int64_t all = a->rows * a->channels;
    double delta[TOGETHER] = {0}, c1[TOGETHER] = {0}, c2[TOGETHER] = {0};
    NAME(channel_place) p = {0, 0};
    NAME(load_group_rows)(a, rms, f, rows);
    const bool across = f == PLANISH_IDENTITY && NAME(sums_across)(a);
    for (int r = 0; r < a->rows && across; r++)
        NAME(group_sums_across)(a, r, rows[r], &delta[r], &c1[r], &c2[r]);
    for (int64_t first = 0; first < all && !across; first += TOGETHER) {
        const int64_t count = NAME(min)(all - first, TOGETHER);
        double sums[3][TOGETHER];
        NAME(channels_sums)(a, rows, p, count, alone, f, sums);
        for (int64_t i = 0; i < count; i++, p = NAME(next_channel)(a, p, alone)) {
            const int64_t c = p.row * a->weight_step + p.channel;
            const double weight = weights ? weights[c] + (REAL)a->weight_offset : 1;
            delta[p.row] += sums[0][i];
            c1[p.row] += weight * sums[1][i];
            c2[p.row] += weight * sums[2][i];
            a->dbias[first + i] = sums[1][i];
            a->dweight[first + i] = sums[2][i];
        }
    }
    for (int r = 0; r < a->rows; r++) {
        double *const dweight = a->dweight + r * a->channels;
        const double *const dbias = a->dbias + r * a->channels;
        /* What an activation was found by stays. */
        delta[r] = rms                     ? 0
                   : f == PLANISH_IDENTITY ? NAME(group_mean_rest)(a, r, rows[r], delta[r])
                                           : -(double)rows[r].minus_delta;
        c1[r] = rms ? 0 : c1[r] * inverse;
        c2[r] = rule_c2(&a->rule, c2[r] * inverse - c1[r] * delta[r], rows[r].rstd);
        for (int64_t c = 0; c < a->channels; c++)
            dweight[c] -= delta[r] * dbias[c];
        rows[r].minus_delta = (REAL)-delta[r];
        rows[r].c1 = (REAL)c1[r];
        rows[r].minus_c2 = (REAL)-c2[r];
        in_range[r] = fabs(delta[r]) < BIG && fabs(c1[r]) < BIG && fabs(c2[r]) < BIG;
    }
}

/* n elements of a channel's dx. What was kept of the gradient is taken in place of dy; dsum is
 * added where it is not a constant NULL. */
INLINE void NAME(group_gradient)(const ELEMENT_T *x, const ELEMENT_T *dy, const REAL *kept,
                                 const ELEMENT_T *dsum, ELEMENT_T *dx, int64_t n,
                                 NAME(row_gradient) row, NAME(epilogue) of, int64_t ahead,
                                 const bool rms) {
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
        if (dsum) {
            LOAD_X_PAIR(dsum + i, d);
            UNROLL for (int k = 0; k < 2; k++) v[k] = V(add)(v[k], d[k]);
        }
        STORE_X_PAIR(dx + i, v);
        if (ahead) {
            NAME(prefetch_vector)(x + i, ahead, TRAFFIC_AHEAD);
            NAME(prefetch_vector)(dy + i, ahead, TRAFFIC_AHEAD);
            if (dsum)
                NAME(prefetch_vector)(dsum + i, ahead, TRAFFIC_AHEAD);
        }
    }
    for (; i + VEC_LANES <= n; i += VEC_LANES) {
        const VEC d = kept ? LOAD_REAL(kept + i) : LOAD_X(dy + i);
        const VEC xhat = NAME(xhat_of)(LOAD_X(x + i), row, rms);
        STORE_X(dx + i, NAME(with_sum)(NAME(group_gradient_of)(d, of, xhat, row, rms),
                                       dsum ? dsum + i : NULL, VEC_LANES));
        if (ahead) {
            NAME(prefetch_vector)(x + i, ahead, TRAFFIC_AHEAD);
            NAME(prefetch_vector)(dy + i, ahead, TRAFFIC_AHEAD);
            if (dsum)
                NAME(prefetch_vector)(dsum + i, ahead, TRAFFIC_AHEAD);
        }
    }
    if (i == n)
        return;
    /* As in group_apply. */
    const bool again = n >= VEC_LANES && !kept && (const void *)x != (const void *)dx &&
                       (const void *)dy != (const void *)dx &&
                       (const void *)dsum != (const void *)dx;
    const int left = again ? VEC_LANES : (int)(n - i);
    i = n - left;
    const VEC d = kept ? LOAD_REAL(kept + i) : NAME(load_x)(dy + i, left);
    const VEC xhat = NAME(xhat_of)(NAME(load_x)(x + i, left), row, rms);
    NAME(store_x)(dx + i,
                  NAME(with_sum)(NAME(group_gradient_of)(d, of, xhat, row, rms),
                                 dsum ? dsum + i : NULL, left),
                  left);
}

/* n elements of a channel, from `at` on. */
INLINE void NAME(channel_gradient)(const group_backward_args *a, NAME(channel_place) p, int64_t at,
                                   ELEMENT_T *dx, int64_t n, NAME(row_gradient) row, int64_t ahead,
                                   const bool rms, const planish_activation f, const bool summed) {
    const ELEMENT_T *const x = NAME(x_at)(a, p, at), *const dy = NAME(dy_at)(a, p, at);
    const ELEMENT_T *const dsum = summed ? NAME(dsum_at)(a, p, at) : NULL;
    NAME(epilogue) of = NAME(epilogue_of)(a, p, f);
    if (f == PLANISH_IDENTITY || !a->kept) {
        NAME(group_gradient)(x, dy, NULL, dsum, dx, n, row, of, ahead, rms);
        return;
    }
    of.kind = PLANISH_IDENTITY;
    NAME(group_gradient)(x, dy, NAME(kept_at)(a, p, at), dsum, dx, n, row, of, ahead, rms);
}

/* dx of a row; `summed`: with dsum. */
INLINE void NAME(group_dx_as)(const group_backward_args *a, int r, NAME(row_gradient) row,
                              const traffic t, const bool rms, const planish_activation f,
                              const bool summed) {
    const int64_t span = a->span, all = a->channels * span;
    const int64_t ahead =
        t == TRAFFIC_CACHED || !a->hints->prefetch_groups || 2 * all > NAME(GROUP_AHEAD)
            ? 0
            : a->rows * all * (int64_t)sizeof(ELEMENT_T);
    _Alignas(64) ELEMENT_T piece[4 * NAME(PIECE)];
    if (t != TRAFFIC_STREAM && f == PLANISH_IDENTITY && !NAME(CONVERTS) && span > VEC_LANES &&
        span % VEC_LANES) {
        NAME(group_gradient_across)(a, r, row, rms, summed);
        return;
    }
    for (int64_t c = 0; c < a->channels; c++) {
        const NAME(channel_place) p = {r, c};
        ELEMENT_T *const dx = (ELEMENT_T *)(a->dx + r * a->dx_pitch) + c * span;
        if (t != TRAFFIC_STREAM) {
            NAME(channel_gradient)(a, p, 0, dx, span, row, ahead, rms, f, summed);
            continue;
        }
        for (int64_t at = 0; at < span; at += 4 * NAME(PIECE)) {
            const int64_t n = NAME(min)(span - at, 4 * NAME(PIECE));
            NAME(channel_gradient)(a, p, at, piece, n, row, ahead, rms, f, summed);
            stream_lines(dx + at, piece, n * (int64_t)sizeof(ELEMENT_T));
        }
    }
}

/* One text for all norms: dsum is read beside them. */
OUTLINE void NAME(group_dx_summed)(const group_backward_args *a, int r, NAME(row_gradient) row,
                                   traffic t, bool rms) {
    if (a->activation == PLANISH_IDENTITY)
        NAME(group_dx_as)(a, r, row, t, rms, PLANISH_IDENTITY, true);
    else
        NAME(group_dx_as)(a, r, row, t, false, a->activation, true);
}

INLINE void NAME(group_dx)(const group_backward_args *a, int r, NAME(row_gradient) row,
                           const traffic t, const bool rms, const planish_activation f) {
    if (__builtin_expect(!a->dsum, 1))
        NAME(group_dx_as)(a, r, row, t, rms, f, false);
    else
        NAME(group_dx_summed)(a, r, row, t, rms);
}

INLINE void NAME(group_backward)(const group_backward_args *a, const bool rms,
                                 const planish_activation f) {
    NAME(row_gradient) rows[TOGETHER];
    bool in_range[TOGETHER];
    const traffic t = NAME(group_traffic)(a->traffic, a->dx, a->dx_pitch, a->rows, a->span);
    const bool plain_rms = rms && f == PLANISH_IDENTITY; /* as in group_forward */
    if (a->rows == 1)
        NAME(group_constants)(a, rms, f, true, rows, in_range);
    else
        NAME(group_constants)(a, rms, f, false, rows, in_range);
    for (int r = 0; r < a->rows; r++)
        if (__builtin_expect(!in_range[r], 0))
            NAME(group_wide_backward)(a, r, rms);
        else if (a->dx)
            NAME(group_dx)(a, r, rows[r], t, plain_rms, f);
}
