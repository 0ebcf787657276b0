/*
 * Every pass over every problem: any axes, strides and dtypes, rows and elements past 2^32. Right,
 * and not fast: rows are read once for each step, elements one by one, and all arithmetic is f64.
 * For what the row kernels do not take.
 *
 * Two lists of axes: outer ones, an index of which names a row (planish_general_rows) or an element
 * of weight (planish_general_columns, planish_general_finish), and inner ones, which are summed over.
 * LANES neighbouring threads take neighbouring outer indices, 1 or WARP of them, and the SLICES slices
 * of a block take every SLICES-th inner index; so whichever list has the stride of 1 can be read in
 * one piece. Sums over the slices are a tree in shared memory: the order is fixed.
 *
 * planish_general_rows: PASS 0 forward, 1 backward, 2 backward from y, 3 statistics, 4 apply, 5 statistics
 * of a backward, which writes c1 and c2; a backward that is given them only reads. In the other backward
 * passes it writes dx (unless DX_TYPE is NONE) and, for the columns, the distance `delta` of
 * each row's exact mean from the one given, where that can be a rounding (saved_mean.cu), or 0.
 * planish_general_columns: sums of dy * xhat and of dy; blockIdx.y takes every gridDim.y-th of the
 * blocks' turns and writes a row of partial sums.
 * planish_general_finish: adds those up in their order.
 *
 * Constants: PASS KIND ACTIVATION LANES SLICES WARPS WEIGHT_OFFSET, and the dtypes X_TYPE Y_TYPE DY_TYPE
 * DX_TYPE WEIGHT_TYPE BIAS_TYPE MEAN_TYPE RSTD_TYPE M2_TYPE DWEIGHT_TYPE DBIAS_TYPE (NONE: absent), and TYPES of
 * c1 and c2. REAL_DOUBLE is 1.
 */
#include "../arguments/general_args.h"

/* The tensors, as the arguments count them. */
enum {
    X = ROLE_X, WEIGHT = ROLE_WEIGHT, BIAS = ROLE_BIAS, Y = ROLE_Y, MEAN = ROLE_MEAN, RSTD = ROLE_RSTD, M2 = ROLE_M2,
    DY = ROLE_DY, DX = ROLE_DX, DWEIGHT = ROLE_DWEIGHT, DBIAS = ROLE_DBIAS, DELTA = GENERAL_DELTA,
    C1 = GENERAL_C1, C2 = GENERAL_C2,
    ROLES = GENERAL_TENSORS
};
typedef general_args axes_args;

#include "../common/fusion.cu"
#include "../common/saved_mean.cu"

#include "../common/rule.cu"
constexpr int C1_TYPE = TYPES[ROLE_C1], C2_TYPE = TYPES[ROLE_C2];
/* The halves of a backward; GIVEN: c1 and c2 are. */
constexpr bool FROM_Y = PASS == 2, MAKES_C = PASS == 5, GIVEN = PASS == 1 && C2_TYPE != NONE;
constexpr int THREADS = WARPS * WARP;
/* What stands for x: in the pass from y that is y. */
constexpr int IN = FROM_Y ? Y : X;
constexpr int IN_TYPE = FROM_Y ? Y_TYPE : X_TYPE;

/* ---- Places ----------------------------------------------------------------------------------- */

#include "axes.cu"

__device__ __forceinline__ double weight_at(const axes_args &args, const place &p) {
    if (WEIGHT_TYPE == NONE)
        return 1;
    double w = read<WEIGHT_TYPE>(args, p, WEIGHT);
    return WEIGHT_OFFSET ? w + WEIGHT_OFFSET : w; /* adding 0 would change -0 */
}

/* ---- Sums ------------------------------------------------------------------------------------- */

