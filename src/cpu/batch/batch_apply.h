/* y of channels by their factors; part of cpu/batch/kernels_batch.c. */

/* What makes a vector of y. */
typedef struct NAME(applying) {
    VEC mean, scale, shift;
} NAME(applying);

INLINE NAME(applying) NAME(applying_at)(const batch_apply_args *a, int64_t c) {
    const REAL *const *const f = (const REAL *const *)a->factor;
    return (NAME(applying)){V(set1)(f[FACTOR_MEAN][c]), V(set1)(f[FACTOR_SCALE][c]),
                            V(set1)(f[FACTOR_SHIFT][c])};
}
INLINE NAME(applying) NAME(applying_vector)(const batch_apply_args *a, int64_t c, int64_t left) {
    const REAL *const *const f = (const REAL *const *)a->factor;
    return (NAME(applying)){NAME(load_real)(f[FACTOR_MEAN] + c, left),
                            NAME(load_real)(f[FACTOR_SCALE] + c, left),
                            NAME(load_real)(f[FACTOR_SHIFT] + c, left)};
}

INLINE VEC NAME(applied)(VEC x, VEC addend, const bool adds, NAME(applying) s,
                         const planish_activation f) {
    const VEC z = V(fma)(V(sub)(x, s.mean), s.scale, s.shift);
    return NAME(activated)(f, adds ? V(add)(z, addend) : z);
}

/* ---- By channel ------------------------------------------------------------------------------ */

/* n neighbours of a channel. */
INLINE void NAME(apply_span)(const ELEMENT_T *x, const ELEMENT_T *addend, ELEMENT_T *y, int64_t n,
                             NAME(applying) s, const bool adds, const planish_activation f) {
    const VEC none = V(set1)(0);
    int64_t i = 0;
    for (; NAME(PAIRED) && i + 2 * VEC_LANES <= n; i += 2 * VEC_LANES) {
        VEC v[2], r[2] = {none, none};
        LOAD_X_PAIR(x + i, v);
        if (adds)
            LOAD_X_PAIR(addend + i, r);
        UNROLL for (int k = 0; k < 2; k++) v[k] = NAME(applied)(v[k], r[k], adds, s, f);
        STORE_X_PAIR(y + i, v);
    }
    for (; i + VEC_LANES <= n; i += VEC_LANES)
        STORE_X(y + i, NAME(applied)(LOAD_X(x + i), adds ? LOAD_X(addend + i) : none, adds, s, f));
    if (i == n)
        return;
    /* The last whole vector again, where x is still there, for parts of vectors are slow. */
    const bool again = n >= VEC_LANES && x != (const ELEMENT_T *)y;
    const int left = again ? VEC_LANES : (int)(n - i);
    i = n - left;
    const VEC r = adds ? NAME(load_x)(addend + i, left) : none;
    NAME(store_x)(y + i, NAME(applied)(NAME(load_x)(x + i, left), r, adds, s, f), left);
}

/* The same past the cache: what is no whole line by ordinary stores. */
INLINE void NAME(apply_streamed)(const ELEMENT_T *x, const ELEMENT_T *addend, ELEMENT_T *y,
                                 int64_t n, NAME(applying) s, const bool adds,
                                 const planish_activation f) {
    enum { LINE = 64 / sizeof(ELEMENT_T) };
    _Alignas(64) ELEMENT_T piece[NAME(PIECE)];
    const int64_t before = (int64_t)(-(uintptr_t)y % 64 / sizeof(ELEMENT_T));
    int64_t i = NAME(min)(before, n);
    NAME(apply_span)(x, addend, y, i, s, adds, f);
    while (n - i >= LINE) {
        const int64_t some = NAME(min)(n - i, NAME(PIECE)) / LINE * LINE;
        NAME(apply_span)(x + i, adds ? addend + i : NULL, piece, some, s, adds, f);
        stream_lines(y + i, piece, some * (int64_t)sizeof(ELEMENT_T));
        i += some;
    }
    NAME(apply_span)(x + i, adds ? addend + i : NULL, y + i, n - i, s, adds, f);
}

INLINE void NAME(apply_by_channel)(const batch_apply_args *a, const bool adds,
                                   const planish_activation f) {
    const int64_t span = a->tile.span;
    const bool streams = a->traffic == TRAFFIC_STREAM;
    for (int64_t piece = 0; piece < a->tile.pieces; piece++)
        for (int64_t c = 0; c < a->tile.channels; c++) {
            const ELEMENT_T *const x = NAME(side_at)(&a->x, c, piece);
            const ELEMENT_T *const addend = adds ? NAME(side_at)(&a->addend, c, piece) : NULL;
            ELEMENT_T *const y = (ELEMENT_T *)NAME(side_at)(&a->y, c, piece);
            const NAME(applying) s = NAME(applying_at)(a, c);
            if (streams)
                NAME(apply_streamed)(x, addend, y, span, s, adds, f);
            else
                NAME(apply_span)(x, addend, y, span, s, adds, f);
        }
}

