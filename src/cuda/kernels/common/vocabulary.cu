/*
 * The words the kernels are written in: types, conversions, memory access, shuffles, barriers,
 * clusters. Everything that is an instruction of a particular architecture is here and nowhere else;
 * the kernels below are plain C++ over these functions. No header is included, so that a
 * specialisation compiles in tens of milliseconds. Holds no arithmetic of normalization.
 *
 * Constants that a specialisation defines for every kernel: REAL_DOUBLE (arithmetic in f64), and for
 * each tensor (ROLE_X, ROLE_WEIGHT, ...) its dtype and its alignment in bytes, TYPES[] and ACCESSES[].
 */
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

/* The library's dtype order. */
enum { F32 = 0, F16 = 1, BF16 = 2, F64 = 3, NONE = 4 };

/* What constants of a family may be, as spec.h has them. VARIANT of dense rows and of groups: */
enum { ROWS_PLAIN, ROWS_TILED, ROWS_IN_RUNS };
enum { GROUPS_BY_ROW, GROUPS_SUMS, GROUPS_MOMENTS, GROUPS_APPLY, GROUPS_IN_TILES };
/* HOLD of the forward and of the backward of dense rows: */
enum { HOLD_IN_REGISTERS, HOLD_IN_SHARED, READ_AGAIN };
enum { HOLD_IN_THREAD, HOLD_IN_RING, HOLD_THE_NEXT };

constexpr int X_TYPE = TYPES[ROLE_X], X_ACCESS = ACCESSES[ROLE_X];
constexpr int Y_TYPE = TYPES[ROLE_Y], Y_ACCESS = ACCESSES[ROLE_Y];
constexpr int WEIGHT_TYPE = TYPES[ROLE_WEIGHT], WEIGHT_ACCESS = ACCESSES[ROLE_WEIGHT];
constexpr int BIAS_TYPE = TYPES[ROLE_BIAS], BIAS_ACCESS = ACCESSES[ROLE_BIAS];
constexpr int DY_TYPE = TYPES[ROLE_DY], DY_ACCESS = ACCESSES[ROLE_DY];
constexpr int DX_TYPE = TYPES[ROLE_DX], DX_ACCESS = ACCESSES[ROLE_DX];
constexpr int DSUM_TYPE = TYPES[ROLE_DSUM], DSUM_ACCESS = ACCESSES[ROLE_DSUM];
constexpr int MEAN_TYPE = TYPES[ROLE_MEAN], RSTD_TYPE = TYPES[ROLE_RSTD], M2_TYPE = TYPES[ROLE_M2];
constexpr int DWEIGHT_TYPE = TYPES[ROLE_DWEIGHT], DBIAS_TYPE = TYPES[ROLE_DBIAS];

#if REAL_DOUBLE
typedef double real;
#else
typedef float real;
#endif

constexpr u32 EVERY_LANE = 0xffffffffu;
/* From here on the assembler takes a few registers more for the same text. */
constexpr bool TIGHT = __CUDA_ARCH__ >= 1000;

__device__ constexpr int bytes_of(int type) { return type == F64 ? 8 : type == F32 ? 4 : 2; }
__device__ constexpr int least(int a, int b) { return a < b ? a : b; }
__device__ constexpr int most(int a, int b) { return a > b ? a : b; }
__device__ __forceinline__ float middle_of(float a, float b, float c) {
    return fmaxf(fminf(a, b), fminf(fmaxf(a, b), c));
}
__device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
__device__ constexpr int power_of_two_up_to(int n) { return n < 2 ? 1 : 2 * power_of_two_up_to(n / 2); }

/* ---- Chunks: the few neighbouring elements that one thread moves at a time ------------------- */

template <int BYTES> struct chunk {
    u32 word[BYTES < 4 ? 1 : BYTES / 4];
};

template <int BYTES> __device__ __forceinline__ chunk<BYTES> zero_chunk() {
    chunk<BYTES> c;
#pragma unroll
    for (u32 &w : c.word)
        w = 0;
    return c;
}

/* Reads a chunk. ACCESS is the alignment of the address, at most 16. Not by the read-only path (ld.global.nc):
 * a kernel starts while the one before it still writes, and the assembler moves such loads ahead of
 * wait_for_stream(). Nor with L1::no_allocate: the L2 gives such lines up first, as it does those of streaming
 * stores, and what others left there stays. The whole was 2 to 6% slower (docs/notebook/024). */
