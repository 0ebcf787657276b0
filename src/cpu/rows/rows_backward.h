/* The backward row kernel; part of cpu/rows/kernels_rows_backward.c, in the words of
 * cpu/rows/rows.h. */

/* Rows up to these sizes are taken in groups, where elements are converted, and where not. */
enum { BACKWARD_GROUP_BYTES = 32768, BACKWARD_LONG_BYTES = 262144 };

static void NAME(backward_row)(const backward_args *a, int64_t row, bool rms, traffic t);

/* Finishes the constants of one row of a segment or less. */
INLINE bool NAME(row_constants)(const backward_args *a, int64_t row, const ELEMENT_T *x,
                                const ELEMENT_T *dy, bool rms, NAME(row_gradient) * of) {
    VEC xhat, g, gxhat;
    if (a->cols < LANES && !rms)
        NAME(gradient_sums_as)(a, x, dy, a->weight, a->cols, *of, false, true, &xhat, &g, &gxhat);
    else
        NAME(row_gradient_sums)(a, x, dy, a->weight, a->cols, *of, rms, 0, &xhat, &g, &gxhat);
    return NAME(constants_of_one)(a, row, xhat, g, gxhat, rms, of);
}

/* Finishes the constants of up to TOGETHER rows, from row `first` on, from their sums. False where
 * one left the range. */
OUTLINE bool NAME(gradient_constants)(const backward_args *a, int64_t first,
                                      const ELEMENT_T *const x[], const ELEMENT_T *const dy[],
                                      int count, bool rms, NAME(row_gradient) row[]) {
    const double inverse = a->rule.inverse;
    const mean_reach reach = NAME(reach_of)(a, rms);
    double total[3][TOGETHER] = {{0}};
    double *const delta = total[0], *const c1 = total[1], *const c2 = total[2];
    NAME(gradient_totals)(a, x, dy, count, rms, row, total);
    int out_of_range = 0;
    /* What the saved mean lacks; nothing where xhat is given. */
    for (int r = 0; r < count && !rms; r++)
        delta[r] = a->x_is_xhat ? 0
                                : rest_of_mean(&reach, &a->mean, first + r, delta[r] * inverse,
                                               row[r].mean, row[r].rstd);
    for (int r = 0; r < TOGETHER; r++) {
        c1[r] *= inverse;
        c2[r] = rule_c2(&a->rule, c2[r] * inverse - c1[r] * delta[r], row[r].rstd);
        out_of_range |= !(fabs(delta[r]) < BIG) | !(fabs(c1[r]) < BIG) | !(fabs(c2[r]) < BIG);
    }
    for (int r = 0; r < count; r++) {
        row[r].minus_delta = (REAL)-delta[r];
        row[r].c1 = (REAL)c1[r];
        row[r].minus_c2 = (REAL)-c2[r];
    }
    return !out_of_range;
}

/*
 * n elements of dx of one or two rows, from element `at` on, and their contribution to dweight and
 * dbias, which add the rows in their order: the sums are the same bits however the rows are
 * grouped. dsum is added to dx, where that is not a constant NULL. The rows that come next, `group`
 * rows on, are prefetched.
 */
