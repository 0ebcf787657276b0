/* The work items of PATH_GROUPS. */
#ifndef PLANISH_CPU_GROUPS_RUN_H
#define PLANISH_CPU_GROUPS_RUN_H

#include "cpu/job.h"

/* A planish_task over the plan's blocks. */
void group_blocks(void *job, int64_t begin, int64_t end);

#endif
