/*
 * What the kernels of batch norms share; part of cpu/batch/kernels_batch.c, once for each element
 * dtype, over the helpers of cpu/rows/rows.h.
 *
 * The sums of a channel are the same bits on every tier. By channel, element i of a piece goes to
 * canonical lane i mod LANES, but for the last ones of a piece, which go to the last lanes; by
 * pixel, a channel's elements are added by a fixed tree over OCT pixels. Both go on in the compute
 * type for about FLUSH elements and in f64 beyond.
 */

enum {
    NAME(OCT) = 8,             /* pixels that are added by one tree */
    NAME(FLUSH_PIXELS) = 64,   /* that are added in the compute type */
    NAME(FLUSH) = 16 * LANES,  /* the same of a channel's elements, or those of one more segment */
    NAME(NEAR_CHANNELS) = 512, /* whose sums stay in the first-level cache */
    NAME(HALF) = 2 * LANES     /* elements of one step */
};

INLINE const ELEMENT_T *NAME(side_at)(const batch_side *s, int64_t channel, int64_t piece) {
    return (const ELEMENT_T *)(s->data + channel * s->channel + piece * s->piece);
}
INLINE bool NAME(is_there)(const batch_side *s) {
    return s->data != NULL;
}

/* 1 for the last `left` canonical lanes, or for the first ones where `first`. */
INLINE NAME(lanes) NAME(own_lanes)(int64_t left, const bool first) {
    REAL own[LANES];
    NAME(lanes) m;
    for (int i = 0; i < LANES; i++)
        own[i] = (first ? i < left : i >= LANES - left) ? 1 : 0;
    UNROLL for (int k = 0; k < NAME(PARTS); k += 2) {
        if (NAME(PAIRED)) {
            V_TYPED(VEC, load_pair, REAL_TOKEN)(own + k * VEC_LANES, &m.part[k]);
            continue;
        }
        m.part[k] = LOAD_REAL(own + k * VEC_LANES);
        m.part[k + 1] = LOAD_REAL(own + (k + 1) * VEC_LANES);
    }
    return m;
}

/* The last elements of a piece, `left` of them: with those before them where the piece is as long,
 * else as the first lanes of a copy. */
INLINE NAME(lanes) NAME(load_last)(const ELEMENT_T *piece, int64_t span, int64_t left) {
    if (span >= LANES)
        return NAME(load_lanes)(piece + span - LANES);
    ELEMENT_T copy[LANES];
    memset(copy, 0, sizeof copy);
    memcpy(copy, piece + span - left, (size_t)left * sizeof *copy);
    return NAME(load_lanes)(copy);
}

/* Lanes kept in memory between segments. */
INLINE NAME(lanes) NAME(read_lanes)(const REAL *from) {
    NAME(lanes) v;
    UNROLL for (int k = 0; k < NAME(PARTS); k++) v.part[k] = LOAD_REAL(from + k * VEC_LANES);
    return v;
}
INLINE void NAME(write_lanes)(REAL *to, NAME(lanes) v) {
    UNROLL for (int k = 0; k < NAME(PARTS); k++) STORE_REAL(to + k * VEC_LANES, v.part[k]);
}

/* What `count` times LANES kept sums come to: by halves, four at once. Adds them in f64 and clears
 * them. */
INLINE void NAME(flush_lanes)(REAL *kept, int count, double *const to[]) {
    const VEC zero = V(set1)(0);
    for (int i = 0; i < count; i += TOGETHER) {
        VEC folded[TOGETHER] = {zero, zero, zero, zero};
        REAL out[TOGETHER];
        for (int k = 0; k < TOGETHER && i + k < count; k++) {
            NAME(lanes) sum = NAME(read_lanes)(kept + (i + k) * LANES);
            NAME(lanes_in_order)(&sum);
            folded[k] = NAME(lanes_fold)(sum);
        }
        V(fold4)(folded[0], folded[1], folded[2], folded[3], out);
        for (int k = 0; k < TOGETHER && i + k < count; k++)
            *to[i + k] += (double)out[k];
    }
    memset(kept, 0, (size_t)count * LANES * sizeof *kept);
}

/* Adds `n` sums in the compute type to sums in f64 and clears them. */
INLINE void NAME(flush_sums)(double *restrict to, REAL *restrict from, int64_t n) {
    for (int64_t c = 0; c < n; c++) {
        to[c] += (double)from[c];
        from[c] = 0;
    }
}

/* A tree over OCT vectors. */
INLINE VEC NAME(oct_sum)(const VEC v[NAME(OCT)]) {
    return V(add)(V(add)(V(add)(v[0], v[1]), V(add)(v[2], v[3])),
                  V(add)(V(add)(v[4], v[5]), V(add)(v[6], v[7])));
}
INLINE VEC NAME(oct_dot)(const VEC a[NAME(OCT)], const VEC b[NAME(OCT)]) {
    VEC even = V(mul)(a[0], b[0]), odd = V(mul)(a[1], b[1]);
    UNROLL for (int k = 2; k < NAME(OCT); k += 2) {
        even = V(fma)(a[k], b[k], even);
        odd = V(fma)(a[k + 1], b[k + 1], odd);
    }
    return V(add)(even, odd);
}

/* A vector of channels of which `left` are left, in arrays of the compute type. */
INLINE VEC NAME(load_real)(const REAL *p, int64_t left) {
    return left >= VEC_LANES ? LOAD_REAL(p) : LOAD_REAL_PART(p, (int)left);
}
INLINE void NAME(add_real)(REAL *p, VEC v, int64_t left) {
    if (left >= VEC_LANES)
        STORE_REAL(p, V(add)(LOAD_REAL(p), v));
    else
        STORE_REAL_PART(p, V(add)(LOAD_REAL_PART(p, (int)left), v), (int)left);
}

/* Prefetches some channels of `count` pixels that come after those at `x`. */
INLINE void NAME(prefetch_pixels)(const ELEMENT_T *x, int64_t pitch, int count, int64_t channels,
                                  bool wanted) {
    enum { AHEAD_BYTES = 8192 };
    const int64_t bytes = count * channels * (int64_t)sizeof(ELEMENT_T);
    const int64_t ahead = (bytes > AHEAD_BYTES ? 1 : AHEAD_BYTES / bytes) * count * pitch;
    for (int k = 0; wanted && k < count; k++)
        NAME(prefetch_row)((const ELEMENT_T *)((const char *)x + k * pitch), ahead, channels, true,
                           0);
}
