/*
 * The moments of channels; part of cpu/batch/kernels_batch.c. Elements are summed about a center,
 * the mean of those before them, which is made again whenever they are twice as many: so squares
 * about it are never more than about twice those about the mean, and one read is enough. What was
 * summed about one center is merged in f64 (Chan, Golub, LeVeque 1983).
 */

/* Of one channel, or an array for each: sums about the center since it was made, and the moments of
 * those before it. Their mean is a pair: the center, and its distance from it, which is what the
 * center lost when it was rounded. So the mean has all its digits though the first elements be far
 * from the others. */
typedef struct NAME(growing) {
    double *distance, *m2, *sum, *squares;
    REAL *center;
    int64_t before, since, until; /* elements; the next center is made at `until` */
} NAME(growing);

/* Takes what was summed since the last center to the moments, and makes the next one. */
static void NAME(renew)(NAME(growing) * g, int64_t channels) {
    double *restrict const distance = g->distance, *restrict const m2 = g->m2;
    double *restrict const sum = g->sum, *restrict const squares = g->squares;
    REAL *restrict const center = g->center;
    const double n = (double)g->since, all = (double)(g->before + g->since);
    const double share = n / all, spread = (double)g->before * share;
    for (int64_t c = 0; c < channels; c++) {
        const double delta = sum[c] / n, step = delta - distance[c];
        double mean = (double)center[c], rest = 0;
        m2[c] += squares[c] - sum[c] * delta + step * step * spread;
        exact_add(&mean, &rest, distance[c] + step * share);
        center[c] = (REAL)mean;
        distance[c] = (mean - (double)center[c]) + rest;
        sum[c] = squares[c] = 0;
    }
    g->before += g->since;
    g->since = 0;
    g->until = 2 * g->before;
}

/* The largest power of two that is no more than this, so that equal elements have their own mean.
 */
INLINE int64_t NAME(power_below)(int64_t n, int64_t most) {
    int64_t power = most;
    while (power > n)
        power /= 2;
    return power;
}

/* ---- By channel ------------------------------------------------------------------------------ */

/* Adds n elements of a piece from `at` on about the center; the piece ends with them where
 * `ends`. */
INLINE void NAME(add_segment)(const ELEMENT_T *piece, int64_t at, int64_t n, int64_t span,
                              REAL center, const NAME(lanes) * own, REAL *kept) {
    const VEC c = V(set1)(center);
    const ELEMENT_T *x = piece + at;
    NAME(lanes) sum = NAME(read_lanes)(kept), squares = NAME(read_lanes)(kept + LANES);
    int64_t i = 0;
    for (; i + NAME(HALF) <= n; i += NAME(HALF)) {
        const NAME(lanes) a = NAME(load_lanes)(x + i), b = NAME(load_lanes)(x + i + LANES);
        UNROLL for (int k = 0; k < NAME(PARTS); k++) {
            const VEC u = V(sub)(a.part[k], c), v = V(sub)(b.part[k], c);
            sum.part[k] = V(add)(sum.part[k], V(add)(u, v));
            squares.part[k] = V(add)(squares.part[k], V(fma)(v, v, V(mul)(u, u)));
        }
    }
    for (; i + LANES <= n; i += LANES) {
        const NAME(lanes) a = NAME(load_lanes)(x + i);
        UNROLL for (int k = 0; k < NAME(PARTS); k++) {
            const VEC u = V(sub)(a.part[k], c);
            sum.part[k] = V(add)(sum.part[k], u);
            squares.part[k] = V(fma)(u, u, squares.part[k]);
        }
    }
    if (i < n) {
        const NAME(lanes) a = NAME(load_last)(piece, span, n - i);
        UNROLL for (int k = 0; k < NAME(PARTS); k++) {
            const VEC u = V(mul)(V(sub)(a.part[k], c), own->part[k]);
            sum.part[k] = V(add)(sum.part[k], u);
            squares.part[k] = V(fma)(u, u, squares.part[k]);
        }
    }
    NAME(write_lanes)(kept, sum);
    NAME(write_lanes)(kept + LANES, squares);
}