template <int BYTES, int ACCESS>
__device__ __forceinline__ chunk<BYTES> load_chunk(const void *address) {
    constexpr int A = least(BYTES, ACCESS);
    chunk<BYTES> c;
    const char *p = (const char *)address;
    if constexpr (A == 16) {
#pragma unroll
        for (int i = 0; i < BYTES / 16; i++)
            asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                : "=r"(c.word[4 * i]), "=r"(c.word[4 * i + 1]), "=r"(c.word[4 * i + 2]),
                  "=r"(c.word[4 * i + 3])
                : "l"(p + 16 * i));
    } else if constexpr (A == 8) {
#pragma unroll
        for (int i = 0; i < BYTES / 8; i++)
            asm volatile("ld.global.v2.u32 {%0, %1}, [%2];"
                : "=r"(c.word[2 * i]), "=r"(c.word[2 * i + 1])
                : "l"(p + 8 * i));
    } else if constexpr (A == 4) {
#pragma unroll
        for (int i = 0; i < BYTES / 4; i++)
            asm volatile("ld.global.u32 %0, [%1];" : "=r"(c.word[i]) : "l"(p + 4 * i));
    } else {
        u16 low, high;
#pragma unroll
        for (int i = 0; i < BYTES / 2; i += 2) {
            asm volatile("ld.global.u16 %0, [%1];" : "=h"(low) : "l"(p + 2 * i));
            high = 0;
            if (i + 1 < BYTES / 2)
                asm volatile("ld.global.u16 %0, [%1];" : "=h"(high) : "l"(p + 2 * i + 2));
            c.word[i / 2] = low | (u32)high << 16;
        }
    }
    return c;
}

/* Writes a chunk, which stays in the L2 for what comes next: with streaming stores the two together take up to
 * 7% longer. */
template <int BYTES, int ACCESS>
__device__ __forceinline__ void store_chunk(void *address, const chunk<BYTES> &c) {
    constexpr int A = least(BYTES, ACCESS);
    char *p = (char *)address;
    if constexpr (A == 16) {
#pragma unroll
        for (int i = 0; i < BYTES / 16; i++)
            asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p + 16 * i),
                         "r"(c.word[4 * i]), "r"(c.word[4 * i + 1]), "r"(c.word[4 * i + 2]),
                         "r"(c.word[4 * i + 3])
                         : "memory");
    } else if constexpr (A == 8) {
#pragma unroll
        for (int i = 0; i < BYTES / 8; i++)
            asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(p + 8 * i),
                         "r"(c.word[2 * i]), "r"(c.word[2 * i + 1])
                         : "memory");
    } else if constexpr (A == 4) {
#pragma unroll
        for (int i = 0; i < BYTES / 4; i++)
            asm volatile("st.global.u32 [%0], %1;" ::"l"(p + 4 * i), "r"(c.word[i]) : "memory");
    } else {
#pragma unroll
        for (int i = 0; i < BYTES / 2; i++)
            asm volatile("st.global.u16 [%0], %1;" ::"l"(p + 2 * i),
                         "h"((u16)(c.word[i / 2] >> 16 * (i & 1)))
                         : "memory");
    }
}

/* ---- Elements of a chunk ---------------------------------------------------------------------- */

template <int TYPE> __device__ __forceinline__ real element(const u32 *word, int i) {
    if constexpr (TYPE == F32) {
        return __uint_as_float(word[i]);
    } else if constexpr (TYPE == F16) {
        float f;
        if (i & 1)
            asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h;}"
                : "=f"(f)
                : "r"(word[i / 2]));
        else
            asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l;}"
                : "=f"(f)
                : "r"(word[i / 2]));
        return f;
    } else if constexpr (TYPE == BF16) {
        return __uint_as_float(i & 1 ? word[i / 2] & 0xffff0000u : word[i / 2] << 16);
    } else {
        return (real)__hiloint2double(word[2 * i + 1], word[2 * i]);
    }
}

/* f64 to the float from which rounding to 16 bits rounds once: toward zero, the last bit sticky. */
__device__ __forceinline__ float round_to_odd(double v) {
    float f = __double2float_rz(v);
    return (double)f != v && f == f ? __uint_as_float(__float_as_uint(f) | 1) : f;
}

__device__ __forceinline__ float before_halving(float v) { return v; }
__device__ __forceinline__ float before_halving(double v) { return round_to_odd(v); }

