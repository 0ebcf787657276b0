/*
 * A part of stages_forward.cu: what becomes of a normalized row.
 */
constexpr int Q_TYPE = TYPES[ROLE_Q], SCALES_TYPE = TYPES[ROLE_Y_SCALES];
constexpr bool HAS_Q = Q_TYPE != NONE, FINDS_SCALES = SCALES_TYPE != NONE, HAS_AMAX = TYPES[ROLE_AMAX] != NONE;
constexpr bool SCALES_OF_ROWS = FINDS_SCALES && SCALE_BLOCK == COLS;
/* Neighbouring lanes whose chunks share a scale. */
constexpr int SHARERS = FINDS_SCALES && !SCALES_OF_ROWS ? SCALE_BLOCK / WIDTH : 1;
constexpr bool MODULATED = TYPES[ROLE_SCALE] != NONE || TYPES[ROLE_SHIFT] != NONE;

/* Whether parameters of columns are other ones from row to row. */
constexpr bool COLUMNS_VARY =
    VARIES & (1u << ROLE_WEIGHT | 1u << ROLE_BIAS | 1u << ROLE_SCALE | 1u << ROLE_SHIFT);

/* Of a chunk's columns. */
struct output_columns {
    part<ROLE_WEIGHT> weight;
    part<ROLE_BIAS> bias;
    part<ROLE_SCALE> scale;
    part<ROLE_SHIFT> shift;

    __device__ __forceinline__ void load(const row_args &args, const place &p, const row_reader &r, int k) {
        weight.load(args, p, r.number, k);
        bias.load(args, p, r.number, k);
        scale.load(args, p, r.number, k);
        shift.load(args, p, r.number, k);
    }
};

template <int TYPE> __device__ __forceinline__ real rounded(real v) {
    return element<TYPE>(pack<TYPE, 1>(&v).word, 0);
}

/* z of an element. */
__device__ __forceinline__ real affine_of(real xhat, const output_columns &c, int i) {
    real weight = 1, bias = 0;
    if constexpr (WEIGHT_TYPE != NONE)
        weight = plus_offset(c.weight.get(i));
    if constexpr (BIAS_TYPE != NONE)
        bias = c.bias.get(i);
    if constexpr (ROUND_XHAT) {
        real z = rounded<IN_TYPE>(xhat);
        if (WEIGHT_TYPE != NONE)
            z = rounded<IN_TYPE>(z * weight);
        return BIAS_TYPE != NONE ? z + bias : z;
    }
    return affine_of_xhat(xhat, weight, bias);
}

__device__ __forceinline__ real modulated(real z, const output_columns &c, int i) {
    real scale = 0, shift = 0;
    if constexpr (TYPES[ROLE_SCALE] != NONE)
        scale = 1 + c.scale.get(i);
    if constexpr (TYPES[ROLE_SHIFT] != NONE)
        shift = c.shift.get(i);
    if (TYPES[ROLE_SCALE] != NONE)
        return TYPES[ROLE_SHIFT] != NONE ? multiply_add(z, scale, shift) : z * scale;
    return TYPES[ROLE_SHIFT] != NONE ? z + shift : z;
}

/* y of chunk k. */
__device__ __forceinline__ void chunk_values(const row_args &args, const place &p, const row_reader &r,
                                             const row_moments &m, const output_columns &columns, int k, real *y) {
    part<ROLE_GATE> gate;
    if constexpr (GATE_WAITS)
        gate.c = load_from_shared<part<ROLE_GATE>::BYTES>(gate_slot(r.u, k));
    else if constexpr (GATE_LAST && IN_REGISTERS)
        gate = r.gate[k];
    else if constexpr (GATE_LAST)
        gate.load(args, p, r.number, k);
    const auto c = r.take(p, k);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        y[i] = activated(modulated(affine_of(xhat_of(value_of(c, i), m), columns, i), columns, i));
        if constexpr (GATE_LAST)
            y[i] *= silu_of(gate.get(i));
    }
}

