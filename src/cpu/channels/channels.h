/*
 * Channel kernels, written once and included for every tier and compute type: rows whose elements
 * are far apart while the same element of the next row is beside it (LayerNorm over C of NCHW). A
 * row is called a pixel here and an element of it a channel. A tile of pixels is brought into
 * scratch in the compute type, pixels side by side, and every sum runs down the channels with
 * pixels across the vector. Its parameters are those of cpu/common/unit.h.
 *
 * A row has the bits that cpu/rows/rows.h gives it: element i of a segment is added to lane i mod
 * LANES, in chains of CHAIN; lanes fold by halves, segments are merged in order in double.
 */

#ifndef PLANISH_CPU_CHANNELS_H
#define PLANISH_CPU_CHANNELS_H

#include "cpu/common/spans.h"
#include "cpu/common/unit.h"

#define REAL_DTYPE DTYPE_OF(REAL_TOKEN)

#define STORE_MADE(p, v, made) V__(store_vector, REAL_TOKEN)(p, v, made)
#define STORE_MADE_PART(p, v, n, made) V__(store_vector_part, REAL_TOKEN)(p, v, n, made)
#define SPAN_(f, type) f##_span_to_##type
#define SPAN(f, type) SPAN_(f, type)

/* Results are made for this many channels at a time before they are written out. */
enum { NAME(STRIP) = 16 };

enum { NAME(SEGMENT) = SEGMENT_DEPTH * LANES };

#include "cpu/channels/planes.h"

#include "cpu/common/epilogue.h"

/* ---- Between tensors and tiles --------------------------------------------------------------- */

/* Prefetches some channels of the next tile, where its pixels are neighbours. */
INLINE void NAME(prefetch_next)(const channel_tile *t, const tile_side *side, const char *next,
                                int64_t c, int64_t channels) {
    const int64_t bytes = dtype_bytes(side->type);
    if (next && side->pitch == bytes)
        for (int64_t k = 0; k < channels; k++)
            NAME(prefetch_row)(next + (c + k) * side->step, t->pixels * bytes);
}

/* Prefetches the lines that some channels of results will be written to. */
INLINE void NAME(prefetch_output)(const channel_tile *t, const tile_side *to, int64_t c) {
    const int64_t bytes = t->pixels * dtype_bytes(to->type);
    const int64_t last = NAME(smaller)(c + NAME(STRIP), t->channels);
    for (; c < last; c++)
        for (int64_t i = 0; i < bytes; i += 64)
            __builtin_prefetch(to->data + c * to->step + i, 1, 2);
}

/* A tile from a tensor whose pixels are neighbours. Pixels past the last are 0. */
INLINE void NAME(bring_rows)(const channel_tile *t, REAL *tile, const tile_side *from,
                             traffic traffic) {
    enum { AHEAD = 8 };
    const int64_t bytes = t->pixels * dtype_bytes(from->type);
    const size_t rest = (size_t)(t->padded - t->pixels) * sizeof(REAL);
    for (int64_t c = 0; c < t->channels; c++) {
        const char *row = from->data + c * from->step;
        if (traffic != TRAFFIC_CACHED && c + AHEAD < t->channels)
            NAME(prefetch_row)(row + AHEAD * from->step, bytes);
        SPAN(widen, REAL_TOKEN)(tile + c * t->pitch, row, from->type, t->pixels);
        if (rest)
            memset(tile + c * t->pitch + t->pixels, 0, rest);
    }
}

/* A tile from a tensor whose channels are neighbours. */
INLINE void NAME(bring_columns)(const channel_tile *t, REAL *tile, const tile_side *from) {
    const size_t rest = (size_t)(t->padded - t->pixels) * sizeof(REAL);
    NAME(gather_planes)(tile, t->pitch, from->data, from->pitch, from->type, t->pixels,
                        t->channels);
    for (int64_t c = 0; rest && c < t->channels; c++)
        memset(tile + c * t->pitch + t->pixels, 0, rest);
}

OUTLINE void NAME(bring)(const channel_tile *t, REAL *tile, const tile_side *from,
                         traffic traffic) {
    if (from->pitch == dtype_bytes(from->type))
        NAME(bring_rows)(t, tile, from, traffic);
    else
        NAME(bring_columns)(t, tile, from);
}

