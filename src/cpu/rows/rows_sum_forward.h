/*
 * Forward of rows that are the sum of x and a residual; part of cpu/rows/kernels_rows_forward.c, in
 * the words of cpu/rows/rows.h. A block of rows of the sum is made, small enough for the first-level
 * cache, and handed to the kernel of rows as its x: there is no kernel of a norm of two tensors, and
 * rows of few columns go as they always do. What is written past the cache is made in a scratch that
 * the norm reads, and copied from there by non-temporal stores: memory is not read for it, nor does
 * it push x out of the cache.
 */

#ifndef SUM_NEAR
#define SUM_NEAR 16384
#define SUM_MOST 32768
#endif
/* Bytes of a block of rows, and of a row that is streamed from scratch. */
enum { SUM_BLOCK_BYTES = SUM_NEAR, SUM_ROW_BYTES = SUM_MOST };

/* How far ahead of a sum its terms are prefetched where they are not near. */
enum { RESIDUAL_AHEAD = 1024 };

/* n elements of the sum, each rounded once. It may be written over either term. */
INLINE void NAME(add_elements)(const ELEMENT_T *x, const ELEMENT_T *residual, ELEMENT_T *sum,
                               int64_t n, const traffic t) {
    enum { VECS = 4 };
    int64_t i = 0;
    for (; i + VECS * VEC_LANES <= n; i += VECS * VEC_LANES) {
        VEC a[VECS], b[VECS];
        UNROLL for (int k = 0; k < VECS; k += 2) {
            const int64_t at = i + k * VEC_LANES;
            if (NAME(PAIRED)) {
                LOAD_X_PAIR(x + at, a + k);
                LOAD_X_PAIR(residual + at, b + k);
                continue;
            }
            for (int j = 0; j < 2; j++) {
                a[k + j] = LOAD_X(x + at + j * VEC_LANES);
                b[k + j] = LOAD_X(residual + at + j * VEC_LANES);
            }
        }
        UNROLL for (int k = 0; k < VECS; k++) a[k] = V(add)(a[k], b[k]);
        for (int line = 0; line < VECS * VEC_LANES; line += 64 / (int)sizeof(ELEMENT_T)) {
            NAME(prefetch_vector)(x + i + line, RESIDUAL_AHEAD, t);
            NAME(prefetch_vector)(residual + i + line, RESIDUAL_AHEAD, t);
        }
        UNROLL for (int k = 0; k < VECS; k += 2) {
            ELEMENT_T *const to = sum + i + k * VEC_LANES;
            if (NAME(PAIRED)) {
                STORE_X_PAIR(to, a + k);
                continue;
            }
            for (int j = 0; j < 2; j++)
                STORE_X(to + j * VEC_LANES, a[k + j]);
        }
    }
    for (; i < n; i += VEC_LANES)
        NAME(store_x)(sum + i, V(add)(NAME(load_x)(x + i, n - i), NAME(load_x)(residual + i, n - i)),
                      n - i);
}

/* Rows [row, row + count) of the sum, made at `to`. */
ONE_COPY void NAME(add_rows)(const forward_args *a, int64_t row, int64_t count, char *to,
                             int64_t pitch) {
    const char *const x = a->x + row * a->x_pitch;
    const char *const residual = a->residual + row * a->residual_pitch;
    const int64_t bytes = a->cols * (int64_t)sizeof(ELEMENT_T);
    const bool dense = a->x_pitch == bytes && a->residual_pitch == bytes && pitch == bytes;
    const int64_t runs = dense ? 1 : count, n = dense ? count * a->cols : a->cols;
    for (int64_t r = 0; r < runs; r++) {
        const ELEMENT_T *const from = (const ELEMENT_T *)(x + r * a->x_pitch);
        const ELEMENT_T *const other = (const ELEMENT_T *)(residual + r * a->residual_pitch);
        ELEMENT_T *const made = (ELEMENT_T *)(to + r * pitch);
        if (a->traffic == TRAFFIC_CACHED)
            NAME(add_elements)(from, other, made, n, TRAFFIC_CACHED);
        else
            NAME(add_elements)(from, other, made, n, TRAFFIC_AHEAD);
    }
}

/* Rows of a block: steps of the kernels of rows, so that no rows are left over. */
INLINE int64_t NAME(sum_block_rows)(int64_t bytes) {
    const int64_t rows = SUM_BLOCK_BYTES / bytes, step = rows >= SHORT_ROWS ? SHORT_ROWS : TOGETHER;
    return rows < TOGETHER ? rows > 1 ? rows : 1 : rows / step * step;
}

/* All rows, by the kernel for those without a residual. */
ONE_COPY void NAME(forward_sums)(const forward_args *a, forward_kernel *norm) {
    const int64_t bytes = a->cols * (int64_t)sizeof(ELEMENT_T);
    const bool streams = bytes <= SUM_ROW_BYTES && NAME(traffic_to)(a->traffic, a->sum, a->sum_pitch,
                                                                    a->cols) == TRAFFIC_STREAM;
    const int64_t most = NAME(sum_block_rows)(bytes), pitch = streams ? bytes : a->sum_pitch;
    const bool dense = pitch == a->x_pitch && pitch == a->residual_pitch;
    _Alignas(64) char scratch[SUM_ROW_BYTES > SUM_BLOCK_BYTES ? SUM_ROW_BYTES : SUM_BLOCK_BYTES];
    cpu_hints hints = *a->hints;
    hints.far = hints.alone = hints.prefetch_steps = false;
    hints.prefetch_sums = a->traffic != TRAFFIC_CACHED && dense;
    forward_args block = *a;
    block.hints = &hints;
    block.x_pitch = pitch;
    for (int64_t row = 0; row < a->rows; row += most) {
        const int64_t count = NAME(min)(a->rows - row, most);
        char *const sum = a->sum + row * a->sum_pitch, *const to = streams ? scratch : sum;
        NAME(add_rows)(a, row, count, to, pitch);
        for (int64_t r = 0; r < count && streams; r++)
            stream_lines(sum + r * a->sum_pitch, scratch + r * bytes, bytes);
        block.x = to;
        block.sum = dense ? (char *)(uintptr_t)(a->x + (row + count) * pitch) : to;
        block.residual = a->residual + (row + count) * pitch;
        block.rows = count;
        block.y = a->y ? a->y + row * a->y_pitch : NULL;
        block.mean = stat_at(&a->mean, row);
        block.rstd = stat_at(&a->rstd, row);
        block.m2 = stat_at(&a->m2, row);
        norm(&block);
    }
}

INLINE void NAME(forward_sums_or)(const forward_args *a, forward_kernel *norm) {
    if (a->residual)
        NAME(forward_sums)(a, norm);
    else
        norm(a);
}
