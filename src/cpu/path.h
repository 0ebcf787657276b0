/* Which of the CPU's paths a problem goes. Pure. */
#ifndef PLANISH_CPU_PATH_H
#define PLANISH_CPU_PATH_H

#include "cpu/plan.h"

cpu_path cpu_path_of(const problem *p);

/* Whether it would go PATH_ROWS but that weights vary from sample to sample: along the first kept
 * axis, not along the rows of a sample. */
bool cpu_rows_by_sample(const problem *p);

#endif
