/*
 * Forward of rows that are the sum of x and a residual; part of cpu/rows/kernels_rows_forward.c, in
 * the words of cpu/rows/rows.h. A block of rows of the sum is made, small enough for the
 * first-level cache, and handed to the kernel of rows as its x: there is no kernel of a norm of two
 * tensors, and rows of few columns go as they always do. A sum that goes to memory is made in a
 * scratch that the norm reads, and written from there by non-temporal stores.
 */

/*
 * Bytes of a block of rows; of one whose sum is streamed, which rows of no more than that are: the
 * less is read before as much is written, the less either waits. SUM_PIECE_BYTES are streamed at
 * once (docs/notebook/111).
 */
enum { SUM_BLOCK_BYTES = 16384, SUM_STREAM_BYTES = 8192, SUM_PIECE_BYTES = 256 };

/* How far ahead of a sum its terms are prefetched from memory. */
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
        NAME(store_x)(sum + i,
                      V(add)(NAME(load_x)(x + i, n - i), NAME(load_x)(residual + i, n - i)), n - i);
}

/* Rows [row, row + count) of the sum, made at `to`; where that is not their place, by non-temporal
 * stores there too, a few lines at a time while the terms are read. */
ONE_COPY void NAME(add_rows)(const forward_args *a, int64_t row, int64_t count, char *to,
                             int64_t pitch, bool prefetches) {
    const char *const x = a->x + row * a->x_pitch;
    const char *const residual = a->residual + row * a->residual_pitch;
    char *const sum = a->sum + row * a->sum_pitch;
    const int64_t bytes = a->cols * (int64_t)sizeof(ELEMENT_T);
    const bool dense = a->x_pitch == bytes && a->residual_pitch == bytes && pitch == bytes &&
                       a->sum_pitch == bytes;
    const int64_t runs = dense ? 1 : count, n = dense ? count * a->cols : a->cols;
    const int64_t most = to == sum ? n : SUM_PIECE_BYTES / (int64_t)sizeof(ELEMENT_T);
    for (int64_t r = 0; r < runs; r++)
        for (int64_t at = 0; at < n; at += most) {
            const ELEMENT_T *const from = (const ELEMENT_T *)(x + r * a->x_pitch) + at;
            const ELEMENT_T *const other =
                (const ELEMENT_T *)(residual + r * a->residual_pitch) + at;
            ELEMENT_T *const made = (ELEMENT_T *)(to + r * pitch) + at;
            const int64_t length = NAME(min)(n - at, most);
            if (prefetches)
                NAME(add_elements)(from, other, made, length, TRAFFIC_AHEAD);
            else
                NAME(add_elements)(from, other, made, length, TRAFFIC_CACHED);
            if (to != sum)
                stream_lines((ELEMENT_T *)(sum + r * a->sum_pitch) + at, made,
                             length * (int64_t)sizeof(ELEMENT_T));
        }
}

/* Rows of a block: steps of the kernels of rows, so that no rows are left over. Long rows from
 * memory go in groups; from a cache the longest go alone, those of RMSNorm sooner. */
INLINE int64_t NAME(sum_block_rows)(int64_t row_bytes, bool streams, bool far, bool rms) {
    const int64_t rows = (streams ? SUM_STREAM_BYTES : SUM_BLOCK_BYTES) / row_bytes;
    const int64_t step = rows >= SHORT_ROWS ? SHORT_ROWS : TOGETHER;
    const bool grouped = far || row_bytes <= SUM_BLOCK_BYTES / (rms ? 2 : 1);
    const int64_t least = grouped && !streams ? TOGETHER : 1;
    return rows >= TOGETHER ? rows / step * step : rows > least ? rows : least;
}

/*
 * All rows, by the kernel for those without a residual. In a block of a streamed sum the next
 * block's x and residual are prefetched in the place of the next rows: forward_args' sum and
 * residual say where. What comes from a cache is there in time, prefetches only cost.
 */
ONE_COPY void NAME(forward_sums)(const forward_args *a, forward_kernel *norm, bool rms) {
    _Alignas(64) char scratch[SUM_STREAM_BYTES];
    const int64_t bytes = a->cols * (int64_t)sizeof(ELEMENT_T);
    const bool far = a->traffic == TRAFFIC_STREAM;
    const bool streams =
        bytes <= SUM_STREAM_BYTES &&
        NAME(traffic_to)(a->traffic, a->sum, a->sum_pitch, a->cols) == TRAFFIC_STREAM;
    const bool ahead = streams && a->x_pitch == bytes && a->residual_pitch == bytes;
    const int64_t most = NAME(sum_block_rows)(bytes, streams, far, rms);
    cpu_hints hints = *a->hints;
    if (!far || streams) {
        hints.far = hints.alone = hints.prefetch_steps = false;
        hints.prefetch_sums = ahead;
    }
    forward_args block = *a;
    block.hints = &hints;
    block.traffic = far ? TRAFFIC_STREAM : TRAFFIC_CACHED;
    block.x_pitch = streams ? bytes : a->sum_pitch;
    for (int64_t row = 0; row < a->rows; row += most) {
        const int64_t count = NAME(min)(a->rows - row, most), next = row + count;
        char *const sum = a->sum + row * a->sum_pitch, *const to = streams ? scratch : sum;
        NAME(add_rows)(a, row, count, to, block.x_pitch, far);
        block.x = to;
        block.sum = ahead ? (char *)(uintptr_t)(a->x + next * bytes) : streams ? to : NULL;
        block.residual = ahead ? a->residual + next * bytes : NULL;
        block.rows = count;
        block.y = a->y ? a->y + row * a->y_pitch : NULL;
        block.mean = stat_at(&a->mean, row);
        block.rstd = stat_at(&a->rstd, row);
        block.m2 = stat_at(&a->m2, row);
        norm(&block);
    }
}

INLINE void NAME(forward_sums_or)(const forward_args *a, forward_kernel *norm, bool rms) {
    if (a->residual)
        NAME(forward_sums)(a, norm, rms);
    else
        norm(a);
}
