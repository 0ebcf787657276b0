/*
 * The forward of every problem: any axes, strides and dtypes, rows and elements past 2^32, with or without what
 * stands around the norm (planish.h). Right, and not fast: rows are read once for each step, elements one by one.
 * What the other kernels do not take.
 *
 * s, what the norm reads, is x, or is made of it in the type of the arithmetic (STAGES_DOUBLE: f64, else f32), each
 * step rounded, so that it has the bits that every kernel gives it; all behind it is f64. Nothing is written before
 * the last sweep over a row's block, in which each element is read and then written by one thread: outputs may be
 * inputs.
 *
 * planish_general_forward: PASS 0 forward, 3 statistics, 4 apply. Outer axes are those of rows, inner ones those of a
 * row's elements, with quantised blocks in the order in which these count.
 * planish_general_clear: before it, where a maximum is wanted.
 *
 * Constants: PASS KIND ACTIVATION STAGES_DOUBLE S_TYPE (what s is rounded to; NONE: it is not) GATE_BEFORE ROUND_XHAT
 * DROPOUT POWER_OF_TWO, and those of axes.cu. REAL_DOUBLE is 1.
 */
#include "../common/fusion.cu"
#include "../common/rule.cu"
#include "../stages/philox.cu"
#include "../stages/quantize.cu"

#include "axes.cu"

constexpr int Q_TYPE = TYPES[ROLE_Q], SCALES_TYPE = TYPES[ROLE_Y_SCALES];

template <bool WIDE> struct stage_type {
    typedef float type;
};
template <> struct stage_type<true> {
    typedef double type;
};
typedef stage_type<STAGES_DOUBLE != 0>::type stage_real;

template <int TYPE> __device__ __forceinline__ double rounded(double v) {
    if constexpr (TYPE == NONE)
        return v;
    else
        return element<TYPE>(pack<TYPE, 1>(&v).word, 0);
}

/* ---- Elements --------------------------------------------------------------------------------- */

/* The mean is a pair, pivot + delta, so that it is exact for rows of equal elements. */
struct row_moments {
    double pivot, delta, squares, rstd;
};

/* s of an element, and whether it was kept. */
__device__ __forceinline__ double sum_at(const axes_args &args, const place &p, const philox_key &key, bool &kept) {
    kept = true;
    if (DROPOUT)
        kept = kept_elements<1, 1>(key, (u64)p.at[INDEX], args.dropped);
    stage_real v = (stage_real)read<ROLE_X>(args, p);
    if constexpr (GATE_BEFORE && TYPES[ROLE_GATE] != NONE)
        v *= silu_of((stage_real)read<ROLE_GATE>(args, p));
    if constexpr (TYPES[ROLE_COLUMN_SCALE] != NONE)
        v *= (stage_real)read<ROLE_COLUMN_SCALE>(args, p);
    if constexpr (TYPES[ROLE_ROW_SCALE] != NONE)
        v *= (stage_real)read<ROLE_ROW_SCALE>(args, p);
    if (DROPOUT)
        v = kept ? v * (stage_real)args.keep_factor : 0;
    if constexpr (TYPES[ROLE_RESIDUAL] != NONE)
        v += (stage_real)read<ROLE_RESIDUAL>(args, p);
    return rounded<S_TYPE>((double)v);
}

/* y of an element whose s is known. */
__device__ __forceinline__ double y_at(const axes_args &args, const row_moments &m, const place &p, double s) {
    const double xhat = ((s - m.pivot) - m.delta) * m.rstd;
    const double w = weight_at(args, p), b = read<ROLE_BIAS>(args, p);
    double z;
    if constexpr (ROUND_XHAT) {
        z = rounded<X_TYPE>(xhat);
        if (WEIGHT_TYPE != NONE)
            z = rounded<X_TYPE>(z * w);
        z = BIAS_TYPE != NONE ? z + b : z;
    } else {
        z = affine_of_xhat<WEIGHT_TYPE != NONE, BIAS_TYPE != NONE, true>(xhat, w, b);
    }
    if constexpr (TYPES[ROLE_SCALE] != NONE)
        z *= 1 + read<ROLE_SCALE>(args, p);
    if constexpr (TYPES[ROLE_SHIFT] != NONE)
        z += read<ROLE_SHIFT>(args, p);
    z = activated(z);
    if constexpr (!GATE_BEFORE && TYPES[ROLE_GATE] != NONE)
        z *= silu_of(read<ROLE_GATE>(args, p));
    return z;
}

/* ---- Rows ------------------------------------------------------------------------------------- */

