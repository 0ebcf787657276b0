/* dweight and dbias: from sums of chunks to sums of blocks to the outputs. */
#ifndef PLANISH_CPU_SUMS_H
#define PLANISH_CPU_SUMS_H

#include "cpu/job.h"

/* Adds a chunk sum, one element for each column, to a block sum and clears it. */
void flush_dense(const planish_plan *plan, void *chunk, double *sum);

/* dweight and dbias from the block sums, by tiles of affine elements: a planish_task. */
enum { SUM_TILE = 4096 };
void sum_tiles(void *job, int64_t begin, int64_t end);

/* y, mean, rstd, dweight and dbias of a problem without elements. */
void fill_empty(const cpu_job *job);

#endif
