/* Whole numbers, as work is cut by. */
#ifndef PLANISH_CPU_INTEGERS_H
#define PLANISH_CPU_INTEGERS_H

#include <stddef.h>
#include <stdint.h>

static inline int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

/* Bytes, to whole lines of the cache. */
static inline size_t round_up(size_t bytes) {
    return (bytes + 63) & ~(size_t)63;
}

#endif
