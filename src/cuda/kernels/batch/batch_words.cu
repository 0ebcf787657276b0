/*
 * A part of batch.cu: where rows and their elements are, what is known of a row, and the arithmetic of its moments.
 */
#include "../arguments/batch_args.h"
#include "../common/fusion.cu"
#include "../common/quotient.cu"
#include "../common/saved_mean.cu"

constexpr bool LAYER = KIND == 0;
constexpr bool FORWARD = PASS == 0, BACKWARD = PASS == 1, GIVEN = PASS == 4;
constexpr int THREADS = WARPS * WARP;
constexpr int PLANES = THREADS / LANES;      /* threads that share a row */
constexpr int COLUMNS = LAST ? WIDTH : 1;    /* rows of a thread */
constexpr int STEP_ELEMENTS = LAST ? 1 : WIDTH; /* of a row */
constexpr bool WIDE_RANGE = FORWARD && (X_TYPE == F32 || X_TYPE == BF16);
constexpr bool WEIGHTED = WEIGHT_TYPE != NONE;
constexpr bool BIASED = (!BACKWARD || ACTIVE) && BIAS_TYPE != NONE;
constexpr int OUT_TYPE = BACKWARD ? DX_TYPE : Y_TYPE, OUT_ACCESS = BACKWARD ? DX_ACCESS : Y_ACCESS;
constexpr int X_BYTES = WIDTH * bytes_of(X_TYPE), DY_BYTES = WIDTH * bytes_of(DY_TYPE);
constexpr int OUT_BYTES = WIDTH * bytes_of(OUT_TYPE);

extern __shared__ __align__(128) unsigned char dynamic_shared[];

/* ---- Places ----------------------------------------------------------------------------------- */

/* A row by the axes that number it. */
struct row_number {
    i64 outer, inner;
};

__device__ __forceinline__ row_number number_of(const batch_args &args, i64 row) {
    if (LAST || args.inner_rows >= args.rows)
        return {0, row};
    const i64 outer = row / args.inner_rows;
    return {outer, row - outer * args.inner_rows};
}
__device__ __forceinline__ i64 row_at(const batch_place &at, const row_number &n) {
    return n.outer * at.outer + n.inner * at.inner;
}

/* Bytes from a row's first element to those of a step. */
template <int TYPE> __device__ __forceinline__ i64 step_at(const batch_args &args, const batch_place &at, u32 step) {
    if (LAST)
        return (i64)step * at.run;
    const u32 run = args.run_steps > 1 ? (u32)quotient_of(args.run_divisor, step) : step;
    return (i64)run * at.run + (i64)(step - run * args.run_steps) * (WIDTH * bytes_of(TYPE));
}

__device__ __forceinline__ u32 least_of(u32 a, u32 b) { return a < b ? a : b; }

/* What a block works at: steps [begin, end) of some rows, of which a thread has COLUMNS from `row` on and every
 * PLANES-th step from the `plane`th. */
struct unit_place {
    i64 row;
    u32 piece, begin, end;
    int lane, plane;
    bool active;
};

__device__ __forceinline__ unit_place unit_of(const batch_args &args, i64 strips, i64 number) {
    unit_place p;
    const i64 piece = number / strips, strip = number - piece * strips;
    p.lane = threadIdx.x % LANES;
    p.plane = threadIdx.x / LANES;
    p.row = LAST ? (strip * LANES + p.lane) * WIDTH : strip;
    p.active = p.row < args.rows;
    p.piece = (u32)piece;
    p.begin = p.piece * args.piece;
    p.end = least_of(p.begin + args.piece, args.steps);
    return p;
}

/* The first elements of a thread's rows. */
struct row_bases {
    const char *x, *dy;
    char *out;
};

__device__ __forceinline__ row_bases bases_of(const batch_args &args, i64 row) {
    const row_number n = number_of(args, row);
    return {(const char *)args.x + row_at(args.x_at, n),
            BACKWARD ? (const char *)args.dy + row_at(args.dy_at, n) : nullptr,
            (char *)args.out + row_at(args.out_at, n)};
}

/* ---- What is known of a row ------------------------------------------------------------------- */

__device__ __forceinline__ real weight_of(const batch_args &args, const row_number &n) {
    if constexpr (!WEIGHTED) {
        return 1;
    } else {
        const real w = load_element<WEIGHT_TYPE>((const char *)args.weight + row_at(args.weight_at, n), 0);
        return WEIGHT_OFFSET ? w + (real)WEIGHT_OFFSET : w; /* adding 0 would change -0 */
    }
}
__device__ __forceinline__ real bias_of(const batch_args &args, const row_number &n) {
    if constexpr (!BIASED)
        return 0;
    else
        return load_element<BIAS_TYPE>((const char *)args.bias + row_at(args.bias_at, n), 0);
}

