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

/* HELD_COME: they come by asynchronous copies, all asked for at the beginning. Not where what is held is another
 * gradient than what is read. */
constexpr int COMING = 4, COMING_STEPS = AT_ONCE * ceil_div(ceil_div(HOLD, AT_ONCE), COMING); /* parts, and of one */

__device__ __forceinline__ void ask_for_held(const batch_args &args, const row_bases &b, u32 begin, u32 count) {
    if constexpr (HELD_COME)
#pragma unroll 1
        for (u32 part = 0; part < COMING; part++) {
            const u32 end = least_of((part + 1) * COMING_STEPS, least_of(HOLD, count));
#pragma unroll 2
            for (u32 k = part * COMING_STEPS; k < end; k++) {
                const u32 step = begin + k * PLANES;
                copy_in<X_BYTES, X_ACCESS>(held_at<0, X_BYTES>(k), b.x + step_at<X_TYPE>(args, args.x, step), true);
                if constexpr (BACKWARD)
                    copy_in<DY_BYTES, DY_ACCESS>(held_at<X_BYTES, DY_BYTES>(k),
                                                 b.dy + step_at<DY_TYPE>(args, args.dy, step), true);
                if constexpr (HELD_BESIDE > 0)
                    copy_in<BESIDE_BYTES, BESIDE_ACCESS>(held_at<X_BYTES + HELD_DY, BESIDE_BYTES>(k),
                                                         b.beside + step_at<BESIDE_TYPE>(args, args.beside, step), true);
            }
            copy_async_commit();
        }
}

__device__ __forceinline__ void wait_for_part(u32 part) {
    switch (part) {
    case 0: return copy_async_wait<COMING - 1>();
    case 1: return copy_async_wait<COMING - 2>();
    case 2: return copy_async_wait<COMING - 3>();
    default: return copy_async_wait<0>();
    }
}

/* AT_ONCE held steps from the `first`th on; the output of a forward reads what is added behind the norm. */
template <bool SUMMED>
__device__ __forceinline__ void held_steps(const batch_args &args, const row_bases &b, u32 begin, u32 first, u32 count,
                                           step_chunks *s) {
#pragma unroll
    for (int j = 0; j < AT_ONCE; j++) {
        const u32 k = SUMMED ? least_of(first + j, count - 1) : first + j;
        s[j].x = load_from_shared<X_BYTES>(held_at<0, X_BYTES>(k));
        if constexpr (BACKWARD)
            s[j].dy = load_from_shared<DY_BYTES>(held_at<X_BYTES, DY_BYTES>(k));
        if constexpr (HELD_BESIDE > 0) {
            s[j].beside = load_from_shared<BESIDE_BYTES>(held_at<X_BYTES + HELD_DY, BESIDE_BYTES>(k));
        } else if constexpr (HAS_BESIDE && FORWARD && !SUMMED) {
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
    ask_for_steps<true>(args, b, begin, first + AT_ONCE, count);
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

/* The sums of all of a thread's steps, of which those before HOLD stay. */
__device__ __forceinline__ void add_all(const batch_args &args, const row_bases &b, const row_constants *c, u32 begin,
                                        u32 count, thread_sums &sums) {
    u32 held = 0;
    if constexpr (HELD_COME) {
#pragma unroll 1
        for (u32 part = 0; part < COMING; part++) {
            const u32 end = least_of((part + 1) * COMING_STEPS, least_of(HOLD, count));
            wait_for_part(part);
#pragma unroll 1
            for (; held < end; held += AT_ONCE) {
                step_chunks s[AT_ONCE];
                held_steps<true>(args, b, begin, held, count, s);
#pragma unroll
                for (int j = 0; j < AT_ONCE; j++)
                    add_step<false>(args, b, c, begin, held + j, count, s[j], sums);
            }
        }
    } else if constexpr (HOLD > 0) {
        held = add_until<true>(args, b, c, begin, 0, HOLD, count, sums);
    }
    add_until<false>(args, b, c, begin, held, count, count, sums);
    sums.end(c, count);
}

__device__ __forceinline__ void put_held(const batch_args &args, const row_bases &b, const row_constants *c, u32 begin,
                                         u32 count) {
#pragma unroll 1
    for (u32 k = 0; k < least_of(HOLD, count); k += AT_ONCE) {
        step_chunks s[AT_ONCE];
        held_steps<false>(args, b, begin, k, count, s);
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
            if (k + j < count)
                put_step(args, b, begin + (k + j) * PLANES, s[j], c);
    }
}
