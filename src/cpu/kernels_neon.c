/* The kernels of the neon tier. */
#include "cpu/vec_neon.h"

#define TIER neon
#include "cpu/tier.h"
