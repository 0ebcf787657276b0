/*
 * A part of batch.cu: sums, what they come to and the output in one launch, of channels that are neighbours. All blocks
 * run at once, each with one piece of some rows; the first HOLD steps of each thread wait in shared memory while blocks
 * meet. Then each merges the pieces of its own rows, as BATCH_MOMENTS would.
 */
constexpr int MERGE_PLANES = most(1, THREADS / ROOM); /* threads that merge a row */

/* What is known of the block's rows, for every thread. */
typedef real constants_room[7][ROOM];

__device__ __forceinline__ void share_constants(constants_room &room, int row, const row_constants &c) {
    const real all[7] = {c.mean, c.scale, c.offset, c.c1, c.c2, c.weight, c.rstd};
#pragma unroll
    for (int j = 0; j < 7; j++)
        room[j][row] = all[j];
}

__device__ __forceinline__ row_constants constants_from(const constants_room &room, int row) {
    return {room[0][row], room[1][row], room[2][row], room[3][row], room[4][row], room[5][row], room[6][row]};
}

/* Sums over the block of two numbers. */
__device__ __forceinline__ void add_up_two(double *v, double (*room)[2]) {
    const int lane = threadIdx.x % WARP;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < 2; j++) {
        v[j] = sum_over_lanes<WARP>(v[j], lane);
        if (lane == 0)
            room[threadIdx.x / WARP][j] = v[j];
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < 2; j++) {
        v[j] = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            v[j] += room[w][j];
    }
}

/* Steps [begin, end) of those of the block's rows that leave float's range are summed again; returns whether there are
 * such rows. */
__device__ __forceinline__ bool sum_wide(const batch_args &args, i64 first, u32 begin, u32 end, double &pivot,
                                         double *v) {
    __shared__ double pivots[ROOM], room[WARPS][2];
    __shared__ bool is_wide[ROOM];
    if (threadIdx.x < ROOM) {
        pivots[threadIdx.x] = wide_pivot(pivot);
        is_wide[threadIdx.x] = first + threadIdx.x < rows_of(args) && leaves_range(args, v[1]);
    }
    __syncthreads();
    if (!any_of<ROOM>(is_wide))
        return false;
#pragma unroll 1
    for (int r = 0; r < ROOM; r++) {
        if (!is_wide[r])
            continue;
        double part[2];
        wide_sums(args, first_of_row(args, first + r), begin, end, threadIdx.x, THREADS, pivots[r], part);
        add_up_two(part, room);
        if (threadIdx.x == r) {
            v[0] = part[0];
            v[1] = part[1];
            pivot = pivots[r];
        }
    }
    return true;
}

/* The constants of the block's rows; the first piece's block saves what is to be saved of them. */
__device__ __forceinline__ void merge_block(const batch_args &args, i64 first, const known_row &known, bool saves,
                                            constants_room &constants) {
    __shared__ double room[MERGE_PLANES][3][ROOM];
    const int row = threadIdx.x % ROOM, plane = threadIdx.x / ROOM;
    const bool there = first + row < args.rows;
    double v[3] = {0, 0, 0}, pivot = 0;
    if (there)
        pivot = merge_pieces<MERGE_PLANES>(args, first + row, plane, v);
#pragma unroll
    for (int j = 0; j < SUMS; j++)
        room[plane][j][row] = v[j];
    __syncthreads();
    if (plane == 0)
#pragma unroll
        for (int j = 0; j < SUMS; j++) {
            v[j] = 0;
#pragma unroll
            for (int p = 0; p < MERGE_PLANES; p++)
                v[j] += room[p][j][row];
        }
    /* By each block that has a piece of them: y is not in x's place. */
    if (WIDE_RANGE)
        sum_wide(args, first, 0, args.steps, pivot, v);
    if (plane == 0 && there) {
        if constexpr (FORWARD)
            share_constants(constants, row, forward_constants(args, known, pivot, v, saves));
        else
            share_constants(constants, row, backward_constants(args, known, v, saves));
    }
    __syncthreads();
}

__device__ __forceinline__ void take_held(const batch_args &args) {
    __shared__ constants_room constants;
    wait_for_stream();
    release_stream();
    const i64 strips = (args.rows + ROOM - 1) / ROOM;
    const unit_place p = unit_of(args, strips, blockIdx.x);
    const u32 count = p.active ? steps_of(p.begin, p.end, p.plane) : 0, begin = p.begin + p.plane;
    const i64 first = p.row - p.lane * COLUMNS;
    const row_bases b = bases_of(args, p.active ? p.row : 0);
    row_constants c[COLUMNS];
    thread_sums s;
    s.clear();
    if (p.active) {
        real pivot[COLUMNS];
        const pivots_of_steps pivots(args, b.x, p.begin, p.end);
        ask_for_held(args, b, begin, count);
        pivots.find(pivot);
        sum_constants(args, p.row, pivot, c);
        add_all(args, b, c, begin, count, s);
    }
    leave_sums(args, p, c, s);
    known_row known;
    if (threadIdx.x < ROOM && first + threadIdx.x < args.rows)
        known = known_of(args, first + threadIdx.x);
    if constexpr (COOPERATING_BLOCKS > 1)
        grid_barrier(THREADS);
    merge_block(args, first, known, p.piece == 0, constants);
    if (!p.active || !HAS_OUTPUT)
        return;
#pragma unroll
    for (int i = 0; i < COLUMNS; i++)
        c[i] = constants_from(constants, p.lane * COLUMNS + i);
    put_back(args, b, c, begin, least_of(HOLD, count), count);
    put_held(args, b, c, begin, count);
}