INLINE void NAME(gradient_as)(const backward_args *a, const ELEMENT_T *const rows_x[],
                              const ELEMENT_T *const rows_dy[], const ELEMENT_T *const rows_dsum[],
                              ELEMENT_T *const dx0, ELEMENT_T *const dx1, const int count,
                              int64_t at, int64_t n, const NAME(row_gradient) row[], const bool rms,
                              int64_t group, const traffic t) {
    /* Everything the loop reads is local: a store could change what a pointer reaches. */
    const ELEMENT_T *const x0 = rows_x[0] + at, *const x1 = rows_x[count - 1] + at;
    const ELEMENT_T *const dy0 = rows_dy[0] + at, *const dy1 = rows_dy[count - 1] + at;
    const bool summed = rows_dsum != NULL;
    const ELEMENT_T *const dsum0 = summed ? rows_dsum[0] + at : NULL;
    const ELEMENT_T *const dsum1 = summed ? rows_dsum[count - 1] + at : NULL;
    const NAME(row_gradient) row0 = row[0], row1 = row[count - 1];
    const WEIGHT_T *const weights = a->weight ? (const WEIGHT_T *)a->weight + at : NULL;
    REAL *const dweight = a->dweight ? (REAL *)a->dweight + at : NULL;
    REAL *const dbias = a->dbias ? (REAL *)a->dbias + at : NULL;
    const bool wants_dx = a->dx != NULL;
    const VEC offset = V(set1)((REAL)a->weight_offset);
    const int64_t x_ahead = group * a->x_pitch, dy_ahead = group * a->dy_pitch;
    const int64_t dsum_ahead = summed ? group * a->dsum_pitch : 0;
    VEC weight = V(set1)(1);
    int64_t i = 0;
    for (; NAME(PAIRED) && i + 2 * VEC_LANES <= n; i += 2 * VEC_LANES) {
        const VEC zero = V(set1)(0);
        VEC w[2] = {weight, weight}, w_sum[2] = {zero, zero}, b_sum[2] = {zero, zero};
        if (weights)
            LOAD_W_PAIR(weights + i, w);
        UNROLL for (int k = 0; k < 2; k++) {
            w[k] = weights ? V(add)(w[k], offset) : w[k];
            if (dweight)
                w_sum[k] = LOAD_REAL(dweight + i + k * VEC_LANES);
            if (dbias)
                b_sum[k] = LOAD_REAL(dbias + i + k * VEC_LANES);
        }
        for (int r = 0; r < count; r++) {
            VEC d[2], v[2], out[2];
            LOAD_X_PAIR((r ? dy1 : dy0) + i, d);
            LOAD_X_PAIR((r ? x1 : x0) + i, v);
            UNROLL for (int k = 0; k < 2; k++) {
                v[k] = NAME(xhat_of)(v[k], r ? row1 : row0, rms);
                out[k] = NAME(gradient_of)(d[k], w[k], v[k], r ? row1 : row0, rms);
                if (dweight)
                    w_sum[k] = V(fma)(d[k], v[k], w_sum[k]);
                if (dbias)
                    b_sum[k] = V(add)(d[k], b_sum[k]);
            }
            if (summed) {
                VEC more[2];
                LOAD_X_PAIR((r ? dsum1 : dsum0) + i, more);
                UNROLL for (int k = 0; k < 2; k++) out[k] = V(add)(out[k], more[k]);
                NAME(prefetch_vector)((r ? dsum1 : dsum0) + i, dsum_ahead, t);
            }
            if (wants_dx)
                STORE_X_PAIR((r ? dx1 : dx0) + i, out);
            NAME(prefetch_vector)((r ? x1 : x0) + i, x_ahead, t);
            NAME(prefetch_vector)((r ? dy1 : dy0) + i, dy_ahead, t);
        }
        UNROLL for (int k = 0; k < 2; k++) {
            if (dweight)
                STORE_REAL(dweight + i + k * VEC_LANES, w_sum[k]);
            if (dbias)
                STORE_REAL(dbias + i + k * VEC_LANES, b_sum[k]);
        }
    }
    for (; i + VEC_LANES <= n; i += VEC_LANES) {
        if (weights)
            weight = V(add)(LOAD_W(weights + i), offset);
        const VEC d0 = LOAD_X(dy0 + i), xhat0 = NAME(xhat_of)(LOAD_X(x0 + i), row0, rms);
        const VEC d1 = count == 2 ? LOAD_X(dy1 + i) : d0;
        const VEC xhat1 = count == 2 ? NAME(xhat_of)(LOAD_X(x1 + i), row1, rms) : xhat0;
        if (wants_dx) {
            const VEC ds0 = NAME(gradient_of)(d0, weight, xhat0, row0, rms);
            NAME(store_as)(dx0 + i, NAME(with_sum)(ds0, summed ? dsum0 + i : NULL, VEC_LANES),
                           VEC_LANES, t);
            const VEC ds1 = NAME(gradient_of)(d1, weight, xhat1, row1, rms);
            if (count == 2)
                NAME(store_as)(dx1 + i, NAME(with_sum)(ds1, summed ? dsum1 + i : NULL, VEC_LANES),
                               VEC_LANES, t);
        }
        if (dweight) {
            const VEC sum = V(fma)(d0, xhat0, LOAD_REAL(dweight + i));
            STORE_REAL(dweight + i, count == 2 ? V(fma)(d1, xhat1, sum) : sum);
        }
        if (dbias) {
            const VEC sum = V(add)(d0, LOAD_REAL(dbias + i));
            STORE_REAL(dbias + i, count == 2 ? V(add)(d1, sum) : sum);
        }
        NAME(prefetch_vector)(x0 + i, x_ahead, t);
        NAME(prefetch_vector)(dy0 + i, dy_ahead, t);
        if (summed)
            NAME(prefetch_vector)(dsum0 + i, dsum_ahead, t);
        if (count == 1)
            continue;
        NAME(prefetch_vector)(x1 + i, x_ahead, t);
        NAME(prefetch_vector)(dy1 + i, dy_ahead, t);
        if (summed)
            NAME(prefetch_vector)(dsum1 + i, dsum_ahead, t);
    }
    if (i == n)
        return;
    const int left = (int)(n - i);
    if (weights)
        weight = V(add)(LOAD_W_PART(weights + i, left), offset);
    for (int r = 0; r < count; r++) {
        const VEC d = LOAD_X_PART((r ? dy1 : dy0) + i, left);
        const VEC xhat = NAME(xhat_of)(LOAD_X_PART((r ? x1 : x0) + i, left), row[r], rms);
        if (wants_dx) {
            const VEC ds = NAME(gradient_of)(d, weight, xhat, row[r], rms);
            const ELEMENT_T *const from = r ? dsum1 : dsum0;
            STORE_X_PART((r ? dx1 : dx0) + i, NAME(with_sum)(ds, summed ? from + i : NULL, left),
                         left);
        }
        if (dweight)
            STORE_REAL_PART(dweight + i, V(fma)(d, xhat, LOAD_REAL_PART(dweight + i, left)), left);
        if (dbias)
            STORE_REAL_PART(dbias + i, V(add)(d, LOAD_REAL_PART(dbias + i, left)), left);
    }
}

