/* A part of groups.cu: the backward in one read. */

/* A block of SHARERS has PART of the row's channels, or one of SPLIT parts of a channel. What it has of a channel is
 * cut into SEGMENTS of at most PIECE chunks; a warp takes one at a time. */
constexpr bool ANYWHERE = COOPERATING_BLOCKS > 1;
constexpr int SHARERS = ANYWHERE ? COOPERATING_BLOCKS : CLUSTER;
constexpr int SPLIT = ceil_div(SHARERS, DEPTH);
/* Chunks of a channel, and those of it in a block, whole accesses of a warp. */
constexpr int ALL_CHUNKS = ceil_div(PIXELS, WIDTH);
constexpr int CHUNKS = SPLIT > 1 ? ceil_div(ALL_CHUNKS, SPLIT * WARP) * WARP : ALL_CHUNKS;
constexpr int SEGMENTS = ceil_div(CHUNKS, PIECE);
constexpr int PART = most(DEPTH / SHARERS, 1);
constexpr i64 PART_ROW = (i64)PART * CHUNKS * WIDTH;
__device__ constexpr i64 round_up(i64 bytes) { return (bytes + 15) / 16 * 16; }

/* Copies a row to shared memory. */
template <int TYPE, int ACCESS> __device__ __forceinline__ void fill(u32 to, const char *from) {
    constexpr int B = bytes_of(TYPE), A = most(least(ACCESS, 16), B), COUNT = (int)(PART_ROW * B / A);
    if constexpr (A >= 4) {
#pragma unroll 4
        for (int i = threadIdx.x; i < COUNT; i += THREADS)
            copy_async<A, A>(to + i * A, from + (i64)i * A, true);
    } else {
        constexpr int AT_ONCE = 8;
        for (int i = threadIdx.x; i < COUNT; i += AT_ONCE * THREADS) {
            chunk<A> held[AT_ONCE];
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++)
                if (i + j * THREADS < COUNT)
                    held[j] = load_chunk<A, A>(from + (i64)(i + j * THREADS) * A);
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++)
                if (i + j * THREADS < COUNT)
                    store_to_shared<A>(to + (i + j * THREADS) * A, held[j]);
        }
    }
}

/* With f16 x, and weights of f16, no product of the factors leaves float's range whichever comes
 * first: rstd is multiplied in once for a sum or a channel in place of each element. */
constexpr bool SHORT_RANGE = X_TYPE == F16;
constexpr bool SHORT_WEIGHT = SHORT_RANGE && (WEIGHT_TYPE == F16 || WEIGHT_TYPE == NONE);

struct saved {
    float mean, rest, rstd;
};
__device__ __forceinline__ saved saved_of(const groups_args &args, i64 row) {
    return {saved_mean(args, row), saved_rest(args, row), saved_rstd(args, row)};
}

/* What a channel is multiplied by, and what is added to it. */
struct channel_affine {
    float weight, bias;
};
/* The same behind what is centred: with rstd for SHORT_WEIGHT. */
__device__ __forceinline__ channel_affine affine_behind(const saved &of, float weight, float bias) {
    return {SHORT_WEIGHT ? weight * of.rstd : weight, bias};
}

/* Where a row lies in shared memory, and what its channels have in common. */
struct row_place {
    u32 x, dy;
    const float *weight, *bias; /* of the block's channels */
    saved of;
    int chunks; /* of a channel, in this block */

    __device__ __forceinline__ channel_affine affine_of(int channel) const {
        return affine_behind(of, WEIGHTED ? weight[channel] : 1, BIASED ? bias[channel] : 0);
    }
};

/* x - mean, and times rstd but for SHORT_RANGE. */
__device__ __forceinline__ float centred(const saved &of, float x) {
    x = less_mean(x, of.mean, of.rest);
    return SHORT_RANGE ? x : x * of.rstd;
}

/* An element of dy as it comes to the norm; `d`: what is centred of its x. */
__device__ __forceinline__ float gradient_of_norm(const saved &of, const channel_affine &a, float d,
                                                  float dy) {
    return gradient_behind(dy, SHORT_RANGE && !SHORT_WEIGHT ? d * of.rstd : d, a.weight, a.bias);
}

/* Sums over WIDTH neighbours of a channel: dy as it comes to the norm, which goes to `g`, that times what is
 * centred, and this. */
__device__ __forceinline__ void add_chunk(const saved &of, const channel_affine &a, const u32 *x,
                                          const u32 *dy, float *v, float *g) {
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        const float d = centred(of, element<X_TYPE>(x, i));
        g[i] = gradient_of_norm(of, a, d, element<DY_TYPE>(dy, i));
        v[0] += g[i];
        v[1] = multiply_add(g[i], d, v[1]);
        if (CORRECT)
            v[2] += d;
    }
}

