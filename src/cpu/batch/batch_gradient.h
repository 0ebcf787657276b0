/* dx and daddend of channels by their factors; part of cpu/batch/kernels_batch.c. */

typedef struct NAME(making) {
    NAME(behind) behind;
    VEC of_x, rest;
} NAME(making);

/* dx and d of one vector. */
INLINE VEC NAME(made_dx)(VEC x, VEC dy, VEC other, NAME(making) m, VEC *d, const batch_through way,
                         const planish_activation f) {
    const VEC centered = V(sub)(x, m.behind.mean);
    *d = NAME(gradient_of_z)(dy, centered, other, m.behind, way, f);
    return V(fma)(centered, m.of_x, V(fma)(*d, m.behind.scale, m.rest));
}

/* What is read and written from one element on; NULL: absent. */
typedef struct NAME(places) {
    const ELEMENT_T *x, *dy, *other;
    ELEMENT_T *dx, *daddend;
} NAME(places);

INLINE NAME(places) NAME(places_at)(const batch_gradient_args *a, const batch_side *others,
                                    int64_t c, int64_t piece) {
    return (NAME(places)){NAME(side_at)(&a->x, c, piece), NAME(side_at)(&a->dy, c, piece),
                          others->data ? NAME(side_at)(others, c, piece) : NULL,
                          a->dx.data ? (ELEMENT_T *)NAME(side_at)(&a->dx, c, piece) : NULL,
                          a->daddend.data ? (ELEMENT_T *)NAME(side_at)(&a->daddend, c, piece)
                                          : NULL};
}

/* A vector, of which `left` elements are there, i on. Where the statistics are given dx is d *
 * scale, whatever x is. */
INLINE void NAME(gradient_at)(NAME(places) at, int64_t i, int64_t left, NAME(making) m,
                              const batch_through way, const planish_activation f,
                              const bool fixed) {
    /* The most common way has nothing to ask. */
    const bool plain = way == THROUGH_NOTHING && !fixed;
    const bool reads_x = !fixed || way >= THROUGH_RELU;
    const VEC x = reads_x ? NAME(load_x)(at.x + i, left) : m.behind.mean;
    const VEC dy = NAME(load_x)(at.dy + i, left);
    const VEC other = !plain && at.other ? NAME(load_x)(at.other + i, left) : V(set1)((REAL)-0.0);
    VEC d;
    VEC dx = NAME(made_dx)(x, dy, other, m, &d, way, f);
    if (fixed)
        dx = V(mul)(d, m.behind.scale);
    if (at.daddend)
        NAME(store_x)(at.daddend + i, d, left);
    if (at.dx)
        NAME(store_x)(at.dx + i, dx, left);
}

INLINE void NAME(gradient_span)(NAME(places) at, int64_t n, NAME(making) m, const batch_through way,
                                const planish_activation f, const bool fixed) {
    int64_t i = 0;
    for (; i + VEC_LANES <= n; i += VEC_LANES)
        NAME(gradient_at)(at, i, VEC_LANES, m, way, f, fixed);
    if (i < n)
        NAME(gradient_at)(at, i, n - i, m, way, f, fixed);
}

INLINE NAME(making) NAME(making_at)(const batch_gradient_args *a, int64_t c) {
    const REAL *const *const f = (const REAL *const *)a->factor;
    return (NAME(making)){NAME(behind_at)(a, c), V(set1)(f[FACTOR_OF_X][c]),
                          V(set1)(f[FACTOR_REST][c])};
}
INLINE NAME(making) NAME(making_vector)(const batch_gradient_args *a, int64_t c, int64_t left) {
    const REAL *const *const f = (const REAL *const *)a->factor;
    return (NAME(making)){NAME(behind_vector)(a, c, left),
                          NAME(load_real)(f[FACTOR_OF_X] + c, left),
                          NAME(load_real)(f[FACTOR_REST] + c, left)};
}

/* Past the cache, dx alone: what is no whole line by ordinary stores. */
INLINE void NAME(gradient_streamed)(NAME(places) at, int64_t n, NAME(making) m,
                                    const batch_through way, const planish_activation f,
                                    const bool fixed) {
    enum { LINE = 64 / sizeof(ELEMENT_T) };
    _Alignas(64) ELEMENT_T piece[NAME(PIECE)];
    const int64_t before = (int64_t)(-(uintptr_t)at.dx % 64 / sizeof(ELEMENT_T));
    int64_t i = NAME(min)(before, n);
    NAME(gradient_span)(at, i, m, way, f, fixed);
#define FROM(i)                                                                                    \
    (NAME(places)) {                                                                               \
        at.x + (i), at.dy + (i), at.other ? at.other + (i) : NULL, at.dx + (i), NULL               \
    }
    while (n - i >= LINE) {
        const int64_t some = NAME(min)(n - i, NAME(PIECE)) / LINE * LINE;
        NAME(places) here = FROM(i);
        here.dx = piece;
        NAME(gradient_span)(here, some, m, way, f, fixed);
        stream_lines(at.dx + i, piece, some * (int64_t)sizeof(ELEMENT_T));
        i += some;
    }
    const NAME(places) last = FROM(i);
#undef FROM
    NAME(gradient_span)(last, n - i, m, way, f, fixed);
}

