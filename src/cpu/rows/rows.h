/*
 * What the kernels of rows, of rows of channels (cpu/groups/groups.h) and of pixels
 * (cpu/groups/pixels.h) are written in; its parameters are those of cpu/common/unit.h.
 *
 * The sums of a row are the same bits on every tier: element i of a segment goes to canonical lane
 * i mod LANES, whatever the width of a vector; a lane is summed by chains of CHAIN elements, and
 * the chains in order; lanes fold by halves; segments are merged in order, in double. Statistics
 * are about a center and corrected, the mean a pair (docs/internals/numerics.md).
 */

#ifndef PLANISH_CPU_ROWS_H
#define PLANISH_CPU_ROWS_H

#include "cpu/common/unit.h"

#define LOAD_X(p) V_TYPED(VEC, load, ELEMENT)(p)
#define LOAD_X_PART(p, n) V_TYPED(VEC, load_part, ELEMENT)(p, n)
#define STORE_X(p, v) V_TYPED(VEC, store, ELEMENT)(p, v)
#define STORE_X_PART(p, v, n) V_TYPED(VEC, store_part, ELEMENT)(p, v, n)
#define LOAD_X_PAIR(p, v) V_TYPED(VEC, load_pair, ELEMENT)(p, v)
#define STORE_X_PAIR(p, v) V_TYPED(VEC, store_pair, ELEMENT)(p, v)
#define LOAD_W(p) V_TYPED(VEC, load, WEIGHT)(p)
#define LOAD_W_PART(p, n) V_TYPED(VEC, load_part, WEIGHT)(p, n)
#define LOAD_W_PAIR(p, v) V_TYPED(VEC, load_pair, WEIGHT)(p, v)

enum { NAME(REAL_BYTES) = sizeof(REAL), NAME(ELEMENT_BYTES) = sizeof(ELEMENT_T) };
enum { NAME(PARTS) = LANES / VEC_LANES };             /* vectors that hold the canonical lanes */
enum { NAME(PAIRED) = V_TYPED(VEC, pairs, ELEMENT) }; /* they are loaded in pairs (vec_pairs.h) */
enum { NAME(CONVERTS) = DTYPE_OF(ELEMENT) != DTYPE_OF(REAL_TOKEN) };
/* The longest row that is short, or 0: the compiler is to see that there is none. */
enum { NAME(SHORT_COLS) = (int)NAME(PARTS) <= (int)SHORT_PARTS ? LANES : 0 };
enum { NAME(CHAINED) = CHAIN * LANES }; /* elements of a chain in every lane */
enum { NAME(SEGMENT) = SEGMENT_DEPTH * LANES };

typedef REAL NAME(rows_real) __attribute__((vector_size(TOGETHER * sizeof(REAL))));

/* The canonical lanes of one sum. */
typedef struct NAME(lanes) {
    VEC part[NAME(PARTS)];
} NAME(lanes);

INLINE NAME(lanes) NAME(lanes_zero)(void) {
    NAME(lanes) sum;
    for (int k = 0; k < NAME(PARTS); k++)
        sum.part[k] = V(set1)(0);
    return sum;
}

/* An element for each canonical lane, in the order of pairs where there are; that of the lanes. */
INLINE NAME(lanes) NAME(load_lanes)(const ELEMENT_T *x) {
    NAME(lanes) v;
    UNROLL for (int k = 0; k < NAME(PARTS); k += 2) {
        if (NAME(PAIRED)) {
            LOAD_X_PAIR(x + k * VEC_LANES, &v.part[k]);
            continue;
        }
        v.part[k] = LOAD_X(x + k * VEC_LANES);
        v.part[k + 1] = LOAD_X(x + (k + 1) * VEC_LANES);
    }
    return v;
}
INLINE NAME(lanes) NAME(load_weight_lanes)(const WEIGHT_T *p) {
    NAME(lanes) v;
    UNROLL for (int k = 0; k < NAME(PARTS); k += 2) {
        if (NAME(PAIRED)) {
            LOAD_W_PAIR(p + k * VEC_LANES, &v.part[k]);
            continue;
        }
        v.part[k] = LOAD_W(p + k * VEC_LANES);
        v.part[k + 1] = LOAD_W(p + (k + 1) * VEC_LANES);
    }
    return v;
}
INLINE void NAME(lanes_in_order)(NAME(lanes) * sum) {
    UNROLL for (int k = 0; NAME(PAIRED) && k < NAME(PARTS); k += 2) V(in_order)(&sum->part[k]);
}