template <int TYPE, int COUNT>
__device__ __forceinline__ chunk<COUNT * bytes_of(TYPE)> pack(const real *v) {
    chunk<COUNT * bytes_of(TYPE)> c;
    if constexpr (TYPE == F32) {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            c.word[i] = __float_as_uint((float)v[i]);
    } else if constexpr (TYPE == F64) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            u64 bits = __double_as_longlong((double)v[i]);
            c.word[2 * i] = (u32)bits;
            c.word[2 * i + 1] = (u32)(bits >> 32);
        }
    } else {
#pragma unroll
        for (int i = 0; i < COUNT; i += 2) {
            float low = before_halving(v[i]), high = i + 1 < COUNT ? before_halving(v[i + 1]) : 0.f;
            if constexpr (TYPE == F16)
                asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(c.word[i / 2]) : "f"(high), "f"(low));
            else
                asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(c.word[i / 2]) : "f"(high), "f"(low));
        }
    }
    return c;
}

/* The larger magnitudes of two pairs of f16, each half for itself; of NaN and a number this. */
__device__ __forceinline__ u32 larger_halves(u32 a, u32 b) {
    u32 larger;
    asm("{.reg .b32 x, y; abs.f16x2 x, %1; abs.f16x2 y, %2; max.f16x2 %0, x, y;}"
        : "=r"(larger)
        : "r"(a), "r"(b));
    return larger;
}

template <int TYPE> __device__ __forceinline__ void store_element(void *base, i64 index, real v) {
    if constexpr (TYPE != NONE)
        store_chunk<bytes_of(TYPE), bytes_of(TYPE)>((char *)base + index * bytes_of(TYPE),
                                                    pack<TYPE, 1>(&v));
}

template <int TYPE> __device__ __forceinline__ real load_element(const void *base, i64 index) {
    constexpr int B = bytes_of(TYPE);
    return element<TYPE>(load_chunk<B, B>((const char *)base + index * B).word, 0);
}

/* high + low, of which f64 keeps both. */
template <int TYPE>
__device__ __forceinline__ void store_pair(void *address, real high, real low) {
    if constexpr (TYPE == F64) {
        const u64 bits = (u64)__double_as_longlong((double)high + (double)low);
        store_chunk<8, 8>(address, chunk<8>{{(u32)bits, (u32)(bits >> 32)}});
    } else {
        store_element<TYPE>(address, 0, high + low);
    }
}
/* What a float leaves of an f64 number; nothing of others. */
template <int BYTES> __device__ __forceinline__ float rest_of(const chunk<BYTES> &c) {
    if constexpr (BYTES != 8) {
        return 0;
    } else {
        const double v = __hiloint2double((int)c.word[1], (int)c.word[0]);
        return (float)(v - (double)(float)v);
    }
}

/* Makes the compiler forget what it derived from a word (such as converted floats), so that it does
 * not keep that in registers and spill. `zero` must be 0 in a way it cannot know; the assembler sees
 * through an empty asm statement. */
__device__ __forceinline__ void forget(u32 &word, u32 zero) { word ^= zero; }

/* ---- Arithmetic ------------------------------------------------------------------------------- */

__device__ __forceinline__ float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
__device__ __forceinline__ double multiply_add(double a, double b, double c) { return fma(a, b, c); }

/* Pairwise sum: its error grows with the logarithm of COUNT, and sums of equal values are exact
 * where COUNT is a power of two. */
template <int COUNT, typename T> __device__ __forceinline__ T tree_sum(const T *v) {
    if constexpr (COUNT == 1)
        return v[0];
    else
        return tree_sum<COUNT / 2>(v) + tree_sum<COUNT - COUNT / 2>(v + COUNT / 2);
}

/* The hardware's estimate of 1 / sqrt(f), 0 < f normal. */
__device__ __forceinline__ float estimate_root(float f) {
    float r;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(f));
    return r;
}

/* The hardware's estimates of 2^f, and of 1 / f: off by 2^-22 of it at most, and 2^-23. */
__device__ __forceinline__ float estimate_power(float f) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(f));
    return r;
}
__device__ __forceinline__ float estimate_inverse(float f) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(f));
    return r;
}

