/*
 * What the kernels of groups of channels share: arguments, weights, saved moments and the arithmetic
 * of a row's moments. Included by groups.cu and strips.cu, whose constants it uses.
 */
#include "../arguments/group_args.h"
#include "../common/fusion.cu"
#include "../common/saved_mean.cu"

#include "../common/rule.cu"
constexpr bool FORWARD = PASS == 0;
constexpr int THREADS = WARPS * WARP;
constexpr bool WIDE_RANGE = FORWARD && (X_TYPE == F32 || X_TYPE == BF16);
constexpr bool WEIGHTED = WEIGHT_TYPE != NONE;
constexpr bool BIASED = (FORWARD || ACTIVE) && BIAS_TYPE != NONE;
/* What goes into an activation is made again by the mean with all its digits. */
constexpr bool EXACT_MEAN = !FORWARD && ACTIVE && LAYER && MEAN_TYPE == F64 && !SHORT_RESULTS;
/* The rest of a mean is taken from x, or from what its elements come to. */
constexpr bool HAS_REST = EXACT_MEAN || (!FORWARD && LAYER && CORRECT && MEAN_IS_EXACT);
/* dsum, the gradient that comes by the residual stream, is added to dx before that is rounded. Until then dx is of
 * f32, which DX_TYPE says, with the digits and the arithmetic of that; what is written is dresidual's dtype. */
constexpr bool HAS_DSUM = !FORWARD && DSUM_TYPE != NONE;
constexpr int OUT_TYPE = FORWARD ? Y_TYPE : HAS_DSUM ? TYPES[ROLE_DRESIDUAL] : DX_TYPE;
constexpr int OUT_ACCESS = FORWARD ? Y_ACCESS : HAS_DSUM ? ACCESSES[ROLE_DRESIDUAL] : DX_ACCESS;
constexpr i64 ROW = (i64)DEPTH * PIXELS;
constexpr int X_BYTES = WIDTH * bytes_of(X_TYPE), DY_BYTES = WIDTH * bytes_of(DY_TYPE);
constexpr int OUT_BYTES = WIDTH * bytes_of(OUT_TYPE);
constexpr int DSUM_BYTES = WIDTH * bytes_of(DSUM_TYPE);

/* On a line of 128 bytes, whatever other shared variables a kernel has: copies of whole sectors to the middle
 * of others are slower. */
extern __shared__ __align__(128) unsigned char dynamic_shared[];

/* An element as it is in memory: nothing waits for it before it is made a float. */
template <int TYPE>
__device__ __forceinline__ chunk<bytes_of(TYPE)> load_as_is(const void *base, i64 index) {
    constexpr int B = bytes_of(TYPE);
    return load_chunk<B, B>((const char *)base + index * B);
}

__device__ __forceinline__ float weight_from(const chunk<bytes_of(WEIGHT_TYPE)> &c) {
    if constexpr (!WEIGHTED) {
        return 1;
    } else {
        const float w = element<WEIGHT_TYPE>(c.word, 0);
        return WEIGHT_OFFSET ? w + (float)WEIGHT_OFFSET : w; /* adding 0 would change -0 */
    }
}
__device__ __forceinline__ float weight_of(const groups_args &args, i64 channel) {
    if constexpr (!WEIGHTED)
        return 1;
    else
        return weight_from(load_as_is<WEIGHT_TYPE>(args.weight, channel));
}
__device__ __forceinline__ float bias_of(const groups_args &args, i64 channel) {
    if constexpr (!BIASED)
        return 0;
    else
        return element<BIAS_TYPE>(load_as_is<BIAS_TYPE>(args.bias, channel).word, 0);
}

constexpr bool MEANS_SAVED = LAYER && MEAN_TYPE != NONE;