/* ---- By pixel -------------------------------------------------------------------------------- */

enum { NAME(APPLIED) = 4 }; /* pixels at once */

/* Channels [0, n) of `count` pixels, whose y begins at `y`. */
INLINE void NAME(apply_pixels)(const batch_apply_args *a, int64_t p, const int count, int64_t first,
                               int64_t n, char *y, int64_t y_pitch, const bool adds,
                               const planish_activation f) {
    const int64_t bytes = sizeof(ELEMENT_T);
    const char *const x = (const char *)(NAME(side_at)(&a->x, 0, p) + first);
    const char *const r = adds ? (const char *)(NAME(side_at)(&a->addend, 0, p) + first) : NULL;
    const VEC none = V(set1)(0);
    for (int64_t c = 0; c < n; c += VEC_LANES) {
        const int64_t left = n - c;
        const NAME(applying) s = NAME(applying_vector)(a, first + c, left);
        if (left >= VEC_LANES) {
            UNROLL for (int k = 0; k < count; k++) {
                const VEC v = LOAD_X((const ELEMENT_T *)(x + k * a->x.piece + c * bytes));
                const VEC more =
                    adds ? LOAD_X((const ELEMENT_T *)(r + k * a->addend.piece + c * bytes)) : none;
                STORE_X((ELEMENT_T *)(y + k * y_pitch + c * bytes),
                        NAME(applied)(v, more, adds, s, f));
            }
        } else {
            for (int k = 0; k < count; k++) {
                const VEC v =
                    LOAD_X_PART((const ELEMENT_T *)(x + k * a->x.piece + c * bytes), (int)left);
                const VEC more =
                    adds ? LOAD_X_PART((const ELEMENT_T *)(r + k * a->addend.piece + c * bytes),
                                       (int)left)
                         : none;
                STORE_X_PART((ELEMENT_T *)(y + k * y_pitch + c * bytes),
                             NAME(applied)(v, more, adds, s, f), (int)left);
            }
        }
    }
}

INLINE void NAME(apply_by_pixel)(const batch_apply_args *a, const bool adds,
                                 const planish_activation f) {
    const int64_t channels = a->tile.channels, pixels = a->tile.pieces;
    const int64_t bytes = sizeof(ELEMENT_T);
    const bool lines =
        a->traffic == TRAFFIC_STREAM &&
        ((uintptr_t)a->y.data | (uintptr_t)a->y.piece | (uintptr_t)(channels * bytes)) % 64 == 0;
    _Alignas(64) ELEMENT_T made[NAME(PIECE)];
    for (int64_t p = 0; p < pixels && lines; p++)
        for (int64_t c = 0; c < channels; c += NAME(PIECE)) {
            const int64_t n = NAME(min)(channels - c, NAME(PIECE));
            NAME(apply_pixels)(a, p, 1, c, n, (char *)made, 0, adds, f);
            stream_lines((ELEMENT_T *)NAME(side_at)(&a->y, 0, p) + c, made, n * bytes);
        }
    for (int64_t p = 0; p < pixels && !lines;) {
        char *const y = a->y.data + p * a->y.piece;
        const int count = pixels - p >= NAME(APPLIED) ? NAME(APPLIED) : 1;
        NAME(prefetch_pixels)(NAME(side_at)(&a->x, 0, p), a->x.piece, count, channels,
                              a->tile.prefetches);
        if (count == NAME(APPLIED))
            NAME(apply_pixels)(a, p, NAME(APPLIED), 0, channels, y, a->y.piece, adds, f);
        else
            NAME(apply_pixels)(a, p, 1, 0, channels, y, a->y.piece, adds, f);
        p += count;
    }
}

#define APPLY_AS(of, a, adds)                                                                      \
    do {                                                                                           \
        if ((a)->activation == PLANISH_IDENTITY)                                                   \
            of(a, adds, PLANISH_IDENTITY);                                                         \
        else if ((a)->activation == PLANISH_RELU)                                                  \
            of(a, adds, PLANISH_RELU);                                                             \
        else                                                                                       \
            of(a, adds, (a)->activation);                                                          \
    } while (0)

static void NAME(batch_apply)(const batch_apply_args *a) {
    const bool adds = a->addend.data != NULL;
    if (a->tile.by_pixel && adds)
        APPLY_AS(NAME(apply_by_pixel), a, true);
    else if (a->tile.by_pixel)
        APPLY_AS(NAME(apply_by_pixel), a, false);
    else if (adds)
        APPLY_AS(NAME(apply_by_channel), a, true);
    else
        APPLY_AS(NAME(apply_by_channel), a, false);
}
