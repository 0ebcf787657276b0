/*
 * A part of forward.cu and of stages_forward.cu: the sums of a row about a pivot, of a thread, and merged over its
 * warp, its block and its cluster.
 */

__device__ __forceinline__ real thread_pivot(const place &p, const row_reader &r) {
    if (!LAYER)
        return 0;
    real sums[PIVOT_CHUNKS];
#pragma unroll
    for (int k = 0; k < PIVOT_CHUNKS; k++) {
        const auto c = r.take(p, k);
        real v[WIDTH];
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            v[i] = value_of(c, i);
        sums[k] = tree_sum<WIDTH>(v);
    }
    return tree_sum<PIVOT_CHUNKS>(sums) * (real)(1.0 / (PIVOT_CHUNKS * WIDTH));
}

/* Adds a chunk's sums of (x - pivot) * scale and of its square; nothing where `has` is false. That is
 * a choice of values and no branch: behind a branch the assembler puts the chunk's load, too. */
template <bool SCALED, typename any_chunk>
__device__ __forceinline__ void chunk_sums(const any_chunk &c, bool has, real pivot,
                                           real scale, total &sum, total &squares) {
    constexpr int HALF = WIDTH > 1 ? WIDTH / 2 : 1;
    real d[WIDTH], e[HALF];
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        d[i] = LAYER ? value_of(c, i) - pivot : value_of(c, i);
        if (SCALED)
            d[i] *= scale;
        if (LAYER)
            d[i] = has ? d[i] : 0;
    }
#pragma unroll
    for (int i = 0; i < HALF; i++) {
        e[i] = d[i] * d[i];
        if (WIDTH > 1)
            e[i] = multiply_add(d[i + HALF], d[i + HALF], e[i]);
    }
    squares += tree_sum<HALF>(e);
    if (LAYER)
        sum += tree_sum<WIDTH>(d);
}

/* Elements that one warp of the row holds. */
__device__ __forceinline__ total elements_of_warp(int e) {
    int left = CHUNKS - (CHUNKS_PER_THREAD - 1) * SPREAD - e * WARP; /* only the last chunks can be missing */
    return (total)(WIDTH * (WARP * (CHUNKS_PER_THREAD - 1) +
                            (left < 0 ? 0 : left > WARP ? WARP : left)));
}

/* Elements that one block of the row holds. */
__device__ __forceinline__ total elements_of_block(int e) {
    int left = CHUNKS - (CHUNKS_PER_THREAD - 1) * SPREAD - e * THREADS_PER_ROW;
    return (total)(WIDTH * (THREADS_PER_ROW * (CHUNKS_PER_THREAD - 1) +
                            (left < 0 ? 0 : left > THREADS_PER_ROW ? THREADS_PER_ROW : left)));
}

/* Moves the pivot of the sums of n elements from p + d to p. */
__device__ __forceinline__ void move_pivot(total d, total n, total &a, total &b) {
    total moved = multiply_add(n, d, a);
    b = multiply_add(d, a + moved, b);
    a = moved;
}

/* Merges COUNT entries, of which lane l of every warp takes entry l with `count` elements. */
template <bool SCALED, int COUNT>
__device__ __forceinline__ void merge_entries(const place &p, const entry *slots, total count,
                                              real &pivot, real scale, total &a, total &b) {
    static_assert(COUNT <= WARP, "an entry for each lane");
    constexpr int TREE = COUNT > 1 ? 2 * power_of_two_up_to(COUNT - 1) : 1;
    const total first = slots[0].value[0];
    a = b = 0;
    if (p.lane % TREE < COUNT) {
        entry s = slots[p.lane % TREE];
        a = s.value[1];
        b = s.value[2];
        if (LAYER) {
            total d = s.value[0] - first;
            move_pivot(SCALED ? d * scale : d, count, a, b);
        }
    }
    pivot = (real)first;
    b = sum_over_lanes<TREE>(b, p.lane);
    if (LAYER)
        a = sum_over_lanes<TREE>(a, p.lane);
}

/* What the sums of a warp's lanes are merged about: the middle of three lanes' pivots, for one of
 * them may have met an outlier, and far from the mean f32 totals lose digits. */