/* The sums of dweight and dbias are in the order of pairs while a kernel runs. */
INLINE void NAME(pair_sums)(const backward_args *a, const bool in_pairs) {
    REAL *const all[2] = {a->dweight, a->dbias};
    for (int s = 0; NAME(PAIRED) && s < 2; s++)
        for (int64_t i = 0; all[s] && i + 2 * VEC_LANES <= a->cols; i += 2 * VEC_LANES) {
            VEC v[2];
            if (in_pairs)
                LOAD_REAL_PAIR(all[s] + i, v);
            else
                UNROLL for (int k = 0; k < 2; k++) v[k] = LOAD_REAL(all[s] + i + k * VEC_LANES);
            if (!in_pairs)
                V(in_order)(v);
            UNROLL for (int k = 0; k < 2; k++) STORE_REAL(all[s] + i + k * VEC_LANES, v[k]);
        }
}

/* Two rows that lie beyond a near cache, apart from all others' code: there the compiler reads what
 * is one number in a vector anew for every vector. */
OUTLINE void NAME(gradient_ahead)(const backward_args *a, const ELEMENT_T *const x[],
                                  const ELEMENT_T *const dy[], ELEMENT_T *const dx[],
                                  const NAME(row_gradient) row[], bool rms, int64_t group) {
    if (rms)
        NAME(gradient_as)(a, x, dy, NULL, dx[0], dx[1], 2, 0, a->cols, row, true, group,
                          TRAFFIC_AHEAD);
    else
        NAME(gradient_as)(a, x, dy, NULL, dx[0], dx[1], 2, 0, a->cols, row, false, group,
                          TRAFFIC_AHEAD);
}

/* One or two rows, or by non-temporal stores up to TOGETHER: a piece of all of them at a time, for
 * which weight and the sums of dweight and dbias come from a further cache once. */