/* 1 / sqrt(v), within an ULP: the estimate and one Newton step where float holds v. */
__device__ __forceinline__ bool root_is_quick(float f) { return f > 1e-36f && f < 1e36f; }
__device__ __forceinline__ float quick_root(float f) {
    const float r = estimate_root(f);
    return fmaf(0.5f * r, fmaf(-f * r, r, 1.f), r);
}
__device__ __forceinline__ real reciprocal_root(double v) {
    if (sizeof(real) == 4 && root_is_quick((float)v))
        return quick_root((float)v);
    return (real)(1.0 / sqrt(v));
}
__device__ __forceinline__ real reciprocal_root(float f) {
    return root_is_quick(f) ? (real)quick_root(f) : reciprocal_root((double)f);
}

/* ---- Lanes ------------------------------------------------------------------------------------ */

__device__ __forceinline__ float from_lane(float v, int lane) {
    return __shfl_sync(EVERY_LANE, v, lane);
}
__device__ __forceinline__ double from_lane(double v, int lane) {
    return __shfl_sync(EVERY_LANE, v, lane);
}

/*
 * The sum over a group of LANES neighbouring lanes, the same bits in all of them. A group starts at
 * a multiple of LANES; all 32 lanes of the warp must call, those left over at its end included.
 */
template <int LANES, typename T> __device__ __forceinline__ T sum_over_lanes(T v, int lane) {
    if constexpr ((LANES & (LANES - 1)) == 0) {
#pragma unroll
        for (int step = LANES / 2; step > 0; step /= 2)
            v += __shfl_xor_sync(EVERY_LANE, v, step);
        return v;
    } else {
        int rank = lane % LANES, base = lane - rank;
#pragma unroll
        for (int step = power_of_two_up_to(LANES); step > 0; step /= 2) {
            T other = __shfl_down_sync(EVERY_LANE, v, step);
            if (rank + step < least(LANES, 2 * step))
                v += other;
        }
        return from_lane(v, base);
    }
}

/*
 * The sum over the PLANES lanes that are LANES apart, of lanes 0 to PLANES * LANES; the same bits in all of
 * them. All 32 lanes must call.
 */
template <int LANES, int PLANES, typename T>
__device__ __forceinline__ T sum_over_planes(T v, int lane) {
    if constexpr (LANES * PLANES == 32) {
#pragma unroll
        for (int step = 16; step >= LANES; step /= 2)
            v += __shfl_xor_sync(EVERY_LANE, v, step);
        return v;
    } else {
        const int plane = lane / LANES;
#pragma unroll
        for (int step = power_of_two_up_to(PLANES); step > 0; step /= 2) {
            const T other = __shfl_down_sync(EVERY_LANE, v, step * LANES);
            if (plane + step < least(PLANES, 2 * step))
                v += other;
        }
        return from_lane(v, lane % LANES);
    }
}

/* Makes a word of memory at least v, whoever else does so. */
__device__ __forceinline__ void raise_to(u32 *address, u32 v) {
    asm volatile("red.relaxed.gpu.global.max.u32 [%0], %1;" ::"l"(address), "r"(v) : "memory");
}
/* A word that other blocks may raise: what it was lately. */
__device__ __forceinline__ u32 latest_word(const u32 *address) {
    u32 v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(address) : "memory");
    return v;
}

/* ---- Barriers and shared memory --------------------------------------------------------------- */

/* Waits for the `threads` threads of barrier `id` (1 to 15). */
__device__ __forceinline__ void barrier(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ u32 shared_address(const void *p) {
    return (u32)__cvta_generic_to_shared(p);
}

/* Copies BYTES to shared memory without waiting, or zeros where `there` is false. ACCESS, the
 * alignment of both addresses, is at least 4. */
template <int BYTES, int ACCESS>
__device__ __forceinline__ void copy_async(u32 to, const void *from, bool there) {
    constexpr int A = least(BYTES, ACCESS);
    static_assert(A >= 4, "asynchronous copies move at least 4 bytes");
    int size = there ? A : 0;
#pragma unroll
    for (int i = 0; i < BYTES; i += A) {
        if constexpr (A == 16)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + i),
                         "l"((const char *)from + i), "r"(size)
                         : "memory");
        else
            asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to + i),
                         "l"((const char *)from + i), "n"(A), "r"(size)
                         : "memory");
    }
}

__device__ __forceinline__ void copy_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most PENDING of this thread's newest groups of copies are under way. */
template <int PENDING> __device__ __forceinline__ void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

