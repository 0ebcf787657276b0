/* Rows of channels of pixels, each channel with one weight and bias: where they keep what. */
#ifndef PLANISH_CPU_GROUPS_JOB_H
#define PLANISH_CPU_GROUPS_JOB_H

#include "cpu/common/job.h"

/* weight and bias to the compute type, for every row: before the blocks. */
void group_weights(const cpu_job *job);

/* dweight and dbias from the sums of the rows: after them. */
void group_sums(const cpu_job *job);

size_t group_real_bytes(const cpu_plan *plan);

/* Channels of a row. */
int64_t group_channels(const problem *p);

/* The affine element of a row's first channel. */
int64_t group_first_affine(const problem *p, int64_t row);

/* weight (which = 0) or bias (1) from this affine element on; NULL: absent. */
const void *group_weights_at(const cpu_job *job, int which, int64_t first);

/* A row's sums for dweight (which = 0) or dbias (1), one for each channel; the next row's follow.
 */
double *group_row_sums(const cpu_job *job, int which, int64_t row);

#endif
