/*
 * Scalar conversions between f32 and the 16-bit floats, to nearest even, subnormals kept, and the
 * fused multiply-add that every tier must agree with. 16-bit values are carried as uint16_t.
 */
#ifndef PLANISH_CPU_BITS_H
#define PLANISH_CPU_BITS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t bits_of_f32(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float f32_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float f32_of_bf16(uint16_t half) {
    return f32_of_bits((uint32_t)half << 16);
}

static inline uint16_t bf16_of_f32(float value) {
    const uint32_t bits = bits_of_f32(value);
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    const uint32_t quiet_nan = bits >> 16 | 0x40;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? quiet_nan : rounded);
}

static inline float f32_of_f16(uint16_t half) {
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, magnitude = half & 0x7fff;
    /* Shifted into place the exponent is 112 too small; a multiplication by 2^112 mends it and
     * makes subnormals right by itself. */
    const float scaled = f32_of_bits(magnitude << 13) * 0x1p112f;
    const uint32_t special = magnitude << 13 | 0x7f800000 | (magnitude > 0x7c00 ? 0x400000 : 0);
    return f32_of_bits(sign | (magnitude >= 0x7c00 ? special : bits_of_f32(scaled)));
}

static inline uint16_t f16_of_f32(float value) {
    const uint32_t bits = bits_of_f32(value), magnitude = bits & 0x7fffffff;
    uint32_t half;
    if (magnitude > 0x7f800000)
        half = 0x7e00 | (magnitude >> 13 & 0x1ff);
    else if (magnitude >= 0x477ff000) /* 65520: rounds to infinity */
        half = 0x7c00;
    else if (magnitude < 0x38800000) /* below 2^-14: adding 0.5 rounds to a multiple of 2^-24 */
        half = bits_of_f32(f32_of_bits(magnitude) + 0.5f) - 0x3f000000;
    else
        half = (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
    return (uint16_t)(bits >> 16 & 0x8000) | (uint16_t)half;
}

/* double to 16 bits, rounded once: through f32 rounded to odd. */
static inline float f32_to_odd(double value) {
    const float nearest = (float)value;
    const uint32_t bits = bits_of_f32(nearest);
    if (nearest == value || value != value || (bits & 1) || (bits & 0x7fffffff) == 0x7f800000)
        return nearest;
    const int outward = fabs(value) > fabs((double)nearest);
    return f32_of_bits(outward ? bits + 1 : bits - 1);
}

static inline float fma_f32(float a, float b, float c) {
#if defined(__FP_FAST_FMAF)
    return __builtin_fmaf(a, b, c);
#else
    /* The product is exact in double; the sum is rounded to odd there, so that the one rounding to
     * float is right. */
    const double product = (double)a * b, sum = product + c, part = sum - product;
    const double error = (product - (sum - part)) + (c - part);
    int64_t bits;
    memcpy(&bits, &sum, sizeof bits);
    if ((error > 0 || error < 0) && !(bits & 1))
        bits += (error > 0) == (sum > 0) ? 1 : -1;
    double odd;
    memcpy(&odd, &bits, sizeof odd);
    return (float)odd;
#endif
}

#endif