/* Adds the sums of one chain to those of the chains before it. */
INLINE void NAME(lanes_add)(NAME(lanes) * total, NAME(lanes) sum) {
    UNROLL for (int k = 0; k < NAME(PARTS); k++) total->part[k] =
        V(add)(total->part[k], sum.part[k]);
}

/* Lanes to one vector, by halves; the rest of the fold is VEC's fold4. */
INLINE VEC NAME(lanes_fold)(NAME(lanes) sum) {
    for (int half = NAME(PARTS) / 2; half; half /= 2)
        for (int k = 0; k < half; k++)
            sum.part[k] = V(add)(sum.part[k], sum.part[k + half]);
    return sum.part[0];
}

INLINE void NAME(fold_rows)(const VEC sums[], int count, REAL out[TOGETHER]) {
    const VEC zero = V(set1)(0);
    V(fold4)(sums[0], count > 1 ? sums[1] : zero, count > 2 ? sums[2] : zero,
             count > 3 ? sums[3] : zero, out);
}

/* A vector of a row with `left` elements to go, filled up with 0; the same stored; and one with the
 * lanes past the end 0. */
INLINE VEC NAME(load_x)(const ELEMENT_T *p, int64_t left) {
    return left >= VEC_LANES ? LOAD_X(p) : LOAD_X_PART(p, (int)left);
}
INLINE void NAME(store_x)(ELEMENT_T *p, VEC v, int64_t left) {
    if (left >= VEC_LANES)
        STORE_X(p, v);
    else
        STORE_X_PART(p, v, (int)left);
}
/* The same, or a line by a non-temporal store. */
INLINE void NAME(store_as)(ELEMENT_T *p, VEC v, int64_t left, const traffic t) {
    if (t == TRAFFIC_LINES && LINE_VECTORS)
        stream_line(p, &v);
    else
        NAME(store_x)(p, v, left);
}
INLINE VEC NAME(keep)(VEC v, int64_t left) {
    return left >= VEC_LANES ? v : V(keep)(v, (int)left);
}
/* What is added to dx before that is rounded: nothing, where `from` is a constant NULL. */
INLINE VEC NAME(with_sum)(VEC dx, const ELEMENT_T *from, int64_t left) {
    return from ? V(add)(dx, NAME(load_x)(from, left)) : dx;
}
INLINE VEC NAME(load_weight)(const WEIGHT_T *p, int64_t left) {
    return left >= VEC_LANES ? LOAD_W(p) : LOAD_W_PART(p, (int)left);
}
/* Elements of a row that are made before non-temporal stores write them (stream_lines). */
enum { NAME(PIECE) = 1024 / sizeof(ELEMENT_T) };

/* The same, of one of two rows that go by run. Rows that are converted wait for that, longer pieces
 * of them are faster. */
enum { NAME(RUN) = RUN_BYTES / sizeof(ELEMENT_T) };
INLINE bool NAME(goes_by_run)(const cpu_hints *hints) {
    return LINE_VECTORS && !NAME(CONVERTS) && hints->stream_runs;
}

/* Writes elements [at, at + n) of the last `together` rows of `done`, where there are as many, by
 * non-temporal stores. They were made in pieces, `room` elements for each row. */
