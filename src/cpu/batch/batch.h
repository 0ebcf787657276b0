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
    NAME(OCT) = 8,            /* pixels that are added by one tree */
    NAME(FLUSH_PIXELS) = 64,  /* that are added in the compute type */
    NAME(FLUSH) = 16 * LANES, /* the same of a channel's elements, or those of one more segment */
    NAME(NEAR_CHANNELS) = 2048 / sizeof(ELEMENT_T), /* whose sums stay in the first-level cache */
    NAME(HALF) = 2 * LANES                          /* elements of one step */
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

/* Whether a piece's results go past the cache. Short pieces have mostly lines that they share with
 * others, which go by ordinary stores. */
INLINE bool NAME(streams_spans)(const batch_tile *t, traffic where) {
    enum { LEAST_BYTES = 1024 };
    return where == TRAFFIC_STREAM && t->span * (int64_t)sizeof(ELEMENT_T) >= LEAST_BYTES;
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

/*
 * A strip of some channels: vectors side by side, of which a pixel's are all read before the next
 * pixel's, so that lines of the cache are read whole and one behind the other. STRIP of them, in
 * the order of pairs where there are (vec_pairs.h), or one with `left` channels.
 */
enum { NAME(STRIP) = 4, NAME(STRIP_LANES) = NAME(STRIP) * VEC_LANES };

INLINE void NAME(load_strip)(const ELEMENT_T *p, const int width, int64_t left, VEC v[]) {
    if (width == 1)
        v[0] = NAME(load_x)(p, left);
    UNROLL for (int w = 0; w + 1 < width; w += 2) {
        if (NAME(PAIRED)) {
            LOAD_X_PAIR(p + w * VEC_LANES, v + w);
            continue;
        }
        v[w] = LOAD_X(p + w * VEC_LANES);
        v[w + 1] = LOAD_X(p + (w + 1) * VEC_LANES);
    }
}
INLINE void NAME(store_strip)(ELEMENT_T *p, const int width, int64_t left, const VEC v[]) {
    if (width == 1)
        NAME(store_x)(p, v[0], left);
    UNROLL for (int w = 0; w + 1 < width; w += 2) {
        if (NAME(PAIRED)) {
            STORE_X_PAIR(p + w * VEC_LANES, v + w);
            continue;
        }
        STORE_X(p + w * VEC_LANES, v[w]);
        STORE_X(p + (w + 1) * VEC_LANES, v[w + 1]);
    }
}
/* The same of arrays of the compute type. */
INLINE void NAME(load_strip_real)(const REAL *p, const int width, int64_t left, VEC v[]) {
    if (width == 1)
        v[0] = NAME(load_real)(p, left);
    UNROLL for (int w = 0; w + 1 < width; w += 2) {
        if (NAME(PAIRED)) {
            LOAD_REAL_PAIR(p + w * VEC_LANES, v + w);
            continue;
        }
        v[w] = LOAD_REAL(p + w * VEC_LANES);
        v[w + 1] = LOAD_REAL(p + (w + 1) * VEC_LANES);
    }
}
INLINE void NAME(add_strip_real)(REAL *p, const int width, int64_t left, VEC v[]) {
    UNROLL for (int w = 0; NAME(PAIRED) && w + 1 < width; w += 2) V(in_order)(v + w);
    UNROLL for (int w = 0; w < width; w++)
        NAME(add_real)(p + w * VEC_LANES, v[w], width == 1 ? left : VEC_LANES);
}

/* Channels' numbers in the order of strips: as they are, or where there are pairs, copied to
 * `room`. What is less than a pair stays as it is. */
INLINE const REAL *NAME(arranged)(const REAL *from, int64_t n, REAL *room) {
    if (!NAME(PAIRED))
        return from;
    int64_t c = 0;
    for (; c + 2 * VEC_LANES <= n; c += 2 * VEC_LANES) {
        VEC v[2];
        LOAD_REAL_PAIR(from + c, v);
        STORE_REAL(room + c, v[0]);
        STORE_REAL(room + c + VEC_LANES, v[1]);
    }
    if (c < n)
        memcpy(room + c, from + c, (size_t)(n - c) * sizeof *room);
    return room;
}

/* A sum of pixels k = 0, 1 ... that come one by one, by a tree over OCT of them. */
typedef struct NAME(oct_tree) {
    VEC two, four, all;
} NAME(oct_tree);

INLINE void NAME(tree_add)(NAME(oct_tree) * t, const int k, VEC v) {
    t->two = k % 2 ? V(add)(t->two, v) : v;
    if (k % 2)
        t->four = k % 4 == 3 ? V(add)(t->four, t->two) : t->two;
    if (k % 4 == 3)
        t->all = k > 4 ? V(add)(t->all, t->four) : t->four;
}
INLINE VEC NAME(tree_sum)(const NAME(oct_tree) * t, const int count) {
    return count == 1 ? t->two : t->all;
}

/*
 * What comes next, prefetched while sums are made: some channels of pixel after pixel. Strips of
 * OCT pixels are read apart from each other, but memory is fast where it is asked for in order.
 */
typedef struct NAME(next_lines) {
    const char *pixel;
    int64_t at, bytes, pitch; /* bytes of these channels, of which `at` are asked for */
} NAME(next_lines);

/* Of `count` pixels and some channels from `x` on; it begins AHEAD_BYTES or a step of pixels on. */
INLINE NAME(next_lines)
    NAME(lines_after)(const ELEMENT_T *x, int64_t pitch, int64_t count, int64_t channels) {
    enum { AHEAD_BYTES = 8192 };
    const int64_t bytes = channels * (int64_t)sizeof(ELEMENT_T), all = count * bytes;
    const int64_t steps = all > AHEAD_BYTES ? 1 : AHEAD_BYTES / all;
    return (NAME(next_lines)){(const char *)((uintptr_t)x + (uintptr_t)(steps * count * pitch)), 0,
                              bytes, pitch};
}

/* Asks for the next `bytes`. */
INLINE void NAME(ask)(NAME(next_lines) * n, int64_t bytes, bool wanted) {
    for (int64_t done = 0; wanted && done < bytes; done += 64) {
        __builtin_prefetch((const void *)((uintptr_t)n->pixel + (uintptr_t)n->at), 0, 3);
        n->at += 64;
        if (n->at >= n->bytes) {
            n->at = 0;
            n->pixel = (const char *)((uintptr_t)n->pixel + (uintptr_t)n->pitch);
        }
    }
}
