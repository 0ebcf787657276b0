/* Groups of any layout and dtypes, by way of planes. */
#ifndef PLANISH_CPU_GROUPS_PLANES_H
#define PLANISH_CPU_GROUPS_PLANES_H

#include "cpu/common/job.h"

/* `rows` rows from `row` on, along the innermost kept axis, in the thread's slot. */
void group_planes(const cpu_job *job, int slot, int64_t row, int64_t rows);

#endif
