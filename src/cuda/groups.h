/*
 * Plans and launches for norms over groups of channels: the forward with dense pixels is one of
 * rows (kernels/forward.cu), the rest are kernels/groups.cu. Pure.
 */
#ifndef PLANISH_CUDA_GROUPS_H
#define PLANISH_CUDA_GROUPS_H

#include "images.h"
#include "launches.h"

/* Completes a plan whose limits, rows, cols and eps are set with the kernels of groups.cu; false:
 * not a problem for them. */
bool groups_plan_make(cuda_plan *plan, const problem *p, const image_view *v);

/* The same where rows go in tiles, forward and backward (tiles.h). */
bool group_tiles_plan_make(cuda_plan *plan, const problem *p, const image_view *v);

size_t groups_shared_bytes(const cuda_spec *spec);

/* As cuda_plan_describe, cuda_launch_specs and cuda_launch_arguments. */
int groups_plan_describe(const cuda_plan *plan, char *text, size_t bytes);
int groups_launch_specs(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                        cuda_launch launches[CUDA_MOST_LAUNCHES]);
void groups_launch_arguments(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                             void *workspace, int resident,
                             cuda_launch launches[CUDA_MOST_LAUNCHES]);

/* Sets the workspace of a plan whose kernels are there. */
void groups_plan_size(cuda_plan *plan);

#endif