/* The saved moments of a row; rest: what a float leaves of its mean. */
__device__ __forceinline__ float saved_mean(const groups_args &args, i64 row) {
    if constexpr (!MEANS_SAVED)
        return 0;
    else
        return load_element<MEAN_TYPE>((const char *)args.mean + row * args.mean_stride, 0);
}
__device__ __forceinline__ float saved_rest(const groups_args &args, i64 row) {
    if constexpr (HAS_REST)
        return rest_of(load_as_is<F64>((const char *)args.mean + row * args.mean_stride, 0));
    else
        return 0;
}
__device__ __forceinline__ float saved_rstd(const groups_args &args, i64 row) {
    return load_element<RSTD_TYPE>((const char *)args.rstd + row * args.rstd_stride, 0);
}

/* An element of x less its row's mean. */
__device__ __forceinline__ float less_mean(float x, float mean, float rest) {
    if (LAYER)
        x -= mean;
    if (LAYER && (FORWARD || EXACT_MEAN))
        x -= rest;
    return x;
}

/* An element of dy as it comes to the norm, through the activation behind it. */
__device__ __forceinline__ float gradient_behind(float dy, float xhat, float weight, float bias) {
    return ACTIVE ? through_activation(dy, multiply_add(xhat, weight, bias)) : dy;
}

/* Whether that takes the place of dy in shared memory once it is found, for dx to find it there: where its dtype
 * takes no digit from dx, nor range. */
constexpr bool KEPT = ACTIVATION == SILU && DX_TYPE == DY_TYPE && (DY_TYPE == F32 || DY_TYPE == BF16);

/* Moves the pivot of the sums of n elements from p + d to p. */
template <typename T> __device__ __forceinline__ void move_pivot(T d, T n, T &a, T &b) {
    T moved = multiply_add(n, d, a);
    b = multiply_add(d, a + moved, b);
    a = moved;
}

/* Whether a row's squares, which came to `b`, leave float's range: they want to be summed again,
 * scaled. */
__device__ __forceinline__ bool leaves_range(const groups_args &args, double b) {
    return WIDE_RANGE && (!(b < 1e36) || (args.eps_is_small && b < 1e-28));
}

/* A row's mean, as a pair, and rstd. */
struct moments {
    float mean, rest, rstd;
};

/* Of the sums a and b about `pivot`, of elements that were scaled by 1 / back. */
__device__ __forceinline__ moments moments_of(double pivot, double a, double b, double back,
                                              double eps) {
    constexpr double each = 1.0 / count_of(ROW);
    const double delta = LAYER ? a * each : 0;
    const double variance = (b - delta * a) * each;
    const double mean = (pivot + delta) * back;
    const real rstd = reciprocal_root(with_eps((variance < 0 ? 0 : variance) * back * back, eps));
    return {(float)mean, (float)((pivot * back - (float)mean) + delta * back), rstd};
}
__device__ __forceinline__ void save_moments(const groups_args &args, i64 row, const moments &m) {
    store_pair<MEAN_TYPE>((char *)args.mean + row * args.mean_stride, m.mean, m.rest);
    store_element<RSTD_TYPE>((char *)args.rstd + row * args.rstd_stride, 0, m.rstd);
}

/* What a row's elements have in common: dx = rstd * (weight * dy - c1 - (xhat - delta) * c2). */
struct common {
    float c1, c2, delta;
};

/* Of a row's sums: of g, g * xhat and xhat by its saved moments. */
__device__ __forceinline__ common common_of(const groups_args &args, const double *v, float mean, float rest, float rstd) {
    constexpr double each = 1.0 / count_of(ROW);
    double delta = CORRECT ? v[2] * each : 0;
    if (CORRECT && MEAN_IS_EXACT)
        delta = rest * rstd;
    else if (CORRECT && !is_rounding<float>((float)delta, mean, rstd))
        delta = 0;
    return {LAYER ? (float)(v[0] * each) : 0, (float)c2_of((v[1] - delta * v[0]) * each, rstd, args.clamped), (float)delta};
}