INLINE void NAME(gradient_by_channel)(const batch_gradient_args *a, const batch_through way,
                                      const planish_activation f) {
    const batch_side others = NAME(other_side)(a, way);
    const bool streams = a->traffic == TRAFFIC_STREAM && a->dx.data && !a->daddend.data;
    for (int64_t piece = 0; piece < a->tile.pieces; piece++)
        for (int64_t c = 0; c < a->tile.channels; c++) {
            const NAME(places) at = NAME(places_at)(a, &others, c, piece);
            const NAME(making) m = NAME(making_at)(a, c);
            if (streams)
                NAME(gradient_streamed)(at, a->tile.span, m, way, f, a->fixed);
            else if (a->fixed)
                NAME(gradient_span)(at, a->tile.span, m, way, f, true);
            else
                NAME(gradient_span)(at, a->tile.span, m, way, f, false);
        }
}

/* Channels [0, n) of `count` pixels. */
INLINE void NAME(gradient_pixels)(const batch_gradient_args *a, const NAME(places) at[],
                                  const int count, int64_t first, int64_t n,
                                  const batch_through way, const planish_activation f,
                                  const bool fixed) {
    for (int64_t c = 0; c < n; c += VEC_LANES) {
        const int64_t left = n - c;
        const NAME(making) m = NAME(making_vector)(a, first + c, left);
        if (left >= VEC_LANES) {
            UNROLL for (int k = 0; k < count; k++)
                NAME(gradient_at)(at[k], c, VEC_LANES, m, way, f, fixed);
        } else {
            for (int k = 0; k < count; k++)
                NAME(gradient_at)(at[k], c, left, m, way, f, fixed);
        }
    }
}

enum { NAME(MADE) = 2 }; /* pixels at once */

INLINE void NAME(gradient_by_pixel)(const batch_gradient_args *a, const batch_through way,
                                    const planish_activation f) {
    const int64_t channels = a->tile.channels, pixels = a->tile.pieces;
    const int64_t bytes = sizeof(ELEMENT_T);
    const batch_side others = NAME(other_side)(a, way);
    const bool lines =
        a->traffic == TRAFFIC_STREAM && a->dx.data && !a->daddend.data && !a->fixed &&
        ((uintptr_t)a->dx.data | (uintptr_t)a->dx.piece | (uintptr_t)(channels * bytes)) % 64 == 0;
    _Alignas(64) ELEMENT_T made[NAME(PIECE)];
    for (int64_t p = 0, count; p < pixels; p += count) {
        NAME(places) at[NAME(MADE)];
        count = pixels - p >= NAME(MADE) && !lines ? NAME(MADE) : 1;
        NAME(prefetch_pixels)(NAME(side_at)(&a->x, 0, p), a->x.piece, (int)count, channels,
                              a->tile.prefetches);
        NAME(prefetch_pixels)(NAME(side_at)(&a->dy, 0, p), a->dy.piece, (int)count, channels,
                              a->tile.prefetches);
        for (int k = 0; k < count; k++)
            at[k] = NAME(places_at)(a, &others, 0, p + k);
        for (int64_t c = 0; c < channels && lines; c += NAME(PIECE)) {
            const int64_t n = NAME(min)(channels - c, NAME(PIECE));
            const NAME(places) here = {at[0].x + c, at[0].dy + c,
                                       at[0].other ? at[0].other + c : NULL, made, NULL};
            NAME(gradient_pixels)(a, &here, 1, c, n, way, f, false);
            stream_lines(at[0].dx + c, made, n * bytes);
        }
        if (lines)
            continue;
        if (a->fixed)
            for (int k = 0; k < count; k++)
                NAME(gradient_pixels)(a, &at[k], 1, 0, channels, way, f, true);
        else if (count == NAME(MADE))
            NAME(gradient_pixels)(a, at, NAME(MADE), 0, channels, way, f, false);
        else
            NAME(gradient_pixels)(a, at, 1, 0, channels, way, f, false);
    }
}

static void NAME(batch_gradient)(const batch_gradient_args *a) {
    if (a->tile.by_pixel)
        EACH_WAY(NAME(gradient_by_pixel), a);
    else
        EACH_WAY(NAME(gradient_by_channel), a);
}
