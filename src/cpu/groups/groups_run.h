/* The work items of PATH_GROUP_ROWS, and those of PATH_PIXELS and PATH_PLANES. */
#ifndef PLANISH_CPU_GROUPS_RUN_H
#define PLANISH_CPU_GROUPS_RUN_H

#include "cpu/common/job.h"

/* Each a planish_task over the plan's blocks. */
void group_row_blocks(void *job, int64_t begin, int64_t end);
void group_tile_blocks(void *job, int64_t begin, int64_t end);

#endif
