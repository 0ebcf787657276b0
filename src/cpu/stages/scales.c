/* The scales of quantised elements; see stages_path.h. */
#include "cpu/stages/stages_path.h"

/* The largest number of a dtype that is used. */
static float largest_of(dtype quantised) {
    return quantised == DTYPE_E4M3 ? 448 : quantised == DTYPE_E5M2 ? 57344 : 127;
}

/* Exponents of f32's normal numbers, as its bits have them. */
enum { LEAST_EXPONENT = 1, MOST_EXPONENT = 254 };

/* The least power of two that is not below a positive number, as an exponent of f32. */
static uint32_t power_above(float scale) {
    const uint32_t bits = bits_of_f32(scale);
    const uint32_t exponent = (bits >> 23) + ((bits & 0x7fffff) != 0);
    return exponent < LEAST_EXPONENT  ? LEAST_EXPONENT
           : exponent > MOST_EXPONENT ? MOST_EXPONENT
                                      : exponent;
}

float stages_scale(const stages *s, dtype quantised, double largest) {
    const float least = (float)s->scale_least, most = (float)s->scale_most;
    float scale = (float)largest / largest_of(quantised);
    if (scale < least)
        scale = least;
    if (scale == 0)
        scale = 1;
    if (most > 0 && scale > most)
        scale = most;
    return s->format == PLANISH_SCALE_POWER_OF_TWO ? f32_of_bits(power_above(scale) << 23) : scale;
}

void stages_store_scale(char *to, dtype type, float scale) {
    if (type == DTYPE_E8M0)
        *(uint8_t *)to = (uint8_t)(bits_of_f32(scale) >> 23);
    else
        memcpy(to, &scale, sizeof scale);
}
