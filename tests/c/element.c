/* Element types; see element.h. */
#include "element.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

typedef struct format {
    const char *name;
    int bytes;
    int digits;       /* of significand, the leading one included */
    int min_exponent; /* of the smallest normal number */
    int max_exponent; /* of the largest finite number */
    DLDataType dtype;
} format;

static const format formats[ELEMENT_COUNT] = {
    [F32] = {"f32", 4, 24, -126, 127, {kDLFloat, 32, 1}},
    [F16] = {"f16", 2, 11, -14, 15, {kDLFloat, 16, 1}},
    [BF16] = {"bf16", 2, 8, -126, 127, {kDLBfloat, 16, 1}},
    [F64] = {"f64", 8, 53, -1022, 1023, {kDLFloat, 64, 1}},
};

const char *element_name(element type) {
    return formats[type].name;
}
int element_bytes(element type) {
    return formats[type].bytes;
}
DLDataType element_dtype(element type) {
    return formats[type].dtype;
}
int element_digits(element type) {
    return formats[type].digits;
}

element element_of(DLDataType dtype) {
    for (int i = 0; i < ELEMENT_COUNT; i++)
        if (formats[i].dtype.code == dtype.code && formats[i].dtype.bits == dtype.bits)
            return (element)i;
    return ELEMENT_COUNT;
}

/* What ilogbl and ldexpl(1, exponent) give, for normal doubles: most of what the tests do is to
 * round and to write elements. */
static int exponent_of(double magnitude) {
    uint64_t bits;
    memcpy(&bits, &magnitude, sizeof bits);
    return (int)(bits >> 52 & 0x7ff) - 1023;
}
static double power_of_two(int exponent) {
    const uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    return power;
}

real element_max(element type) {
    const format *f = &formats[type];
    return (2 - (real)power_of_two(1 - f->digits)) * (real)power_of_two(f->max_exponent);
}

real element_ulp(element type, real magnitude) {
    const format *f = &formats[type];
    int exponent = f->min_exponent;
    if (magnitude > 0 && isfinite(magnitude))
        exponent = type == F64 ? ilogbl(magnitude) : exponent_of((double)magnitude);
    if (exponent < f->min_exponent)
        exponent = f->min_exponent;
    return type == F64 ? ldexpl(1, exponent - f->digits + 1)
                       : (real)power_of_two(exponent - f->digits + 1);
}

real element_round(element type, real value) {
    if (!isfinite(value) || value == 0)
        return value;
    if (type == F32)
        return (float)value;
    if (type == F64)
        return (double)value;
    if (fabsl(value) > 2 * element_max(type))
        return copysignl(INFINITY, value);
    real ulp = element_ulp(type, fabsl(value));
    /* Both steps are exact but for the rounding wanted. */
    real rounded = copysignl((real)llrintl(value / ulp) * ulp, value);
    return fabsl(rounded) > element_max(type) ? copysignl(INFINITY, value) : rounded;
}

/* The bits of a 16-bit value; `value` is of the type already. */
static uint16_t encode16(const format *f, real value) {
    int fraction = f->digits - 1;
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    uint16_t infinity = (uint16_t)((0x7fff >> fraction) << fraction);
    if (isnan(value))
        return sign | infinity | (uint16_t)(1 << (fraction - 1));
    if (isinf(value))
        return sign | infinity;
    value = fabsl(value);
    int exponent = exponent_of((double)value);
    if (exponent < f->min_exponent)
        exponent = f->min_exponent;
    /* A subnormal's significand lacks the leading one, which makes its exponent field 0. */
    uint16_t significand = (uint16_t)((double)value * power_of_two(fraction - exponent));
    return (uint16_t)(sign | (((exponent - f->min_exponent) << fraction) + significand));
}

static real decode16_slowly(const format *f, uint16_t bits) {
    int fraction = f->digits - 1;
    int exponent = (bits & 0x7fff) >> fraction;
    int significand = bits & ((1 << fraction) - 1);
    real value;
    if (exponent == 0x7fff >> fraction)
        value = significand ? NAN : INFINITY;
    else if (exponent == 0)
        value = ldexpl(significand, f->min_exponent - fraction);
    else
        value = ldexpl(significand + (1 << fraction), exponent - 1 + f->min_exponent - fraction);
    return bits & 0x8000 ? -value : value;
}

/* From a table, filled in at the first use: reading is most of what the tests do. */
static real decode16(element type, uint16_t bits) {
    static real table[ELEMENT_COUNT][1 << 16];
    static bool filled[ELEMENT_COUNT];
    for (int i = 0; i < 1 << 16 && !filled[type]; i++)
        table[type][i] = decode16_slowly(&formats[type], (uint16_t)i);
    filled[type] = true;
    return table[type][bits];
}

real element_read(element type, const void *from) {
    float single;
    double twice;
    uint16_t half;
    switch (type) {
    case F32:
        memcpy(&single, from, sizeof single);
        return single;
    case F64:
        memcpy(&twice, from, sizeof twice);
        return twice;
    default:
        memcpy(&half, from, sizeof half);
        return decode16(type, half);
    }
}

void element_write(element type, void *to, real value) {
    float single;
    double twice;
    uint16_t half;
    value = element_round(type, value);
    switch (type) {
    case F32:
        single = (float)value;
        memcpy(to, &single, sizeof single);
        break;
    case F64:
        twice = (double)value;
        memcpy(to, &twice, sizeof twice);
        break;
    default:
        half = encode16(&formats[type], value);
        memcpy(to, &half, sizeof half);
    }
}

/* Position of a 16-bit value among all of its type, in order. */
static int64_t position(element type, real value) {
    uint16_t bits = encode16(&formats[type], value);
    return bits & 0x8000 ? -(int64_t)(bits & 0x7fff) : bits;
}

int64_t element_steps(element type, real a, real b) {
    if (formats[type].bytes == 2) {
        int64_t steps = position(type, a) - position(type, b);
        return steps < 0 ? -steps : steps;
    }
    real larger = fabsl(a) > fabsl(b) ? fabsl(a) : fabsl(b);
    return (int64_t)(fabsl(a - b) / element_ulp(type, larger));
}
