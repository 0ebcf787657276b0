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
 * it leaves of y (Markstein 1990). Scales near the ends of float's range, whose reciprocal or whose rest has lost
 * digits, divide; quotients far beyond every 8-bit number need no mending.
 */
struct divisor {
    float scale, reciprocal;
    bool quick;
};
__device__ __forceinline__ divisor divisor_of(float scale) {
    const float size = fabsf(scale);
    return {scale, 1 / scale, size >= 0x1p-60f && size <= 0x1p60f};
}
__device__ __forceinline__ float divided(float y, const divisor &d) {
    if (!d.quick)
        return y / d.scale;
    const float q = y * d.reciprocal;
    const float mended = multiply_add(multiply_add(-q, d.scale, y), d.reciprocal, q);
    return fabsf(q) < 0x1p60f ? mended : q;
}
__device__ __forceinline__ double divided(double y, const divisor &d) { return y / (double)d.scale; }

/* y / scale in 8 bits. */
template <int TYPE, typename T> __device__ __forceinline__ u32 quantized(T y, const divisor &d) {
    const T v = divided(y, d);
    constexpr T MOST = (T)largest_of<TYPE>();
    return narrow_to_8<TYPE>(TYPE == I8 ? (float)(v > MOST ? MOST : v < -MOST ? -MOST : rint(v))
                                        : before_narrowing(v > MOST ? MOST : v < -MOST ? -MOST : v));
}

#if __CUDA_ARCH__ >= 890
constexpr bool NARROWS_PAIRS = true;
/* Two floats in 8 bits each, `low` in the lower ones: saturated, NaN as 0x7f. */
template <bool IS_E4M3> __device__ __forceinline__ u32 narrow_pair(float low, float high) {
    u16 pair;
    if constexpr (IS_E4M3)
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    else
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
}
#else
constexpr bool NARROWS_PAIRS = false;
#endif

/* The same of COUNT elements, a byte each. */
template <int TYPE, int COUNT, typename T>
__device__ __forceinline__ void quantize(const T *y, const divisor &d, u32 *byte) {
    if constexpr (NARROWS_PAIRS && sizeof(T) == 4 && TYPE != I8 && COUNT % 2 == 0) {
#pragma unroll
        for (int i = 0; i < COUNT; i += 2) {
            const u32 pair = narrow_pair<TYPE == E4M3>(divided(y[i], d), divided(y[i + 1], d));
            byte[i] = pair & 0xffu;
            byte[i + 1] = pair >> 8;
        }
    } else {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            byte[i] = quantized<TYPE>(y[i], d);
    }
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
