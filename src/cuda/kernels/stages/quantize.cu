/*
 * Rounding to 8 bits, and the scales for it. To nearest, ties to even, saturating; by the instruction for it
 * from sm_89 on, else in integers: the same bits.
 */
enum { E4M3 = 5, E5M2 = 6, E8M0 = 7, I8 = 8, U8 = 9 };

template <int TYPE> __device__ constexpr float largest_of() {
    return TYPE == E4M3 ? 448.f : TYPE == E5M2 ? 57344.f : 127.f;
}

/* A float of at most the largest magnitude, or NaN, as 8 bits. */
template <int TYPE> __device__ __forceinline__ u32 narrow_to_8(float v) {
    if (TYPE == I8)
        return v != v ? 0 : (u32)(int)rintf(v) & 0xffu;
    constexpr int DIGITS = TYPE == E4M3 ? 3 : 2, BIAS = TYPE == E4M3 ? 7 : 15, DROPPED = 23 - DIGITS;
    constexpr u32 LEAST_NORMAL = (u32)(128 - BIAS) << 23;
    /* A number whose last place is that of subnormals: the addition rounds there. */
    constexpr u32 ALIGNER = (u32)(127 + 1 - BIAS - DIGITS + 23) << 23;
    const u32 bits = __float_as_uint(v), sign = bits >> 24 & 0x80u, size = bits & 0x7fffffffu;
    const u32 normal = (size - ((u32)(127 - BIAS) << 23) + (1u << (DROPPED - 1)) - 1 + (size >> DROPPED & 1)) >> DROPPED;
    const u32 small = __float_as_uint(__uint_as_float(size) + __uint_as_float(ALIGNER)) - ALIGNER;
    return size > 0x7f800000u ? 0x7fu : sign | (size < LEAST_NORMAL ? small : normal);
}

__device__ __forceinline__ float before_narrowing(float v) { return v; }
__device__ __forceinline__ float before_narrowing(double v) { return round_to_odd(v); }

/*
 * y / scale as IEEE 754 rounds it, of a scale whose reciprocal was found once: a quotient by that, mended by what
 * it leaves of y (Markstein 1990). The signs are such that -0 stays. Not `quick` are scales near the ends of
 * float's range, whose reciprocal or whose rest has lost digits, and negative ones. Of a y beyond float's range
 * times the scale the quotient is NaN. Quotients that are subnormal may be off, and are 0 in 8 bits.
 */
struct divisor {
    float scale, reciprocal;
    bool quick;
};
__device__ __forceinline__ divisor divisor_of(float scale) {
    return {scale, 1 / scale, scale >= 0x1p-60f && scale <= 0x1p60f};
}
__device__ __forceinline__ float quick_quotient(float y, const divisor &d) {
    const float q = y * d.reciprocal;
    return multiply_add(-multiply_add(q, d.scale, -y), d.reciprocal, q);
}

/* 1 / scale, within 2^-51 of it. */
__device__ __forceinline__ double wide_reciprocal(float scale) {
    const double v = (double)scale, estimate = estimate_inverse(v);
    double r = estimate;
#pragma unroll
    for (int i = 0; i < 3; i++)
        r = multiply_add(r, multiply_add(-v, r, 1.), r);
    return r == r ? r : estimate; /* of 0 and infinity */
}
/* y / scale of any y and scale: no quotient of two floats is within 2^-49 of itself of where float's rounding turns,
 * but subnormal ones, as above. */
__device__ __forceinline__ float wide_quotient(float y, double reciprocal) { return (float)((double)y * reciprocal); }

/* A quotient in 8 bits. */
template <int TYPE, typename T> __device__ __forceinline__ u32 narrowed(T v) {
    constexpr T MOST = (T)largest_of<TYPE>();
    return narrow_to_8<TYPE>(TYPE == I8 ? (float)(v > MOST ? MOST : v < -MOST ? -MOST : rint(v))
                                        : before_narrowing(v > MOST ? MOST : v < -MOST ? -MOST : v));
}
/* y / scale in 8 bits. */
template <int TYPE, typename T> __device__ __forceinline__ u32 quantized(T y, float scale) {
    return narrowed<TYPE>(y / (T)scale);
}

#if __CUDA_ARCH__ >= 890
constexpr bool NARROWS_PAIRS = true;
/* Four floats in 8 bits each, the first in the lowest ones: saturated, NaN as 0x7f. */
template <bool IS_E4M3> __device__ __forceinline__ u32 narrow_four(float a, float b, float c, float d) {
    u32 word;
    if constexpr (IS_E4M3)
        asm("{.reg .b16 l, h; cvt.rn.satfinite.e4m3x2.f32 l, %2, %1; cvt.rn.satfinite.e4m3x2.f32 h, %4, %3; "
            "mov.b32 %0, {l, h};}"
            : "=r"(word)
            : "f"(a), "f"(b), "f"(c), "f"(d));
    else
        asm("{.reg .b16 l, h; cvt.rn.satfinite.e5m2x2.f32 l, %2, %1; cvt.rn.satfinite.e5m2x2.f32 h, %4, %3; "
            "mov.b32 %0, {l, h};}"
            : "=r"(word)
            : "f"(a), "f"(b), "f"(c), "f"(d));
    return word;
}
#else
constexpr bool NARROWS_PAIRS = false;
template <bool IS_E4M3> __device__ __forceinline__ u32 narrow_four(float, float, float, float) { return 0; }
#endif

