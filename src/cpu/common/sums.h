/* dweight and dbias: from sums of chunks to sums of blocks to the outputs. */
#ifndef PLANISH_CPU_SUMS_H
#define PLANISH_CPU_SUMS_H

#include "cpu/common/job.h"

/* Adds a chunk sum, one element for each column, to a block sum and clears it. */
void flush_dense(const cpu_job *job, void *chunk, double *sum);

/* Whether each block is one chunk: its chunk sums are then its block sums too, and not flushed. */
static inline bool blocks_are_chunks(const cpu_plan *plan) {
    return plan->path == PATH_ROWS && plan->cut.rows.block_rows <= CHUNK_ROWS;
}

/* dweight and dbias from the block sums, by tiles of SUM_TILE elements of a sample's: a
 * planish_task, and how many there are. */
void sum_tiles(void *job, int64_t begin, int64_t end);
int64_t sum_tile_count(const cpu_job *job);

/* y, mean, rstd, dweight and dbias of a problem without elements. */
void fill_empty(const cpu_job *job);

#endif