template <int BYTES> __device__ __forceinline__ chunk<BYTES> load_from_shared(u32 address) {
    chunk<BYTES> c;
    if constexpr (BYTES >= 16) {
#pragma unroll
        for (int i = 0; i < BYTES / 16; i++)
            asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(c.word[4 * i]), "=r"(c.word[4 * i + 1]), "=r"(c.word[4 * i + 2]),
                           "=r"(c.word[4 * i + 3])
                         : "r"(address + 16 * i)
                         : "memory");
    } else if constexpr (BYTES == 8) {
        asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                     : "=r"(c.word[0]), "=r"(c.word[1])
                     : "r"(address)
                     : "memory");
    } else if constexpr (BYTES == 4) {
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(c.word[0]) : "r"(address) : "memory");
    } else {
        u16 h;
        asm volatile("ld.shared.u16 %0, [%1];" : "=h"(h) : "r"(address) : "memory");
        c.word[0] = h;
    }
    return c;
}

template <int BYTES> __device__ __forceinline__ void store_to_shared(u32 address, const chunk<BYTES> &c) {
    if constexpr (BYTES >= 16) {
#pragma unroll
        for (int i = 0; i < BYTES / 16; i++)
            asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address + 16 * i),
                         "r"(c.word[4 * i]), "r"(c.word[4 * i + 1]), "r"(c.word[4 * i + 2]),
                         "r"(c.word[4 * i + 3])
                         : "memory");
    } else if constexpr (BYTES == 8) {
        asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(address), "r"(c.word[0]),
                     "r"(c.word[1])
                     : "memory");
    } else if constexpr (BYTES >= 4) {
#pragma unroll
        for (int i = 0; i < BYTES / 4; i++)
            asm volatile("st.shared.u32 [%0], %1;" ::"r"(address + 4 * i), "r"(c.word[i])
                         : "memory");
    } else {
        asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"((u16)c.word[0]) : "memory");
    }
}

/* The same of any alignment; through registers where asynchronous copies cannot. */
template <int BYTES, int ACCESS>
__device__ __forceinline__ void copy_in(u32 to, const char *from, bool there) {
    if constexpr (ACCESS >= 4 && BYTES >= 4)
        copy_async<BYTES, ACCESS>(to, from, there);
    else
        store_to_shared<BYTES>(to, there ? load_chunk<BYTES, ACCESS>(from) : zero_chunk<BYTES>());
}

/* ---- Blocks that run at the same time (cooperative launch) ------------------------------------- */

/* The word that the driver keeps for the barriers of a cooperative launch, as cooperative groups
 * have it: private to the launch, its lower 31 bits 0 whenever no barrier is under way. */
__device__ __forceinline__ u32 *grid_barrier_word() {
    u32 high, low;
    asm("mov.u32 %0, %%envreg1;" : "=r"(high));
    asm("mov.u32 %0, %%envreg2;" : "=r"(low));
    return (u32 *)((u64)high << 32 | low) + 1;
}
__device__ __forceinline__ u32 add_and_release(u32 *address, u32 v) {
    u32 before;
    asm volatile("atom.add.release.gpu.global.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(address), "r"(v)
                 : "memory");
    return before;
}
__device__ __forceinline__ u32 load_and_acquire(const u32 *address) {
    u32 v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(address) : "memory");
    return v;
}
/* One thread of every block of a cooperative launch waits for the others. The first block adds what
 * the others leave to 2^31, so that the top bit turns when all are there and the other bits are as
 * they were. */
__device__ __forceinline__ void meet_other_blocks() {
    u32 *word = grid_barrier_word();
    const u32 before = add_and_release(word, blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1) : 1);
    while (((before ^ load_and_acquire(word)) & 0x80000000u) == 0)
        ;
}
/* Waits for every block, of which `threads` threads or one warp call; what these wrote before is
 * seen after. */
__device__ __forceinline__ void grid_barrier(int threads) {
    barrier(0, threads);
    if (threadIdx.x == 0)
        meet_other_blocks();
    barrier(0, threads);
}
__device__ __forceinline__ void grid_barrier_of_warp(int lane) {
    __syncwarp();
    if (lane == 0)
        meet_other_blocks();
    __syncwarp();
}

/* Words that running blocks hand to each other. Each is read and written at once, so one that holds
 * a value and the turn it belongs to needs no flag and no order among words. */
