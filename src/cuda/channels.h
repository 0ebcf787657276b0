/*
 * Plans and launches of the kernels for norms over channels with dense pixels
 * (kernels/channels.cu). Pure.
 */
#ifndef PLANISH_CUDA_CHANNELS_H
#define PLANISH_CUDA_CHANNELS_H

#include "launches.h"

/* Completes a plan whose limits, rows, cols and eps are set; false: not a problem for them. */
bool channels_plan_make(cuda_plan *plan, const problem *p);

/* As cuda_plan_describe, cuda_launch_specs and cuda_launch_arguments. */
int channels_plan_describe(const cuda_plan *plan, char *text, size_t bytes);
int channels_launch_specs(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                          cuda_launch launches[CUDA_MOST_LAUNCHES]);
void channels_launch_arguments(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                               void *workspace, int resident,
                               cuda_launch launches[CUDA_MOST_LAUNCHES]);

#endif