/* Quotients, COUNT of them, in 8 bits each. */
template <int TYPE, int COUNT, typename T> __device__ __forceinline__ chunk<COUNT> narrow_chunk(const T *v) {
    auto c = zero_chunk<COUNT>();
#pragma unroll
    for (int i = 0; i < COUNT; i += 4)
        if constexpr (NARROWS_PAIRS && sizeof(T) == 4 && TYPE != I8)
            c.word[i / 4] = narrow_four<TYPE == E4M3>(v[i], i + 1 < COUNT ? v[i + 1] : 0, i + 2 < COUNT ? v[i + 2] : 0,
                                                      i + 3 < COUNT ? v[i + 3] : 0);
        else
#pragma unroll
            for (int j = 0; j < least(COUNT, 4); j++)
                c.word[i / 4] |= narrowed<TYPE>(v[i + j]) << 8 * j;
    return c;
}

/* y / scale, of COUNT elements, in 8 bits, for a `quick` scale. Where a quotient is NaN, `again` says so (not 0). */
template <int TYPE, int COUNT>
__device__ __forceinline__ chunk<COUNT> quantize_quickly(const float *y, const divisor &d, u32 &again) {
    float v[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        v[i] = quick_quotient(y[i], d);
#pragma unroll
    for (int i = 0; i < COUNT; i += 4)
        again = meets_nan(again, v[i], v[least(i + 1, COUNT - 1)], v[least(i + 2, COUNT - 1)], v[least(i + 3, COUNT - 1)]);
    return narrow_chunk<TYPE, COUNT>(v);
}
/* The same for every scale and y; the reciprocal is wide_reciprocal's. */
template <int TYPE, int COUNT>
__device__ __forceinline__ chunk<COUNT> quantize_widely(const float *y, double reciprocal) {
    float v[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        v[i] = wide_quotient(y[i], reciprocal);
    return narrow_chunk<TYPE, COUNT>(v);
}
/* Of f64, of which no row waits for its scale: nobody calls these. */
template <int TYPE, int COUNT>
__device__ __forceinline__ chunk<COUNT> quantize_quickly(const double *, const divisor &, u32 &again) {
    again = 1;
    return zero_chunk<COUNT>();
}
template <int TYPE, int COUNT>
__device__ __forceinline__ chunk<COUNT> quantize_widely(const double *y, double reciprocal) {
    double v[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        v[i] = y[i] * reciprocal;
    return narrow_chunk<TYPE, COUNT>(v);
}

template <int TYPE, int COUNT> __device__ __forceinline__ chunk<COUNT> quantize(const float *y, const divisor &d) {
    u32 again = !d.quick;
    auto c = quantize_quickly<TYPE, COUNT>(y, d, again);
    if (again)
        c = quantize_widely<TYPE, COUNT>(y, wide_reciprocal(d.scale));
    return c;
}
template <int TYPE, int COUNT> __device__ __forceinline__ chunk<COUNT> quantize(const double *y, const divisor &d) {
    double v[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        v[i] = y[i] / (double)d.scale;
    return narrow_chunk<TYPE, COUNT>(v);
}

/* The larger one of `most` and |y|; NaN counts as nothing, as fmaxf has it. */
template <typename T> __device__ __forceinline__ float larger_magnitude(float most, T y) {
    return fmaxf(most, fabsf((float)y));
}

/* The least power of two that is not below a positive v, from 2^-126 to 2^127. */
__device__ __forceinline__ float power_of_two_above(float v) {
    const u32 bits = __float_as_uint(v);
    const int exponent = (int)(bits >> 23) + ((bits & 0x7fffffu) != 0);
    return __uint_as_float((u32)(exponent < 1 ? 1 : exponent > 254 ? 254 : exponent) << 23);
}

/* The scale of elements of which the largest is amax; bounds of 0 are none. */
template <int TYPE, bool POWER> __device__ __forceinline__ float scale_for(float amax, float lowest, float highest) {
    float scale = amax / largest_of<TYPE>();
    if (lowest > 0 && scale < lowest)
        scale = lowest;
    if (scale == 0) /* of zeros alone, or of next to nothing */
        scale = 1;
    if (POWER)
        scale = power_of_two_above(scale);
    return highest > 0 && scale > highest ? highest : scale;
}