/* The largest over a group of neighbouring lanes; as sum_over_lanes. */
template <int LANES_OF_GROUP> __device__ __forceinline__ float most_over_lanes(float v, int lane) {
    if constexpr ((LANES_OF_GROUP & (LANES_OF_GROUP - 1)) == 0) {
#pragma unroll
        for (int step = LANES_OF_GROUP / 2; step > 0; step /= 2)
            v = fmaxf(v, __shfl_xor_sync(EVERY_LANE, v, step));
        return v;
    } else {
        const int rank = lane % LANES_OF_GROUP, base = lane - rank;
#pragma unroll
        for (int step = power_of_two_up_to(LANES_OF_GROUP); step > 0; step /= 2) {
            const float other = __shfl_down_sync(EVERY_LANE, v, step);
            if (rank + step < least(LANES_OF_GROUP, 2 * step))
                v = fmaxf(v, other);
        }
        return from_lane(v, base);
    }
}

/* The largest of a warp's magnitudes. */
__device__ __forceinline__ float most_of_warp(float v) {
    return __uint_as_float(largest_of_warp(__float_as_uint(v)));
}

/* The largest of a row, of the largest magnitude that each of its threads has. */
__device__ __forceinline__ float most_of_row(place &p, float v) {
    v = WARP_LANES == WARP ? most_of_warp(v) : most_over_lanes<WARP_LANES>(v, p.lane);
    if constexpr (!WITHIN_WARP && WARPS > 1) {
        entry *slots = p.slots[p.round & 1];
        if (p.lane == 0)
            slots[p.warp].value[0] = (total)v;
        __syncthreads();
        constexpr int TREE = 2 * power_of_two_up_to(WARPS - 1);
        v = most_of_warp(TREE == WARPS || p.lane % TREE < WARPS ? (float)slots[p.lane % TREE].value[0] : 0);
    }
    if constexpr (CLUSTER > 1) {
        entry *slots = p.block_slots[p.round & 1];
        const u32 bar = shared_address(p.byte_barriers + (p.round & 1));
        if (p.warp == 0) {
            total all[4] = {(total)v, 0, 0, 0};
            if (p.lane == 0)
                byte_barrier_expect(bar, CLUSTER * sizeof(entry));
            if (p.lane < CLUSTER)
                send_to_block(shared_address(slots + p.block_rank), bar, p.lane, all);
        }
        byte_barrier_wait(bar, p.round >> 1 & 1);
        v = most_of_warp(p.lane < CLUSTER ? (float)slots[p.lane].value[0] : 0);
    }
    p.round++;
    return v;
}

__device__ __forceinline__ float chunk_magnitude(const real *y) {
    float most = 0;
#pragma unroll
    for (int i = 0; i < WIDTH; i++)
        most = larger_magnitude(most, y[i]);
    return most;
}

/* Stores a chunk of y. */
__device__ __forceinline__ void put_y(const row_args &args, const place &p, const row_reader &r, int k,
                                      const real *y) {
    if constexpr (WANT_Y)
        store_chunk<Y_BYTES, Y_ACCESS>(address_of<ROLE_Y>(args, r.number) + part_place<Y_BYTES>(p, k),
                                       pack<Y_TYPE, WIDTH>(y));
}
/* Stores a chunk of q. */
__device__ __forceinline__ void put_q(const row_args &args, const place &p, const row_reader &r, int k,
                                      const chunk<WIDTH> &c) {
    store_words<ACCESSES[ROLE_Q]>(address_of<ROLE_Q>(args, r.number) + part_place<WIDTH>(p, k), c);
}

/* The maximum over all threads goes to memory, which holds 0 or more. */
__device__ __forceinline__ void raise_amax(const row_args &args, const place &p, float amax) {
    u32 *to = (u32 *)args.tensor[ROLE_AMAX].data;
    const u32 bits = largest_of_warp(__float_as_uint(amax));
    if (p.lane == 0 && bits > latest_word(to))
        raise_to(to, bits);
}
