/*
 * What a saved mean lacks of its row's own, which backward finds beside its other sums. It is mended where it
 * can be what the mean lost when it was rounded; a mean that is further away is not the row's own (frozen or
 * shared statistics, another row's) and is used as it was given. The row alone decides. And how a saved mean and rstd
 * come from memory. Included by what uses it.
 *
 * Constants: MEAN_TYPE RSTD_TYPE.
 */

/* One ULP of 1, and the smallest normal number. This and the bound are those of cpu/common/saved_mean.h. */
__device__ constexpr double ulp_at_one(int type) {
    return type == F64 ? 0x1p-52 : type == F16 ? 0x1p-10 : type == BF16 ? 0x1p-7 : 0x1p-23;
}
__device__ constexpr double least_normal(int type) {
    return type == F64 ? 0x1p-1022 : type == F16 ? 0x1p-14 : 0x1p-126;
}
constexpr int SAVED_MEAN_ULPS = 4;

/* Whether `delta`, the mean of x less the saved one over a row, can be a rounding of that; or both times `scale`.
 * What is no number counts as one: it is to make the row NaN. */
template <typename T> __device__ __forceinline__ bool is_rounding(T delta, T mean, T scale) {
    constexpr int TYPE = sizeof(T) == 4 && MEAN_TYPE == F64 ? F32 : MEAN_TYPE; /* is not asked for then */
    constexpr T ULPS = (T)(SAVED_MEAN_ULPS * ulp_at_one(TYPE)), LEAST = (T)least_normal(TYPE);
    const T size = delta < 0 ? -delta : delta, reach = ((mean < 0 ? -mean : mean) + LEAST) * ULPS * scale;
    return !(size > reach) || size - size != 0;
}

/* A mean of f64 beside arithmetic in f32 has more digits than that: nothing is mended, and its `rest`, what a float
 * leaves of it, is taken. */
constexpr bool MEAN_IS_EXACT = MEAN_TYPE == F64 && sizeof(real) == 4;

/* A saved number with all its digits. It is loaded a turn before it is used, and whatever would turn an f64 one into a
 * float there would wait for it. */
template <int TYPE> struct stored_in {
    typedef real type;
};
template <> struct stored_in<F64> {
    typedef double type;
};
typedef stored_in<MEAN_TYPE>::type stored_mean;
typedef stored_in<RSTD_TYPE>::type stored_rstd;

/* 0 where it is not `there`. */
template <int TYPE>
__device__ __forceinline__ typename stored_in<TYPE>::type load_stored(const void *at, bool there = true) {
    if constexpr (TYPE == F64)
        return load_f64_if(there, at);
    else if constexpr (TYPE != NONE)
        return there ? load_element<TYPE>(at, 0) : 0;
    else
        return 0;
}
__device__ __forceinline__ stored_mean load_mean(const void *at, bool there = true) {
    return load_stored<MEAN_TYPE>(at, there);
}
__device__ __forceinline__ stored_rstd load_rstd(const void *at, bool there = true) {
    return load_stored<RSTD_TYPE>(at, there);
}

/* What is taken from x besides the mean as it is in `real`. */
__device__ __forceinline__ real rest_of_mean(stored_mean mean, real delta) {
    if (MEAN_IS_EXACT)
        return (real)(mean - (stored_mean)(real)mean);
    return is_rounding<real>(delta, (real)mean, 1) ? delta : 0;
}
