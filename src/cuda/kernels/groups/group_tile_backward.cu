/* A part of groups.cu: the backward of rows in tiles (group_tiles.cu). */

__device__ __forceinline__ void bring_dy(const groups_args &args, tile_place &p) {
    const char *from = p.of(args.dy, args.dy_image, DY_TYPE);
    p.dy = begin_of<DY_ACCESS>(shared_address(dynamic_shared) + DY_TILE, from);
    bring_pieces<DY_ACCESS>(p.dy, from, p.bytes(DY_TYPE));
}
/* What comes through registers, when the pieces are on their way. */
__device__ __forceinline__ void bring_rest(const groups_args &args, const tile_place &p) {
    bring_ends<X_TYPE, X_ACCESS>(p.x, p.of(args.x, args.x_image, X_TYPE), p.bytes(X_TYPE));
    bring_ends<DY_TYPE, DY_ACCESS>(p.dy, p.of(args.dy, args.dy_image, DY_TYPE), p.bytes(DY_TYPE));
    copy_async_commit();
#pragma unroll 1
    for (int r = threadIdx.x; r < p.rows; r += THREADS) {
        const saved of = saved_of(args, p.image * GROUPS + p.first_row + r);
        p.numbers->row[r].mean = of.mean;
        p.numbers->row[r].rstd = of.rstd;
        p.numbers->more[r].rest = of.rest;
    }
}

/* Adds a run's elements to the sums of dy, dy times what is centred, and that; `at`: the first of them
 * in the tile. */
template <int COUNT>
__device__ __forceinline__ void add_run(const tile_place &p, const saved &of, const channel_affine &a,
                                        int at, float *v) {
    const auto x = read_run<X_TYPE, X_ACCESS, COUNT>(p.x + at * bytes_of(X_TYPE));
    const auto dy = read_run<DY_TYPE, DY_ACCESS, COUNT>(p.dy + at * bytes_of(DY_TYPE));
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const float d = centred(of, element<X_TYPE>(x.word, i));
        const float g = gradient_of_norm(of, a, d, element<DY_TYPE>(dy.word, i));
        v[0] += g;
        v[1] = multiply_add(g, d, v[1]);
        if (CORRECT)
            v[2] += d;
    }
}

/* Sums of every lane of every channel. */
__device__ __forceinline__ void sum_lanes(const tile_place &p) {
    tile_numbers &n = *p.numbers;
    float *to = THREADS_PER_CHANNEL > 1 ? n.lane : n.channel[0];
#pragma unroll 1
    for (int i = threadIdx.x; i < p.channels * THREADS_PER_CHANNEL; i += THREADS) {
        const int channel = i / THREADS_PER_CHANNEL, rank = i - channel * THREADS_PER_CHANNEL, first = channel * PIXELS;
        const saved of = p.saved_in(p.row_of(channel));
        const channel_affine a = p.affine_in(channel, of);
        float v[3] = {0, 0, 0};
#pragma unroll 1
        for (int r = rank; r < RUNS; r += THREADS_PER_CHANNEL)
            add_run<WIDTH>(p, of, a, first + r * WIDTH, v);
        if (REST > 0 && rank == RUNS % THREADS_PER_CHANNEL)
            add_run<most(REST, 1)>(p, of, a, first + RUNS * WIDTH, v);
        if (SHORT_RANGE) {
            v[1] *= of.rstd;
            v[2] *= of.rstd;
        }
#pragma unroll
        for (int j = 0; j < PARTS; j++)
            to[j * LANE_SUMS + i] = v[j];
    }
}

/* Sums of every channel, by MERGE threads each. */
__device__ __forceinline__ void sum_channels(const tile_place &p) {
    constexpr int MERGE = least(8, power_of_two_up_to(THREADS_PER_CHANNEL));
    tile_numbers &n = *p.numbers;
    const int lane = threadIdx.x % WARP;
#pragma unroll 1
    for (int c = threadIdx.x / MERGE; c - lane / MERGE < p.channels; c += THREADS / MERGE) {
        float v[PARTS];
#pragma unroll
        for (int j = 0; j < PARTS; j++) {
            v[j] = 0;
            if (c < p.channels)
#pragma unroll 4
                for (int k = lane % MERGE; k < THREADS_PER_CHANNEL; k += MERGE)
                    v[j] += n.lane[j * LANE_SUMS + c * THREADS_PER_CHANNEL + k];
            v[j] = sum_over_lanes<MERGE>(v[j], lane);
            if (lane % MERGE == 0 && c < p.channels)
                n.channel[j][c] = v[j];
        }
    }
}

/* What a row's elements have in common, of every row; a row that a cluster shares in its first warp. */
__device__ __forceinline__ void set_rows(const groups_args &args, const tile_place &p, cluster_room &cluster,
                                         u32 round) {
    constexpr int TEAM = team_of(TILE_DEPTH);
    tile_numbers &n = *p.numbers;
    const int lane = threadIdx.x % WARP;
#pragma unroll 1
    for (int first = threadIdx.x / WARP * (WARP / TEAM); first < p.rows; first += THREADS / TEAM) {
        const int row = TILE_ROWS > 1 ? first + lane / TEAM : 0;
        const int depth = CLUSTER > 1 ? p.channels : row < p.rows ? DEPTH : 0;
        double total[3] = {0, 0, 0};
#pragma unroll 1
        for (int d = lane % TEAM; d < depth; d += TEAM) {
            const int c = row * TILE_DEPTH + d;
            const float w = WEIGHTED ? n.weight[c] : 1;
            total[0] += (double)(w * n.channel[0][c]);
            total[1] += (double)(w * n.channel[1][c]);
            if (CORRECT)
                total[2] += n.channel[PARTS - 1][c];
        }
#pragma unroll
        for (int j = 0; j < PARTS; j++)
            total[j] = sum_over_lanes<TEAM>(total[j], lane);
        if (CLUSTER > 1)
            sum_over_cluster(total, cluster, round);
        if (lane % TEAM || row >= p.rows)
            continue;
        const saved of = p.saved_in(row);
        const common c = common_of(args, total, of.mean, of.rest, of.rstd);
        const row_factors f = factors_of(of, c);
        n.row[row].slope = f.slope;
        n.row[row].constant = f.constant;
        n.more[row].delta = c.delta;
    }
}

