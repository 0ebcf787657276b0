/*
 * A part of groups.cu: the forward of rows in tiles (group_tiles.cu). Each lane of a channel takes sums
 * about a pivot of its own; a row's are merged in f64.
 */

/* f32 shows what is lost in a sum of f32, element after element. */
constexpr bool WIDE_SUMS = bytes_of(X_TYPE) == 4;
template <bool IN_DOUBLE> struct lane_total {
    typedef float type;
};
template <> struct lane_total<true> {
    typedef double type;
};

/* Pivot, sum and squares of a lane's elements. */
struct lane_sums {
    float pivot;
    lane_total<WIDE_SUMS>::type sum, squares;
    bool begun;
};

/* What a lane's sums are about: of pairs' means, of which one may have met an outlier, the middle.
 * Equal elements give it exactly. */
template <int COUNT> __device__ __forceinline__ float pivot_of(const float *v) {
    if constexpr (COUNT >= 6)
        return middle_of((v[0] + v[1]) * .5f, (v[2] + v[3]) * .5f, (v[4] + v[5]) * .5f);
    else if constexpr (COUNT >= 3)
        return middle_of(v[0], v[1], v[2]);
    else
        return v[0];
}

/* Adds a run's elements; `at`: the first of them in the tile. The first run makes the pivot. */
template <int COUNT>
__device__ __forceinline__ void add_run(const tile_place &p, int at, lane_sums &s) {
    const auto x = read_run<X_TYPE, X_ACCESS, COUNT>(p.x + at * bytes_of(X_TYPE));
    float v[COUNT], sum = 0, squares = 0;
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        v[i] = element<X_TYPE>(x.word, i);
    if (LAYER && !s.begun)
        s.pivot = pivot_of<COUNT>(v);
    s.begun = true;
    if constexpr (WIDE_SUMS) {
        float square[COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            v[i] -= s.pivot;
            square[i] = v[i] * v[i];
        }
        sum = tree_sum<COUNT>(v);
        squares = tree_sum<COUNT>(square);
    } else {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const float d = LAYER ? v[i] - s.pivot : v[i];
            if (LAYER)
                sum += d;
            squares = multiply_add(d, d, squares);
        }
    }
    s.sum += sum;
    s.squares += squares;
}

__device__ __forceinline__ void sum_forward(const tile_place &p) {
    tile_numbers &n = *p.numbers;
#pragma unroll 1
    for (int i = threadIdx.x; i < p.channels * THREADS_PER_CHANNEL; i += THREADS) {
        const int channel = i / THREADS_PER_CHANNEL, rank = i - channel * THREADS_PER_CHANNEL, first = channel * PIXELS;
        lane_sums s = {0, 0, 0, false};
#pragma unroll 1
        for (int r = rank; r < RUNS; r += THREADS_PER_CHANNEL)
            add_run<WIDTH>(p, first + r * WIDTH, s);
        if (REST > 0 && rank == RUNS % THREADS_PER_CHANNEL)
            add_run<most(REST, 1)>(p, first + RUNS * WIDTH, s);
        n.lane[i] = s.pivot;
        n.lane[LANE_SUMS + i] = (float)s.sum;
        n.lane[2 * LANE_SUMS + i] = (float)s.squares;
    }
}

/* Elements of a lane of a channel. */
__device__ __forceinline__ int elements_of_lane(int rank) {
    return (RUNS + THREADS_PER_CHANNEL - 1 - rank) / THREADS_PER_CHANNEL * WIDTH +
           (rank == RUNS % THREADS_PER_CHANNEL ? REST : 0);
}

/* Sums about a pivot, in f64. */
struct row_sums {
    double pivot, sum, squares;
};

/* What the blocks of a cluster have of a row; the first warp calls. */
__device__ __forceinline__ row_sums merge_blocks(const row_sums &own, cluster_room &cluster, u32 &round) {
    const double mine[3] = {own.pivot, own.sum, own.squares};
    const double(*const entries)[4] = exchange_in_cluster(mine, cluster, round++);
    row_sums all = {entries[0][0], 0, 0};
#pragma unroll
    for (int b = 0; b < CLUSTER; b++) {
        double sum = entries[b][1], squares = entries[b][2];
        const int channels = most(0, least(TILE_DEPTH, DEPTH - b * TILE_DEPTH));
        if (LAYER)
            move_pivot(entries[b][0] - all.pivot, (double)channels * PIXELS, sum, squares);
        all.sum += sum;
        all.squares += squares;
    }
    return all;
}

/* A row's sums of lane % TEAM of the threads that merge them, over all of these. */
template <int TEAM>
__device__ __forceinline__ row_sums merge_lanes(const tile_place &p, int row, int depth) {
    const float *from = p.numbers->lane + (i64)row * (TILE_DEPTH * THREADS_PER_CHANNEL);
    const int lane = threadIdx.x % WARP;
    row_sums v = {LAYER && depth > 0 ? (double)from[0] : 0, 0, 0};
#pragma unroll 2
    for (int i = lane % TEAM; i < depth * THREADS_PER_CHANNEL; i += TEAM) {
        double sum = from[LANE_SUMS + i], squares = from[2 * LANE_SUMS + i];
        if (LAYER)
            move_pivot((double)from[i] - v.pivot, (double)elements_of_lane(i % THREADS_PER_CHANNEL), sum, squares);
        v.sum += sum;
        v.squares += squares;
    }
    v.sum = sum_over_lanes<TEAM>(v.sum, lane);
    v.squares = sum_over_lanes<TEAM>(v.squares, lane);
    return v;
}

