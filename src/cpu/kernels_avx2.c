/* The kernels of the avx2 tier. */
#include "cpu/vec_avx2.h"

#define TIER avx2
#include "cpu/tier.h"
