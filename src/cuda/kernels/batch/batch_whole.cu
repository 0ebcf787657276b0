/*
 * A part of batch.cu: a row by a cluster of blocks (or by one), of which each has a piece. The first HOLD steps of each
 * thread wait in shared memory between sums and output, each read again only by the thread that wrote it; what is more
 * is read again, the last first.
 */

/* What blocks of a cluster tell each other: sums of a row, and of one that is summed again. */
struct cluster_mail {
    u64 barriers[2];
    __align__(16) double entries[2][CLUSTER][4];
};

/* Over the block, and over the cluster's blocks in their order: in every thread. */
__device__ __forceinline__ void add_up_cluster(cluster_mail &mail, double (*room)[3], int round, double *v) {
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll
    for (int j = 0; j < 3; j++) {
        v[j] = sum_over_lanes<WARP>(v[j], lane);
        if (lane == 0)
            room[warp][j] = v[j];
    }
    __syncthreads();
    if (CLUSTER > 1 && warp == 0) {
        double all[4] = {0, 0, 0, 0};
        if (lane < WARPS)
#pragma unroll
            for (int j = 0; j < 3; j++)
                all[j] = room[lane][j];
#pragma unroll
        for (int j = 0; j < 3; j++)
            all[j] = sum_over_lanes<WARP>(all[j], lane);
        if (round == 0)
            cluster_wait();
        if (lane < CLUSTER)
            send_to_block(shared_address(mail.entries[round][cluster_rank()]),
                          shared_address(mail.barriers + round), lane, all);
    } else if (CLUSTER > 1 && round == 0) {
        cluster_wait();
    }
    if (CLUSTER > 1)
        byte_barrier_wait(shared_address(mail.barriers + round), 0);
#pragma unroll
    for (int j = 0; j < 3; j++) {
        v[j] = 0;
        if (CLUSTER > 1) {
#pragma unroll
            for (int r = 0; r < CLUSTER; r++)
                v[j] += mail.entries[round][r][j];
        } else {
#pragma unroll
            for (int w = 0; w < WARPS; w++)
                v[j] += room[w][j];
        }
    }
}

__device__ __forceinline__ void take_whole(const batch_args &args) {
    __shared__ cluster_mail mail;
    __shared__ double room[WARPS][3];
    const i64 row = blockIdx.x / CLUSTER;
    const u32 rank = CLUSTER > 1 ? cluster_rank() : 0;
    if (CLUSTER > 1) {
        if (threadIdx.x < 2) {
            byte_barrier_init(shared_address(mail.barriers + threadIdx.x));
            byte_barrier_expect(shared_address(mail.barriers + threadIdx.x), CLUSTER * 4 * (int)sizeof(double));
        }
        __syncthreads();
        cluster_arrive();
    }
    wait_for_stream();
    release_stream();
    const known_row known = known_of(args, row);
    const row_bases b = bases_of(args, row);
    const u32 first = rank * args.piece, end = least_of(first + args.piece, args.steps);
    const u32 begin = first + threadIdx.x, count = steps_of(first, end, threadIdx.x);
    row_constants c[1];
    real pivot[1];
    thread_sums s;
    double v[3] = {0, 0, 0};
    s.clear();
    const pivots_of_steps pivots(args, b.x, 0, args.steps);
    ask_for_held(args, b, begin, count);
    pivots.find(pivot);
    sum_constants(args, row, pivot, c);
    add_all(args, b, c, begin, count, s);
#pragma unroll
    for (int j = 0; j < SUMS; j++)
        v[j] = (double)tree_sum<WIDTH>(s.v[j]);
    add_up_cluster(mail, room, 0, v);
    if constexpr (FORWARD) {
        double about = (double)pivot[0];
        if (leaves_range(args, v[1])) {
            about = wide_pivot(about);
            __syncthreads();
            v[2] = 0;
            wide_sums(args, b.x, first, end, threadIdx.x, THREADS, about, v);
            add_up_cluster(mail, room, 1, v);
        }
        c[0] = forward_constants(args, known, about, v, rank == 0 && threadIdx.x == 0);
    } else {
        c[0] = backward_constants(args, known, v, rank == 0 && threadIdx.x == 0);
    }
    if (!HAS_OUTPUT)
        return;
    put_back(args, b, c, begin, least_of(HOLD, count), count);
    put_held(args, b, c, begin, count);
}