/* The same of elements that are scaled. */
template <int TEAM>
__device__ __forceinline__ row_sums scaled_lanes(const tile_place &p, int row, int depth, double pivot,
                                                 double scale) {
    constexpr int B = bytes_of(X_TYPE);
    const int lane = threadIdx.x % WARP;
    row_sums v = {pivot * scale, 0, 0};
    for (int i = lane % TEAM; i < depth * PIXELS; i += TEAM) {
        const auto x = load_from_shared<B>(p.x + (row * (TILE_DEPTH * PIXELS) + i) * B);
        const double d = ((double)element<X_TYPE>(x.word, 0) - pivot) * scale;
        v.sum += d;
        v.squares = multiply_add(d, d, v.squares);
    }
    v.sum = sum_over_lanes<TEAM>(v.sum, lane);
    v.squares = sum_over_lanes<TEAM>(v.squares, lane);
    return v;
}

/* The moments of every row; of a row that a cluster shares in its first warp. */
__device__ __forceinline__ void set_moments(const groups_args &args, const tile_place &p,
                                            cluster_room &cluster, u32 &round) {
    constexpr int TEAM = team_of(TILE_DEPTH * THREADS_PER_CHANNEL);
    tile_numbers &n = *p.numbers;
    const int lane = threadIdx.x % WARP;
#pragma unroll 1
    for (int first = threadIdx.x / WARP * (WARP / TEAM); first < p.rows; first += THREADS / TEAM) {
        const int row = TILE_ROWS > 1 ? first + lane / TEAM : 0;
        const int depth = CLUSTER > 1 ? p.channels : row < p.rows ? DEPTH : 0;
        row_sums v = merge_lanes<TEAM>(p, row, depth);
        double back = 1;
        if (CLUSTER > 1)
            v = merge_blocks(v, cluster, round);
        const bool again = depth > 0 && leaves_range(args, v.squares);
        if (WIDE_RANGE && __any_sync(EVERY_LANE, again)) {
            const double pivot = (float)v.pivot - (float)v.pivot == 0 ? v.pivot : 0;
            const double scale = !again ? 1 : v.squares < 1 ? 0x1p64 : 0x1p-64;
            row_sums scaled = scaled_lanes<TEAM>(p, row, again ? depth : 0, pivot, scale);
            if (CLUSTER > 1)
                scaled = merge_blocks(scaled, cluster, round);
            if (again) {
                v = scaled;
                back = 1 / scale;
            }
        }
        if (lane % TEAM || row >= p.rows)
            continue;
        const moments m = moments_of(v.pivot, v.sum, v.squares, back, args.eps);
        n.row[row].mean = m.mean;
        n.row[row].rstd = m.rstd;
        n.more[row].rest = m.rest;
        if (CLUSTER == 1 || p.first == p.first_row * DEPTH)
            save_moments(args, p.image * GROUPS + p.first_row + row, m);
    }
}

/* y of a run; `at`: its first element in the tile. */
template <int COUNT>
__device__ __forceinline__ void put_outputs(const tile_place &p, const row_common &of,
                                            const channel_affine &a, int at) {
    /* With weights of f16, too, what is multiplied comes together once for a channel. */
    constexpr bool FOLDED = SHORT_WEIGHT && bytes_of(Y_TYPE) == 2;
    const float scale = a.weight * of.rstd, offset = multiply_add(-of.rest, scale, a.bias);
    const u32 x_at = p.x + at * bytes_of(X_TYPE);
    const auto x = read_run<X_TYPE, X_ACCESS, COUNT>(x_at);
    put_run<COUNT>(x_at, [&](int i) {
        const float v = element<X_TYPE>(x.word, i);
        return FOLDED ? epilogue<true, true>(LAYER ? v - of.mean : v, scale, offset)
                      : output_of(v, 0, of, a.weight, a.bias);
    });
}

__device__ __forceinline__ void put_forward(const tile_place &p) {
#pragma unroll 1
    for (int i = threadIdx.x; i < p.channels * THREADS_PER_CHANNEL; i += THREADS) {
        const int channel = i / THREADS_PER_CHANNEL, rank = i - channel * THREADS_PER_CHANNEL, first = channel * PIXELS;
        const int row = p.row_of(channel);
        const saved of = p.saved_in(row);
        const row_common c = {of.mean, p.numbers->more[row].rest, of.rstd, 0, 0};
        const channel_affine a = {WEIGHTED ? p.numbers->weight[channel] : 1,
                                  BIASED ? p.numbers->bias[channel] : 0};
#pragma unroll 1
        for (int r = rank; r < RUNS; r += THREADS_PER_CHANNEL)
            put_outputs<WIDTH>(p, c, a, first + r * WIDTH);
        if (REST > 0 && rank == RUNS % THREADS_PER_CHANNEL)
            put_outputs<most(REST, 1)>(p, c, a, first + RUNS * WIDTH);
    }
}

__device__ __forceinline__ void forward_tiles(const groups_args &args) {
    __shared__ cluster_room cluster;
    tile_place p = first_tile();
    u32 round = 0;
    begin_cluster(cluster);
    wait_for_stream();
    release_stream();
    for (; p.image < args.images; p.image += images_at_once()) {
        const char *x = p.of(args.x, args.x_image, X_TYPE);
        bring_x(args, p);
        bring_ends<X_TYPE, X_ACCESS>(p.x, x, p.bytes(X_TYPE));
        copy_async_commit();
        load_affine(args, p);
        copy_async_wait<0>();
        __syncthreads();
        sum_forward(p);
        __syncthreads();
        set_moments(args, p, cluster, round);
        __syncthreads();
        put_forward(p);
        __syncthreads();
        send_tile<Y_TYPE, Y_ACCESS>((char *)p.of(args.out, args.out_image, Y_TYPE), p.x,
                                    p.bytes(Y_TYPE));
        __syncthreads(); /* the next tile takes this one's place */
    }
    end_cluster();
}