/* The moments that a pass is given. */
struct given_moments {
    stored_mean mean;
    stored_rstd rstd;
};

__device__ __forceinline__ given_moments given_of(const batch_args &args, const row_number &n) {
    given_moments g = {0, load_rstd((const char *)args.rstd + row_at(args.rstd_at, n))};
    if (LAYER)
        g.mean = load_mean((const char *)args.mean + row_at(args.mean_at, n));
    return g;
}

/*
 * What an element's output is made by. With d = x - mean, of which the mean's rest is part of the other constants,
 *
 *     z  = d * scale + offset                 y = f(z)
 *     g  = dy * f'(z)                         dx = (g - c1 - d * c2) * scale
 */
struct row_constants {
    real mean, scale, offset, c1, c2;
};

__device__ __forceinline__ real normal_of(real d, const row_constants &c) {
    return WEIGHTED || BIASED || LAYER ? multiply_add(d, c.scale, c.offset) : d * c.scale;
}

/* Of a row's mean, as a pair, and rstd. */
__device__ __forceinline__ row_constants constants_of(real mean, real rest, real rstd, real weight, real bias) {
    const real scale = rstd * weight;
    return {mean, scale, LAYER ? multiply_add(-rest, scale, bias) : bias, 0, 0};
}

/* Of the moments and parameters that a pass is given. */
__device__ __forceinline__ row_constants given_constants(const batch_args &args, const row_number &n) {
    const given_moments g = given_of(args, n);
    const real mean = (real)g.mean, rest = LAYER && MEAN_IS_EXACT ? (real)(g.mean - (stored_mean)mean) : 0;
    return constants_of(mean, rest, (real)g.rstd, weight_of(args, n), bias_of(args, n));
}

/* ---- Sums ------------------------------------------------------------------------------------- */

/*
 * Sums of a row, forward about a pivot: [0] of d, [1] of d * d. Backward, with d = x - mean: [0] of g, [1] of g * d,
 * and where the mean's rounding is to be found [2] of d.
 */
constexpr bool FIND_REST = BACKWARD && LAYER && CORRECT && !MEAN_IS_EXACT;
constexpr int SUMS = FORWARD ? 2 : FIND_REST ? 3 : 2;

/* From sums about p + d to sums about p, of n elements. */
__device__ __forceinline__ void shift(double d, double n, double &a, double &b) {
    const double shifted = multiply_add(n, d, a);
    b = multiply_add(d, a + shifted, b);
    a = shifted;
}

/* Whether a row's squares, which came to `b`, leave float's range. */
__device__ __forceinline__ bool leaves_range(const batch_args &args, double b) {
    return WIDE_RANGE && (!(b < 1e36) || (args.eps_is_small && b < 1e-28));
}

/* A row's constants by its sums about `pivot`; its moments are saved. */
__device__ __forceinline__ row_constants forward_constants(const batch_args &args, const row_number &n, double pivot,
                                                           const double *v, bool saves) {
    const double delta = LAYER ? v[0] / args.cols : 0;
    const double variance = (v[1] - delta * v[0]) / args.cols;
    const real mean = (real)(pivot + delta), rest = (real)((pivot - (double)mean) + delta);
    const real rstd = reciprocal_root((variance < 0 ? 0 : variance) + args.eps);
    if (saves) {
        if constexpr (LAYER && MEAN_TYPE != NONE)
            store_pair<MEAN_TYPE>((char *)args.mean + row_at(args.mean_at, n), mean, rest);
        store_element<RSTD_TYPE>((char *)args.rstd + row_at(args.rstd_at, n), 0, rstd);
    }
    return constants_of(mean, rest, rstd, weight_of(args, n), bias_of(args, n));
}

/* The same of a backward, whose sums of dweight and dbias are written. */
__device__ __forceinline__ row_constants backward_constants(const batch_args &args, const row_number &n,
                                                            const double *v, bool saves) {
    const given_moments g = given_of(args, n);
    const double rstd = (double)g.rstd;
    const double rest = LAYER ? (double)rest_of_mean(g.mean, FIND_REST ? (real)(v[2] / args.cols) : 0) : 0;
    row_constants c = constants_of((real)g.mean, (real)rest, (real)g.rstd, weight_of(args, n), bias_of(args, n));
    const double product = v[1] - rest * v[0], c2 = product / args.cols * rstd * rstd;
    c.c2 = (real)c2;
    c.c1 = LAYER ? (real)(v[0] / args.cols - rest * c2) : 0;
    if (saves && WANT_DWEIGHT)
        store_element<DWEIGHT_TYPE>((char *)args.dweight + row_at(args.dweight_at, n), 0, (real)(product * rstd));
    if (saves && WANT_DBIAS)
        store_element<DBIAS_TYPE>((char *)args.dbias + row_at(args.dbias_at, n), 0, (real)v[0]);
    return c;
}
