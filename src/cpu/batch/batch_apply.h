/* y of channels by their factors; part of cpu/batch/kernels_batch.c. */

/* What makes a vector of y. */
typedef struct NAME(applying) {
    VEC mean, scale, offset;
} NAME(applying);

INLINE NAME(applying) NAME(applying_at)(const batch_apply_args *a, int64_t c) {
    const REAL *const *const f = (const REAL *const *)a->factor;
    return (NAME(applying)){V(set1)(f[FACTOR_MEAN][c]), V(set1)(f[FACTOR_SCALE][c]),
                            V(set1)(f[FACTOR_OFFSET][c])};
}
INLINE VEC NAME(applied)(VEC x, VEC addend, const bool adds, NAME(applying) s,
                         const planish_activation f) {
    const VEC z = V(fma)(V(sub)(x, s.mean), s.scale, s.offset);
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
    const bool streams = NAME(streams_spans)(&a->tile, a->traffic);
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

/* n channels of a pixel, by arrays of factors that are in the order of strips. */
INLINE void NAME(apply_pixel)(const ELEMENT_T *x, const ELEMENT_T *addend, ELEMENT_T *y, int64_t n,
                              const REAL *const factor[], const bool adds,
                              const planish_activation f) {
    enum { TWO = 2 };
    int64_t c = 0;
    for (; c + TWO * VEC_LANES <= n; c += TWO * VEC_LANES) {
        VEC v[TWO], r[TWO] = {V(set1)(0), V(set1)(0)};
        NAME(load_strip)(x + c, TWO, 0, v);
        if (adds)
            NAME(load_strip)(addend + c, TWO, 0, r);
        UNROLL for (int w = 0; w < TWO; w++) {
            const int64_t i = c + w * VEC_LANES;
            const NAME(applying)
                s = {LOAD_REAL(factor[FACTOR_MEAN] + i), LOAD_REAL(factor[FACTOR_SCALE] + i),
                     LOAD_REAL(factor[FACTOR_OFFSET] + i)};
            v[w] = NAME(applied)(v[w], r[w], adds, s, f);
        }
        NAME(store_strip)(y + c, TWO, 0, v);
    }
    for (; c < n; c += VEC_LANES) {
        const NAME(applying) s = {NAME(load_real)(factor[FACTOR_MEAN] + c, n - c),
                                  NAME(load_real)(factor[FACTOR_SCALE] + c, n - c),
                                  NAME(load_real)(factor[FACTOR_OFFSET] + c, n - c)};
        const VEC r = adds ? NAME(load_x)(addend + c, n - c) : V(set1)(0);
        NAME(store_x)(y + c, NAME(applied)(NAME(load_x)(x + c, n - c), r, adds, s, f), n - c);
    }
}

INLINE void NAME(apply_by_pixel)(const batch_apply_args *a, const bool adds,
                                 const planish_activation f) {
    enum { PIECE = NAME(PIECE), BYTES = sizeof(ELEMENT_T) };
    const int64_t n = a->tile.channels;
    const bool lines =
        a->traffic == TRAFFIC_STREAM &&
        ((uintptr_t)a->y.data | (uintptr_t)a->y.piece | (uintptr_t)(n * BYTES)) % 64 == 0;
    _Alignas(64) ELEMENT_T made[PIECE];
    const REAL *factor[FACTOR_OFFSET + 1];
    for (int k = 0; k <= FACTOR_OFFSET; k++)
        factor[k] = NAME(arranged)(a->factor[k], n, (REAL *)a->scratch + k * n);
    for (int64_t p = 0; p < a->tile.pieces; p++) {
        const ELEMENT_T *const x = NAME(side_at)(&a->x, 0, p);
        const ELEMENT_T *const r = adds ? NAME(side_at)(&a->addend, 0, p) : NULL;
        ELEMENT_T *const y = (ELEMENT_T *)NAME(side_at)(&a->y, 0, p);
        for (int64_t c = 0, some; c < n; c += some) {
            some = lines ? NAME(min)(n - c, PIECE) : n;
            const REAL *const at[] = {factor[FACTOR_MEAN] + c, factor[FACTOR_SCALE] + c,
                                      factor[FACTOR_OFFSET] + c};
            NAME(apply_pixel)(x + c, adds ? r + c : NULL, lines ? made : y, some, at, adds, f);
            if (lines)
                stream_lines(y + c, made, some * BYTES);
        }
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
