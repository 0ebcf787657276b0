/*
 * The quotients of quantised outputs (src/cuda/kernels/stages/quantize.cu), their text run on the
 * host, beside IEEE divisions: quotients [STEP]. Every hard case of every STEPth scale, and random
 * ones in all 8-bit types. Says what differs and ends with 1, or says how many quotients were
 * looked at. Built by test_quotients.py.
 */
#include "words.hpp"
enum {
    ROLE_X,
    ROLE_WEIGHT,
    ROLE_BIAS,
    ROLE_Y,
    ROLE_MEAN,
    ROLE_RSTD,
    ROLE_M2,
    ROLE_DY,
    ROLE_DX,
    ROLE_DWEIGHT,
    ROLE_DBIAS,
    ROLE_DSUM,
    ROLE_COUNT
};
constexpr int TYPES[ROLE_COUNT] = {}, ACCESSES[ROLE_COUNT] = {};
#define REAL_DOUBLE 0
constexpr int WARP = 32;
/* In this order: */
#include "vocabulary.inc"

#include "instructions.hpp"

#include "quantize.inc"

#include <stdio.h>
#include <stdlib.h>

static long long looked_at, wrong;

static void differs(const char *what, float y, float scale, float got, float wanted) {
    if (wrong++ < 10)
        printf("%s: %a / %a is %a, wanted %a\n", what, (double)y, (double)scale, (double)got,
               (double)wanted);
}
static bool same(float a, float b) {
    return __float_as_uint(a) == __float_as_uint(b) || (a != a && b != b);
}

static void compare(float y, float scale) {
    const float wanted = y / scale, quick = quick_quotient(y, divisor_of(scale));
    const float wide = wide_quotient(y, wide_reciprocal(scale));
    looked_at++;
    if (!same(quick, wanted))
        differs("quick", y, scale, quick, wanted);
    if (!same(wide, wanted))
        differs("wide", y, scale, wide, wanted);
}

static u64 inverse_of(u64 odd, int bits) { /* modulo 2^bits */
    u64 x = odd;
    for (int i = 0; i < 6; i++)
        x *= 2 - odd * x;
    return x & ((1ull << bits) - 1);
}

/*
 * A quotient Y / S of two significands of 24 bits is rounded where it is near the middle M of two
 * floats: Y 2^e - M S = k with e = 24 (Y >= S) or 25 and M odd, of 25 bits. quick_quotient errs by
 * less than the distance of what has |k| >= 3 t, t being the power of two in S; wide_quotient by
 * less than all. So all of |k| = t are looked at, and of |k| = 3 t.
 */
static void compare_hard_cases(u32 S) {
    const int zeros = __builtin_ctz(S);
    const u64 odd = S >> zeros;
    for (int e = 24; e <= 25; e++)
        for (int k = -3; k <= 3; k += 2) {
            /* 2^(e - zeros) Y = k modulo odd: M = -k / odd modulo 2^(e - zeros) tells the first Y.
             */
            const int bits = e - zeros;
            const u64 M = (u64)(-(i64)k) * inverse_of(odd, bits) & ((1ull << bits) - 1);
            /* M odd + k is a multiple of 2^bits; further ones add odd to Y. */
            const i64 first = ((i64)(M * odd) + k) >> bits;
            const i64 low = e == 24 ? S : 1 << 23, high = e == 24 ? 1 << 24 : S;
            i64 Y = first + (low - first + (i64)odd - 1) / (i64)odd * (i64)odd;
            while (Y - (i64)odd >= low)
                Y -= (i64)odd;
            for (; Y < high; Y += (i64)odd)
                if (Y >= low)
                    compare((float)Y, (float)S);
        }
}

static u64 state = 0x9e3779b97f4a7c15ull;
static u32 random_word() {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (u32)(state >> 16);
}

/* Bytes of y / scale, of any floats. */
template <int TYPE> static void compare_bytes(const float *y, float scale) {
    const chunk<8> got = quantize<TYPE, 8>(y, divisor_of(scale));
    for (int i = 0; i < 8; i++) {
        const u32 byte = got.word[i / 4] >> 8 * (i % 4) & 0xff,
                  wanted = quantized<TYPE>(y[i], scale);
        looked_at++;
        if (byte != wanted)
            differs(TYPE == E4M3   ? "e4m3"
                    : TYPE == E5M2 ? "e5m2"
                                   : "i8",
                    y[i], scale, (float)byte, (float)wanted);
    }
}
static void compare_types(const float *y, float scale) {
    compare_bytes<E4M3>(y, scale);
    compare_bytes<E5M2>(y, scale);
    compare_bytes<I8>(y, scale);
}

int main(int count, char **words) {
    const u32 step = count > 1 ? (u32)atoi(words[1]) : 1;
    for (u32 S = 1 << 23; S < 1 << 24; S += step)
        compare_hard_cases(S);
    const float special[] = {
        0.f,      -0.f,      1.f,    -1.f,      448.f,     464.f,    465.f,
        57344.f,  61440.f,   127.5f, 0x1p-149f, 0x1p-126f, 0x1p127f, -0x1.fffffep127f,
        INFINITY, -INFINITY, NAN,    0x1p-60f,  0x1p60f,   0x1p-61f, 0x1p61f,
        0x1p-10f};
    const int specials = sizeof special / sizeof *special;
    for (int i = 0; i < specials; i++)
        for (int j = 0; j < specials; j++) {
            float y[8];
            for (int k = 0; k < 8; k++)
                y[k] = k == i % 8 ? special[i] : (float)(k - 3) * special[j];
            compare_types(y, special[j]);
        }
    for (u32 i = 0; i < (1 << 22) / step; i++) {
        float y[8];
        const float scale = __uint_as_float(i % 16 ? random_word() & 0x007fffffu |
                                                         (u32)(107 + random_word() % 40) << 23
                                                   : random_word());
        for (int k = 0; k < 8; k++) {
            y[k] = __uint_as_float(random_word());
            if (i % 4) /* near the sizes that are told apart */
                y[k] = __uint_as_float((random_word() & 0x807fffffu) | 0x3f800000u) * scale *
                       (i % 4 == 1   ? 1
                        : i % 4 == 2 ? 300
                                     : 0x1p-9f);
            if (i % 8 == 5) /* on the middle of two results, or beside it */
                y[k] = __uint_as_float(
                    __float_as_uint((float)(2 * (random_word() % 16) + 33) * scale) +
                    random_word() % 3 - 1);
        }
        compare_types(y, scale);
    }
    printf("%lld quotients, %lld wrong\n", looked_at, wrong);
    return wrong != 0;
}
