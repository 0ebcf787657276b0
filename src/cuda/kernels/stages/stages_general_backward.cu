/*
 * The backward of a norm with stages around it (planish.h), over any axes, strides and dtypes. Right, and
 * not fast: elements are read one by one, once for each step, and all arithmetic is f64. For what the
 * kernels of rows do not take.
 *
 * planish_stages_back_rows: of each row what the others need: the distance `delta` of its exact mean from the
 * one given, where that can be a rounding (saved_mean.cu), and the means c1 of g and c2 of g * xhat.
 * planish_stages_back_columns: sums over the axes that the results of TARGET have not: COLUMNS_AFFINE dweight
 * and dbias, COLUMNS_SCALED dcolumn_scale, COLUMNS_MODULATED dscale and dshift.
 * planish_stages_back_elements: dx, dresidual, dgate. It comes last: they may be the inputs themselves.
 *
 * Lists of axes, LANES and SLICES are as in general.cu: an index of the outer axes names a row, or an
 * element of the results of TARGET, or any element.
 *
 * Constants: KIND ACTIVATION LANES SLICES WARPS WEIGHT_OFFSET TARGET GATED (0 none, 1 after, 2 before the
 * norm) DROPS (dropout) SINGLE (what FORWARD computes with is f32), and the dtypes. REAL_DOUBLE is 1.
 */
#include "../arguments/stages_general_args.h"

/* The tensors, as the arguments count them. */
#define ENUMERATOR(role) role,
enum { EACH_STAGES_GENERAL_BACKWARD_TENSOR(ENUMERATOR) ROW, INDEX, ROLES };
typedef stages_general_backward_args axes_args;
enum { COLUMNS_AFFINE, COLUMNS_SCALED, COLUMNS_MODULATED };
enum { NO_GATE, GATE_AFTER, GATE_BEFORE };

constexpr int ROW_SCALE_TYPE = TYPES[ROLE_ROW_SCALE], COLUMN_SCALE_TYPE = TYPES[ROLE_COLUMN_SCALE];
constexpr int SCALE_TYPE = TYPES[ROLE_SCALE], SHIFT_TYPE = TYPES[ROLE_SHIFT], GATE_TYPE = TYPES[ROLE_GATE];
constexpr int BRANCH_TYPE = TYPES[ROLE_BRANCH], DRESIDUAL_TYPE = TYPES[ROLE_DRESIDUAL];
constexpr int DSCALE_TYPE = TYPES[ROLE_DSCALE], DSHIFT_TYPE = TYPES[ROLE_DSHIFT];
constexpr int DGATE_TYPE = TYPES[ROLE_DGATE], DCOLUMN_SCALE_TYPE = TYPES[ROLE_DCOLUMN_SCALE];

#include "../common/activation.cu"
#include "../common/saved_mean.cu"
#include "philox.cu"
#include "stages_gate.cu"

#include "../common/rule.cu"
constexpr int THREADS = WARPS * WARP;

/* ---- Places ----------------------------------------------------------------------------------- */

#include "../general/axes.cu"

/* ---- An element -------------------------------------------------------------------------------- */

struct row_facts {
    double mean, rstd, delta, c1, c2;
};

__device__ __forceinline__ row_facts facts_of(const axes_args &args, const place &p, bool whole) {
    row_facts f;
    f.mean = LAYER ? read<MEAN_TYPE>(args, p, MEAN) : 0;
    f.rstd = read<RSTD_TYPE>(args, p, RSTD);
    f.delta = f.c1 = f.c2 = 0;
    if (whole) {
        const char *at = (const char *)args.data[ROW] + p.at[ROW];
        f.delta = load_element<F64>(at, 0);
        f.c1 = load_element<F64>(at, 1);
        f.c2 = load_element<F64>(at, 2);
    }
    return f;
}

/* As FORWARD rounds what it makes s of. */
__device__ __forceinline__ double rounded(double v) { return SINGLE ? (double)(float)v : v; }

/* What x is multiplied by: `plain` without column_scale and gate. */
struct multiples {
    bool keep;
    double column, row, kept, gate;

    __device__ __forceinline__ double plain(double v) const { return keep ? v * row * kept : 0; }
};

