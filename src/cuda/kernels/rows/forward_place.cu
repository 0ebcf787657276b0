/* A part of forward.cu and of stages_forward.cu: where a thread is. */

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
    /* Of the turn to be fetched next: this thread's first row, and its first chunk in it (LEVELS > 1: in row 0). */
    i64 next_row;
    const char *next_x;

    __device__ __forceinline__ bool has(int k) const {
        return !RAGGED || k < CHUNKS_PER_THREAD - 1 || has_last;
    }
    __device__ __forceinline__ u32 slot(int ring_slot, int u, int k) const {
        return ring + ((ring_slot * ROWS + u) * CHUNKS_PER_THREAD + k) * (THREADS * X_BYTES);
    }
};
