/*
 * A part of backward.cu: the sums of the columns, for dweight and dbias: from threads to a partial row of
 * the block, or to the result.
 */

/* The sum of v over the rows that a warp takes at once, in the lanes of the first. */
__device__ __forceinline__ real sum_over_rows(real v, int lane) {
#pragma unroll
    for (int step = power_of_two_up_to(PER_WARP - 1); step > 0; step /= 2) {
        const real other = __shfl_down_sync(EVERY_LANE, v, step * WARP_LANES);
        if (lane / WARP_LANES + step < least(PER_WARP, 2 * step))
            v += other;
    }
    return v;
}

struct __align__(COLUMNS * sizeof(real)) columns {
    real v[COLUMNS];
};

/* Adds one of the column sums over the block's teams in their order and writes the partial row, or
 * the result, if one is given. */
template <int TYPE>
__device__ __forceinline__ void write_partial(const team_state &t, real (*sums)[WIDTH], real *to,
                                              void *result, u32 block_rank) {
    columns *room = (columns *)dynamic_shared; /* [TEAMS][TEAM_COLS / COLUMNS] */
    const int own = WITHIN_WARP ? t.rank : t.rank - (int)block_rank * THREADS_PER_ROW;
    barrier(0, THREADS);
#pragma unroll
    for (int k = 0; k < CHUNKS_PER_THREAD; k++)
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            columns c;
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) {
                c.v[j] = sums[k][i * COLUMNS + j];
                if (PER_WARP > 1)
                    c.v[j] = sum_over_rows(c.v[j], t.lane);
            }
            if (!WITHIN_WARP || t.lane < WARP_LANES)
                room[(t.team * THREADS_PER_ROW * CHUNKS_PER_THREAD + k * THREADS_PER_ROW + own) * PIECES + i] = c;
        }
    barrier(0, THREADS);
    for (int c = threadIdx.x; c < TEAM_COLS / COLUMNS; c += THREADS) {
        const int local = c / PIECES, k = local / THREADS_PER_ROW;
        const int index = local % THREADS_PER_ROW + block_rank * THREADS_PER_ROW + k * SPREAD;
        if (index < CHUNKS) {
            columns all = {};
#pragma unroll 4
            for (int team = 0; team < TEAMS; team++) {
                const columns v = room[team * (TEAM_COLS / COLUMNS) + c];
#pragma unroll
                for (int j = 0; j < COLUMNS; j++)
                    all.v[j] += v.v[j];
            }
            const int column = index * WIDTH + c % PIECES * COLUMNS;
            if (result)
#pragma unroll
                for (int j = 0; j < COLUMNS; j++)
                    store_element<TYPE>(result, column + j, all.v[j]);
            else
                *(columns *)(to + column) = all;
        }
    }
}

/* The number of a block's, or a group's, partial row. */
__device__ __forceinline__ i64 partial_row() {
    return SLICED ? (i64)blockIdx.y * gridDim.x + blockIdx.x : blockIdx.x / SHARERS;
}
#if PAIRED
#define PARTIAL_ROW(args) ((i64)block_of_set((args).place))
#else
#define PARTIAL_ROW(args) partial_row()
#endif

/* What is left once all rows are done: the sums of this block's columns. */
__device__ __forceinline__ void write_column_sums(const row_args &args, const team_state &t,
                                                  real (*dweight)[WIDTH], real (*dbias)[WIDTH],
                                                  u32 block_rank) {
    const i64 partial = PARTIAL_ROW(args) * COLS;
    if (WANT_DWEIGHT)
        write_partial<DWEIGHT_TYPE>(t, dweight, args.partial_weight + partial,
                               args.alone ? args.dweight : nullptr, block_rank);
    if (WANT_DBIAS)
        write_partial<DBIAS_TYPE>(t, dbias, args.partial_bias + partial,
                               args.alone ? args.dbias : nullptr, block_rank);
}
