/* Small integers, as geometry is made of. */
#ifndef PLANISH_CUDA_INTEGERS_H
#define PLANISH_CUDA_INTEGERS_H

#include <stddef.h>
#include <stdint.h>

static inline int least(int a, int b) {
    return a < b ? a : b;
}
static inline int most(int a, int b) {
    return a > b ? a : b;
}
static inline int ceil_div(int a, int b) {
    return (a + b - 1) / b;
}
static inline int64_t least_i64(int64_t a, int64_t b) {
    return a < b ? a : b;
}
static inline int64_t most_i64(int64_t a, int64_t b) {
    return a > b ? a : b;
}
static inline int64_t ceil_div_i64(int64_t a, int64_t b) {
    return a / b + (a % b != 0);
}

/* Bytes, to whole chunks of 16. */
static inline size_t round_up(size_t bytes) {
    return (bytes + 15) / 16 * 16;
}

/* The largest power of two up to 16 that divides everything or-ed together in `bits`. */
static inline int32_t common_alignment(uint64_t bits) {
    bits |= 16;
    return (int32_t)(bits & ~(bits - 1));
}

#endif