/* The mean of the first elements of a piece, as a first center. */
INLINE REAL NAME(first_center)(const ELEMENT_T *piece, int64_t span) {
    const int64_t n = NAME(power_below)(span, NAME(HALF));
    REAL kept[2 * LANES] = {0};
    double sum = 0, rest = 0;
    double *const to[2] = {&sum, &rest};
    const NAME(lanes) own = NAME(own_lanes)(n % LANES, n < LANES);
    NAME(add_segment)(piece, 0, n, n, 0, &own, kept);
    NAME(flush_lanes)(kept, 2, to);
    return (REAL)(sum / (double)n);
}

static void NAME(moments_by_channel)(const batch_moments_args *a) {
    enum { MOST = BATCH_TILE_CHANNELS };
    const int64_t channels = a->tile.channels, pieces = a->tile.pieces, span = a->tile.span;
    _Alignas(64) REAL kept[MOST][2 * LANES];
    REAL center[MOST];
    double sum[MOST] = {0}, squares[MOST] = {0};
    NAME(growing)
    g = {.distance = a->record[RECORD_DISTANCE],
         .m2 = a->record[RECORD_M2],
         .sum = sum,
         .squares = squares,
         .center = center};
    const NAME(lanes) own = NAME(own_lanes)(span % LANES, span < LANES);
    double *to[2 * MOST];
    int64_t pending = 0;
    memset(kept, 0, sizeof kept);
    for (int64_t c = 0; c < channels; c++) {
        center[c] = NAME(first_center)(NAME(side_at)(&a->x, c, 0), span);
        g.distance[c] = g.m2[c] = 0;
        to[2 * c] = &sum[c];
        to[2 * c + 1] = &squares[c];
    }
    g.until = NAME(HALF);
    for (int64_t piece = 0; piece < pieces; piece++)
        for (int64_t at = 0, n; at < span; at += n) {
            /* As far as the center goes, in whole steps. */
            const int64_t far = g.until - g.since - g.before, least = NAME(HALF);
            n = far < least ? least : far > NAME(FLUSH) ? NAME(FLUSH) : far / least * least;
            n = n > span - at ? span - at : n;
            for (int64_t c = 0; c < channels; c++)
                NAME(add_segment)(NAME(side_at)(&a->x, c, piece), at, n, span, center[c], &own,
                                  kept[c]);
            g.since += n;
            pending += n;
            const bool renews = g.before + g.since >= g.until;
            if (pending >= NAME(FLUSH) || renews) {
                NAME(flush_lanes)(kept[0], 2 * (int)channels, to);
                pending = 0;
            }
            if (renews)
                NAME(renew)(&g, channels);
        }
    if (pending)
        NAME(flush_lanes)(kept[0], 2 * (int)channels, to);
    if (g.since)
        NAME(renew)(&g, channels);
    for (int64_t c = 0; c < channels; c++)
        a->record[RECORD_CENTER][c] = (double)center[c];
}

/* ---- By pixel -------------------------------------------------------------------------------- */

/* Adds OCT pixels of a strip, or one, about the channels' centers. */
INLINE void NAME(oct_strip)(const char *x, int64_t pitch, const int count, const int width,
                            int64_t left, const REAL *center, REAL *sum, REAL *squares) {
    VEC c[NAME(STRIP)], u[NAME(STRIP)], even[NAME(STRIP)], odd[NAME(STRIP)];
    NAME(oct_tree) tree[NAME(STRIP)];
    NAME(load_strip_real)(center, width, left, c);
    UNROLL for (int k = 0; k < count; k++) {
        NAME(load_strip)((const ELEMENT_T *)(x + k * pitch), width, left, u);
        UNROLL for (int w = 0; w < width; w++) {
            const VEC v = V(sub)(u[w], c[w]);
            NAME(tree_add)(&tree[w], k, v);
            if (k % 2)
                odd[w] = k > 1 ? V(fma)(v, v, odd[w]) : V(mul)(v, v);
            else
                even[w] = k ? V(fma)(v, v, even[w]) : V(mul)(v, v);
        }
    }
    UNROLL for (int w = 0; w < width; w++) {
        u[w] = NAME(tree_sum)(&tree[w], count);
        if (count > 1)
            even[w] = V(add)(even[w], odd[w]);
    }
    NAME(add_strip_real)(sum, width, left, u);
    NAME(add_strip_real)(squares, width, left, even);
}

