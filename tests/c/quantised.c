/* Quantised results; see quantised.h. */
#include "quantised.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

/* ---- The numbers of a type ------------------------------------------------------------------- */

real quantised_largest(DLDataType type) {
    return type.code == kDLFloat8_e4m3fn ? 448 : type.code == kDLFloat8_e5m2 ? 57344 : 127;
}

real quantised_value(DLDataType type, unsigned char bits) {
    if (type.code == kDLInt)
        return (signed char)bits;
    const int digits = type.code == kDLFloat8_e4m3fn ? 3 : 2, bias = digits == 3 ? 7 : 15;
    const int exponent = (bits & 0x7f) >> digits, fraction = bits & ((1 << digits) - 1);
    const real sign = bits & 0x80 ? -1 : 1;
    if ((digits == 3 && (bits & 0x7f) == 0x7f) || (digits == 2 && exponent == 31 && fraction))
        return NAN;
    if (digits == 2 && exponent == 31)
        return sign * INFINITY;
    const real significand = fraction + (exponent ? 1 << digits : 0);
    return sign * ldexpl(significand, (exponent ? exponent : 1) - bias - digits);
}

static unsigned char nearest(DLDataType type, real value) {
    unsigned char best = 0;
    real apart = INFINITY;
    for (int i = 0; i < 256; i++) {
        const real found = quantised_value(type, (unsigned char)i);
        if (!isfinite(found) || fabsl(found) > quantised_largest(type))
            continue;
        if (type.code != kDLInt && signbit(found) != signbit(value))
            continue;
        const real distance = fabsl(found - value);
        if (distance < apart || (distance == apart && !(i & 1))) {
            apart = distance;
            best = (unsigned char)i;
        }
    }
    return best;
}

unsigned char quantised_of(DLDataType type, real v) {
    const real most = quantised_largest(type);
    if (isnan(v))
        return type.code == kDLInt ? 0 : 0x7f;
    return nearest(type, v > most ? most : v < -most ? -most : v);
}

bool quantised_same(DLDataType type, unsigned char a, unsigned char b) {
    const real va = quantised_value(type, a), vb = quantised_value(type, b);
    return a == b || (isnan(va) && isnan(vb));
}

/* ---- Rows ------------------------------------------------------------------------------------ */

static float expected_scale(const norm_case *c, real amax) {
    const planish_norm *s = &c->op;
    float scale = (float)amax / (float)quantised_largest(c->q);
    scale = scale < (float)s->scale_least ? (float)s->scale_least : scale;
    scale = scale == 0 ? 1 : scale;
    scale = s->scale_most > 0 && scale > (float)s->scale_most ? (float)s->scale_most : scale;
    if (s->scale_format != PLANISH_SCALE_POWER_OF_TWO)
        return scale;
    int exponent;
    const float fraction = frexpf(scale, &exponent);
    exponent -= fraction == .5f;
    return ldexpf(1, exponent < -126 ? -126 : exponent > 127 ? 127 : exponent);
}

static float scale_read(const DLTensor *t, const unsigned char *at) {
    float scale;
    if (t->dtype.bits == 8)
        return ldexpf(1, *at - 127);
    memcpy(&scale, at, sizeof scale);
    return scale;
}

void quantised_check(bundle *b) {
    const norm_case *c = &b->test;
    const int64_t rows = c->shape[0], cols = c->shape[1];
    const int64_t block = c->op.scale_block ? c->op.scale_block : cols;
    const bool finds = c->has & HAS(Y_SCALES);
    real *y = bundle_reals(b, Y, 0), largest = 0;
    unsigned char *q = bundle_bytes(b, Q);
    cursor scale_at = cursor_begin(bundle_tensor(b, finds ? Y_SCALES : Y_SCALE));
    for (int64_t row = 0; row < rows; row++)
        for (int64_t first = 0; first < cols; first += block) {
            const int64_t end = first + block < cols ? first + block : cols;
            real amax = 0;
            for (int64_t i = first; i < end; i++)
                amax = fmaxl(amax, fabsl(y[row * cols + i]));
            largest = fmaxl(amax, largest);
            const float scale = scale_read(scale_at.tensor, scale_at.at);
            const float wanted = finds ? expected_scale(c, amax) : scale;
            expect(scale == wanted, "scale %g, wanted %g, of row %lld", scale, wanted,
                   (long long)row);
            for (int64_t i = row * cols + first; i < row * cols + end; i++) {
                const real v = c->x == F64 ? (real)((double)y[i] / (double)scale)
                                           : (real)((float)y[i] / scale);
                const unsigned char found = quantised_of(c->q, v);
                expect(quantised_same(c->q, q[i], found), "%Lg became %02x, wanted %02x", v, q[i],
                       found);
            }
            if (finds)
                cursor_next(&scale_at);
        }
    float amax = (float)largest;
    if (c->has & HAS(AMAX))
        memcpy(&amax, b->tensor[AMAX].memory.data, sizeof amax);
    expect(amax == (float)largest, "amax is %g, wanted %Lg", amax, largest);
    free(y), free(q);
}
