/*
 * Rounding to 8 bits, and the scales for it. To nearest, ties to even, saturating; in integers, so that every
 * architecture does the same.
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

/* y / scale in 8 bits. */
template <int TYPE, typename T> __device__ __forceinline__ u32 quantized(T y, float scale) {
    const T v = y / (T)scale;
    constexpr T MOST = (T)largest_of<TYPE>();
    return narrow_to_8<TYPE>(TYPE == I8 ? (float)(v > MOST ? MOST : v < -MOST ? -MOST : rint(v))
                                        : before_narrowing(v > MOST ? MOST : v < -MOST ? -MOST : v));
}

/* What |y| counts as for a scale: NaN as nothing. */
template <typename T> __device__ __forceinline__ float magnitude(T y) {
    const float v = (float)(y < 0 ? -y : y);
    return v == v ? v : 0;
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
