/* A divisor n > 1 of numbers below 2^31, for C (../../common/divisors.h) and for the kernels. */
#ifndef PLANISH_CUDA_DIVISOR_H
#define PLANISH_CUDA_DIVISOR_H

/* r / n is the high word of r * multiplier, shifted. */
typedef struct divisor {
    u32 multiplier, shift;
} divisor;

#endif