INLINE void NAME(gradient)(const backward_args *a, const ELEMENT_T *const x[],
                           const ELEMENT_T *const dy[], const ELEMENT_T *const dsum[],
                           ELEMENT_T *const dx[], const int count, const NAME(row_gradient) row[],
                           const bool rms, int64_t group, const traffic t) {
    ELEMENT_T *const dx0 = dx[0], *const dx1 = dx[count - 1];
    const int64_t n = a->cols;
    if (t == TRAFFIC_CACHED) {
        NAME(gradient_as)(a, x, dy, dsum, dx0, dx1, count, 0, n, row, rms, group, TRAFFIC_CACHED);
        return;
    }
    if (t == TRAFFIC_AHEAD && count == 2 && !dsum) {
        NAME(gradient_ahead)(a, x, dy, dx, row, rms, group);
        return;
    }
    if (t == TRAFFIC_AHEAD) {
        NAME(gradient_as)(a, x, dy, dsum, dx0, dx1, count, 0, n, row, rms, group, TRAFFIC_AHEAD);
        return;
    }
    if (count == 1 && n <= NAME(SEGMENT) && NAME(goes_by_line)(a->hints, t)) {
        NAME(gradient_as)(a, x, dy, dsum, dx0, dx1, 1, 0, n, row, rms, group, TRAFFIC_LINES);
        return;
    }
    const int pair = count > 1 ? 2 : 1, together = NAME(goes_by_run)(a->hints) ? pair : count;
    const int64_t most = NAME(goes_by_run)(a->hints) ? NAME(RUN) : NAME(PIECE);
    _Alignas(64) ELEMENT_T piece[TOGETHER][NAME(PIECE)];
    for (int64_t at = 0; at < n; at += most) {
        const int64_t length = NAME(min)(n - at, most);
        for (int r = 0; r < count; r += pair) {
            NAME(gradient_as)(a, x + r, dy + r, dsum ? dsum + r : NULL, piece[r],
                              piece[r + pair - 1], pair, at, length, row + r, rms, group,
                              TRAFFIC_STREAM);
            NAME(stream_rows)(dx, piece[0], NAME(PIECE), r + pair, together, at, length);
        }
    }
}

/* Up to TOGETHER rows. */
INLINE void NAME(gradients)(const backward_args *a, const ELEMENT_T *const x[],
                            const ELEMENT_T *const dy[], const ELEMENT_T *const dsum[],
                            ELEMENT_T *const dx[], const int count, const NAME(row_gradient) row[],
                            const bool rms, int64_t group, const traffic t) {
    if (count == 1 || (t == TRAFFIC_STREAM && !NAME(CONVERTS)))
        NAME(gradient)(a, x, dy, dsum, dx, count, row, rms, group, t);
    else
        for (int r = 0; r < count; r += 2)
            NAME(gradient)(a, x + r, dy + r, dsum ? dsum + r : NULL, dx + r, 2, row + r, rms, group,
                           t);
}

/* The same where dx is added to: texts of their own, so that no other is longer for it. */
#define EACH_SUMMED(kind, count, rms)                                                              \
    ONE_COPY void NAME(gradients_summed_##kind##_##count)(                                         \
        const backward_args *a, const ELEMENT_T *const x[], const ELEMENT_T *const dy[],           \
        const ELEMENT_T *const dsum[], ELEMENT_T *const dx[], const NAME(row_gradient) row[],      \
        int64_t group, traffic t) {                                                                \
        NAME(gradients)(a, x, dy, dsum, dx, count, row, rms, group, t);                            \
    }
EACH_SUMMED(layer, 1, false)
EACH_SUMMED(layer, 4, false)
EACH_SUMMED(rms, 1, true)
EACH_SUMMED(rms, 4, true)
_Static_assert(TOGETHER == 4, "the rows of a group");

/* Rows [first, first + count), count 1 or TOGETHER; dx is made in `piece` where that is given. */
INLINE void NAME(backward_group)(const backward_args *a, int64_t first, const int count,
                                 const bool rms, traffic t, ELEMENT_T *piece) {
    const ELEMENT_T *x[TOGETHER], *dy[TOGETHER], *dsum[TOGETHER];
    ELEMENT_T *dx[TOGETHER];
    NAME(row_gradient) row[TOGETHER];
    for (int r = 0; r < count; r++) {
        x[r] = (const ELEMENT_T *)(a->x + (first + r) * a->x_pitch);
        dy[r] = (const ELEMENT_T *)(a->dy + (first + r) * a->dy_pitch);
        dsum[r] = a->dsum ? (const ELEMENT_T *)(a->dsum + (first + r) * a->dsum_pitch) : NULL;
        dx[r] = a->dx ? (ELEMENT_T *)(a->dx + (first + r) * a->dx_pitch) : NULL;
        if (piece)
            dx[r] = piece + r * a->cols;
        row[r].rstd = (REAL)stat_load(&a->rstd, first + r);
        row[r].mean = rms || a->x_is_xhat ? 0 : (REAL)stat_load(&a->mean, first + r);
        row[r].xhat_rstd = a->x_is_xhat ? 1 : row[r].rstd;
    }
    const bool in_range = count == 1 && a->cols <= NAME(SEGMENT)
                              ? NAME(row_constants)(a, first, x[0], dy[0], rms, row)
                              : NAME(gradient_constants)(a, first, x, dy, count, rms, row);
    if (__builtin_expect(!in_range, 0)) {
        if (count > 1) {
            for (int r = 0; r < count; r++)
                NAME(backward_row)(a, first + r, rms, t);
        } else {
            NAME(pair_sums)(a, false);
            overflow_backward_row(a, first, rms ? PLANISH_RMS : PLANISH_LAYER, DTYPE_OF(ELEMENT),
                                  DTYPE_OF(WEIGHT));
            NAME(pair_sums)(a, true);
        }
        return;
    }
    const int64_t ahead = a->hints->rows_ahead > count ? a->hints->rows_ahead : count;
    const traffic to = a->dx || t != TRAFFIC_STREAM ? t : TRAFFIC_AHEAD;
    if (__builtin_expect(!a->dsum, 1))
        NAME(gradients)(a, x, dy, NULL, dx, count, row, rms, ahead, to);
    else if (count == 1)
        (rms ? NAME(gradients_summed_rms_1) : NAME(gradients_summed_layer_1))(a, x, dy, dsum, dx,
                                                                              row, ahead, to);
    else
        (rms ? NAME(gradients_summed_rms_4) : NAME(gradients_summed_layer_4))(a, x, dy, dsum, dx,
                                                                              row, ahead, to);
    if (piece)
        stream_lines(a->dx + first * a->dx_pitch, piece, TOGETHER * a->dx_pitch);
}