/* Adds pixels [0, n) of some channels about their centers. */
INLINE void NAME(add_pixels)(const char *x, int64_t pitch, int64_t n, int64_t channels,
                             const REAL *center, REAL *sum, REAL *squares, bool prefetches) {
    enum { OCT = NAME(OCT), STRIP = NAME(STRIP), LANES_OF = NAME(STRIP_LANES) };
    const int64_t bytes = sizeof(ELEMENT_T);
    for (int64_t p = 0; p < n;) {
        const int count = n - p >= OCT ? OCT : 1;
        const char *const at = x + p * pitch;
        int64_t c = 0;
        NAME(next_lines)
        next = NAME(lines_after)((const ELEMENT_T *)at, pitch, count, channels);
        for (; c + LANES_OF <= channels && count == OCT; c += LANES_OF) {
            NAME(ask)(&next, OCT * LANES_OF * bytes, prefetches);
            NAME(oct_strip)(at + c * bytes, pitch, OCT, STRIP, 0, center + c, sum + c, squares + c);
        }
        for (; c < channels && count == OCT; c += VEC_LANES)
            NAME(oct_strip)(at + c * bytes, pitch, OCT, 1, channels - c, center + c, sum + c,
                            squares + c);
        for (; c < channels; c += VEC_LANES)
            NAME(oct_strip)(at + c * bytes, pitch, 1, 1, channels - c, center + c, sum + c,
                            squares + c);
        p += count;
    }
}

static void NAME(moments_by_pixel)(const batch_moments_args *a) {
    const int64_t channels = a->tile.channels, pixels = a->tile.pieces, pitch = a->x.piece;
    double *const sum = a->scratch, *const squares = sum + channels;
    REAL *const center = (REAL *)(squares + channels);
    REAL *const part = center + channels, *const part_squares = part + channels;
    NAME(growing)
    g = {.distance = a->record[RECORD_DISTANCE],
         .m2 = a->record[RECORD_M2],
         .sum = sum,
         .squares = squares,
         .center = center};
    memset(sum, 0, 2 * (size_t)channels * sizeof *sum);
    memset(center, 0, 3 * (size_t)channels * sizeof *center);
    memset(g.distance, 0, (size_t)channels * sizeof *g.distance);
    memset(g.m2, 0, (size_t)channels * sizeof *g.m2);
    const int64_t first = NAME(power_below)(pixels, NAME(OCT));
    NAME(add_pixels)(a->x.data, pitch, first, channels, center, part, part_squares, false);
    memset(part_squares, 0, (size_t)channels * sizeof *part_squares);
    for (int64_t c = 0; c < channels; c++) {
        center[c] = (REAL)((double)part[c] / (double)first);
        part[c] = 0;
    }
    g.until = 2 * NAME(OCT);
    for (int64_t p = 0, n; p < pixels; p += n) {
        n = NAME(min)(NAME(min)(g.until - p, NAME(FLUSH_PIXELS)), pixels - p);
        for (int64_t c = 0; c < channels; c += NAME(NEAR_CHANNELS)) {
            const int64_t some = NAME(min)(channels - c, NAME(NEAR_CHANNELS));
            NAME(add_pixels)(a->x.data + p * pitch + c * (int64_t)sizeof(ELEMENT_T), pitch, n, some,
                             center + c, part + c, part_squares + c, a->tile.prefetches);
            NAME(flush_sums)(sum + c, part + c, some);
            NAME(flush_sums)(squares + c, part_squares + c, some);
        }
        g.since += n;
        if (p + n >= g.until)
            NAME(renew)(&g, channels);
    }
    if (g.since)
        NAME(renew)(&g, channels);
    for (int64_t c = 0; c < channels; c++)
        a->record[RECORD_CENTER][c] = (double)center[c];
}

static void NAME(batch_moments)(const batch_moments_args *a) {
    (a->tile.by_pixel ? NAME(moments_by_pixel) : NAME(moments_by_channel))(a);
}
