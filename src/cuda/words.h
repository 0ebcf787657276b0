/*
 * The words of kernels/arguments/, which is one text for C and for the kernels, as C has them. The
 * kernels have theirs in kernels/common/vocabulary_types.cu.
 */
#ifndef PLANISH_CUDA_WORDS_H
#define PLANISH_CUDA_WORDS_H

#include <stdint.h>

#include "roles.h" /* ROLE_X and so on are in each kernel's prelude */

typedef uint32_t u32;
typedef uint64_t u64;
typedef int64_t i64;

/* What a kernel adds up partial sums in, f32 or f64, of which C has the address alone. */
typedef void partial_sum;

#endif
