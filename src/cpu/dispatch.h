/* What this CPU gets: its kernel table. */
#ifndef PLANISH_CPU_DISPATCH_H
#define PLANISH_CPU_DISPATCH_H

#include "cpu/common/kernels.h"

/* The table for this CPU: the fastest tier it runs, capped by PLANISH_CPU_TIER. Chosen once. */
const cpu_kernels *cpu_kernels_chosen(void);

/* The table of the i-th tier built in, from the plainest to the fastest; NULL past the last, and
 * NULL in *kernels where this CPU does not run it. For tests, which compare tiers. */
bool cpu_kernels_tier(int i, const cpu_kernels **kernels);

#endif