/* Sums over the slices of a block; all threads of a lane get them. */
template <int COUNT>
__device__ __forceinline__ void add_slices(double (*room)[THREADS], double *v) {
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

/* ---- Rows ------------------------------------------------------------------------------------- */

struct thread_of_row {
    bool there;
    int slice;
    place row;
};

/* The mean is a pair, pivot + delta, so that it is exact for rows of equal elements. */
struct row_moments {
    double pivot, delta, squares;
};

__device__ __forceinline__ row_moments moments_of(const axes_args &args, const thread_of_row &t,
                                                  double (*room)[THREADS]) {
    const double n = (double)args.inner_size;
    const i64 end = t.there ? args.inner_size : 0;
    row_moments m = {0, 0, 0};
    double v[2] = {0, 0};
    if (LAYER) {
        if (end > 0)
            m.pivot = read<X_TYPE>(args, inner_place(args, t.row, 0), X);
        for (i64 i = t.slice; i < end; i += SLICES)
            v[0] += read<X_TYPE>(args, inner_place(args, t.row, i), X) - m.pivot;
        add_slices<1>(room, v);
        m.delta = v[0] / n;
    }
    v[0] = v[1] = 0;
    for (i64 i = t.slice; i < end; i += SLICES) {
        double d = read<X_TYPE>(args, inner_place(args, t.row, i), X);
        if (LAYER)
            d = (d - m.pivot) - m.delta;
        v[0] += d;
        v[1] = multiply_add(d, d, v[1]);
    }
    add_slices<2>(room, v);
    m.squares = v[1];
    if (LAYER) {
        double rest = v[0] / n;
        m.squares = multiply_add(-v[0], rest, v[1]);
        m.delta += rest;
    }
    if (m.squares < 0 || args.inner_size == 0)
        m.squares = 0;
    return m;
}

/* Forward, statistics and apply. */
__device__ __forceinline__ void forward_row(const axes_args &args, const thread_of_row &t,
                                            double (*room)[THREADS]) {
    row_moments m = {0, 0, 0};
    double rstd = 0;
    if (PASS == 4) {
        if (t.there) {
            m.pivot = read<MEAN_TYPE>(args, t.row, MEAN);
            rstd = read<RSTD_TYPE>(args, t.row, RSTD);
        }
    } else {
        m = moments_of(args, t, room);
        rstd = reciprocal_root(with_eps(m.squares / count_of((double)args.inner_size), args.eps));
        if (t.there && t.slice == 0) {
            write<MEAN_TYPE>(args, t.row, MEAN, m.pivot + m.delta);
            write<RSTD_TYPE>(args, t.row, RSTD, rstd);
            write<M2_TYPE>(args, t.row, M2, m.squares);
        }
    }
    if (PASS == 3 || !t.there)
        return;
    for (i64 i = t.slice; i < args.inner_size; i += SLICES) {
        place p = inner_place(args, t.row, i);
        const double xhat = ((read<X_TYPE>(args, p, X) - m.pivot) - m.delta) * rstd;
        const double w = weight_at(args, p), b = read<BIAS_TYPE>(args, p, BIAS);
        write<Y_TYPE>(args, p, Y, epilogue<WEIGHT_TYPE != NONE, BIAS_TYPE != NONE, true>(xhat, w, b));
    }
}

/* x - mean; from y: xhat, 0 where y holds no digit of it. */
__device__ __forceinline__ double distance(const axes_args &args, const place &p, double mean) {
    double v = read<IN_TYPE>(args, p, IN);
    if (!FROM_Y)
        return LAYER ? v - mean : v;
    constexpr double ULP = Y_TYPE == F64    ? 0x1p-52
                           : Y_TYPE == F32  ? 0x1p-23
                           : Y_TYPE == BF16 ? 0x1p-7
                                            : 0x1p-10;
    double w = weight_at(args, p), b = read<BIAS_TYPE>(args, p, BIAS);
    return w == 0 || fabs(w) <= ULP * fabs(b) ? 0 : (v - b) / w;
}

/* An element of dy as it comes to the norm, through the activation behind it. */
__device__ __forceinline__ double gradient_at(const axes_args &args, const place &p, double xhat) {
    const double dy = read<DY_TYPE>(args, p, DY);
    if (!ACTIVE)
        return dy;
    return through_activation(dy, xhat * weight_at(args, p) + read<BIAS_TYPE>(args, p, BIAS));
}

__device__ __forceinline__ void backward_row(const axes_args &args, const thread_of_row &t,
                                             double (*room)[THREADS]) {
    const double n = (double)args.inner_size;
    const i64 end = t.there ? args.inner_size : 0;
    double mean = 0, rstd = 0, v[3] = {0, 0, 0}; /* of g, of g * d, of d */
    if (t.there) {
        mean = read<MEAN_TYPE>(args, t.row, MEAN);
        rstd = read<RSTD_TYPE>(args, t.row, RSTD);
    }
    /* An activation wants the exact mean before the sums; else it is found beside them. */
    double known = 0;
    if (ACTIVE && LAYER) {
        for (i64 i = t.slice; i < end; i += SLICES)
            known += distance(args, inner_place(args, t.row, i), mean);
        add_slices<1>(room, &known);
        known = is_rounding<double>(known / n, mean, 1) ? known / n : 0;
    }
    for (i64 i = t.slice; i < end; i += SLICES) {
        place p = inner_place(args, t.row, i);
        double d = distance(args, p, mean) - known;
        double g = gradient_at(args, p, d * rstd) * weight_at(args, p);
        v[0] += g;
        v[1] = multiply_add(g, d, v[1]);
        v[2] += d;
    }
    add_slices<3>(room, v);
    const double found = LAYER && !FROM_Y && !ACTIVE ? v[2] / n : 0, factor = FROM_Y ? 1 : rstd;
    const double delta = is_rounding<double>(found, mean, 1) ? found : 0;
    const double c1 = LAYER ? v[0] / n : 0;
    const double c2 = c2_of(multiply_add(-delta, v[0], v[1]) / count_of(n) * factor, rstd, args.clamped);
    if (DX_TYPE == NONE) {
        if (t.there && t.slice == 0)
            write<F64>(args, t.row, DELTA, known + delta);
        return;
    }
    for (i64 i = t.slice; i < end; i += SLICES) {
        place p = inner_place(args, t.row, i);
        const double d = distance(args, p, mean) - known, xhat = (d - delta) * factor;
        double g = gradient_at(args, p, d * rstd) * weight_at(args, p);
        write<DX_TYPE>(args, p, DX, rstd * (g - c1 - xhat * c2));
    }
}

/* The mean is the whole row's, and its digits are all there: nothing is mended. */
__device__ __forceinline__ void statistics_of_backward(const axes_args &args, const thread_of_row &t,
                                            double (*room)[THREADS]) {
    const i64 end = t.there ? args.inner_size : 0;
    double mean = 0, rstd = 0, v[2] = {0, 0};
    if (t.there) {
        mean = read<MEAN_TYPE>(args, t.row, MEAN);
        rstd = read<RSTD_TYPE>(args, t.row, RSTD);
    }
    for (i64 i = t.slice; i < end; i += SLICES) {
        place p = inner_place(args, t.row, i);
        const double g = read<DY_TYPE>(args, p, DY) * weight_at(args, p);
        v[0] += g;
        v[1] = multiply_add(g, distance(args, p, mean) * rstd, v[1]);
    }
    add_slices<2>(room, v);
    if (t.there && t.slice == 0) {
        const double inverse = args.inner_size ? 1.0 / count_of((double)args.inner_size) : 0;
        write<C1_TYPE>(args, t.row, C1, v[0] * inverse);
        write<C2_TYPE>(args, t.row, C2, c2_of(v[1] * inverse, rstd, args.clamped));
    }
}

__device__ __forceinline__ void apply_given(const axes_args &args, const thread_of_row &t) {
    if (!t.there)
        return;
    const double mean = read<MEAN_TYPE>(args, t.row, MEAN), rstd = read<RSTD_TYPE>(args, t.row, RSTD);
    const double c1 = read<C1_TYPE>(args, t.row, C1), c2 = read<C2_TYPE>(args, t.row, C2);
    for (i64 i = t.slice; i < args.inner_size; i += SLICES) {
        place p = inner_place(args, t.row, i);
        const double xhat = distance(args, p, mean) * rstd;
        const double g = read<DY_TYPE>(args, p, DY) * weight_at(args, p);
        write<DX_TYPE>(args, p, DX, rstd * (g - c1 - xhat * c2));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) planish_general_rows(const axes_args args) {
    __shared__ double room[3][THREADS];
    thread_of_row t;
    t.slice = threadIdx.x / LANES;
    wait_for_stream();
    for (i64 first = (i64)blockIdx.x * LANES; first < args.outer_size;
         first += (i64)gridDim.x * LANES) {
        const i64 row = first + threadIdx.x % LANES;
        t.there = row < args.outer_size;
        t.row = outer_place(args, t.there ? row : 0);
        if constexpr (MAKES_C)
            statistics_of_backward(args, t, room);
        else if constexpr (GIVEN)
            apply_given(args, t);
        else if constexpr (PASS == 1 || PASS == 2)
            backward_row(args, t, room);
        else
            forward_row(args, t, room);
    }
    release_stream();
}

/* ---- Columns ---------------------------------------------------------------------------------- */

extern "C" __global__ void __launch_bounds__(THREADS)
    planish_general_columns(const axes_args args) {
    __shared__ double room[2][THREADS];
    const i64 turn = (i64)gridDim.y * SLICES;
    wait_for_stream();
    for (i64 first = (i64)blockIdx.x * LANES; first < args.outer_size;
         first += (i64)gridDim.x * LANES) {
        const i64 column = first + threadIdx.x % LANES;
        const bool there = column < args.outer_size;
        const place outer = outer_place(args, there ? column : 0);
        double v[2] = {0, 0};
        for (i64 i = (i64)blockIdx.y * SLICES + threadIdx.x / LANES; there && i < args.inner_size;
             i += turn) {
            place p = inner_place(args, outer, i);
            double xhat = 0;
            if (DWEIGHT_TYPE != NONE || ACTIVE) {
                xhat = distance(args, p, read<MEAN_TYPE>(args, p, MEAN));
                if (LAYER && PASS == 1 && !GIVEN)
                    xhat -= read<F64>(args, p, DELTA);
                if (!FROM_Y)
                    xhat *= read<RSTD_TYPE>(args, p, RSTD);
            }
            const double g = gradient_at(args, p, xhat);
            v[1] += g;
            v[0] = multiply_add(g, xhat, v[0]);
        }
        add_slices<2>(room, v);
        if (there && threadIdx.x < LANES) {
            args.partials[(i64)blockIdx.y * args.outer_size + column] = v[0];
            args.partials[((i64)gridDim.y + blockIdx.y) * args.outer_size + column] = v[1];
        }
    }
    release_stream();
}

extern "C" __global__ void __launch_bounds__(THREADS)
    planish_general_finish(const axes_args args) {
    wait_for_stream();
    for (i64 column = (i64)blockIdx.x * THREADS + threadIdx.x; column < args.outer_size;
         column += (i64)gridDim.x * THREADS) {
        const double *from = args.partials + column;
        double weight = 0, bias = 0;
        for (i64 part = 0; part < args.parts; part++) {
            weight += from[part * args.outer_size];
            bias += from[(args.parts + part) * args.outer_size];
        }
        place p = outer_place(args, column);
        write<DWEIGHT_TYPE>(args, p, DWEIGHT, weight);
        write<DBIAS_TYPE>(args, p, DBIAS, bias);
    }
    release_stream();
}
