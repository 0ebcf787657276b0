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

/* Two vectors as strips have them. */
INLINE void NAME(gradient_two)(NAME(places) at, int64_t i, const NAME(making) m[2],
                               const batch_through way, const planish_activation f,
                               const bool fixed) {
    const bool plain = way == THROUGH_NOTHING && !fixed;
    const bool reads_x = !fixed || way >= THROUGH_RELU;
    VEC x[2] = {m[0].behind.mean, m[1].behind.mean}, dy[2], d[2];
    VEC other[2] = {V(set1)((REAL)-0.0), V(set1)((REAL)-0.0)};
    NAME(load_strip)(at.dy + i, 2, 0, dy);
    if (reads_x)
        NAME(load_strip)(at.x + i, 2, 0, x);
    if (!plain && at.other)
        NAME(load_strip)(at.other + i, 2, 0, other);
    UNROLL for (int w = 0; w < 2; w++) {
        dy[w] = NAME(made_dx)(x[w], dy[w], other[w], m[w], &d[w], way, f);
        if (fixed)
            dy[w] = V(mul)(d[w], m[w].behind.scale);
    }
    if (at.daddend)
        NAME(store_strip)(at.daddend + i, 2, 0, d);
    if (at.dx)
        NAME(store_strip)(at.dx + i, 2, 0, dy);
}

INLINE void NAME(gradient_span)(NAME(places) at, int64_t n, NAME(making) m, const batch_through way,
                                const planish_activation f, const bool fixed) {
    const NAME(making) both[2] = {m, m};
    int64_t i = 0;
    for (; i + 2 * VEC_LANES <= n; i += 2 * VEC_LANES)
        NAME(gradient_two)(at, i, both, way, f, fixed);
    for (; i < n; i += VEC_LANES)
        NAME(gradient_at)(at, i, n - i, m, way, f, fixed);
}

INLINE NAME(making) NAME(making_at)(const batch_gradient_args *a, int64_t c) {
    const REAL *const *const f = (const REAL *const *)a->factor;
    return (NAME(making)){NAME(behind_at)(a, c), V(set1)(f[FACTOR_OF_X][c]),
                          V(set1)(f[FACTOR_REST][c])};
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
    const bool streams =
        NAME(streams_spans)(&a->tile, a->traffic) && a->dx.data && !a->daddend.data;
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

/* A vector of channels, of which `left` are there, c on. */
INLINE NAME(making)
    NAME(making_vector)(const REAL *const f[], int64_t c, int64_t left, REAL least) {
    return (NAME(making)){{NAME(load_real)(f[FACTOR_MEAN] + c, left),
                           NAME(load_real)(f[FACTOR_RSTD] + c, left),
                           NAME(load_real)(f[FACTOR_SCALE] + c, left),
                           NAME(load_real)(f[FACTOR_OFFSET] + c, left), V(set1)(least)},
                          NAME(load_real)(f[FACTOR_OF_X] + c, left),
                          NAME(load_real)(f[FACTOR_REST] + c, left)};
}

/* Channels [c, c + n) of a pixel, by arrays of factors that are in the order of strips. */
INLINE void NAME(gradient_pixel)(NAME(places) at, int64_t n, const REAL *const factor[], REAL least,
                                 const batch_through way, const planish_activation f,
                                 const bool fixed) {
    int64_t c = 0;
    for (; c + 2 * VEC_LANES <= n; c += 2 * VEC_LANES) {
        const NAME(making) m[2] = {NAME(making_vector)(factor, c, VEC_LANES, least),
                                   NAME(making_vector)(factor, c + VEC_LANES, VEC_LANES, least)};
        NAME(gradient_two)(at, c, m, way, f, fixed);
    }
    for (; c < n; c += VEC_LANES)
        NAME(gradient_at)(at, c, n - c, NAME(making_vector)(factor, c, n - c, least), way, f,
                          fixed);
}

INLINE void NAME(gradient_by_pixel)(const batch_gradient_args *a, const batch_through way,
                                    const planish_activation f, const bool fixed) {
    enum { PIECE = NAME(PIECE), BYTES = sizeof(ELEMENT_T) };
    const int64_t n = a->tile.channels;
    const batch_side others = NAME(other_side)(a, way);
    const bool lines =
        a->traffic == TRAFFIC_STREAM && a->dx.data && !a->daddend.data &&
        ((uintptr_t)a->dx.data | (uintptr_t)a->dx.piece | (uintptr_t)(n * BYTES)) % 64 == 0;
    _Alignas(64) ELEMENT_T made[PIECE];
    const REAL *factor[BATCH_FACTORS];
    for (int k = 0; k < BATCH_FACTORS; k++)
        factor[k] = NAME(arranged)(a->factor[k], n, (REAL *)a->scratch + k * n);
    for (int64_t p = 0; p < a->tile.pieces; p++) {
        const NAME(places) pixel = NAME(places_at)(a, &others, 0, p);
        for (int64_t c = 0, some; c < n; c += some) {
            some = lines ? NAME(min)(n - c, PIECE) : n;
            ELEMENT_T *const dx = pixel.dx ? pixel.dx + c : NULL;
            const NAME(places)
                at = {pixel.x + c, pixel.dy + c, pixel.other ? pixel.other + c : NULL,
                      lines ? made : dx, pixel.daddend ? pixel.daddend + c : NULL};
            const REAL *of[BATCH_FACTORS];
            for (int k = 0; k < BATCH_FACTORS; k++)
                of[k] = factor[k] + c;
            NAME(gradient_pixel)(at, some, of, (REAL)a->least, way, f, fixed);
            if (lines)
                stream_lines(dx, made, some * BYTES);
        }
    }
}

INLINE void NAME(gradient_of_pixels)(const batch_gradient_args *a, const batch_through way,
                                     const planish_activation f) {
    if (a->fixed)
        NAME(gradient_by_pixel)(a, way, f, true);
    else
        NAME(gradient_by_pixel)(a, way, f, false);
}

static void NAME(batch_gradient)(const batch_gradient_args *a) {
    if (a->tile.by_pixel)
        EACH_WAY(NAME(gradient_of_pixels), a);
    else
        EACH_WAY(NAME(gradient_by_channel), a);
}
