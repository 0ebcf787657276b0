/*
 * The backward of PATH_STAGES (cpu/stages/stages_path.h): how it is cut, and its passes over blocks
 * of rows and over the sums of these. Within a block some rows at a time are in scratch.
 */
#ifndef PLANISH_CPU_STAGES_BACKWARD_H
#define PLANISH_CPU_STAGES_BACKWARD_H

#include "cpu/common/job.h"

/* Fills plan->cut.stages but for row_bytes and general, which are known, and blocks, slices and
 * workspace_bytes. */
void stages_plan_backward(cpu_plan *plan, const problem *p);

/* A planish_task over blocks. */
void stages_backward_blocks(void *job, int64_t begin, int64_t end);

/* One over tiles of the sums, and how many there are: 0 where no sums are wanted. */
void stages_backward_sums(void *job, int64_t begin, int64_t end);
int64_t stages_backward_sum_tiles(const problem *p);

#endif
