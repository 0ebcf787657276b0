/* The kernels of the avx512bf16 tier: AVX-512 with the instruction that narrows to bf16. */
#include "cpu/vec_avx512.h"

#define TIER avx512bf16
#define TIER_BELOW avx512
#include "cpu/tier.h"