__device__ __forceinline__ real warp_pivot(const place &p, real own) {
    constexpr int APART = WARP_LANES / 3;
    const int first = WARP_LANES == WARP ? 0 : p.lane - p.lane % WARP_LANES;
    const real a = from_lane(own, first);
    if constexpr (sizeof(total) == 4 && WARP_LANES >= 8) {
        const real b = from_lane(own, first + APART), c = from_lane(own, first + 2 * APART);
        /* Of the row's last warp, which may hold next to nothing, the first. */
        const bool all = !RAGGED || CHUNKS_PER_THREAD > 1 || p.rank - p.lane % WARP_LANES + WARP_LANES <= CHUNKS;
        return all ? middle_of(a, b, c) : a;
    }
    return a;
}

/* Merges what the lanes of a row in a warp have; each gets their pivot and the sums about it. */
template <bool SCALED>
__device__ __forceinline__ void merge_in_warp(const place &p, real &pivot, real scale, total &a,
                                              total &b) {
    if (LAYER) {
        const real first = warp_pivot(p, pivot);
        total d = (total)pivot - (total)first;
        move_pivot(SCALED ? d * scale : d, p.count, a, b);
        pivot = first;
        a = sum_over_lanes<WARP_LANES>(a, p.lane);
    }
    b = sum_over_lanes<WARP_LANES>(b, p.lane);
}

/* Merges what each thread of the row has; every thread gets the row's pivot and sums about it. */
template <bool SCALED>
__device__ __forceinline__ void merge(place &p, real &pivot, real scale, total &a, total &b) {
    merge_in_warp<SCALED>(p, pivot, scale, a, b);
    if constexpr (!WITHIN_WARP && WARPS > 1) {
        entry *slots = p.slots[p.round & 1];
        if (p.lane == 0)
            slots[p.warp] = {{(total)pivot, a, b, 0}};
        __syncthreads();
        total count = RAGGED ? p.warp_count : (total)(WARP * CHUNKS_PER_THREAD * WIDTH);
        merge_entries<SCALED, WARPS>(p, slots, count, pivot, scale, a, b);
    }
    if constexpr (CLUSTER > 1) {
        entry *slots = p.block_slots[p.round & 1];
        u32 bar = shared_address(p.byte_barriers + (p.round & 1));
        if (p.warp == 0) {
            total v[4] = {(total)pivot, a, b, 0};
            if (p.lane == 0)
                byte_barrier_expect(bar, CLUSTER * sizeof(entry));
            if (p.lane < CLUSTER)
                send_to_block(shared_address(slots + p.block_rank), bar, p.lane, v);
        }
        byte_barrier_wait(bar, p.round >> 1 & 1);
        total count = RAGGED ? p.block_count : (total)(THREADS_PER_ROW * CHUNKS_PER_THREAD * WIDTH);
        merge_entries<SCALED, CLUSTER>(p, slots, count, pivot, scale, a, b);
    }
    p.round++;
}

/* A thread's place, which sends its sums through these. */
__device__ __forceinline__ void place_of_thread(place &p, entry (*slots)[WARPS],
                                                entry (*block_slots)[CLUSTER], u64 *byte_barriers) {
    p.lane = threadIdx.x % WARP;
    p.warp = threadIdx.x / WARP;
    p.block_rank = COOPERATIVE ? blockIdx.x % COOPERATING_BLOCKS : CLUSTER > 1 ? cluster_rank() : 0;
    p.rank = WITHIN_WARP ? p.lane % WARP_LANES : p.block_rank * THREADS_PER_ROW + threadIdx.x;
    p.idle = WITHIN_WARP && p.lane >= PER_WARP * WARP_LANES;
    p.has_last = !RAGGED || p.rank + (CHUNKS_PER_THREAD - 1) * SPREAD < CHUNKS;
    p.count = (total)(WIDTH * (CHUNKS_PER_THREAD - 1 + p.has_last));
    p.slots = slots;
    p.block_slots = block_slots;
    p.byte_barriers = byte_barriers;
    p.round = 0;
    p.ring = shared_address(dynamic_shared) + threadIdx.x * X_BYTES;
    if (!WITHIN_WARP && RAGGED) {
        constexpr int TREE = WARPS > 1 ? 2 * power_of_two_up_to(WARPS - 1) : 1;
        constexpr int BLOCKS = CLUSTER > 1 ? 2 * power_of_two_up_to(CLUSTER - 1) : 1;
        p.warp_count = elements_of_warp(p.block_rank * WARPS + p.lane % TREE);
        p.block_count = elements_of_block(p.lane % BLOCKS);
    }
}
