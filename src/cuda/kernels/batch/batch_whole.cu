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

/* A thread's places in shared memory: of x, of dy and of what is beside them, step by step. */
constexpr int HELD_BESIDE = BACKWARD && HAS_BESIDE ? BESIDE_BYTES : 0, HELD_DY = BACKWARD ? DY_BYTES : 0;

template <int BEFORE, int BYTES> __device__ __forceinline__ u32 held_at(int k) {
    return shared_address(dynamic_shared) + HOLD * THREADS * BEFORE + (k * THREADS + (int)threadIdx.x) * BYTES;
}

__device__ __forceinline__ void hold_step(int k, const step_chunks &s) {
    store_to_shared<X_BYTES>(held_at<0, X_BYTES>(k), s.x);
    if constexpr (BACKWARD)
        store_to_shared<DY_BYTES>(held_at<X_BYTES, DY_BYTES>(k), s.dy);
    if constexpr (HELD_BESIDE > 0)
        store_to_shared<BESIDE_BYTES>(held_at<X_BYTES + HELD_DY, BESIDE_BYTES>(k), s.beside);
}

/* AT_ONCE held steps from the `first`th on; a forward reads what is added behind the norm. */
__device__ __forceinline__ void held_steps(const batch_args &args, const row_bases &b, u32 begin, u32 first, u32 count,
                                           step_chunks *s) {
#pragma unroll
    for (int j = 0; j < AT_ONCE; j++) {
        s[j].x = load_from_shared<X_BYTES>(held_at<0, X_BYTES>(first + j));
        if constexpr (BACKWARD)
            s[j].dy = load_from_shared<DY_BYTES>(held_at<X_BYTES, DY_BYTES>(first + j));
        if constexpr (HELD_BESIDE > 0) {
            s[j].beside = load_from_shared<BESIDE_BYTES>(held_at<X_BYTES + HELD_DY, BESIDE_BYTES>(first + j));
        } else if constexpr (HAS_BESIDE) {
            const u32 step = begin + least_of(first + j, count - 1) * PLANES;
            s[j].beside =
                load_chunk<BESIDE_BYTES, BESIDE_ACCESS>(b.beside + step_at<BESIDE_TYPE>(args, args.beside, step));
        }
    }
}

/* Adds a thread's steps from the `first`th on, of which those before HOLD stay. */
template <bool ALL, bool HELD>
__device__ __forceinline__ void add_whole(const batch_args &args, const row_bases &b, const row_constants *c, u32 begin,
                                          u32 first, u32 count, thread_sums &sums) {
    step_chunks s[AT_ONCE];
    load_steps<ALL, true>(args, b, begin, first, count, s);
#pragma unroll
    for (int j = 0; j < AT_ONCE; j++) {
        sums.add(s[j], c, ALL || first + j < count);
        if (HELD)
            hold_step(first + j, s[j]);
    }
}

template <bool HELD>
__device__ __forceinline__ u32 add_until(const batch_args &args, const row_bases &b, const row_constants *c, u32 begin,
                                         u32 first, u32 end, u32 count, thread_sums &s) {
#pragma unroll 1
    for (; first + AT_ONCE <= least_of(end, count); first += AT_ONCE)
        add_whole<true, HELD>(args, b, c, begin, first, count, s);
    if (first < least_of(end, count)) {
        add_whole<false, HELD>(args, b, c, begin, first, count, s);
        first += AT_ONCE;
    }
    return first;
}

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

__device__ __forceinline__ void put_held(const batch_args &args, const row_bases &b, const row_constants *c, u32 begin,
                                         u32 count) {
#pragma unroll 1
    for (u32 k = 0; k < least_of(HOLD, count); k += AT_ONCE) {
        step_chunks s[AT_ONCE];
        held_steps(args, b, begin, k, count, s);
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
            if (k + j < count)
                put_step(args, b, begin + (k + j) * PLANES, s[j], c);
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
    const row_number n = number_of(args, row);
    const row_bases b = bases_of(args, row);
    const u32 first = rank * args.piece, end = least_of(first + args.piece, args.steps);
    const u32 begin = first + threadIdx.x, count = steps_of(first, end, threadIdx.x);
    row_constants c[1];
    real pivot[1];
    thread_sums s;
    double v[3] = {0, 0, 0};
    s.clear();
    find_pivots(args, b.x, 0, args.steps, pivot);
    sum_constants(args, row, pivot, c);
    const u32 held = HOLD > 0 ? add_until<true>(args, b, c, begin, 0, HOLD, count, s) : 0;
    add_until<false>(args, b, c, begin, held, count, count, s);
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
        c[0] = forward_constants(args, n, about, v, rank == 0 && threadIdx.x == 0);
    } else {
        c[0] = backward_constants(args, n, v, rank == 0 && threadIdx.x == 0);
        if (DX_TYPE == NONE && DADDEND_TYPE == NONE)
            return;
    }
    put_back(args, b, c, begin, least_of(HOLD, count), count);
    put_held(args, b, c, begin, count);
}