OUTLINE void NAME(backward_row)(const backward_args *a, int64_t row, bool rms, traffic t) {
    if (rms)
        NAME(backward_group)(a, row, 1, true, t, NULL);
    else
        NAME(backward_group)(a, row, 1, false, t, NULL);
}

#if defined(VEC_SMALL_TEXT)
INLINE int64_t NAME(few_columns_backward)(const backward_args *a, bool rms) {
    (void)a, (void)rms;
    return 0;
}
#else
/* As in rows_forward.h. */
INLINE int64_t NAME(few_columns_backward)(const backward_args *a, const bool rms) {
    const planish_kind kind = rms ? PLANISH_RMS : PLANISH_LAYER;
    _Alignas(64) REAL weight[NAME(FEW_COLS)];
    if (a->cols > NAME(FEW_COLS))
        return 0;
    if (DTYPE_OF(WEIGHT) == DTYPE_OF(REAL_TOKEN))
        return UNIT(few_backward, ELEMENT, REAL_TOKEN, TIER)[kind](a);
    backward_args few = *a;
    few.weight = NAME(few_weights)(a->weight, a->cols, weight);
    return UNIT(few_backward, ELEMENT, REAL_TOKEN, TIER)[kind](&few);
}
#endif

INLINE void NAME(backward_rows)(const backward_args *a, const bool rms) {
    const traffic t = NAME(traffic_to)(a->traffic, a->dx, a->dx_pitch, a->cols);
    const int64_t row_bytes = a->cols * (int64_t)sizeof(ELEMENT_T);
    /* From memory rows of a segment go alone, its reads and writes then alternate. The weights and
     * sums of longer ones are further away, and 16-bit ones wait for their conversions: a group has
     * fewer of both. */
    const bool alone = a->traffic != TRAFFIC_CACHED && !NAME(CONVERTS) && a->cols <= NAME(SEGMENT);
    const int64_t most = NAME(CONVERTS) ? BACKWARD_GROUP_BYTES : BACKWARD_LONG_BYTES;
    const int64_t grouped = row_bytes <= most && !alone ? a->rows / TOGETHER * TOGETHER : 0;
    const bool lines = !alone && t != TRAFFIC_STREAM &&
                       NAME(rows_are_lines)(a->traffic, a->dx, a->dx_pitch, a->cols, TOGETHER);
    _Alignas(64) ELEMENT_T piece[TOGETHER * NAME(PIECE)];
    int64_t row = NAME(few_columns_backward)(a, rms);
    NAME(pair_sums)(a, true);
    for (; row < grouped; row += TOGETHER)
        NAME(backward_group)(a, row, TOGETHER, rms, t, lines ? piece : NULL);
    for (; row < a->rows; row++)
        NAME(backward_row)(a, row, rms, t);
    NAME(pair_sums)(a, false);
}

static void NAME(backward_layer)(const backward_args *a) {
    NAME(backward_rows)(a, false);
}
static void NAME(backward_rms)(const backward_args *a) {
    NAME(backward_rows)(a, true);
}
