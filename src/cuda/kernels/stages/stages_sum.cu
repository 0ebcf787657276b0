/*
 * What stands before a norm, element by element, where the norm's own kernels are another family's:
 *
 *     s = x * column_scale * row_scale * keep / (1 - p) + residual     each step rounded, and then once to s's dtype
 *
 * A chunk is WIDTH neighbours in memory: of the innermost axis of s, along which x, residual, s and mask have
 * neighbours, too, where WIDTH is more than 1. A thread takes CHUNKS of them, a block's THREADS apart, all on their
 * way at once. An element is read and written by one thread, after the reads of its chunk: s may be x or residual.
 *
 * Constants: WIDTH CHUNKS WARPS AXES (of s, the innermost last) NARROW (all elements are counted in 32 bits) DROPOUT
 * INDEX_ALIGNED ALIKE (roles with one element for a chunk), and the dtypes of x, residual, sum (which is s), row_scale,
 * column_scale and mask. REAL_DOUBLE: s is made in f64.
 */
#include "../arguments/sum_args.h"

/* The tensors, as the arguments count them. */
#define ENUMERATOR(role) role,
enum { EACH_SUM_TENSOR(ENUMERATOR) TENSORS };

#include "philox.cu"

constexpr int THREADS = WARPS * WARP;
constexpr int RESIDUAL_TYPE = TYPES[ROLE_RESIDUAL], S_TYPE = TYPES[ROLE_SUM];
constexpr int COLUMN_TYPE = TYPES[ROLE_COLUMN_SCALE], ROW_TYPE = TYPES[ROLE_ROW_SCALE];
constexpr bool HAS_RESIDUAL = RESIDUAL_TYPE != NONE, HAS_COLUMN = COLUMN_TYPE != NONE, HAS_ROW = ROW_TYPE != NONE;
constexpr bool HAS_MASK = TYPES[ROLE_MASK] != NONE;
constexpr int RESIDUAL_BYTES = HAS_RESIDUAL ? bytes_of(RESIDUAL_TYPE) : 4;

/* Elements are counted in 32 bits where these hold them: divisions in 64 are many instructions. */
template <bool SMALL> struct counter {
    typedef u64 type;
};
template <> struct counter<true> {
    typedef u32 type;
};
typedef counter<NARROW != 0>::type count_type;

/* Where a chunk begins. */
struct place {
    i64 at[TENSORS], index;
};

__device__ __forceinline__ place place_of(const sum_args &args, count_type element) {
    place p = {};
#pragma unroll
    for (int k = AXES - 1; k >= 0; k--) {
        const sum_axis &a = args.axis[k];
        count_type i = element;
        if (k > 0) {
            const count_type size = (count_type)a.size, rest = element / size;
            i = element - rest * size;
            element = rest;
        }
#pragma unroll
        for (int t = 0; t < TENSORS; t++)
            p.at[t] += (i64)i * a.stride[t];
        p.index += (i64)i * a.index_step;
    }
    return p;
}

template <int TYPE, int ACCESS>
__device__ __forceinline__ auto read_chunk(const sum_args &args, const place &p, int t) {
    return load_chunk<WIDTH * bytes_of(TYPE), ACCESS>((const char *)args.data[t] + p.at[t]);
}

/* v times a scale, of each element or one for all. */
template <int ROLE> __device__ __forceinline__ void scale(const sum_args &args, const place &p, int t, real *v) {
    constexpr bool ONE = ALIKE >> ROLE & 1;
    const char *from = (const char *)args.data[t] + p.at[t];
    const i64 step = args.axis[AXES - 1].stride[t];
    real by = load_element<TYPES[ROLE]>(from, 0);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        if (!ONE && i > 0)
            by = load_element<TYPES[ROLE]>(from + i * step, 0);
        v[i] *= by;
    }
}

/* A chunk's s in place of its x. */
__device__ __forceinline__ void make(const sum_args &args, const philox_key &key, const place &p, real *v) {
    u32 kept = ~0u;
    if constexpr (HAS_COLUMN)
        scale<ROLE_COLUMN_SCALE>(args, p, COLUMN_SCALE, v);
    if constexpr (HAS_ROW)
        scale<ROLE_ROW_SCALE>(args, p, ROW_SCALE, v);
    if constexpr (DROPOUT != 0) {
        kept = kept_elements<WIDTH, least(WIDTH, INDEX_ALIGNED)>(key, (u64)p.index, args.dropped);
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            v[i] = kept >> i & 1 ? v[i] * (real)args.keep_factor : 0;
    }
    if constexpr (HAS_MASK) {
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            ((char *)args.data[MASK])[p.at[MASK] + i * args.axis[AXES - 1].stride[MASK]] = kept >> i & 1;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) planish_stages_sum(const sum_args args) {
    chunk<WIDTH * bytes_of(X_TYPE)> x[CHUNKS];
    chunk<WIDTH * RESIDUAL_BYTES> r[CHUNKS];
    philox_key key = {};
    const i64 chunks = args.elements / WIDTH, first = (i64)blockIdx.x * (THREADS * CHUNKS) + threadIdx.x;
    wait_for_stream();
    if (DROPOUT)
        key = load_philox_key(args.rng);
#pragma unroll
    for (int j = 0; j < CHUNKS; j++) {
        const i64 number = first + j * THREADS;
        if (number >= chunks)
            continue;
        const place p = place_of(args, (count_type)(number * WIDTH));
        x[j] = read_chunk<X_TYPE, X_ACCESS>(args, p, X);
        if constexpr (HAS_RESIDUAL)
            r[j] = read_chunk<RESIDUAL_TYPE, ACCESSES[ROLE_RESIDUAL]>(args, p, RESIDUAL);
    }
    release_stream();
#pragma unroll
    for (int j = 0; j < CHUNKS; j++) {
        const i64 number = first + j * THREADS;
        if (number >= chunks)
            continue;
        const place p = place_of(args, (count_type)(number * WIDTH));
        real v[WIDTH];
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            v[i] = element<X_TYPE>(x[j].word, i);
        make(args, key, p, v);
        if constexpr (HAS_RESIDUAL) {
#pragma unroll
            for (int i = 0; i < WIDTH; i++)
                v[i] += element<RESIDUAL_TYPE>(r[j].word, i);
        }
        store_chunk<WIDTH * bytes_of(S_TYPE), ACCESSES[ROLE_SUM]>((char *)args.data[SUM] + p.at[SUM],
                                                                  pack<S_TYPE, WIDTH>(v));
    }
}
