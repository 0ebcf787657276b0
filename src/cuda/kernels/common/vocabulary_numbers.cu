/* A part of vocabulary.cu: arithmetic. */

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
/* Of 1 / v, off by 2^-20 of it at most; v is no subnormal. */
__device__ __forceinline__ double estimate_inverse(double v) {
    double r;
    asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(r) : "d"(v));
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
