/* What this CPU gets: its kernel table, and what plans want to know of how it fetches. */
#ifndef PLANISH_CPU_DISPATCH_H
#define PLANISH_CPU_DISPATCH_H

#include "cpu/kernels.h"

/* The table for this CPU: the fastest tier it runs, capped by PLANISH_CPU_TIER. Chosen once. */
const cpu_kernels *cpu_kernels_chosen(void);

/* The table of the i-th tier built in, from the plainest to the fastest; NULL past the last, and
 * NULL in *kernels where this CPU does not run it. For tests, which compare tiers. */
bool cpu_kernels_tier(int i, const cpu_kernels **kernels);

/* Whether this CPU fetches the rows that come next by itself, so that asking for them is in the
 * way: Intel's, and AMD's Zen 4 where they are short and from memory. */
bool cpu_fetches_rows(void);
bool cpu_fetches_short_rows(void);

/* Whether lines may go past the cache one by one, as they are made: AMD's with AVX-512, the only
 * ones timed so. */
bool cpu_writes_lines(void);

#endif
