/*
 * Plan and buffers -> the kernels of a run, their grids and their arguments. Pure: what the driver
 * is then told (launch.c), and what the tests run on the host (tests/cuda/emulation).
 */
#ifndef PLANISH_CUDA_ARGUMENTS_H
#define PLANISH_CUDA_ARGUMENTS_H

#include "cuda/launches.h"

/* Sets the specialisations for buffers at these addresses (only their alignment counts), in the
 * order of their launch. Returns how many: none where there is nothing to write. */
int cuda_launch_specs(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                      cuda_launch launches[CUDA_MOST_LAUNCHES]);

/* Sets the rest. `resident`: how many clusters of the plan's main kernel the device holds at once,
 * where it is launched with clusters; how many groups of blocks, at least 1, of a cooperative one.
 */
void cuda_launch_arguments(const cuda_plan *plan, void *const buffers[ROLE_COUNT], void *workspace,
                           int resident, cuda_launch launches[CUDA_MOST_LAUNCHES]);

#endif
