/*
 * PATH_BATCH: rows that are channels whose elements lie apart (batch_kernels.h). Tiles of channels
 * are done at once, or, where images are stored by pixel or channels are few, part by part: sums of
 * the parts first, then what follows from them, then the results.
 */
#ifndef PLANISH_CPU_BATCH_RUN_H
#define PLANISH_CPU_BATCH_RUN_H

#include "cpu/common/job.h"

/* Fills plan->cut.batch, blocks and workspace_bytes. */
void batch_plan(cpu_plan *plan, const problem *p);

/* Before the blocks; a planish_task over them: whole tiles, or the sums of parts; whether
 * batch_results has to go over them then; and after all. */
void batch_begin(const cpu_job *job);
void batch_blocks(void *job, int64_t begin, int64_t end);
bool batch_goes_on(const cpu_job *job);
void batch_results(void *job, int64_t begin, int64_t end);
void batch_end(const cpu_job *job);

/* Rows whose arithmetic leaves the range of the compute type, in f64, element by element. The
 * moments that forward makes go to *mean, *rstd and *m2; those that are given, and backward's, are
 * read from there. */
void batch_wide_forward(const cpu_job *job, int64_t row, double *mean, double *rstd, double *m2);
void batch_wide_backward(const cpu_job *job, int64_t row, double mean, double rstd, double c1,
                         double c2, double *dweight, double *dbias);

#endif