__device__ __forceinline__ void post_word(u64 *address, u64 v) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(address), "l"(v) : "memory");
}
__device__ __forceinline__ void look_at_words(const u64 *address, u64 &a, u64 &b) {
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(a), "=l"(b)
                 : "l"(address)
                 : "memory");
}
/* Half a value and its turn in one word. */
__device__ __forceinline__ void post(u64 *to, u32 turn, float v) {
    post_word(to, (u64)turn << 32 | __float_as_uint(v));
}
__device__ __forceinline__ void post(u64 *to, u32 turn, double v) {
    const u64 bits = (u64)__double_as_longlong(v);
    post_word(to, (u64)turn << 32 | (u32)bits);
    post_word(to + 1, (u64)turn << 32 | bits >> 32);
}
__device__ __forceinline__ void posted(const u64 *word, float &v) {
    v = __uint_as_float((u32)word[0]);
}
__device__ __forceinline__ void posted(const u64 *word, double &v) {
    v = __hiloint2double((int)(u32)word[1], (int)(u32)word[0]);
}

/*
 * A line that three values of each of COUNT blocks go through, turn after turn: room for LINE turns,
 * one entry of a turn for each block. A lane takes every 32nd entry. The first two words of all
 * entries lie together, then the next two, so that a warp which looks at them reads whole sectors.
 */
template <typename T, int COUNT, int LINE> struct mail {
    static constexpr int WORDS = sizeof(T) == 4 ? 4 : 6; /* of an entry; whole pairs */
    static constexpr int HALVES = sizeof(T) / 4;
    static constexpr int EACH = ceil_div(COUNT, 32);
    static constexpr i64 ALL_WORDS = (i64)LINE * COUNT * WORDS;

    u64 word[EACH][WORDS];

    __device__ __forceinline__ static u64 *entry(u64 *line, i64 turn, int block) {
        return line + (i64)((u32)turn % LINE) * (COUNT * WORDS) + 2 * block;
    }
    /* Of a word, from its entry on. */
    __device__ __forceinline__ static int place(int word) { return word / 2 * (2 * COUNT) + word % 2; }
    __device__ __forceinline__ static u32 mark(i64 turn) { return (u32)turn + 1; }

    /* Before the grid's first barrier: no mark of an earlier launch is left. One warp calls. */
    __device__ __forceinline__ static void clear(u64 *line, int block, int lane) {
        for (int i = lane; i < LINE * WORDS; i += 32)
            post_word(entry(line, i / WORDS, block) + place(i % WORDS), 0);
    }
    __device__ __forceinline__ static void send(u64 *line, i64 turn, int block, const T *v) {
        u64 *to = entry(line, turn, block);
#pragma unroll
        for (int j = 0; j < 3; j++)
            post(to + place(j * HALVES), mark(turn), v[j]);
    }
    __device__ __forceinline__ void look_at(u64 *line, i64 turn, int e, int lane) {
        u64 *from = entry(line, turn, e * 32 + lane);
#pragma unroll
        for (int j = 0; j < WORDS; j += 2)
            look_at_words(from + place(j), word[e][j], word[e][j + 1]);
    }
    /* Asks for a turn's entries; nothing waits for them yet. */
    __device__ __forceinline__ void ask(u64 *line, i64 turn, int lane) {
#pragma unroll
        for (int e = 0; e < EACH; e++)
            if (e * 32 + lane < COUNT)
                look_at(line, turn, e, lane);
    }
    /* Whether entry e of this lane has come, if there is one. */
    __device__ __forceinline__ bool has_come(i64 turn, int e, int lane) const {
        bool all = true;
#pragma unroll
        for (int j = 0; j < 3 * HALVES; j++)
            all = all && (u32)(word[e][j] >> 32) == mark(turn);
        return all || e * 32 + lane >= COUNT;
    }
    /* Waits for this lane's entries. All that have not come are looked at again at once: a look takes a trip to the
     * L2, behind what the multiprocessor asked for before. */
    __device__ __forceinline__ void wait(u64 *line, i64 turn, int lane) {
        for (bool all = false; !all;) {
            bool come[EACH];
            all = true;
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                come[e] = has_come(turn, e, lane);
                all = all && come[e];
            }
#pragma unroll
            for (int e = 0; e < EACH; e++)
                if (!come[e])
                    look_at(line, turn, e, lane);
        }
        __syncwarp();
    }
    /* Takes entry e of this lane, which has come; false past the last. */
    __device__ __forceinline__ bool take(int e, int lane, T *v) const {
        if (e * 32 + lane >= COUNT)
            return false;
#pragma unroll
        for (int j = 0; j < 3; j++)
            posted(word[e] + j * HALVES, v[j]);
        return true;
    }
};

