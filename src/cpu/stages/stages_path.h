/*
 * PATH_STAGES: a norm with stages around it (planish.h), over any strides, axes and dtypes. Some
 * rows at a time are brought into scratch in the compute type, where the loops of the stages
 * (cpu/stages/stage_kernels.h) and the row kernels run on them. Where rows are dense all of that is
 * in vectors; elsewhere elements are gathered one by one.
 *
 * plan.c cuts the rows and shares out the workspace; transfer.c brings rows to and fro; forward.c
 * and backward.c (backward.h) are the passes.
 */
#ifndef PLANISH_CPU_STAGES_H
#define PLANISH_CPU_STAGES_H

#include "cpu/common/job.h"
#include "cpu/stages/stage_kernels.h"

/* ---- The plan -------------------------------------------------------------------------------- */

/* Rows of a slot beside the batch: what is the same for many rows, an operand, bytes. */
enum {
    STAGES_WEIGHT,
    STAGES_BIAS,
    STAGES_COLUMN_SCALE,
    STAGES_SCALE,
    STAGES_SHIFT,
    STAGES_OPERAND,
    STAGES_BYTES,
    STAGES_ROWS
};

/* The most rows that are in scratch together. */
enum { STAGES_BATCH_ROWS = 64 };

/* Fills plan->cut.stages, blocks and workspace_bytes. */
void stages_plan(cpu_plan *plan, const problem *p);

/* Names the stages, as "+residual+dropout"; returns its whole length. */
int stages_describe(const problem *p, char *text, size_t bytes);

/* ---- The forward: a planish_task ------------------------------------------------------------- */

void stages_forward_blocks(void *job, int64_t begin, int64_t end);

/* What is made of all blocks, once they are done. */
void stages_forward_finish(const cpu_job *job);

/* Of a problem without elements: y_scales and amax. */
void stages_fill_empty(const cpu_job *job);

/* ---- Rows to and fro ------------------------------------------------------------------------- */

static inline size_t stages_real_bytes(const cpu_plan *plan) {
    return plan->is_double ? sizeof(double) : sizeof(float);
}
static inline const stage_kernels *stages_kernels(const cpu_plan *plan) {
    return plan->kernels->stages[plan->is_double];
}
static inline const row_kernels *stages_row_kernels(const cpu_plan *plan) {
    return &plan->kernels->of[plan->is_double ? DTYPE_F64 : DTYPE_F32].rows[WEIGHT_SAME];
}

/* One row of tensor r, whose first element is at `data`, to and from dense elements in the compute
 * type. Results go past the cache where the plan says so. */
void stages_gather(const cpu_job *job, role r, const char *data, void *row);
void stages_scatter(const cpu_job *job, role r, char *data, const void *row);

/* Prefetches a run's row `r` of every tensor that is read row by row, unless all is near. */
void stages_prefetch_row(const cpu_job *job, const row_run *run, int64_t r);

/* Rounds dense elements in the compute type to this dtype. `piece` holds STAGES_PIECE_BYTES. */
enum { STAGES_PIECE = 1024, STAGES_PIECE_BYTES = STAGES_PIECE * 8 };
void stages_round(const cpu_plan *plan, void *row, dtype to, int64_t count, void *piece);

/* Calls for each run of a row's elements that have one stride in tensor r, or in dropout's index
 * where r is ROLE_COUNT: `count` of them from place `at` of the row on, at `offset` elements. */
typedef void stages_visit(void *context, int64_t at, int64_t offset, int64_t stride, int64_t count);
void stages_each_run(const problem *p, int r, stages_visit *visit, void *context);

/* The place of a row's first element in dropout's order. */
int64_t stages_row_index(const problem *p, int64_t row);

/* u * keep / (1 - p) of a row whose first element has this index; keep goes to `mask`, a byte for
 * each element, where that is not NULL. */
void stages_drop(const cpu_job *job, const philox *draw, int64_t index, void *row, uint8_t *mask);

/* ---- Scales ---------------------------------------------------------------------------------- */

/* The scale of elements whose largest magnitude is this (planish.h), and its store. */
float stages_scale(const stages *s, dtype quantised, double largest);
void stages_store_scale(char *to, dtype type, float scale);

#endif
