/*
 * Rows of channels of pixels, each channel with one weight and bias: where they keep what in the
 * workspace (weight and bias in the compute type, the sums of dweight and dbias, each row's own
 * sums of its channels, slots), and the ways to take them.
 */
#ifndef PLANISH_CPU_GROUPS_RUN_H
#define PLANISH_CPU_GROUPS_RUN_H

#include "cpu/job.h"

/* weight and bias to the compute type, for every row: before the blocks. */
void group_weights(const cpu_job *job);

/* A planish_task over the plan's blocks. */
void group_blocks(void *job, int64_t begin, int64_t end);

/* dweight and dbias from the sums of the rows. */
void group_sums(const cpu_job *job);

/* ---- What the ways have in common -------------------------------------------------------------
 */

size_t group_real_bytes(const planish_plan *plan);

/* Channels of a row. */
int64_t group_channels(const problem *p);

/* The affine element of a row's first channel. */
int64_t group_first_affine(const problem *p, int64_t row);

/* weight (which = 0) or bias (1) from this affine element on; NULL: absent. */
const void *group_weights_at(const cpu_job *job, int which, int64_t first);

/* A row's sums for dweight (which = 0) or dbias (1), one for each channel; the next row's follow.
 */
double *group_row_sums(const cpu_job *job, int which, int64_t row);

/* One row, stored by channel, whose elements are where `run` says and of this dtype. */
void group_row(const cpu_job *job, dtype element, int64_t row, const row_run *run, traffic traffic);

/* Rows along the innermost kept axis, by way of planes (cpu/groups_planes.c) and of an image stored
 * by pixel (cpu/groups_strip.c). */
void group_planes(const cpu_job *job, int slot, int64_t row, int64_t rows);
void group_strip(const cpu_job *job, int slot, int64_t row, int64_t rows);

#endif
