/*
 * A part of batch.cu: a thread's first HOLD steps wait in shared memory between sums and output, each read again only
 * by the thread that wrote it.
 */

/* A thread's places in shared memory: of x, of dy and of what is beside them, step by step. */
constexpr int HELD_BESIDE = BACKWARD && HAS_BESIDE && !LEAVES_GRADIENT ? BESIDE_BYTES : 0;
constexpr int HELD_DY = BACKWARD ? DY_BYTES : 0;

template <int BEFORE, int BYTES> __device__ __forceinline__ u32 held_at(int k) {
    return shared_address(dynamic_shared) + HOLD * WORKERS * BEFORE + (k * WORKERS + (int)threadIdx.x) * BYTES;
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
        } else if constexpr (HAS_BESIDE && FORWARD) {
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
        add_step<ALL>(args, b, c, begin, first + j, count, s[j], sums);
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