/* Whether a tensor whose pixels are neighbours takes whole lines only, so that it may be written
 * by non-temporal stores. */
INLINE bool NAME(is_lines)(const channel_tile *t, const tile_side *to) {
    const int64_t bytes = t->pixels * dtype_bytes(to->type);
    return to->pitch == dtype_bytes(to->type) &&
           ((uintptr_t)to->data | (uintptr_t)to->step | (uintptr_t)bytes) % 64 == 0;
}

/*
 * Results are made in the output's own dtype where its pixels are neighbours and that dtype has
 * stores of vectors; else in the compute type, for write_out to convert.
 */
INLINE bool NAME(makes)(dtype made) {
    return made == REAL_DTYPE || (REAL_DTYPE == DTYPE_F32 && made != DTYPE_F64);
}
INLINE dtype NAME(made_as)(const tile_side *to) {
    return to->pitch == dtype_bytes(to->type) && NAME(makes)(to->type) ? to->type : REAL_DTYPE;
}
INLINE char *NAME(element_at)(void *to, int64_t i, const dtype made) {
    return (char *)to + i * dtype_bytes(made);
}
INLINE void NAME(store_made)(void *to, int64_t i, VEC v, const dtype made) {
    STORE_MADE(NAME(element_at)(to, i, made), v, made);
}
INLINE void NAME(store_made_part)(void *to, int64_t i, VEC v, int n, const dtype made) {
    STORE_MADE_PART(NAME(element_at)(to, i, made), v, n, made);
}

/*
 * Up to STRIP channels of results, from channel `c` on, to pixels [first, last) of a tensor.
 */
OUTLINE void NAME(write_out)(const channel_tile *t, const void *strip, dtype made,
                             const tile_side *to, int64_t c, int64_t channels, int64_t first,
                             int64_t last, bool stream) {
    const int64_t bytes = dtype_bytes(to->type);
    char *data = to->data + c * to->step + first * to->pitch;
    if (to->pitch == bytes) {
        for (int64_t k = 0; k < channels; k++) {
            const char *from = (const char *)strip + (k * t->padded + first) * dtype_bytes(made);
            if (stream)
                stream_lines(data + k * to->step, from, (last - first) * bytes);
            else if (made == to->type)
                memcpy(data + k * to->step, from, (size_t)((last - first) * bytes));
            else
                SPAN(narrow, REAL_TOKEN)(data + k * to->step, (const void *)from, to->type,
                                         last - first);
        }
        return;
    }
    NAME(scatter_planes)(data, to->pitch, (const REAL *)strip + first, t->padded, to->type,
                         last - first, channels);
}

/* A pixel's channels from a tile to a dense row, and from a dense row to a tensor. */
INLINE void NAME(read_pixel)(const channel_tile *t, const REAL *tile, int64_t pixel, REAL *row) {
    for (int64_t c = 0; c < t->channels; c++)
        row[c] = tile[c * t->pitch + pixel];
}
INLINE void NAME(write_pixel)(const channel_tile *t, const tile_side *to, int64_t pixel,
                              const REAL *row) {
    for (int64_t c = 0; c < t->channels; c++)
        element_store(to->data + c * to->step + pixel * to->pitch, to->type, row[c]);
}

/* ---- Sums down the channels ------------------------------------------------------------------ */

/* What is summed, and how many sums that makes. */
enum { NAME(SUM), NAME(CENTERED), NAME(SQUARES), NAME(GRADIENT), NAME(GRADIENT_RMS) };

typedef struct NAME(trio) {
    VEC a, b, c;
} NAME(trio);

/* A vector of pixels of a tile: their channels from the first of a segment on. */
typedef struct NAME(column) {
    const REAL *x, *dy, *weight; /* weight NULL: 1 */
    REAL offset;
    int64_t pitch;
    VEC mean, rstd;
} NAME(column);