/* dx of a run; `at`: its first element in the tile. */
template <int COUNT>
__device__ __forceinline__ void put_gradients(const tile_place &p, const saved &of,
                                              const row_factors &f, const channel_affine &a, int at) {
    const u32 x_at = p.x + at * bytes_of(X_TYPE);
    const auto x = read_run<X_TYPE, X_ACCESS, COUNT>(x_at);
    const auto dy = read_run<DY_TYPE, DY_ACCESS, COUNT>(p.dy + at * bytes_of(DY_TYPE));
    put_run<COUNT>(x_at, [&](int i) {
        const float d = centred(of, element<X_TYPE>(x.word, i));
        return gradient_of(of, f, a, d, gradient_of_norm(of, a, d, element<DY_TYPE>(dy.word, i)));
    });
}

/* dx of the tile. */
__device__ __forceinline__ void put_tile(const tile_place &p) {
    const tile_numbers &n = *p.numbers;
#pragma unroll 1
    for (int i = threadIdx.x; i < p.channels * THREADS_PER_CHANNEL; i += THREADS) {
        const int channel = i / THREADS_PER_CHANNEL, rank = i - channel * THREADS_PER_CHANNEL, first = channel * PIXELS;
        const int row = p.row_of(channel);
        const saved of = p.saved_in(row);
        const row_factors f = {n.row[row].slope, n.row[row].constant};
        const channel_affine a = p.affine_in(channel, of);
#pragma unroll 1
        for (int r = rank; r < RUNS; r += THREADS_PER_CHANNEL)
            put_gradients<WIDTH>(p, of, f, a, first + r * WIDTH);
        if (REST > 0 && rank == RUNS % THREADS_PER_CHANNEL)
            put_gradients<most(REST, 1)>(p, of, f, a, first + RUNS * WIDTH);
    }
}

/* What the tile adds to dweight and dbias. */
__device__ __forceinline__ void add_tile(const tile_place &p) {
    tile_numbers &n = *p.numbers;
#pragma unroll 1
    for (int c = threadIdx.x; c < p.channels; c += THREADS) {
        const float sum = n.channel[0][c], product = n.channel[1][c];
        const float delta = n.more[p.row_of(c)].delta;
        if (WANT_DWEIGHT)
            n.dweight[c] += CORRECT ? multiply_add(-delta, sum, product) : product;
        if (WANT_DBIAS)
            n.dbias[c] += sum;
    }
}

/* A block's tile of every image that is its turn; the next one comes while dx leaves. */
__device__ __forceinline__ void backward_tiles(const groups_args &args) {
    __shared__ cluster_room cluster;
    tile_place p = first_tile();
    const i64 begin = p.image, step = images_at_once();
    begin_cluster(cluster);
    wait_for_stream();
    release_stream();
    bring_x(args, p);
    bring_dy(args, p);
    bring_rest(args, p);
    load_affine(args, p);
#pragma unroll 1
    for (int c = threadIdx.x; c < p.channels; c += THREADS)
        p.numbers->dweight[c] = p.numbers->dbias[c] = 0;
    for (u32 round = 0; p.image < args.images; round++) {
        copy_async_wait<0>();
        __syncthreads();
        sum_lanes(p);
        __syncthreads();
        if (THREADS_PER_CHANNEL > 1) {
            sum_channels(p);
            __syncthreads();
        }
        set_rows(args, p, cluster, round);
        __syncthreads();
        add_tile(p);
        if constexpr (DX_TYPE != NONE)
            put_tile(p);
        __syncthreads();
        const tile_place done = p;
        p.image += step;
        const bool more = p.image < args.images;
        if (more)
            bring_dy(args, p);
        if constexpr (DX_TYPE != NONE) {
            char *out = (char *)done.of(args.out, args.out_image, DX_TYPE);
            if constexpr (HAS_DSUM)
                send_tile_with_dsum<OUT_ACCESS>(out, done.x, done.of(args.dsum, args.dsum_image, DSUM_TYPE),
                                               done.bytes(DX_TYPE));
            else
                send_tile<DX_TYPE, DX_ACCESS>(out, done.x, done.bytes(DX_TYPE));
            __syncthreads();
        }
        if (more) {
            bring_x(args, p);
            bring_rest(args, p);
        }
    }
#pragma unroll 1
    for (int c = threadIdx.x; c < p.channels; c += THREADS) {
        const i64 at = begin * COLS + p.first + c;
        if (WANT_DWEIGHT)
            args.partial_weight[at] = p.numbers->dweight[c];
        if (WANT_DBIAS)
            args.partial_bias[at] = p.numbers->dbias[c];
    }
    end_cluster();
}
