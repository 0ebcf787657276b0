/*
 * Forward of any problem with what stands around the norm (planish.h): any axes, strides and dtypes. Right, and
 * not fast: rows are read once for each step, elements one by one. What the kernels for rows do not take.
 *
 * s is made in the type of the arithmetic (STAGES_DOUBLE: f64, else f32), each step rounded, so that it has the
 * bits that every kernel gives it; all behind it is f64, as in general.cu. Nothing is written before the last
 * sweep over a row's block, in which each element is read and then written by one thread: outputs may be inputs.
 *
 * Outer axes, an index of which names a row, and inner ones, in the order in which a row's elements count.
 * LANES neighbouring threads take neighbouring rows, 1 or WARP of them, and the SLICES slices of a block
 * take every SLICES-th element.
 *
 * Constants: KIND ACTIVATION LANES SLICES WARPS WEIGHT_OFFSET STAGES_DOUBLE S_TYPE (what s is rounded to; NONE: it is
 * not) GATE_BEFORE ROUND_XHAT DROPOUT POWER_OF_TWO, and the dtypes of every tensor. REAL_DOUBLE is 1.
 */
#include "../arguments/stages_general_args.h"

/* The tensors, as the arguments count them. */
#define ENUMERATOR(role) role,
enum { EACH_STAGES_GENERAL_TENSOR(ENUMERATOR) INDEX, ROLES };
typedef stages_general_args axes_args;

#include "../common/fusion.cu"
#include "philox.cu"
#include "quantize.cu"

#include "../common/rule.cu"
constexpr int THREADS = WARPS * WARP;
constexpr int Q_TYPE = TYPES[ROLE_Q], SCALES_TYPE = TYPES[ROLE_Y_SCALES];

template <bool WIDE> struct stage_type {
    typedef float type;
};
template <> struct stage_type<true> {
    typedef double type;
};
typedef stage_type<STAGES_DOUBLE != 0>::type stage_real;

/* ---- Places ----------------------------------------------------------------------------------- */

#include "../general/axes.cu"

template <int TYPE> __device__ __forceinline__ double rounded(double v) {
    if constexpr (TYPE == NONE)
        return v;
    else
        return element<TYPE>(pack<TYPE, 1>(&v).word, 0);
}

/* ---- Elements --------------------------------------------------------------------------------- */

struct row_state {
    bool there;
    int slice;
    place at;
    philox_key key;
    double pivot, delta, rstd;
};

/* s of an element, and whether it was kept. */
__device__ __forceinline__ double sum_at(const axes_args &args, const row_state &t, const place &p, bool &kept) {
    kept = true;
    if (DROPOUT)
        kept = kept_elements<1, 1>(t.key, (u64)p.at[INDEX], args.dropped);
    stage_real v = (stage_real)read<X_TYPE>(args, p, X);
    if constexpr (GATE_BEFORE && TYPES[ROLE_GATE] != NONE)
        v *= silu_of((stage_real)read<TYPES[ROLE_GATE]>(args, p, GATE));
    if constexpr (TYPES[ROLE_COLUMN_SCALE] != NONE)
        v *= (stage_real)read<TYPES[ROLE_COLUMN_SCALE]>(args, p, COLUMN_SCALE);
    if constexpr (TYPES[ROLE_ROW_SCALE] != NONE)
        v *= (stage_real)read<TYPES[ROLE_ROW_SCALE]>(args, p, ROW_SCALE);
    if (DROPOUT)
        v = kept ? v * (stage_real)args.keep_factor : 0;
    if constexpr (TYPES[ROLE_RESIDUAL] != NONE)
        v += (stage_real)read<TYPES[ROLE_RESIDUAL]>(args, p, RESIDUAL);
    return rounded<S_TYPE>((double)v);
}

/* y of an element whose s is known. */
__device__ __forceinline__ double y_at(const axes_args &args, const row_state &t, const place &p, double s) {
    const double xhat = ((s - t.pivot) - t.delta) * t.rstd;
    double w = 1, z;
    if (WEIGHT_TYPE != NONE) {
        w = read<WEIGHT_TYPE>(args, p, WEIGHT);
        w = WEIGHT_OFFSET ? w + WEIGHT_OFFSET : w;
    }
    const double b = read<BIAS_TYPE>(args, p, BIAS);
    if constexpr (ROUND_XHAT) {
        z = rounded<X_TYPE>(xhat);
        if (WEIGHT_TYPE != NONE)
            z = rounded<X_TYPE>(z * w);
        z = BIAS_TYPE != NONE ? z + b : z;
    } else {
        z = affine_of_xhat<WEIGHT_TYPE != NONE, BIAS_TYPE != NONE, true>(xhat, w, b);
    }
    if constexpr (TYPES[ROLE_SCALE] != NONE)
        z *= 1 + read<TYPES[ROLE_SCALE]>(args, p, SCALE);
    if constexpr (TYPES[ROLE_SHIFT] != NONE)
        z += read<TYPES[ROLE_SHIFT]>(args, p, SHIFT);
    z = activated(z);
    if constexpr (!GATE_BEFORE && TYPES[ROLE_GATE] != NONE)
        z *= silu_of(read<TYPES[ROLE_GATE]>(args, p, GATE));
    return z;
}

/* ---- Sums ------------------------------------------------------------------------------------- */