INLINE void NAME(stream_rows)(ELEMENT_T *const to[], const ELEMENT_T *pieces, int64_t room,
                              int done, int together, int64_t at, int64_t n) {
    for (int r = done % together ? done : done - together; r < done; r++)
        stream_lines(to[r] + at, pieces + r * room, n * (int64_t)sizeof(ELEMENT_T));
}

/* Prefetches the element vector `ahead` bytes on; past the end of the tensor this does nothing. */
INLINE void NAME(prefetch_vector)(const ELEMENT_T *p, int64_t ahead, const traffic t) {
    if (t != TRAFFIC_CACHED)
        __builtin_prefetch((const char *)((uintptr_t)p + (uintptr_t)ahead), 0, 2);
}

/* Non-temporal stores only where every row is whole lines: what is written in parts is slower
 * there. */
INLINE traffic NAME(traffic_to)(traffic t, const char *output, int64_t pitch, int64_t cols) {
    const int64_t bytes = cols * (int64_t)sizeof(ELEMENT_T);
    const bool whole = ((uintptr_t)output | (uintptr_t)pitch | (uintptr_t)bytes) % 64 == 0;
    return t == TRAFFIC_STREAM && !whole ? TRAFFIC_AHEAD : t;
}

/* Whether short rows of this traffic_to are streamed by line: where a vector is one. f64 was
 * not timed. */
INLINE bool NAME(goes_by_line)(const cpu_hints *hints, traffic t) {
    return LINE_VECTORS && t == TRAFFIC_STREAM && DTYPE_OF(ELEMENT) == DTYPE_F32 &&
           hints->stream_lines;
}

/*
 * Whether `count` rows, one behind the other, are whole lines that non-temporal stores may take,
 * even where a row is not. Such rows are made in a piece of count * PIECE elements at most.
 */
INLINE bool NAME(rows_are_lines)(traffic t, const char *output, int64_t pitch, int64_t cols,
                                 const int count) {
    const int64_t bytes = cols * (int64_t)sizeof(ELEMENT_T);
    return t == TRAFFIC_STREAM && output && pitch == bytes && cols <= NAME(PIECE) &&
           ((uintptr_t)output | (uintptr_t)(count * bytes)) % 64 == 0;
}

/* Prefetches the lines of n elements, `ahead` bytes on; past the end of the tensor this does
 * nothing.
 */
INLINE void NAME(prefetch_row)(const ELEMENT_T *p, int64_t ahead, int64_t n, bool wanted,
                               const int to_write) {
    const uintptr_t first = (uintptr_t)p + (uintptr_t)ahead;
    for (uintptr_t i = 0; wanted && i < (uintptr_t)n * sizeof(ELEMENT_T); i += 64) {
        if (to_write) /* a constant where this is called, as the builtin wants it */
            __builtin_prefetch((const void *)(first + i), 1, 3);
        else
            __builtin_prefetch((const void *)(first + i), 0, 3);
    }
}

/* Prefetches the elements of a chain, `ahead` bytes on and from memory; 0: nothing. */
INLINE void NAME(prefetch_chain)(const ELEMENT_T *p, int64_t ahead, int64_t n) {
    for (int64_t i = 0; ahead && i < n; i += 64 / (int64_t)sizeof(ELEMENT_T))
        NAME(prefetch_vector)(p + i, ahead, TRAFFIC_AHEAD);
}

INLINE int64_t NAME(min)(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* The most columns of rows that are done by kernels of their own (cpu/rows/rows_few.h), and weights
 * of these in the compute type, made in `to`. */
enum { NAME(FEW_COLS) = 8 * LANES };
INLINE const REAL *NAME(few_weights)(const void *weights, int64_t n, REAL *to) {
    if (!weights)
        return NULL;
    for (int64_t i = 0; i < n; i += VEC_LANES)
        STORE_REAL(to + i, NAME(load_weight)((const WEIGHT_T *)weights + i, n - i));
    return to;
}

#endif