INLINE void NAME(add_channel)(NAME(trio) * s, const NAME(column) * col, int64_t i, const int what) {
    VEC x = LOAD_REAL(col->x + i * col->pitch);
    if (what == NAME(SUM)) {
        s->a = V(add)(s->a, x);
    } else if (what == NAME(SQUARES)) {
        s->b = V(fma)(x, x, s->b);
    } else if (what == NAME(CENTERED)) {
        const VEC d = V(sub)(x, col->mean);
        s->a = V(add)(s->a, d);
        s->b = V(fma)(d, d, s->b);
    } else {
        VEC g = LOAD_REAL(col->dy + i * col->pitch);
        if (col->weight)
            g = V(mul)(g, V(set1)(col->weight[i] + col->offset));
        if (what == NAME(GRADIENT))
            x = V(sub)(x, col->mean);
        const VEC xhat = V(mul)(x, col->rstd);
        if (what == NAME(GRADIENT)) {
            s->a = V(add)(s->a, xhat);
            s->b = V(add)(s->b, g);
        }
        s->c = V(fma)(g, xhat, s->c);
    }
}

INLINE NAME(trio) NAME(trio_add)(NAME(trio) s, NAME(trio) t) {
    return (NAME(trio)){V(add)(s.a, t.a), V(add)(s.b, t.b), V(add)(s.c, t.c)};
}

/* Four canonical lanes a quarter of all apart, side by side. */
typedef struct NAME(quad) {
    NAME(trio) lane[4];
} NAME(quad);

/* The chains of a quad: channels from i on, before n. */
INLINE NAME(quad)
    NAME(quad_chains)(const NAME(column) * col, int64_t i, int64_t n, const int what) {
    enum { QUARTER = LANES / 4 };
    const NAME(trio) zero = {V(set1)(0), V(set1)(0), V(set1)(0)};
    NAME(quad) q = {{zero, zero, zero, zero}};
    for (; i + 3 * QUARTER < n; i += LANES)
        UNROLL for (int k = 0; k < 4; k++)
            NAME(add_channel)(&q.lane[k], col, i + k * QUARTER, what);
    UNROLL for (int k = 0; k < 3; k++) if (i + k * QUARTER < n)
        NAME(add_channel)(&q.lane[k], col, i + k * QUARTER, what);
    return q;
}

INLINE NAME(trio) NAME(quad_fold)(NAME(quad) q) {
    return NAME(trio_add)(NAME(trio_add)(q.lane[0], q.lane[2]),
                          NAME(trio_add)(q.lane[1], q.lane[3]));
}

/* The sums of a quad, its chains added in order, folded. */
INLINE NAME(trio)
    NAME(quad_sums)(const NAME(column) * col, int64_t lane, int64_t n, const int what) {
    enum { CHAINED = CHAIN * LANES };
    if (n <= CHAINED)
        return NAME(quad_fold)(NAME(quad_chains)(col, lane, n, what));
    NAME(quad) total = NAME(quad_chains)(col, lane, CHAINED, what);
    for (int64_t at = CHAINED; at < n; at += CHAINED) {
        const NAME(quad) chains =
            NAME(quad_chains)(col, at + lane, NAME(smaller)(n, at + CHAINED), what);
        UNROLL for (int k = 0; k < 4; k++) total.lane[k] =
            NAME(trio_add)(total.lane[k], chains.lane[k]);
    }
    return NAME(quad_fold)(total);
}

/* All lanes of up to a segment, folded by halves: the quads are met in the order of the tree's
 * leaves, so that few sums wait at a time. */
INLINE NAME(trio) NAME(column_sums)(const NAME(column) * col, int64_t n, const int what) {
    static const unsigned char order[] = {0, 4, 2, 6, 1, 5, 3, 7};
    enum { QUADS = LANES / 4 };
    NAME(trio) waiting[3], sum;
    for (int q = 0; q < QUADS; q++) {
        sum = NAME(quad_sums)(col, order[q] * QUADS / 8, n, what);
        int level = 0;
        for (; q >> level & 1; level++)
            sum = NAME(trio_add)(waiting[level], sum);
        if (level < 3)
            waiting[level] = sum;
    }
    return sum;
}

#include "cpu/channels/channels_forward.h"

#include "cpu/channels/channels_backward.h"

#endif
