/* The kernels of the portable tier. */
#include "cpu/vec_portable.h"

#define TIER portable
#include "cpu/tier.h"
