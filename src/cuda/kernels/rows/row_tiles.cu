/*
 * A part of forward.cu and backward.cu: short rows of 16 bits that go through shared memory (VARIANT). 8 rows
 * or more are one piece of memory where they are dense: it comes and goes in whole 16-byte
 * accesses, whatever the length of a row. ROWS_TILED, a warp that takes 8 rows or more at a time has a tile of
 * its own, else the block has one.
 *
 * DENSE, of x, dy, y and dx, says whether a tensor's rows follow each other without a gap; then its ACCESS
 * is the alignment of the first. Else rows go chunk by chunk.
 */
constexpr bool TILED = VARIANT != ROWS_PLAIN;
constexpr int TILE_COLS = TILED ? COLS : 8;
constexpr int TILE_THREADS = STEP % 8 == 0 && VARIANT == ROWS_TILED ? WARP : THREADS;
constexpr int TILE_ROWS = TILED ? TILE_THREADS / WARP * STEP : 8;
constexpr int TILE_BYTES = TILE_ROWS * TILE_COLS * 2;
constexpr int TILE_STEP = TILE_THREADS * 16; /* bytes that a tile's threads move at once */
constexpr int STEPS = TILE_BYTES / TILE_STEP;
constexpr int STEPS_AT_ONCE = TILE_THREADS == WARP || VARIANT == ROWS_IN_RUNS ? most(STEPS, 1) : 4;
constexpr int ROW_CHUNKS = TILE_COLS / WIDTH, TILE_CHUNKS = TILE_ROWS * ROW_CHUNKS;
constexpr int CHUNK_BYTES = WIDTH * 2;

__device__ __forceinline__ void tile_barrier() {
    if (TILE_THREADS == WARP)
        __syncwarp();
    else
        __syncthreads();
}

/* Where chunk c of a tile is in memory, in bytes from its first row. */
__device__ __forceinline__ i64 chunk_place(int c, i64 stride) {
    return c / ROW_CHUNKS * stride + c % ROW_CHUNKS * CHUNK_BYTES;
}
/* The same from row 0 of rows that several strides lead to. */
template <typename spacing> __device__ __forceinline__ i64 chunk_place(int c, const spacing &rows) {
    return row_begin(rows.levels, rows.first + c / ROW_CHUNKS, rows.stride, rows.jump) +
           c % ROW_CHUNKS * CHUNK_BYTES;
}

/* Starts to bring a tile's rows to shared memory, of which `left` are there: in whole pieces and the
 * elements behind the last, or chunk by chunk. */
template <bool ALL_DENSE, int ACCESS, typename distance>
__device__ __forceinline__ void bring_rows(const char *from, const distance &stride, i64 left, u32 to) {
    const int thread = threadIdx.x % TILE_THREADS;
    if (ALL_DENSE && left >= TILE_ROWS) {
        const int at = thread * 16;
#pragma unroll STEPS_AT_ONCE
        for (int i = 0; i < STEPS; i++)
            copy_in<16, ACCESS>(to + at + i * TILE_STEP, from + at + i * TILE_STEP, true);
        if (STEPS * TILE_STEP + at < TILE_BYTES)
            copy_in<16, ACCESS>(to + at + STEPS * TILE_STEP, from + at + STEPS * TILE_STEP, true);
    } else if (ALL_DENSE) {
        const int bytes = left > 0 ? (int)left * (TILE_COLS * 2) : 0;
        const int last = bytes / 16 * 16 + thread * 2;
#pragma unroll 1
        for (int at = thread * 16; at <= bytes - 16; at += TILE_THREADS * 16)
            copy_in<16, ACCESS>(to + at, from + at, true);
        if (last < bytes)
            store_to_shared<2>(to + last, load_chunk<2, 2>(from + last));
    } else {
#pragma unroll 4
        for (int c = thread; c < TILE_CHUNKS; c += TILE_THREADS)
            copy_in<CHUNK_BYTES, ACCESS>(to + c * CHUNK_BYTES, from + chunk_place(c, stride),
                                         c / ROW_CHUNKS < left);
    }
}

/* Writes a tile's rows that are there, likewise. */
template <bool ALL_DENSE, int ACCESS, typename distance>
__device__ __forceinline__ void send_rows(char *to, const distance &stride, i64 left, u32 from) {
    const int thread = threadIdx.x % TILE_THREADS;
    if (ALL_DENSE && left >= TILE_ROWS) {
        const int at = thread * 16;
#pragma unroll STEPS_AT_ONCE
        for (int i = 0; i < STEPS; i++)
            store_chunk<16, ACCESS>(to + at + i * TILE_STEP,
                                    load_from_shared<16>(from + at + i * TILE_STEP));
        if (STEPS * TILE_STEP + at < TILE_BYTES)
            store_chunk<16, ACCESS>(to + at + STEPS * TILE_STEP,
                                    load_from_shared<16>(from + at + STEPS * TILE_STEP));
    } else if (ALL_DENSE) {
        const int bytes = left > 0 ? (int)left * (TILE_COLS * 2) : 0;
        const int last = bytes / 16 * 16 + thread * 2;
#pragma unroll 1
        for (int at = thread * 16; at <= bytes - 16; at += TILE_THREADS * 16)
            store_chunk<16, ACCESS>(to + at, load_from_shared<16>(from + at));
        if (last < bytes)
            store_chunk<2, 2>(to + last, load_from_shared<2>(from + last));
    } else {
#pragma unroll 4
        for (int c = thread; c < TILE_CHUNKS; c += TILE_THREADS)
            if (c / ROW_CHUNKS < left)
                store_chunk<CHUNK_BYTES, ACCESS>(to + chunk_place(c, stride),
                                                 load_from_shared<CHUNK_BYTES>(from + c * CHUNK_BYTES));
    }
}
