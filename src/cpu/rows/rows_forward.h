/* The forward row kernel; part of cpu/rows/kernels_rows_forward.c, in the words of cpu/rows/rows.h.
 */

/*
 * Rows up to these sizes are taken in groups: by what finds x in a near cache again, and where y is
 * written by non-temporal stores.
 */
enum { GROUP_ROW_BYTES = 16384, STREAM_ROW_BYTES = 131072 };

/* How many bytes on y is prefetched where it goes through the cache: fewer come too late, with more
 * x leaves the first-level cache. */
enum { WRITE_AHEAD = 4096 };

static void NAME(forward_row)(const forward_args *a, int64_t row, bool rms, traffic t);

/* From a row to what is prefetched while y is made of it, and while it is summed before (0:
 * nothing), in bytes: `rows` rows on, or where a block of a sum says (cpu/rows/rows_sum_forward.h).
 */
INLINE int64_t NAME(from_x)(const forward_args *a, const char *to) {
    return (int64_t)((uintptr_t)to - (uintptr_t)a->x);
}
INLINE int64_t NAME(bytes_ahead)(const forward_args *a, int64_t rows) {
    return a->sum ? NAME(from_x)(a, a->sum) : rows * a->x_pitch;
}
INLINE int64_t NAME(sums_ahead)(const forward_args *a, int64_t rows) {
    if (!a->hints->prefetch_sums)
        return 0;
    return a->residual ? NAME(from_x)(a, a->residual) : rows * a->x_pitch;
}

/* Prefetches the lines of x and y that come after element i of a row that is taken alone. */
INLINE void NAME(prefetch_next)(const ELEMENT_T *x, const ELEMENT_T *y, int64_t i, int64_t x_ahead,
                                const traffic t) {
    if (t == TRAFFIC_AHEAD && i * (int64_t)sizeof(ELEMENT_T) % 64 != 0)
        return;
    NAME(prefetch_vector)(x + i, x_ahead, t);
    if (t == TRAFFIC_AHEAD)
        __builtin_prefetch((const void *)((uintptr_t)(y + i) + WRITE_AHEAD), 1, 3);
}

/*
 * n elements of y of one or two rows, from element `at` on, weight and bias read once for both. An
 * absent bias is -0, which changes no sum, not even a zero's sign. The rows that come next, `ahead`
 * bytes on, are prefetched. f is a constant where nothing follows.
 */
INLINE void NAME(apply_as)(const forward_args *a, const ELEMENT_T *const rows_x[], ELEMENT_T *y0,
                           ELEMENT_T *y1, const int count, int64_t at, int64_t n,
                           const NAME(row_normalizer) by[], const bool rms, const bool has_weight,
                           const bool has_bias, int64_t ahead, const traffic t,
                           const planish_activation f) {
    /* Everything the loop reads is local: a store to y could change what a pointer reaches. */
    const ELEMENT_T *const x0 = rows_x[0] + at, *const x1 = rows_x[count - 1] + at;
    const NAME(row_normalizer) s0 = by[0], s1 = by[count - 1];
    const WEIGHT_T *const weights = has_weight ? (const WEIGHT_T *)a->weight + at : NULL;
    const WEIGHT_T *const biases = has_bias ? (const WEIGHT_T *)a->bias + at : NULL;
    const VEC offset = V(set1)((REAL)a->weight_offset);
    VEC weight = V(set1)(1), bias = V(set1)((REAL)-0.0);
    int64_t i = 0;
    for (; NAME(PAIRED) && i + 2 * VEC_LANES <= n; i += 2 * VEC_LANES) {
        VEC w[2] = {weight, weight}, b[2] = {bias, bias}, v[2];
        if (has_weight) {
            LOAD_W_PAIR(weights + i, w);
            w[0] = V(add)(w[0], offset);
            w[1] = V(add)(w[1], offset);
        }
        if (has_bias)
            LOAD_W_PAIR(biases + i, b);
        for (int r = 0; r < count; r++) {
            LOAD_X_PAIR((r ? x1 : x0) + i, v);
            UNROLL for (int k = 0; k < 2; k++) v[k] =
                NAME(row_result)(v[k], r ? s1 : s0, w[k], b[k], rms, f);
            STORE_X_PAIR((r ? y1 : y0) + i, v);
            if (count == 1)
                NAME(prefetch_next)(x0, y0, i, ahead, t);
            else
                NAME(prefetch_vector)((r ? x1 : x0) + i, ahead, t);
        }
    }
    for (; i + VEC_LANES <= n; i += VEC_LANES) {
        if (has_weight)
            weight = V(add)(LOAD_W(weights + i), offset);
        if (has_bias)
            bias = LOAD_W(biases + i);
        STORE_X(y0 + i, NAME(row_result)(LOAD_X(x0 + i), s0, weight, bias, rms, f));
        if (count == 1) {
            NAME(prefetch_next)(x0, y0, i, ahead, t);
            continue;
        }
        NAME(prefetch_vector)(x0 + i, ahead, t);
        STORE_X(y1 + i, NAME(row_result)(LOAD_X(x1 + i), s1, weight, bias, rms, f));
        NAME(prefetch_vector)(x1 + i, ahead, t);
    }
    if (i == n)
        return;
    const int left = (int)(n - i);
    if (has_weight)
        weight = V(add)(LOAD_W_PART(weights + i, left), offset);
    if (has_bias)
        bias = LOAD_W_PART(biases + i, left);
    const VEC v0 = LOAD_X_PART(x0 + i, left);
    STORE_X_PART(y0 + i, NAME(row_result)(v0, s0, weight, bias, rms, f), left);
    if (count == 1)
        return;
    const VEC v1 = LOAD_X_PART(x1 + i, left);
    STORE_X_PART(y1 + i, NAME(row_result)(v1, s1, weight, bias, rms, f), left);
}