template <bool MOST> __device__ __forceinline__ double over_slices(double (*room)[THREADS], double v) {
    const int slice = threadIdx.x / LANES;
    room[0][threadIdx.x] = v;
    __syncthreads();
    for (int half = SLICES / 2; half > 0; half /= 2) {
        if (slice < half) {
            const double a = room[0][threadIdx.x], b = room[0][threadIdx.x + half * LANES];
            room[0][threadIdx.x] = MOST ? fmax(a, b) : a + b;
        }
        __syncthreads();
    }
    v = room[0][threadIdx.x % LANES];
    __syncthreads();
    return v;
}

__device__ __forceinline__ void find_moments(const axes_args &args, row_state &t, double (*room)[THREADS]) {
    const double n = (double)args.inner_size;
    const i64 end = t.there ? args.inner_size : 0;
    bool kept;
    double sum = 0, squares = 0;
    t.pivot = t.delta = 0;
    if (LAYER) {
        if (end > 0)
            t.pivot = sum_at(args, t, inner_place(args, t.at, 0), kept);
        for (i64 i = t.slice; i < end; i += SLICES)
            sum += sum_at(args, t, inner_place(args, t.at, i), kept) - t.pivot;
        t.delta = over_slices<false>(room, sum) / n;
        sum = 0;
    }
    for (i64 i = t.slice; i < end; i += SLICES) {
        const double s = sum_at(args, t, inner_place(args, t.at, i), kept);
        const double d = LAYER ? (s - t.pivot) - t.delta : s;
        sum += d;
        squares = multiply_add(d, d, squares);
    }
    sum = over_slices<false>(room, sum);
    squares = over_slices<false>(room, squares);
    if (LAYER) {
        const double rest = sum / n;
        squares = multiply_add(-sum, rest, squares);
        t.delta += rest;
    }
    if (squares < 0 || args.inner_size == 0)
        squares = 0;
    t.rstd = reciprocal_root(with_eps(squares / count_of(n), args.eps));
}

/* Elements begin to end, which share a scale. */
__device__ __forceinline__ void put_block(const axes_args &args, const row_state &t, double (*room)[THREADS],
                                          i64 number, i64 begin, i64 end, float &amax) {
    bool kept;
    float scale = 1;
    if constexpr (SCALES_TYPE != NONE) {
        float most = 0;
        for (i64 i = begin + t.slice; t.there && i < end; i += SLICES) {
            const place p = inner_place(args, t.at, i);
            most = larger_magnitude(most, y_at(args, t, p, sum_at(args, t, p, kept)));
        }
        most = (float)over_slices<true>(room, most);
        scale = scale_for<Q_TYPE, POWER_OF_TWO>(most, args.scale_least, args.scale_most);
        if (t.there && t.slice == 0) {
            char *to = (char *)args.data[Y_SCALES] + t.at.at[Y_SCALES] + number * args.scale_stride;
            if (SCALES_TYPE == E8M0)
                *to = (char)(__float_as_uint(scale) >> 23);
            else
                store_element<F32>(to, 0, scale);
        }
    } else if constexpr (TYPES[ROLE_Y_SCALE] != NONE) {
        scale = (float)load_element<F32>(args.y_scale, 0);
    }
    for (i64 i = begin + t.slice; t.there && i < end; i += SLICES) {
        const place p = inner_place(args, t.at, i);
        const double s = sum_at(args, t, p, kept), y = y_at(args, t, p, s);
        write<TYPES[ROLE_SUM]>(args, p, SUM, s);
        write<Y_TYPE>(args, p, Y, y);
        if (TYPES[ROLE_MASK] != NONE)
            ((char *)args.data[MASK])[p.at[MASK]] = kept;
        if constexpr (Q_TYPE != NONE)
            ((char *)args.data[Q])[p.at[Q]] = (char)quantized<Q_TYPE>(y, scale);
        amax = larger_magnitude(amax, y);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) planish_stages_general(const axes_args args) {
    __shared__ double room[1][THREADS];
    row_state t;
    float amax = 0;
    t.slice = threadIdx.x / LANES;
    wait_for_stream();
    if (DROPOUT)
        t.key = load_philox_key(args.rng);
    for (i64 first = (i64)blockIdx.x * LANES; first < args.outer_size; first += (i64)gridDim.x * LANES) {
        const i64 row = first + threadIdx.x % LANES;
        t.there = row < args.outer_size;
        t.at = outer_place(args, t.there ? row : 0);
        find_moments(args, t, room);
        if (t.there && t.slice == 0) {
            write<MEAN_TYPE>(args, t.at, MEAN, t.pivot + t.delta);
            write<RSTD_TYPE>(args, t.at, RSTD, t.rstd);
        }
        i64 begin = 0, number = 0;
        do { /* a row of no elements has a scale, too */
            const i64 end = args.block < args.inner_size - begin ? begin + args.block : args.inner_size;
            put_block(args, t, room, number, begin, end, amax);
            begin = end;
            number++;
        } while (begin < args.inner_size);
    }
    if (TYPES[ROLE_AMAX] != NONE && __float_as_uint(amax) > latest_word((const u32 *)args.amax))
        raise_to((u32 *)args.amax, __float_as_uint(amax));
    release_stream();
}

/* Before the other: what is to become a maximum. */
extern "C" __global__ void __launch_bounds__(THREADS) planish_stages_general_clear(const axes_args args) {
    wait_for_stream();
    if (threadIdx.x == 0)
        store_element<F32>(args.amax, 0, 0);
    release_stream();
}
