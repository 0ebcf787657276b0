/*
 * What becomes of y where it is quantised: its largest magnitude, and q; part of
 * cpu/stages/kernels_stages.c. The loops are written so that compilers make vectors of them.
 */

static double NAME(largest)(const void *elements, int64_t n) {
    const REAL *const y = elements;
    enum { FOUR = 4 };
    const VEC zero = V(set1)(0);
    VEC most[FOUR] = {zero, zero, zero, zero};
    int64_t i = 0;
    for (; i + FOUR * VEC_LANES <= n; i += FOUR * VEC_LANES)
        UNROLL for (int k = 0; k < FOUR; k++) {
            const VEC v = LOAD_REAL(y + i + k * VEC_LANES);
            /* NaN is neither: where it is the first operand the second stays. */
            most[k] = V(most)(v, V(most)(V(sub)(zero, v), most[k]));
        }
    REAL lanes[VEC_LANES], largest = 0;
    UNROLL for (int k = 0; k < FOUR; k++) {
        STORE_REAL(lanes, most[k]);
        for (int j = 0; j < VEC_LANES; j++)
            largest = lanes[j] > largest ? lanes[j] : largest;
    }
    for (; i < n; i++) {
        const REAL magnitude = y[i] < 0 ? -y[i] : y[i];
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

/* y / scale within the bounds of q's type; NaN stays. */
INLINE REAL NAME(quotient)(REAL y, REAL scale, REAL bound) {
    const REAL v = y / scale, below = v > bound ? bound : v;
    return below < -bound ? -bound : below;
}

/* As f32, from which a further rounding to few bits is the only one. */
INLINE float NAME(towards_few_bits)(REAL v) {
    return sizeof(REAL) == 4 ? (float)v : f32_to_odd(v);
}

/*
 * f32 within the bounds of a float of 8 bits with `digits` behind the point and exponents from
 * `least` on, to nearest even. Where it is subnormal an addition rounds to multiples of the least:
 * of a power of two whose last digit is that.
 */
INLINE uint8_t NAME(to_8_bits)(float v, const int digits, const int least, const uint32_t nan) {
    const int dropped = 23 - digits;
    const uint32_t bits = bits_of_f32(v), magnitude = bits & 0x7fffffff;
    const uint32_t even = magnitude >> dropped & 1;
    const uint32_t normal = ((magnitude + ((1u << (dropped - 1)) - 1) + even) >> dropped) -
                            ((uint32_t)(least + 126) << digits);
    const uint32_t shifter = (uint32_t)(least - digits + 23 + 127) << 23;
    const uint32_t small = bits_of_f32(f32_of_bits(magnitude) + f32_of_bits(shifter)) - shifter;
    uint32_t made = magnitude < (uint32_t)(least + 127) << 23 ? small : normal;
    made = magnitude > 0x7f800000 ? nan : made;
    return (uint8_t)(made | (bits >> 24 & 0x80));
}

enum { NAME(QUOTIENTS) = 256 };

/* A piece of quotients, as f32. */
static void NAME(quotients)(float *restrict to, const REAL *restrict y, REAL scale, REAL bound,
                            int64_t n) {
    for (int64_t i = 0; i < n; i++)
        to[i] = NAME(towards_few_bits)(NAME(quotient)(y[i], scale, bound));
}

static void NAME(to_e4m3)(uint8_t *restrict q, const float *restrict v, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        q[i] = NAME(to_8_bits)(v[i], 3, -6, 0x7f);
}

static void NAME(to_e5m2)(uint8_t *restrict q, const float *restrict v, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        q[i] = NAME(to_8_bits)(v[i], 2, -14, 0x7f);
}

/* An addition rounds to whole numbers, to nearest even. */
static void NAME(to_i8)(uint8_t *restrict q, const float *restrict v, int64_t n) {
    const float shifter = 0x1.8p23f;
    for (int64_t i = 0; i < n; i++) {
        const float number = __builtin_isnan(v[i]) ? 0 : v[i];
        q[i] = (uint8_t)(bits_of_f32(number + shifter) - bits_of_f32(shifter));
    }
}

static void NAME(quantise)(void *to, const void *elements, float scale, dtype type, int64_t n) {
    const REAL *const y = elements;
    uint8_t *const q = to;
    float piece[NAME(QUOTIENTS)];
    const REAL bound = type == DTYPE_E4M3 ? 448 : type == DTYPE_E5M2 ? 57344 : 127;
    for (int64_t at = 0; at < n; at += NAME(QUOTIENTS)) {
        const int64_t count = n - at < NAME(QUOTIENTS) ? n - at : NAME(QUOTIENTS);
        NAME(quotients)(piece, y + at, (REAL)scale, bound, count);
        if (type == DTYPE_E4M3)
            NAME(to_e4m3)(q + at, piece, count);
        else if (type == DTYPE_E5M2)
            NAME(to_e5m2)(q + at, piece, count);
        else
            NAME(to_i8)(q + at, piece, count);
    }
}