/* Sums over a warp, of xhat in place of what is centred. */
__device__ __forceinline__ void sums_of_warp(const saved &of, float *v) {
#pragma unroll
    for (int j = 0; j < 3; j++) {
        v[j] = sum_over_lanes<WARP>(v[j], threadIdx.x % WARP);
        if (SHORT_RANGE && j > 0)
            v[j] *= of.rstd;
    }
}

/* dx = dy * weight * rstd + what is centred * slope + constant */
struct row_factors {
    float slope, constant;
};

__device__ __forceinline__ row_factors factors_of(const saved &of, const common &c) {
    const float slope = -c.c2 * of.rstd, constant = -c.c1 * of.rstd;
    return {SHORT_RANGE ? slope * of.rstd : slope,
            CORRECT ? multiply_add(-c.delta, slope, constant) : constant};
}

/* Of what is centred of x, and dy as it comes to the norm. */
__device__ __forceinline__ float gradient_of(const saved &of, const row_factors &f,
                                             const channel_affine &a, float d, float g) {
    const float rest = multiply_add(d, f.slope, f.constant);
    if (SHORT_WEIGHT)
        return multiply_add(g, a.weight, rest);
    return multiply_add(WEIGHTED ? g * a.weight : g, of.rstd, rest);
}

/* Chunks of a segment at once; more take registers that blocks need. */
constexpr int AT_ONCE = 2;

struct chunks_at_once {
    chunk<X_BYTES> x[AT_ONCE];
    chunk<DY_BYTES> dy[AT_ONCE];
};

/* Those of a lane from chunk `first` of the block's part on, before `end`. */
__device__ __forceinline__ void load_chunks(const row_place &r, int first, int end, chunks_at_once &c) {
#pragma unroll
    for (int j = 0; j < AT_ONCE; j++)
        if (first + WARP * j < end) {
            c.x[j] = load_from_shared<X_BYTES>(r.x + (first + WARP * j) * X_BYTES);
            c.dy[j] = load_from_shared<DY_BYTES>(r.dy + (first + WARP * j) * DY_BYTES);
        }
}

/* Where segment `s` begins and ends, in chunks of the block's part. */
__device__ __forceinline__ void segment_of(const row_place &r, int s, int &channel, int &first, int &end) {
    channel = s / SEGMENTS;
    first = (s - channel * SEGMENTS) * PIECE;
    end = channel * CHUNKS + least(first + PIECE, r.chunks);
    first += channel * CHUNKS;
}

/* Of rows over blocks anywhere what a lane takes at once is a group of copies, and summed when that has come; not
 * where lanes join others' chunks. */
constexpr bool COMES_IN_TURNS = ANYWHERE && !HAS_DSUM;
/* Else a lane has as many turns as it has chunks for. */
constexpr bool OWN_TURNS = !COMES_IN_TURNS;

/* How often a warp takes chunks of its segments. */
__device__ __forceinline__ int turns_of(const row_place &r) {
    int turns = 0;
    for (int s = threadIdx.x / WARP; s < PART * SEGMENTS; s += WARPS) {
        int channel, first, end;
        segment_of(r, s, channel, first, end);
        turns += ceil_div(most(end - first, 0), WARP * AT_ONCE);
    }
    return turns;
}

/* Waits for all groups but the newest `pending`, or a few more. */
__device__ __forceinline__ void wait_for_turn(int pending) {
    switch (pending) {
    case 0: return copy_async_wait<0>();
    case 1: return copy_async_wait<1>();
    case 2: return copy_async_wait<2>();
    case 3: return copy_async_wait<3>();
    case 4: return copy_async_wait<4>();
    case 5: return copy_async_wait<5>();
    default: return copy_async_wait<6>();
    }
}

/* What is KEPT of f16 is kept for a segment at a time, where f16 holds it: none is too large, and those below
 * its range are small beside the largest, or come to less than two of f16's smallest number in dx. */
constexpr bool KEPT_IF_HELD = ACTIVATION == SILU && DY_TYPE == F16 && DX_TYPE == F16;

/* Whether f16 holds a segment's, of which `largest` has a lane's largest magnitudes, to be multiplied by
 * `factor`. Whole warps call. */
__device__ __forceinline__ bool halves_hold(u32 largest, float factor) {
    constexpr u32 INFINITE = 0x7c00, NORMAL = 0x0400;
    const u32 found = most(largest & 0xffff, largest >> 16);
    const bool large = __any_sync(EVERY_LANE, found >= INFINITE), some = __any_sync(EVERY_LANE, found >= NORMAL);
    return !large && (some || fabsf(factor) <= 2);
}

