/*
 * A part of forward.cu: a thread's chunks of a row wherever they are, and how rows to come are brought to
 * shared memory.
 */

/* This thread's chunks of a row, wherever they are. */
struct row_reader {
    chunk<X_BYTES> held[HOLD == HOLD_IN_REGISTERS ? CHUNKS_PER_THREAD : 1];
    const char *first; /* READ_AGAIN */
    u32 slot;          /* HOLD_IN_SHARED */
    int first_channel; /* GROUPS > 0: of the row */
    bool there;

    __device__ __forceinline__ chunk<X_BYTES> take(const place &p, int k) const {
        if constexpr (HOLD == HOLD_IN_REGISTERS)
            return held[k];
        else if constexpr (HOLD == HOLD_IN_SHARED)
            return load_from_shared<X_BYTES>(slot + k * (THREADS * X_BYTES));
        else
            return there && p.has(k)
                       ? load_chunk<X_BYTES, X_ACCESS>(first + (i64)k * (SPREAD * X_BYTES))
                       : zero_chunk<X_BYTES>();
    }
};

__device__ __forceinline__ int first_channel_of(i64 row) {
    return GROUPED ? (int)(row % most(GROUPS, 1)) * (COLS / most(PIXELS, 1)) : 0;
}

/* Starts the copies of the next turn's rows to shared memory; zeros for what is not there. */
__device__ __forceinline__ void fill(const row_args &args, place &p, int ring_slot) {
#pragma unroll
    for (int u = 0; u < ROWS; u++) {
        bool there = !p.idle && p.next_row + u * PER_WARP < args.rows;
        const char *from = p.next_x + u * PER_WARP * args.x_stride;
        if constexpr (LEVELLED)
            from = p.next_x + row_begin(args.levels, p.next_row + u * PER_WARP, args.x_stride, args.x_jump);
#pragma unroll UNROLL
        for (int k = 0; k < CHUNKS_PER_THREAD; k++) {
            const char *at = from + (i64)k * (SPREAD * X_BYTES);
            copy_in<X_BYTES, X_ACCESS>(p.slot(ring_slot, u, k), at, there && p.has(k));
        }
    }
    p.next_row += args.row_turn;
    if (!LEVELLED)
        p.next_x += args.x_turn;
    copy_async_commit();
}
