/*
 * A norm of a sum in two steps: s, by the stages before the norm, and the plain norm of s, on the
 * path that has it. So the result has the bits of the two run one after the other. s is made for
 * the rows that a path takes next, so that they are read out of a cache.
 *
 * For all that is not dense rows: those go through scratch together with their stages
 * (cpu/stages/stages_path.h), or through the row kernels.
 */
#ifndef PLANISH_CPU_SUM_FIRST_H
#define PLANISH_CPU_SUM_FIRST_H

#include "cpu/common/job.h"
#include "cpu/stages/stage_kernels.h"

/* Completes the plan of the norm of s by the step that makes s, whose problem is p. */
void sum_first_plan(cpu_plan *plan, const problem *p);

enum { SUM_X, SUM_RESIDUAL, SUM_COLUMN_SCALE, SUM_ROW_SCALE, SUM_MASK, SUM_S, SUM_TENSORS };

/* What makes s, for all threads. */
typedef struct sum_maker {
    const problem *problem;
    cpu_plan plan; /* of the arithmetic of s */
    dtype type[SUM_TENSORS];
    char *data[SUM_TENSORS]; /* NULL: absent */
    struct sum_axis {
        int64_t size, index_step;
        int64_t stride[SUM_TENSORS]; /* in bytes */
    } kept[PLANISH_MAX_NDIM], reduced[PLANISH_MAX_NDIM];
    philox draw;
    bool adds_alone; /* x and the residual are all there is */
} sum_maker;

/* The data of p and its workspace; `job` becomes that of the norm of s. */
void sum_first_begin(sum_maker *maker, cpu_job *job, const problem *p,
                     void *const buffers[ROLE_COUNT]);

#endif
