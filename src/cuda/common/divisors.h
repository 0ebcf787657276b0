/* Division by a number that is known when a kernel is launched, as a multiplication in the kernel.
 */
#ifndef PLANISH_CUDA_DIVISORS_H
#define PLANISH_CUDA_DIVISORS_H

#include "cuda/words.h"

#include "cuda/kernels/arguments/divisor.h"

/* Numbers below 2^31, times the multiplier, shifted by 32 and by this, are divided by n > 1: the
 * multiplier is 2^(32 + shift) / n, rounded up, and 2^shift < n <= 2^(shift + 1). */
static inline divisor divisor_of(int64_t n) {
    u32 shift = 0;
    while (((int64_t)2 << shift) < n)
        shift++;
    const u64 power = (u64)1 << (32 + shift);
    return (divisor){(u32)((power + (u64)n - 1) / (u64)n), shift};
}

#endif
