/* A part of backward.cu: the sums of a row, over a thread, a warp, its team and its cluster. */

struct entry {
    real sum[4]; /* of g, of g * d, of d; one unused */
};
/* What is read of an entry: RMSNorm has the second sum only. */
constexpr int FIRST_SUM = LAYER ? 0 : 1, SUMS_READ = !LAYER ? 1 : CORRECT ? 4 : 2;

/* This thread's part of a row's sums. */
template <typename row_source, typename weight_source>
__device__ __forceinline__ void thread_sums(const team_state &t, const row_source &row,
                                            const weight_source &weights, real mean, real *sum) {
    constexpr int HALF = WIDTH > 1 ? WIDTH / 2 : 1;
    real product[HALF];
    sum[0] = sum[1] = sum[2] = sum[3] = 0;
#pragma unroll
    for (int k = 0; k < CHUNKS_PER_THREAD; k++) {
        real w[COLUMNS], g[WIDTH], d[WIDTH];
        const auto x = row.x(k);
        const auto dy = row.g(k);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            if (i % COLUMNS == 0)
                weights.take(t, k, i / COLUMNS, w);
            d[i] = element<X_TYPE>(x.word, i);
            if (LAYER)
                d[i] -= mean;
            g[i] = element<row_source::GRADIENT>(dy.word, i);
            if (WEIGHT_TYPE != NONE)
                g[i] *= w[i % COLUMNS];
        }
#pragma unroll
        for (int i = 0; i < HALF; i++) {
            product[i] = k == 0 || TIGHT ? g[i] * d[i] : multiply_add(g[i], d[i], product[i]);
            if (WIDTH > 1)
                product[i] = multiply_add(g[i + HALF], d[i + HALF], product[i]);
        }
        if (TIGHT)
            sum[1] += tree_sum<HALF>(product);
        if (LAYER) {
            sum[0] += tree_sum<WIDTH>(g);
            if (CORRECT && (!RAGGED || t.has(k)))
                sum[2] += tree_sum<WIDTH>(d);
        }
    }
    if (!TIGHT)
        sum[1] = tree_sum<HALF>(product);
}

__device__ __forceinline__ void add_entry(u32 address, real *sum) {
    constexpr int TYPE = sizeof(real) == 4 ? F32 : F64;
    constexpr int BYTES = sizeof(real);
    const auto e = load_from_shared<SUMS_READ * BYTES>(address + FIRST_SUM * BYTES);
#pragma unroll
    for (int j = 0; j < SUMS_READ; j++)
        sum[FIRST_SUM + j] += element<TYPE>(e.word, j);
}

/* Adds COUNT entries in one order; every thread gets the sums. */
template <int COUNT>
__device__ __forceinline__ void add_entries(const team_state &t, u32 entries, real *sum) {
    sum[0] = sum[1] = sum[2] = sum[3] = 0;
    if constexpr (COUNT <= 4) {
#pragma unroll
        for (int e = 0; e < COUNT; e++)
            add_entry(entries + e * (int)sizeof(entry), sum);
    } else {
        constexpr int TREE = 2 * power_of_two_up_to(COUNT - 1);
        if (t.lane % TREE < COUNT)
            add_entry(entries + t.lane % TREE * (int)sizeof(entry), sum);
#pragma unroll
        for (int j = 0; j < 3; j++)
            if (j == 1 || (LAYER && (j == 0 || CORRECT)))
                sum[j] = sum_over_lanes<TREE>(sum[j], t.lane);
    }
}

__device__ __forceinline__ void sum_in_warp(const team_state &t, real *sum) {
#pragma unroll
    for (int j = 0; j < 3; j++)
        if (j == 1 || (LAYER && (j == 0 || CORRECT)))
            sum[j] = sum_over_lanes<WARP_LANES>(sum[j], t.lane);
}

/* Adds a warp's parts of a row's sums into an entry. Each half of the warp goes on with one of two
 * sums, each quarter with one of three: half the exchanges of adding them one by one, and the same
 * sums. */
__device__ __forceinline__ void store_warp_sums(const team_state &t, const real *sum, u32 to) {
    const bool high = t.lane & 16, odd = LAYER && CORRECT && t.lane & 8;
    real v = sum[1];
    if (LAYER)
        v = high ? sum[1] : sum[0];
    v += __shfl_xor_sync(EVERY_LANE, LAYER && high ? sum[0] : sum[1], 16);
    if (LAYER && CORRECT) {
        const real third = sum[2] + __shfl_xor_sync(EVERY_LANE, sum[2], 16);
        const real other = __shfl_xor_sync(EVERY_LANE, odd ? v : third, 8);
        v = (odd ? third : v) + other;
    } else {
        v += __shfl_xor_sync(EVERY_LANE, v, 8);
    }
#pragma unroll
    for (int step = 4; step > 0; step /= 2)
        v += __shfl_xor_sync(EVERY_LANE, v, step);
    const int which = odd ? 2 : !LAYER || high;
    if (t.lane % 8 == 0 && t.lane == (!LAYER ? 0 : which == 2 ? 8 : 16 * which))
        store_to_shared<sizeof(real)>(to + which * (int)sizeof(real),
                                      pack<sizeof(real) == 4 ? F32 : F64, 1>(&v));
}

/* What the parts of a row's sums go through. A team has two, for turns of even and odd number. */
struct __align__(16) turn_room {
    entry warps[TEAM_WARPS], blocks[CLUSTER];
    u64 byte_barrier, unused;
};

/* Adds the parts of a row's sums over its team, then over the cluster. `room` is the address of a
 * turn_room, `turn` the number of the turn. */
__device__ __forceinline__ void exchange(const team_state &t, real *sum, u32 room, u32 block_rank,
                                         int turn) {
    if constexpr (TEAM_WARPS == 1) {
        sum_in_warp(t, sum);
        return;
    }
    const int warp = threadIdx.x / WARP % TEAM_WARPS;
    store_warp_sums(t, sum, room + warp * (int)sizeof(entry));
    barrier(1 + t.team, THREADS_PER_ROW);
    if constexpr (CLUSTER == 1) {
        add_entries<TEAM_WARPS>(t, room, sum);
    } else {
        const u32 entries = room + TEAM_WARPS * (u32)sizeof(entry);
        const u32 byte_barrier = entries + CLUSTER * (u32)sizeof(entry);
        if (warp == 0) {
            add_entries<TEAM_WARPS>(t, room, sum);
            if (t.lane == 0)
                byte_barrier_expect(byte_barrier, CLUSTER * sizeof(entry));
            if (t.lane < CLUSTER)
                send_to_block(entries + block_rank * (u32)sizeof(entry), byte_barrier, t.lane, sum);
        }
        byte_barrier_wait(byte_barrier, turn >> 1 & 1);
        add_entries<CLUSTER>(t, entries, sum);
    }
}