/* The usual cases without a test in the loop: a layer with weight and bias, or RMSNorm with weight.
 */
INLINE bool NAME(usual_weights)(const forward_args *a, const bool rms) {
    return a->weight && !a->bias == rms;
}

/* y of one or two rows. `ahead` is from these rows to the next ones. */
INLINE void NAME(apply)(const forward_args *a, const ELEMENT_T *const x[], ELEMENT_T *const y[],
                        const int count, const NAME(row_normalizer) by[], const bool rms,
                        int64_t ahead, const traffic t) {
    ELEMENT_T *const y0 = y[0], *const y1 = y[count - 1];
    const int64_t n = a->cols;
    if (!NAME(usual_weights)(a, rms))
        NAME(apply_as)(a, x, y0, y1, count, 0, n, by, rms, a->weight, a->bias, ahead, TRAFFIC_AHEAD,
                       PLANISH_IDENTITY);
    else if (t == TRAFFIC_CACHED)
        NAME(apply_as)(a, x, y0, y1, count, 0, n, by, rms, true, !rms, ahead, TRAFFIC_CACHED,
                       PLANISH_IDENTITY);
    else
        NAME(apply_as)(a, x, y0, y1, count, 0, n, by, rms, true, !rms, ahead, TRAFFIC_AHEAD,
                       PLANISH_IDENTITY);
}

/* The same of up to TOGETHER rows with the usual weights, by non-temporal stores: 4 KB of all of
 * them at once, or one of one, or by run. */
INLINE void NAME(apply_pieces)(const forward_args *a, const ELEMENT_T *const x[],
                               ELEMENT_T *const y[], const int count,
                               const NAME(row_normalizer) by[], const bool rms, int64_t ahead) {
    const int pair = count > 1 ? 2 : 1, together = NAME(goes_by_run)(a->hints) ? pair : count;
    const int64_t room = (count == 2 ? 2 : 1) * NAME(PIECE);
    const int64_t most = NAME(goes_by_run)(a->hints) ? NAME(RUN) : room;
    _Alignas(64) ELEMENT_T pieces[4 * NAME(PIECE)];
    for (int64_t at = 0; at < a->cols; at += most) {
        const int64_t length = NAME(min)(a->cols - at, most);
        for (int r = 0; r < count; r += pair) {
            ELEMENT_T *const piece = pieces + r * room;
            NAME(apply_as)(a, x + r, piece, piece + (pair - 1) * room, pair, at, length, by + r,
                           rms, true, !rms, ahead, TRAFFIC_STREAM, PLANISH_IDENTITY);
            NAME(stream_rows)(y, pieces, room, r + pair, together, at, length);
        }
    }
}

/* Rows longer than a segment are taken all at once, for their weight and bias come from a further
 * cache; shorter ones two at a time, which is fewer places to write to. */
INLINE void NAME(apply_past)(const forward_args *a, const ELEMENT_T *const x[],
                             ELEMENT_T *const y[], const int count, const NAME(row_normalizer) by[],
                             const bool rms, int64_t ahead) {
    if (count == 1 || a->cols > NAME(SEGMENT))
        NAME(apply_pieces)(a, x, y, count, by, rms, ahead);
    else
        for (int r = 0; r < count; r += 2)
            NAME(apply_pieces)(a, x + r, y + r, 2, by + r, rms, ahead);
}

/* A group of rows on the way from its moments to its y. */
typedef struct NAME(group_moments) {
    const ELEMENT_T *x[TOGETHER];
    double mean[TOGETHER], excess[TOGETHER], m2[TOGETHER], rstd[TOGETHER];
    bool in_range;
} NAME(group_moments);