/* Sums of every segment, to sums[3][PART * SEGMENTS]. The third, of which an activation has no need, is whether
 * dy is KEPT_IF_HELD. */
__device__ __forceinline__ void sum_segments(const row_place &r, float *sums) {
    constexpr int ALL = PART * SEGMENTS;
    const int lane = threadIdx.x % WARP;
    int turns = COMES_IN_TURNS ? turns_of(r) : 0;
#pragma unroll 1
    for (int s = threadIdx.x / WARP; s < ALL; s += WARPS) {
        int channel, first, end;
        float v[3] = {0, 0, 0};
        u32 largest = 0;
        segment_of(r, s, channel, first, end);
        const channel_affine a = r.affine_of(channel);
#pragma unroll 1
        for (int turn = first + OWN_TURNS * lane; turn < end; turn += WARP * AT_ONCE) {
            const int c = turn + !OWN_TURNS * lane;
            chunks_at_once at;
            if (COMES_IN_TURNS)
                wait_for_turn(--turns);
            load_chunks(r, c, end, at);
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++)
                if (c + WARP * j < end) {
                    float g[WIDTH];
                    add_chunk(r.of, a, at.x[j].word, at.dy[j].word, v, g);
                    if constexpr (KEPT || KEPT_IF_HELD) { /* for the same lane */
                        const auto kept = pack<DY_TYPE, WIDTH>(g);
                        store_to_shared<DY_BYTES>(r.dy + (c + WARP * j) * DY_BYTES, kept);
#pragma unroll
                        for (const u32 word : kept.word)
                            largest = KEPT_IF_HELD ? larger_halves(largest, word) : 0;
                    }
                }
        }
        __syncwarp();
        sums_of_warp(r.of, v);
        if (KEPT_IF_HELD)
            v[2] = halves_hold(largest, SHORT_WEIGHT ? a.weight : a.weight * r.of.rstd);
#pragma unroll
        for (int j = 0; j < 3; j++)
            if (lane == 0)
                sums[j * ALL + s] = v[j];
    }
}

/* Sums of a channel over its segments. */
template <int COUNT>
__device__ __forceinline__ void sum_of_channel(const float *sums, int d, float *v) {
#pragma unroll
    for (int j = 0; j < COUNT; j++) {
        v[j] = 0;
#pragma unroll 4
        for (int s = d * SEGMENTS; s < (d + 1) * SEGMENTS; s++)
            v[j] += sums[j * (PART * SEGMENTS) + s];
    }
}

struct __align__(16) cluster_room {
    double entries[2][CLUSTER][4];
    u64 byte_barriers[2];
};

/* The exchange between the blocks of a cluster, and its end. */
__device__ __forceinline__ void begin_cluster(cluster_room &cluster) {
    if (CLUSTER > 1) {
        if (threadIdx.x < 2)
            byte_barrier_init(shared_address(cluster.byte_barriers + threadIdx.x));
        cluster_arrive();
        cluster_wait();
    }
}
__device__ __forceinline__ void end_cluster() {
    if (CLUSTER > 1) {
        cluster_arrive();
        cluster_wait();
    }
}

/* What every block of the cluster has, by block; `round` counts the exchanges. */
__device__ __forceinline__ const double (*exchange_in_cluster(const double *v, cluster_room &cluster,
                                                              u32 round))[4] {
    double(*const entries)[4] = cluster.entries[round & 1];
    const u32 bar = shared_address(cluster.byte_barriers + (round & 1));
    if (threadIdx.x == 0)
        byte_barrier_expect(bar, CLUSTER * 32);
    if (threadIdx.x < CLUSTER) {
        const double mine[4] = {v[0], v[1], v[2], 0};
        send_to_block(shared_address(entries[cluster_rank()]), bar, threadIdx.x, mine);
    }
    byte_barrier_wait(bar, round >> 1 & 1);
    return entries;
}

/* Adds up the cluster's sums, in the order of its blocks; `round` counts the rows of the block. */
__device__ __forceinline__ void sum_over_cluster(double *v, cluster_room &cluster, u32 round) {
    const double(*const entries)[4] = exchange_in_cluster(v, cluster, round);
#pragma unroll
    for (int j = 0; j < 3; j++) {
        v[j] = 0;
#pragma unroll
        for (int b = 0; b < CLUSTER; b++)
            v[j] += entries[b][j];
    }
}

#include "group_backward_output.cu"

