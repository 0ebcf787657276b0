/*
 * What a kind of norms makes of a row's sums: rstd of the sum of squares, and c2 of the sum of g * xhat. This is all
 * that is different in L2 norms, which are RMS norms otherwise (src/norm_rule.h). Included by what uses it.
 *
 * Constants: KIND.
 */
constexpr bool LAYER = KIND == 0, L2 = KIND == 2;

/* What the sums of a row of so many elements are divided by. */
__device__ constexpr double count_of(double elements) { return L2 ? 1 : elements; }

/* What rstd is the reciprocal root of: `moment` is the variance, to which eps is added. Of L2 it is the square of the
 * length, and args.eps the square of the least length. */
template <typename T> __device__ __forceinline__ T with_eps(T moment, T eps) {
    if constexpr (L2)
        return moment < eps ? eps : moment;
    else
        return moment + eps;
}

/* c2 of a row: 0 where the row was divided by the least length, as rstd says. */
template <typename T> __device__ __forceinline__ T c2_of(T c2, double rstd, double clamped) {
    if constexpr (L2)
        return rstd >= clamped ? 0 : c2;
    else
        return c2;
}
