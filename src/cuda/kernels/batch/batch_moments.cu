/* A part of batch.cu: what the sums of a row's pieces come to. A block has LANES rows, PLANES threads each. */

/* Elements of a row in piece `piece`. */
__device__ __forceinline__ double piece_elements(const batch_args &args, u32 piece) {
    const u32 begin = piece * args.piece;
    return (double)((least_of(begin + args.piece, args.steps) - begin) * STEP_ELEMENTS);
}

/* Sums over the threads of each of the block's rows, in all of them. */
typedef double merge_room[WARPS][3][LANES];

__device__ __forceinline__ void add_up_planes(double *v, merge_room &room) {
    const int lane = threadIdx.x % WARP, row = threadIdx.x % LANES;
#pragma unroll
    for (int j = 0; j < SUMS; j++) {
        v[j] = sum_over_planes<LANES, WARP / LANES>(v[j], lane);
        if (lane < LANES)
            room[threadIdx.x / WARP][j][lane] = v[j];
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < SUMS; j++) {
        v[j] = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            v[j] += room[w][j][row];
    }
    __syncthreads();
}

/* The sums of a row again, in f64: thread `rank` of `count` takes every count-th step of [begin, end). */
__device__ __forceinline__ void wide_sums(const batch_args &args, const char *x, u32 begin, u32 end, int rank,
                                          int count, double pivot, double *v) {
    v[0] = v[1] = 0;
    for (u32 step = begin + rank; step < end; step += count)
#pragma unroll 1
        for (int i = 0; i < STEP_ELEMENTS; i++) {
            const i64 at = step_at<X_TYPE>(args, args.x, step) + i * bytes_of(X_TYPE);
            const double d = (double)load_element<X_TYPE>(x + at, 0) - pivot;
            v[0] += d;
            v[1] = multiply_add(d, d, v[1]);
        }
}

/* A pivot that is a number. */
__device__ __forceinline__ double wide_pivot(double pivot) { return pivot - pivot == 0 ? pivot : 0; }

/* The sums of every EACH-th piece of row `row`, about the first one's pivot, which is returned. */
template <int EACH>
__device__ __forceinline__ double merge_pieces(const batch_args &args, i64 row, int plane, double *v) {
    const real *const from = (const real *)args.sums + row;
    const double pivot = FORWARD && LAYER ? (double)from[2 * args.rows] : 0;
#pragma unroll 8
    for (u32 piece = plane; piece < args.pieces; piece += EACH) {
        const real *const at = from + (i64)piece * 3 * args.rows;
        double part[3];
#pragma unroll
        for (int j = 0; j < 3; j++)
            part[j] = FORWARD || j < SUMS ? (double)at[j * args.rows] : 0;
        if (FORWARD && LAYER)
            move_pivot(part[2] - pivot, piece_elements(args, piece), part[0], part[1]);
#pragma unroll
        for (int j = 0; j < SUMS; j++)
            v[j] += part[j];
    }
    return pivot;
}

/* Rows that leave float's range, one after the other by the whole block: their sums, about what the pivot becomes. */
__device__ __forceinline__ void merge_wide(const batch_args &args, i64 first, double &pivot, double *v,
                                           merge_room &room) {
    __shared__ double pivots[LANES];
    __shared__ bool is_wide[LANES];
    if (threadIdx.x < LANES) {
        pivots[threadIdx.x] = wide_pivot(pivot);
        is_wide[threadIdx.x] = first + threadIdx.x < args.rows && leaves_range(args, v[1]);
    }
    __syncthreads();
    if (!any_of<LANES>(is_wide))
        return;
#pragma unroll 1
    for (int r = 0; r < LANES; r++) {
        if (!is_wide[r])
            continue;
        double part[3] = {0, 0, 0};
        const char *x = row_of(args.x, number_of(args, first + r));
        wide_sums(args, x, 0, args.steps, threadIdx.x, THREADS, pivots[r], part);
        /* Over the planes, then over the lanes, which are of one row here. */
        add_up_planes(part, room);
        if (threadIdx.x < LANES)
#pragma unroll
            for (int j = 0; j < 2; j++)
                room[0][j][threadIdx.x] = part[j];
        __syncthreads();
        if (threadIdx.x == r) {
            v[0] = v[1] = 0;
            for (int l = 0; l < LANES; l++) {
                v[0] += room[0][0][l];
                v[1] += room[0][1][l];
            }
            pivot = pivots[r];
        }
        __syncthreads();
    }
}

__device__ __forceinline__ void keep_constants(const batch_args &args, i64 row, const row_constants &c) {
    real *const to = (real *)args.constants + row;
    to[0] = c.mean;
    to[args.rows] = c.scale;
    to[2 * args.rows] = c.offset;
    if (BACKWARD) {
        to[3 * args.rows] = c.c1;
        to[4 * args.rows] = c.c2;
        to[5 * args.rows] = c.weight;
        to[6 * args.rows] = c.rstd;
    }
}

__device__ __forceinline__ void merge_rows(const batch_args &args) {
    __shared__ merge_room room;
    for (i64 first = (i64)blockIdx.x * LANES; first < args.rows; first += (i64)gridDim.x * LANES) {
        const i64 row = first + threadIdx.x % LANES;
        double v[3] = {0, 0, 0}, pivot = 0;
        if (row < args.rows)
            pivot = merge_pieces<PLANES>(args, row, threadIdx.x / LANES, v);
        add_up_planes(v, room);
        if (WIDE_RANGE)
            merge_wide(args, first, pivot, v, room);
        if (threadIdx.x < LANES && row < args.rows) {
            const known_row k = known_of(args, row);
            if constexpr (FORWARD)
                keep_constants(args, row, forward_constants(args, k, pivot, v, true));
            else
                keep_constants(args, row, backward_constants(args, k, v, true));
        }
    }
}