/* The row's sums in every thread. Each warp adds up those of few segments for itself. */
__device__ __forceinline__ void sum_of_row(const row_place &r, const float *sums, double *total) {
    __shared__ double room[WARPS][3];
    constexpr bool BY_WARP = PART * SEGMENTS <= 256;
    constexpr int LANES_BUSY = BY_WARP ? least(WARP, 2 * power_of_two_up_to(most(PART - 1, 1))) : WARP;
    total[0] = total[1] = total[2] = 0;
    for (int d = BY_WARP ? threadIdx.x % WARP : threadIdx.x; d < PART; d += BY_WARP ? WARP : THREADS) {
        float v[3];
        sum_of_channel<CORRECT ? 3 : 2>(sums, d, v);
        const float w = WEIGHTED ? r.weight[d] : 1;
        total[0] += (double)(w * v[0]);
        total[1] += (double)(w * v[1]);
        if (CORRECT)
            total[2] += v[2];
    }
    if constexpr (BY_WARP)
#pragma unroll
        for (int j = 0; j < (CORRECT ? 3 : 2); j++) {
            total[j] = sum_over_lanes<LANES_BUSY>(total[j], threadIdx.x % WARP);
            if (LANES_BUSY < WARP)
                total[j] = __shfl_sync(EVERY_LANE, total[j], 0);
        }
    else
        sum_over_block<3>(total, room);
}

/* The block's part of dweight and dbias, from that of its first channel on. */
__device__ __forceinline__ void leave_partials(const groups_args &args, const float *sums, const common &c, i64 at) {
    for (int d = threadIdx.x; d < PART; d += THREADS) {
        float v[2];
        sum_of_channel<2>(sums, d, v);
        if (WANT_DWEIGHT)
            args.partial_weight[at + d] = CORRECT ? multiply_add(-c.delta, v[0], v[1]) : v[1];
        if (WANT_DBIAS)
            args.partial_bias[at + d] = v[0];
    }
}

__device__ __forceinline__ void backward_row(const groups_args &args, i64 row, cluster_room &cluster,
                                             u32 round) {
    constexpr int DY_AT = (int)round_up(PART_ROW * bytes_of(X_TYPE));
    float *sums = (float *)(dynamic_shared + DY_AT + round_up(PART_ROW * bytes_of(DY_TYPE)));
    float *weight = sums + 3 * PART * SEGMENTS, *bias = weight + PART;
    const i64 image = row / GROUPS;
    const int group = (int)(row - image * GROUPS);
    const int first = group * DEPTH + (CLUSTER > 1 ? (int)cluster_rank() * PART : 0);
    const i64 begin = (i64)first * PIXELS;
    row_place r;
    r.x = shared_address(dynamic_shared);
    r.dy = r.x + DY_AT;
    r.weight = weight;
    r.bias = bias;
    r.chunks = CHUNKS;
    fill<X_TYPE, X_ACCESS>(r.x, (const char *)args.x + image * args.x_image + begin * bytes_of(X_TYPE));
    const char *dy = (const char *)args.dy + image * args.dy_image + begin * bytes_of(DY_TYPE);
    fill<DY_TYPE, DY_ACCESS>(r.dy, dy);
    copy_async_commit();
    const char *dsum = nullptr;
    if constexpr (HAS_DSUM)
        dsum = (const char *)args.dsum + image * args.dsum_image + begin * bytes_of(DSUM_TYPE);
    r.of = saved_of(args, row);
    for (int d = threadIdx.x; d < PART; d += THREADS) {
        const float w = WEIGHTED ? weight_of(args, first + d) : 1, b = BIASED ? bias_of(args, first + d) : 0;
        weight[d] = w;
        bias[d] = b;
    }
    copy_async_wait<0>();
    __syncthreads();
    sum_segments(r, sums);
    __syncthreads();
    double total[3];
    sum_of_row(r, sums, total);
    if (CLUSTER > 1)
        sum_over_cluster(total, cluster, round);
    const common c = common_of(args, total, r.of.mean, r.of.rest, r.of.rstd);
    if constexpr (DX_TYPE != NONE)
        write_segments(r, sums, c, dy, dsum,
                       (char *)args.out + image * args.out_image + begin * bytes_of(OUT_TYPE), {nullptr, nullptr});
    leave_partials(args, sums, c, image * COLS + first);
}

/* A row to a block or a cluster at a time. */
__device__ __forceinline__ void backward_rows(const groups_args &args) {
    __shared__ cluster_room cluster;
    begin_cluster(cluster);
    wait_for_stream();
    release_stream();
    u32 round = 0;
    for (i64 row = blockIdx.x / CLUSTER; row < args.images * GROUPS; row += gridDim.x / CLUSTER) {
        backward_row(args, row, cluster, round++);
        __syncthreads(); /* the next row takes this one's place */
    }
    end_cluster();
}
