/*
 * Plans and launches of the general kernels (kernels/general.cu): whatever the row kernels do not
 * take. Pure.
 */
#ifndef PLANISH_CUDA_GENERAL_H
#define PLANISH_CUDA_GENERAL_H

#include "launches.h"

/* Completes a plan whose limits, rows, cols and eps are set. Takes every problem. */
void general_plan_make(cuda_plan *plan, const problem *p);

/* As cuda_plan_describe, cuda_launch_specs and cuda_launch_arguments. */
int general_plan_describe(const cuda_plan *plan, char *text, size_t bytes);
int general_launch_specs(const cuda_plan *plan, cuda_launch launches[CUDA_MOST_LAUNCHES]);
void general_launch_arguments(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                              void *workspace, cuda_launch launches[CUDA_MOST_LAUNCHES]);

#endif