INLINE void NAME(store_moments)(const forward_args *a, int64_t row, const int count,
                                const NAME(group_moments) * g) {
    if (a->given)
        return;
    stat_store_rows(&a->mean, row, count, g->mean);
    stat_store_rows(&a->rstd, row, count, g->rstd);
    stat_store_rows(&a->m2, row, count, g->m2);
}

/* Rows of which one leaves the range: that one alone is done another way. */
OUTLINE void NAME(one_by_one)(const forward_args *a, int64_t row, int count, bool rms, traffic t) {
    for (int r = 0; r < count && count > 1; r++)
        NAME(forward_row)(a, row + r, rms, t);
    if (count == 1)
        overflow_forward_row(a, row, rms ? PLANISH_RMS : PLANISH_LAYER, DTYPE_OF(ELEMENT),
                             DTYPE_OF(WEIGHT));
}

/*
 * Statistics and y of rows [row, row + count), count 1 or TOGETHER, from their moments; y is made
 * in `piece` where that is given. It is made of two rows at once, which share weight and bias, or
 * of one where it is far: a single stream of writes waits less. 16-bit rows wait for conversions,
 * of weight too.
 */
INLINE void NAME(finish_group)(const forward_args *a, int64_t row, const int count, const bool rms,
                               const traffic t, ELEMENT_T *piece, const NAME(group_moments) * g,
                               int64_t ahead) {
    const ELEMENT_T *const *const x = g->x;
    if (__builtin_expect(!g->in_range, 0)) {
        NAME(one_by_one)(a, row, count, rms, t);
        return;
    }
    NAME(store_moments)(a, row, count, g);
    if (!a->y)
        return;
    ELEMENT_T *y[TOGETHER];
    for (int r = 0; r < count; r++)
        y[r] = piece ? piece + r * a->cols : (ELEMENT_T *)(a->y + (row + r) * a->y_pitch);
    NAME(row_normalizer) by[TOGETHER];
    NAME(normalizers_of)(by, count, g->mean, g->excess, g->rstd);
    if (t == TRAFFIC_STREAM && NAME(usual_weights)(a, rms))
        NAME(apply_past)(a, x, y, count, by, rms, ahead);
    else if (count == 1)
        NAME(apply)(a, x, y, 1, by, rms, ahead, t);
    else if (a->hints->far && !piece && DTYPE_OF(ELEMENT) == DTYPE_OF(REAL_TOKEN))
        for (int r = 0; r < count; r++)
            NAME(apply)(a, x + r, y + r, 1, by + r, rms, ahead, TRAFFIC_AHEAD);
    else
        for (int r = 0; r + 1 < count; r += 2)
            NAME(apply)(a, x + r, y + r, 2, by + r, rms, ahead, t);
    if (piece)
        stream_lines(a->y + row * a->y_pitch, piece, TOGETHER * a->y_pitch);
}

/* Those of rows [row, row + count), or the ones that are given. */
INLINE void NAME(group_moments_of)(const forward_args *a, int64_t row, const int count,
                                   const bool rms, NAME(group_moments) * g) {
    const int64_t sums_ahead = NAME(sums_ahead)(a, count);
    NAME(x_rows)(a, row, count, g->x);
    if (rms)
        memset(g->mean, 0, sizeof g->mean);
    if (rms || a->given)
        memset(g->excess, 0, sizeof g->excess);
    if (a->given) {
        g->in_range = NAME(given_moments)(a, row, count, rms, g->mean, g->rstd);
        return;
    }
    NAME(moments)(g->x, count, a->cols, sums_ahead, rms, g->mean, g->excess, g->m2);
    for (int r = count; r < TOGETHER; r++)
        g->m2[r] = g->m2[0];
    g->in_range = NAME(finish_moments)(a, g->m2, g->rstd);
}

INLINE void NAME(forward_group)(const forward_args *a, int64_t row, const int count, const bool rms,
                                const traffic t, ELEMENT_T *piece) {
    const int64_t ahead = NAME(bytes_ahead)(a, count);
    NAME(group_moments) g;
    NAME(group_moments_of)(a, row, count, rms, &g);
    NAME(finish_group)(a, row, count, rms, t, piece, &g, ahead);
}

/* Those of rows of one segment. The rows y, where given, are prefetched on the way. */
INLINE void NAME(find_moments)(const forward_args *a, int64_t row, ELEMENT_T *const y[],
                               int64_t ahead, const bool rms, NAME(group_moments) * g) {
    REAL total[TOGETHER], center[TOGETHER];
    double rest[TOGETHER];
    NAME(x_rows)(a, row, TOGETHER, g->x);
    NAME(segment_sums)(g->x, TOGETHER, a->cols, ahead, rms, total);
    NAME(segment_rest)(g->x, y, TOGETHER, a->cols, ahead, rms, total, center, rest, g->m2);
    memset(g->excess, 0, sizeof g->excess);
    if (rms)
        memset(g->mean, 0, sizeof g->mean);
    else
        NAME(mean_of)(center, rest, g->mean, g->excess);
    g->in_range = NAME(finish_moments)(a, g->m2, g->rstd);
}

