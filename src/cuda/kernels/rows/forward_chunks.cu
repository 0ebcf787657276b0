/*
 * A part of forward.cu: where a thread is, its chunks of a row wherever they are, and how rows to come
 * are brought to shared memory.
 */

struct place {
    int lane, warp, rank; /* rank in the row */
    u32 block_rank;       /* in the cluster */
    bool idle, has_last;
    u32 ring; /* this thread's first chunk in shared memory */
    total count;                   /* elements this thread holds of a row */
    total warp_count, block_count; /* elements in the entries this lane merges */
    entry (*slots)[WARPS], (*block_slots)[CLUSTER];
    u64 *byte_barriers;
    u32 round; /* exchanges so far */
    /* Of the turn to be fetched next: this thread's first row, and its first chunk in it. */
    i64 next_row;
    const char *next_x;

    __device__ __forceinline__ bool has(int k) const {
        return !RAGGED || k < VECS - 1 || has_last;
    }
    __device__ __forceinline__ u32 slot(int stage, int u, int k) const {
        return ring + ((stage * ROWS + u) * VECS + k) * (THREADS * X_BYTES);
    }
};

/* This thread's chunks of a row, wherever they are. */
struct row_reader {
    chunk<X_BYTES> held[HOLD == HOLD_IN_REGISTERS ? VECS : 1];
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
__device__ __forceinline__ void fill(const forward_args &args, place &p, int stage) {
#pragma unroll
    for (int u = 0; u < ROWS; u++) {
        bool there = !p.idle && p.next_row + u * PER_WARP < args.rows;
        const char *from = p.next_x + u * PER_WARP * args.x_stride;
#pragma unroll UNROLL
        for (int k = 0; k < VECS; k++) {
            const char *at = from + (i64)k * (SPREAD * X_BYTES);
            copy_in<X_BYTES, X_ACCESS>(p.slot(stage, u, k), at, there && p.has(k));
        }
    }
    p.next_row += args.row_turn;
    p.next_x += args.x_turn;
    copy_async_commit();
}