/* ---- Clusters (sm_90 and newer) and dependent launch ------------------------------------------- */

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ u32 cluster_rank() {
    u32 r;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
/* The blocks of a cluster meet. Nothing is ordered but their threads: all that they hand to each other
 * is counted by byte barriers, and a fence would wait for every store to memory. */
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
/* The address of this block's shared address in block `rank` of the cluster. */
__device__ __forceinline__ u32 in_block(u32 address, u32 rank) {
    u32 r;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(address), "r"(rank));
    return r;
}
/* Barriers in shared memory that count the bytes stored into a block of the cluster. */
__device__ __forceinline__ void byte_barrier_init(u32 barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
/* Once per round and block: this many bytes will come. */
__device__ __forceinline__ void byte_barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
/* Waits for the end of the round of this parity. Of the block's scope: what was stored lies in its own
 * shared memory, and to acquire of the cluster would empty the multiprocessor's L1 each time. */
__device__ __forceinline__ void byte_barrier_wait(u32 barrier, u32 parity) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again%=:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again%=;\n"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}
/* Stores four values in block `rank`, and tells the barrier there. */
__device__ __forceinline__ void send_to_block(u32 address, u32 barrier, u32 rank, const float *v) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, "
                 "%4}, [%5];" ::"r"(in_block(address, rank)),
                 "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "r"(in_block(barrier, rank))
                 : "memory");
}
__device__ __forceinline__ void send_to_block(u32 address, u32 barrier, u32 rank, const double *v) {
    u32 to = in_block(address, rank), at = in_block(barrier, rank);
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f64 [%0], {%1, %2}, "
                 "[%3];" ::"r"(to),
                 "d"(v[0]), "d"(v[1]), "r"(at)
                 : "memory");
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f64 [%0], {%1, %2}, "
                 "[%3];" ::"r"(to + 16),
                 "d"(v[2]), "d"(v[3]), "r"(at)
                 : "memory");
}
/* The same of two values. */
__device__ __forceinline__ void send_two_to_block(u32 address, u32 barrier, u32 rank, const float *v) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, "
                 "[%3];" ::"r"(in_block(address, rank)),
                 "f"(v[0]), "f"(v[1]), "r"(in_block(barrier, rank))
                 : "memory");
}
/* Copies BYTES, a multiple of 16 at addresses of 16, to shared memory and tells a byte barrier there; one
 * thread calls. */
__device__ __forceinline__ void copy_piece_in(u32 to, const void *from, int bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
                 "[%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}
/* The same to memory. What other threads wrote to it comes before a barrier, and before that their
 * publish_to_copies(). */
__device__ __forceinline__ void copy_piece_out(void *to, u32 from, int bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
                 "cp.async.bulk.commit_group;" ::"l"(to),
                 "r"(from), "r"(bytes)
                 : "memory");
}
/* Waits until what this thread copies out has been read. */
__device__ __forceinline__ void wait_for_copies_out() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void publish_to_copies() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/* Waits until the kernels before this one on its stream are done and their writes are seen. */
__device__ __forceinline__ void wait_for_stream() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
/* Lets the next kernel of the stream start, as far as it does not wait_for_stream(), once every block
 * has called this: early, so that its launch hides behind the present kernel. It waits for all of it. */
__device__ __forceinline__ void release_stream() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
#else
__device__ __forceinline__ u32 cluster_rank() { return 0; }
__device__ __forceinline__ void cluster_arrive() {}
__device__ __forceinline__ void cluster_wait() {}
__device__ __forceinline__ void byte_barrier_init(u32) {}
__device__ __forceinline__ void byte_barrier_expect(u32, u32) {}
__device__ __forceinline__ void byte_barrier_wait(u32, u32) {}
__device__ __forceinline__ void send_to_block(u32, u32, u32, const float *) {}
__device__ __forceinline__ void send_to_block(u32, u32, u32, const double *) {}
__device__ __forceinline__ void send_two_to_block(u32, u32, u32, const float *) {}
__device__ __forceinline__ void copy_piece_in(u32, const void *, int, u32) {}
__device__ __forceinline__ void copy_piece_out(void *, u32, int) {}
__device__ __forceinline__ void wait_for_copies_out() {}
__device__ __forceinline__ void publish_to_copies() {}
__device__ __forceinline__ void wait_for_stream() {}
__device__ __forceinline__ void release_stream() {}
#endif