/*
 * The groups of rows [row, end), which have one segment; returns where they end. A group's moments
 * are found before y of the group before it is made, which needs not wait for their root.
 */
INLINE int64_t NAME(forward_groups)(const forward_args *a, int64_t row, int64_t end, const bool rms,
                                    const traffic t, ELEMENT_T *piece) {
    const int64_t ahead = NAME(bytes_ahead)(a, 2 * TOGETHER);
    const int64_t sums_ahead = NAME(sums_ahead)(a, 2 * TOGETHER);
    const bool prefetches = LINE_VECTORS && a->hints->prefetch_y && a->y && !piece;
    NAME(group_moments) group, next;
    if (row < end)
        NAME(find_moments)(a, row, NULL, sums_ahead, rms, &next);
    for (; row < end; row += TOGETHER) {
        ELEMENT_T *y[TOGETHER];
        group = next;
        for (int r = 0; r < TOGETHER && prefetches; r++)
            y[r] = (ELEMENT_T *)(a->y + (row + r) * a->y_pitch);
        if (row + TOGETHER < end)
            NAME(find_moments)(a, row + TOGETHER, prefetches ? y : NULL, sums_ahead, rms, &next);
        NAME(finish_group)(a, row, TOGETHER, rms, t, piece, &group, ahead);
    }
    return row;
}

ONE_COPY void NAME(forward_row)(const forward_args *a, int64_t row, bool rms, traffic t) {
    if (rms)
        NAME(forward_group)(a, row, 1, true, t, NULL);
    else
        NAME(forward_group)(a, row, 1, false, t, NULL);
}

#if defined(VEC_SMALL_TEXT)
INLINE int64_t NAME(few_columns)(const forward_args *a, bool rms) {
    (void)a, (void)rms;
    return 0;
}
#else
/* What can be done of rows of few columns, with weight and bias in the compute type; returns how
 * many. */
INLINE int64_t NAME(few_columns)(const forward_args *a, const bool rms) {
    const planish_kind kind = rms ? PLANISH_RMS : PLANISH_LAYER;
    _Alignas(64) REAL weight[NAME(FEW_COLS)], bias[NAME(FEW_COLS)];
    if (a->cols > NAME(FEW_COLS) || a->given || !a->y)
        return 0;
    if (DTYPE_OF(WEIGHT) == DTYPE_OF(REAL_TOKEN))
        return UNIT(few_forward, ELEMENT, REAL_TOKEN, TIER)[kind](a);
    forward_args few = *a;
    few.weight = NAME(few_weights)(a->weight, a->cols, weight);
    few.bias = NAME(few_weights)(a->bias, a->cols, bias);
    return UNIT(few_forward, ELEMENT, REAL_TOKEN, TIER)[kind](&few);
}
#endif

INLINE void NAME(forward_rows)(const forward_args *a, const bool rms) {
    const traffic t = NAME(traffic_to)(a->traffic, a->y, a->y_pitch, a->cols);
    /* A group's rows stay in a near cache between the sweeps, or go alone. */
    const int64_t most = t == TRAFFIC_STREAM ? STREAM_ROW_BYTES : GROUP_ROW_BYTES;
    const int64_t grouped = !a->hints->alone && a->cols * (int64_t)sizeof(ELEMENT_T) <= most
                                ? a->rows / TOGETHER * TOGETHER
                                : 0;
    const bool lines = t != TRAFFIC_STREAM &&
                       NAME(rows_are_lines)(a->traffic, a->y, a->y_pitch, a->cols, TOGETHER);
    _Alignas(64) ELEMENT_T piece[TOGETHER * NAME(PIECE)];
    int64_t row = NAME(few_columns)(a, rms);
    if (a->cols <= NAME(SEGMENT) && a->hints->in_turn && !a->given)
        row = NAME(forward_groups)(a, row, grouped, rms, t, lines ? piece : NULL);
    for (; row < grouped; row += TOGETHER)
        NAME(forward_group)(a, row, TOGETHER, rms, t, lines ? piece : NULL);
    for (; row < a->rows; row++)
        NAME(forward_row)(a, row, rms, t);
}

static void NAME(layer_rows)(const forward_args *a) {
    NAME(forward_rows)(a, false);
}
static void NAME(rms_rows)(const forward_args *a) {
    NAME(forward_rows)(a, true);
}

static void NAME(forward_layer)(const forward_args *a) {
    NAME(forward_sums_or)(a, NAME(layer_rows), false);
}
static void NAME(forward_rms)(const forward_args *a) {
    NAME(forward_sums_or)(a, NAME(rms_rows), true);
}
