/* Dense rows of channels that have one weight and bias each. */
#ifndef PLANISH_CPU_GROUPS_RUN_H
#define PLANISH_CPU_GROUPS_RUN_H

#include "cpu/job.h"

/* weight and bias to the compute type, for every row: before the blocks. */
void group_weights(const cpu_job *job);

/* A planish_task over the plan's blocks. */
void group_blocks(void *job, int64_t begin, int64_t end);

/* dweight and dbias from the sums of the rows. */
void group_sums(const cpu_job *job);

#endif