__device__ __forceinline__ multiples multiples_of(const axes_args &args, const place &p) {
    multiples f = {true, 1, 1, 1, 1};
    f.column = read<COLUMN_SCALE_TYPE>(args, p, COLUMN_SCALE, 1);
    f.row = read<ROW_SCALE_TYPE>(args, p, ROW_SCALE, 1);
    if (DROPS) {
        f.kept = args.kept;
        f.keep = kept_elements<1, 1>(load_philox_key(args.rng), (u64)p.at[INDEX], args.drop_below) != 0;
    }
    if (GATED == GATE_BEFORE)
        f.gate = rounded(silu_of(read<GATE_TYPE>(args, p, GATE)));
    return f;
}

/* What the norm read. */
__device__ __forceinline__ double sum_at(const axes_args &args, const place &p) {
    const double x = read<X_TYPE>(args, p, X);
    if (GATED != GATE_BEFORE)
        return x;
    const multiples f = multiples_of(args, p);
    double u = rounded(x * f.gate);
    if (COLUMN_SCALE_TYPE != NONE)
        u = rounded(u * f.column);
    if (ROW_SCALE_TYPE != NONE)
        u = rounded(u * f.row);
    if (DROPS)
        u = f.keep ? rounded(u * f.kept) : 0;
    return u;
}

struct gradients {
    double xhat, z, dm, dz, g;
    double dgate; /* of a gate behind the norm */
};

__device__ __forceinline__ gradients gradients_of(const axes_args &args, const place &p, const row_facts &f) {
    gradients e;
    double w = read<WEIGHT_TYPE>(args, p, WEIGHT, 1);
    if (WEIGHT_TYPE != NONE && WEIGHT_OFFSET)
        w += WEIGHT_OFFSET;
    const double up = 1 + read<SCALE_TYPE>(args, p, SCALE);
    double s = sum_at(args, p);
    if (LAYER)
        s = (s - f.mean) - f.delta;
    e.xhat = s * f.rstd;
    e.z = multiply_add(e.xhat, w, read<BIAS_TYPE>(args, p, BIAS));
    const double m = multiply_add(e.z, up, read<SHIFT_TYPE>(args, p, SHIFT));
    double dy = read<DY_TYPE>(args, p, DY);
    e.dgate = 0;
    if (GATED == GATE_AFTER) {
        const double gate = read<GATE_TYPE>(args, p, GATE);
        e.dgate = dy * activated(m) * gate_slope(gate);
        dy *= silu_of(gate);
    }
    e.dm = through_activation(dy, m);
    e.dz = e.dm * up;
    e.g = e.dz * w;
    return e;
}

/* The gradient of s. */
__device__ __forceinline__ double gradient_of_sum(const axes_args &args, const place &p, const row_facts &f,
                                                  const gradients &e) {
    return f.rstd * (e.g - f.c1 - e.xhat * f.c2) + read<DSUM_TYPE>(args, p, DSUM);
}

/* ---- Rows -------------------------------------------------------------------------------------- */

/* Sums over the slices of a block; all threads of a lane get them. */
template <int COUNT> __device__ __forceinline__ void add_slices(double (*room)[THREADS], double *v) {
    const int slice = threadIdx.x / LANES;
#pragma unroll
    for (int j = 0; j < COUNT; j++)
        room[j][threadIdx.x] = v[j];
    __syncthreads();
    for (int half = SLICES / 2; half > 0; half /= 2) {
        if (slice < half)
#pragma unroll
            for (int j = 0; j < COUNT; j++)
                room[j][threadIdx.x] += room[j][threadIdx.x + half * LANES];
        __syncthreads();
    }
#pragma unroll
    for (int j = 0; j < COUNT; j++)
        v[j] = room[j][threadIdx.x % LANES];
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS) planish_stages_back_rows(const axes_args args) {
    __shared__ double room[2][THREADS];
    const int slice = threadIdx.x / LANES;
    const double n = (double)args.inner_size;
    wait_for_stream();
    for (i64 first = (i64)blockIdx.x * LANES; first < args.outer_size; first += (i64)gridDim.x * LANES) {
        const i64 index = first + threadIdx.x % LANES;
        const bool there = index < args.outer_size;
        const place row = outer_place(args, there ? index : 0);
        const i64 end = there ? args.inner_size : 0;
        row_facts f = facts_of(args, row, false);
        double v[2] = {0, 0};
        if (LAYER) {
            for (i64 i = slice; i < end; i += SLICES)
                v[0] += sum_at(args, inner_place(args, row, i)) - f.mean;
            add_slices<1>(room, v);
            f.delta = is_rounding<double>(v[0] / n, f.mean, 1) ? v[0] / n : 0;
        }
        v[0] = v[1] = 0;
        for (i64 i = slice; i < end; i += SLICES) {
            const gradients e = gradients_of(args, inner_place(args, row, i), f);
            v[0] += e.g;
            v[1] = multiply_add(e.g, e.xhat, v[1]);
        }
        add_slices<2>(room, v);
        if (there && slice == 0) {
            char *to = (char *)args.data[ROW] + row.at[ROW];
            store_element<F64>(to, 0, f.delta);
            store_element<F64>(to, 1, LAYER ? v[0] / n : 0);
            store_element<F64>(to, 2, c2_of(v[1] / count_of(n), f.rstd, args.clamped));
        }
    }
    release_stream();
}

