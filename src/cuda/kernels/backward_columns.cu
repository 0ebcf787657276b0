/*
 * A part of backward.cu: the sums of the columns, for dweight and dbias: from threads to a partial row of
 * the block, from partial rows to the result.
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

/* Columns that are moved at once. */
constexpr int COLUMNS = least(WIDTH, 16 / (int)sizeof(real));
struct __align__(COLUMNS * sizeof(real)) columns {
    real v[COLUMNS];
};

/* Adds one of the column sums over the block's teams in their order and writes the partial row, or
 * the result, if one is given. */
template <int TYPE>
__device__ __forceinline__ void write_partial(const team_state &t, real (*sums)[WIDTH], real *to,
                                              void *result, u32 block_rank) {
    constexpr int PIECES = WIDTH / COLUMNS;    /* of a chunk */
    columns *room = (columns *)dynamic_shared; /* [TEAMS][TEAM_COLS / COLUMNS] */
    const int own = WITHIN_WARP ? t.rank : t.rank - (int)block_rank * LANES;
    barrier(0, THREADS);
#pragma unroll
    for (int k = 0; k < VECS; k++)
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
                room[(t.team * LANES * VECS + k * LANES + own) * PIECES + i] = c;
        }
    barrier(0, THREADS);
    for (int c = threadIdx.x; c < TEAM_COLS / COLUMNS; c += THREADS) {
        const int local = c / PIECES, k = local / LANES;
        const int index = local % LANES + block_rank * LANES + k * SPREAD;
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

/* Adds up the partial rows for some of the columns, which no other block does, and rounds once. A
 * warp takes COLUMNS neighbours of 32 / COLUMNS rows at a time; `split` warps share the rows. */
__device__ __forceinline__ void sum_partials(const backward_args &args, int warp, int lane) {
    constexpr int COLUMNS = COLS >= 2048 ? 32 : COLS >= 1024 ? 16 : 8;
    constexpr int ABREAST = 32 / COLUMNS;
    constexpr int EACH = ceil_div(COLS, COLUMNS), TILES = EACH * (WANT_DWEIGHT + WANT_DBIAS);
    double *room = (double *)dynamic_shared; /* [WARPS][COLUMNS] */
    const int count = gridDim.x / SHARERS;
    int split = 1;
    while (2 * split <= WARPS && 2 * split * ABREAST <= count &&
           (i64)2 * split * TILES <= (i64)gridDim.x * WARPS)
        split *= 2;
    const int of_block = WARPS / split; /* tiles at a time */
    for (int first = blockIdx.x * of_block; first < TILES; first += gridDim.x * of_block) {
        const int tile = first + warp / split;
        const bool weight = WANT_DWEIGHT && tile < EACH;
        const int column = (weight || !WANT_DWEIGHT ? tile : tile - EACH) * COLUMNS + lane % COLUMNS;
        const bool has = warp / split < of_block && tile < TILES && column < COLS;
        const real *from = (weight ? args.partial_weight : args.partial_bias) + column;
        double sum = 0;
        if (has) {
            constexpr int AT_ONCE = 16;
            const int step = split * ABREAST;
            for (int p = warp % split * ABREAST + lane / COLUMNS; p < count; p += AT_ONCE * step) {
                real v[AT_ONCE];
#pragma unroll
                for (int j = 0; j < AT_ONCE; j++)
                    v[j] = p + j * step < count ? load_of_others(from + (i64)(p + j * step) * COLS)
                                                : 0;
#pragma unroll
                for (int j = 0; j < AT_ONCE; j++)
                    sum += v[j];
            }
        }
#pragma unroll
        for (int step = COLUMNS; step < 32; step *= 2)
            sum += __shfl_xor_sync(EVERY_LANE, sum, step);
        if (lane < COLUMNS)
            room[warp * COLUMNS + lane] = sum;
        barrier(0, THREADS);
        if (has && warp % split == 0 && lane < COLUMNS) {
            for (int s = 1; s < split; s++)
                sum += room[(warp + s) * COLUMNS + lane];
            if (weight)
                store_element<DW_TYPE>(args.dweight, column, (real)sum);
            else
                store_element<DB_TYPE>(args.dbias, column, (real)sum);
        }
        barrier(0, THREADS);
    }
}

/* What is left once all rows are done: the sums of this block's columns, then everybody's. */
__device__ __forceinline__ void write_column_sums(const backward_args &args, const team_state &t,
                                                  real (*dweight)[WIDTH], real (*dbias)[WIDTH],
                                                  u32 block_rank) {
    const i64 partial = (i64)(blockIdx.x / SHARERS) * COLS;
    if (WANT_DWEIGHT)
        write_partial<DW_TYPE>(t, dweight, args.partial_weight + partial,
                               args.alone ? args.dweight : nullptr, block_rank);
    if (WANT_DBIAS)
        write_partial<DB_TYPE>(t, dbias, args.partial_bias + partial,
                               args.alone ? args.dbias : nullptr, block_rank);
    if ((WANT_DWEIGHT || WANT_DBIAS) && args.together) {
        grid_barrier(THREADS);
        sum_partials(args, threadIdx.x / 32, t.lane);
    }
}