__device__ __forceinline__ row_moments moments_of(const axes_args &args, const thread_of_axes &t,
                                                  const philox_key &key, double (*room)[THREADS]) {
    const double n = (double)args.inner_size;
    const i64 end = t.there ? args.inner_size : 0;
    row_moments m = {0, 0, 0, 0};
    double v[2] = {0, 0};
    bool kept;
    if (LAYER) {
        if (end > 0)
            m.pivot = sum_at(args, inner_place(args, t.at, 0), key, kept);
        for (i64 i = t.slice; i < end; i += SLICES)
            v[0] += sum_at(args, inner_place(args, t.at, i), key, kept) - m.pivot;
        over_slices<1>(room, v);
        m.delta = v[0] / n;
    }
    v[0] = v[1] = 0;
    for (i64 i = t.slice; i < end; i += SLICES) {
        double d = sum_at(args, inner_place(args, t.at, i), key, kept);
        if (LAYER)
            d = (d - m.pivot) - m.delta;
        v[0] += d;
        v[1] = multiply_add(d, d, v[1]);
    }
    over_slices<2>(room, v);
    m.squares = v[1];
    if (LAYER) {
        const double rest = v[0] / n;
        m.squares = multiply_add(-v[0], rest, v[1]);
        m.delta += rest;
    }
    if (m.squares < 0 || args.inner_size == 0)
        m.squares = 0;
    m.rstd = reciprocal_root(with_eps(m.squares / count_of(n), args.eps));
    return m;
}

/* Elements begin to end, which share a scale, the row's `number`th. */
__device__ __forceinline__ void put_block(const axes_args &args, const thread_of_axes &t, const row_moments &m,
                                          const philox_key &key, double (*room)[THREADS], i64 number, i64 begin,
                                          i64 end, float &amax) {
    bool kept;
    float scale = 1;
    if constexpr (SCALES_TYPE != NONE) {
        float most = 0;
        for (i64 i = begin + t.slice; t.there && i < end; i += SLICES) {
            const place p = inner_place(args, t.at, i);
            most = larger_magnitude(most, y_at(args, m, p, sum_at(args, p, key, kept)));
        }
        double of_all = most;
        over_slices<1, true>(room, &of_all);
        scale = scale_for<Q_TYPE, POWER_OF_TWO>((float)of_all, args.scale_least, args.scale_most);
        if (t.there && t.slice == 0) {
            char *to = address<ROLE_Y_SCALES>(args, t.at) + number * args.scale_stride;
            if (SCALES_TYPE == E8M0)
                *to = (char)(__float_as_uint(scale) >> 23);
            else
                store_element<F32>(to, 0, scale);
        }
    } else if constexpr (TYPES[ROLE_Y_SCALE] != NONE) {
        scale = (float)load_element<F32>(tensor<ROLE_Y_SCALE>(args), 0);
    }
    for (i64 i = begin + t.slice; t.there && i < end; i += SLICES) {
        const place p = inner_place(args, t.at, i);
        const double s = sum_at(args, p, key, kept), y = y_at(args, m, p, s);
        write<ROLE_SUM>(args, p, s);
        write<ROLE_Y>(args, p, y);
        if constexpr (TYPES[ROLE_MASK] != NONE)
            *address<ROLE_MASK>(args, p) = kept;
        if constexpr (Q_TYPE != NONE)
            *address<ROLE_Q>(args, p) = (char)quantized<Q_TYPE>(y, scale);
        amax = larger_magnitude(amax, y);
    }
}

__device__ __forceinline__ void forward_row(const axes_args &args, const thread_of_axes &t, const philox_key &key,
                                            double (*room)[THREADS], float &amax) {
    row_moments m = {0, 0, 0, 0};
    if (PASS == 4) {
        m.pivot = read<ROLE_MEAN>(args, t.at);
        m.rstd = read<ROLE_RSTD>(args, t.at);
    } else {
        m = moments_of(args, t, key, room);
        if (t.there && t.slice == 0) {
            write<ROLE_MEAN>(args, t.at, m.pivot + m.delta);
            write<ROLE_RSTD>(args, t.at, m.rstd);
            write<ROLE_M2>(args, t.at, m.squares);
        }
    }
    if (PASS == 3)
        return;
    i64 begin = 0, number = 0;
    do { /* a row of no elements has a scale, too */
        const i64 end = args.block < args.inner_size - begin ? begin + args.block : args.inner_size;
        put_block(args, t, m, key, room, number, begin, end, amax);
        begin = end;
        number++;
    } while (begin < args.inner_size);
}

extern "C" __global__ void __launch_bounds__(THREADS) planish_general_forward(const axes_args args) {
    __shared__ double room[2][THREADS];
    philox_key key = {0, 0, 0, 0};
    float amax = 0;
    wait_for_stream();
    if constexpr (DROPOUT)
        key = load_philox_key(tensor<ROLE_RNG>(args));
    for (i64 first = (i64)blockIdx.x * LANES; first < args.outer_size; first += (i64)gridDim.x * LANES)
        forward_row(args, thread_at(args, first), key, room, amax);
    if constexpr (TYPES[ROLE_AMAX] != NONE) {
        u32 *const most = (u32 *)tensor<ROLE_AMAX>(args);
        if (__float_as_uint(amax) > latest_word(most))
            raise_to(most, __float_as_uint(amax));
    }
    release_stream();
}

extern "C" __global__ void __launch_bounds__(THREADS) planish_general_clear(const axes_args args) {
    wait_for_stream();
    if constexpr (TYPES[ROLE_AMAX] != NONE)
        if (threadIdx.x == 0)
            store_element<F32>(tensor<ROLE_AMAX>(args), 0, 0);
    release_stream();
}