/* ---- Columns ----------------------------------------------------------------------------------- */

extern "C" __global__ void __launch_bounds__(THREADS) planish_stages_back_columns(const axes_args args) {
    __shared__ double room[2][THREADS];
    wait_for_stream();
    for (i64 first = (i64)blockIdx.x * LANES; first < args.outer_size; first += (i64)gridDim.x * LANES) {
        const i64 column = first + threadIdx.x % LANES;
        const bool there = column < args.outer_size;
        const place outer = outer_place(args, there ? column : 0);
        double v[2] = {0, 0};
        for (i64 i = threadIdx.x / LANES; there && i < args.inner_size; i += SLICES) {
            const place p = inner_place(args, outer, i);
            const row_facts f = facts_of(args, p, true);
            const gradients e = gradients_of(args, p, f);
            if (TARGET == COLUMNS_AFFINE) {
                v[0] = multiply_add(e.dz, e.xhat, v[0]);
                v[1] += e.dz;
            } else if (TARGET == COLUMNS_MODULATED) {
                v[0] = multiply_add(e.dm, e.z, v[0]);
                v[1] += e.dm;
            } else {
                const multiples m = multiples_of(args, p);
                v[0] += m.plain(gradient_of_sum(args, p, f, e) * read<BRANCH_TYPE>(args, p, BRANCH) * m.gate);
            }
        }
        add_slices<2>(room, v);
        if (there && threadIdx.x < LANES) {
            if (TARGET == COLUMNS_AFFINE) {
                write<DWEIGHT_TYPE>(args, outer, DWEIGHT, v[0]);
                write<DBIAS_TYPE>(args, outer, DBIAS, v[1]);
            } else if (TARGET == COLUMNS_MODULATED) {
                write<DSCALE_TYPE>(args, outer, DSCALE, v[0]);
                write<DSHIFT_TYPE>(args, outer, DSHIFT, v[1]);
            } else {
                write<DCOLUMN_SCALE_TYPE>(args, outer, DCOLUMN_SCALE, v[0]);
            }
        }
    }
    release_stream();
}

/* ---- Elements ---------------------------------------------------------------------------------- */

extern "C" __global__ void __launch_bounds__(THREADS) planish_stages_back_elements(const axes_args args) {
    wait_for_stream();
    for (i64 i = (i64)blockIdx.x * THREADS + threadIdx.x; i < args.outer_size; i += (i64)gridDim.x * THREADS) {
        const place p = outer_place(args, i);
        const row_facts f = facts_of(args, p, true);
        const gradients e = gradients_of(args, p, f);
        const double ds = gradient_of_sum(args, p, f, e);
        const multiples m = multiples_of(args, p);
        double dgate = e.dgate;
        if (GATED == GATE_BEFORE && DGATE_TYPE != NONE)
            dgate = m.plain(ds * read<X_TYPE>(args, p, X) * gate_slope(read<GATE_TYPE>(args, p, GATE)) * m.column);
        write<DRESIDUAL_TYPE>(args, p, DRESIDUAL, ds);
        write<DX_TYPE>(args, p, DX, m.plain(ds * m.gate * m.column));
        write<DGATE_TYPE>(args, p, DGATE, dgate);
    }
    release_stream();
}
