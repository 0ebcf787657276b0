/* The kernels of the avx512 tier. */
#include "cpu/vec_avx512.h"

#define TIER avx512
#include "cpu/tier.h"
