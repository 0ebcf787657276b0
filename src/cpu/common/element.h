/* One element of any dtype, to and from double: for what is per row or rare, never for inner loops.
 */
#ifndef PLANISH_CPU_ELEMENT_H
#define PLANISH_CPU_ELEMENT_H

#include <stdbool.h>
#include <stddef.h>

#include "cpu/vectors/bits.h"
#include "dtypes.h"

static inline double element_load(const void *p, dtype type) {
    switch (type) {
    case DTYPE_F32:
        return *(const float *)p;
    case DTYPE_F16:
        return f32_of_f16(*(const uint16_t *)p);
    case DTYPE_BF16:
        return f32_of_bf16(*(const uint16_t *)p);
    default:
        return *(const double *)p;
    }
}

/* Rounded once, to nearest even. */
static inline void element_store(void *p, dtype type, double value) {
    switch (type) {
    case DTYPE_F32:
        *(float *)p = (float)value;
        return;
    case DTYPE_F16:
        *(uint16_t *)p = f16_of_f32(f32_to_odd(value));
        return;
    case DTYPE_BF16:
        *(uint16_t *)p = bf16_of_f32(f32_to_odd(value));
        return;
    default:
        *(double *)p = value;
    }
}

#endif
