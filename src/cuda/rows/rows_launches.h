/* Launches of the kernels for dense rows. Pure. */
#ifndef PLANISH_CUDA_ROWS_LAUNCHES_H
#define PLANISH_CUDA_ROWS_LAUNCHES_H

#include "cuda/launches.h"

/* As cuda_launch_specs and cuda_launch_arguments. */
int rows_launch_specs(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                      cuda_launch launches[CUDA_MOST_LAUNCHES]);
void rows_launch_arguments(const cuda_plan *plan, void *const buffers[ROLE_COUNT], void *workspace,
                           int resident, cuda_launch launches[CUDA_MOST_LAUNCHES]);

#endif
