/*
 * The element-wise kernel (kernels/stages/stages_sum.cu) of a plan whose norm is another family's,
 * which knows of no stages: in front of its kernels it makes what they read, s; behind those of a
 * backward it adds dsum to what they made. So the two have the bits of the steps one after the
 * other. Pure.
 */
#ifndef PLANISH_CUDA_SUM_STEP_H
#define PLANISH_CUDA_SUM_STEP_H

#include "cuda/families.h"

extern const cuda_family stages_sum_family;

/* Adds the step of p to a plan of the norm: STEP_MAKE_SUM before it, or STEP_ADD_DSUM behind it,
 * whose dx is of dtype `made`. */
void sum_step_plan(cuda_plan *plan, const problem *p);
void sum_step_plan_dsum(cuda_plan *plan, const problem *p, dtype made);

/* Writes what it is, closed by a semicolon; returns its whole length. */
int sum_step_describe(const cuda_plan *plan, char *text, size_t bytes);

/* Gives the norm's buffers what both steps share, which is returned; workspace NULL: only its
 * alignment counts. */
void *sum_step_share(const cuda_plan *plan, void *const buffers[ROLE_COUNT], void *workspace,
                     void *of_norm[ROLE_COUNT]);

/* The kernel for these addresses, and its launch. */
cuda_spec sum_step_spec(const cuda_plan *plan, void *const buffers[ROLE_COUNT], void *shared);
void sum_step_arguments(const cuda_plan *plan, void *const buffers[ROLE_COUNT], void *shared,
                        cuda_launch *launch);

#endif
