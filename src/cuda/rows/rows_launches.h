/* Launches of the kernels for dense rows. Pure. */
#ifndef PLANISH_CUDA_ROWS_LAUNCHES_H
#define PLANISH_CUDA_ROWS_LAUNCHES_H

#include "cuda/launches.h"

/* As cuda_launch_specs and cuda_launch_arguments. */
int rows_launch_specs(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                      cuda_launch launches[CUDA_MOST_LAUNCHES]);
void rows_launch_arguments(const cuda_plan *plan, void *const buffers[ROLE_COUNT], void *workspace,
                           int resident, cuda_launch launches[CUDA_MOST_LAUNCHES]);

/* Arguments of `rows` rows, of each slice, that lie as the plan's strides and slices say; a step of
 * a grid passes `turn` of them. A backward has room for `partials` rows of partial sums of each
 * kind from `sums` on. */
row_forward_args rows_forward_arguments(const cuda_plan *plan, void *const b[ROLE_COUNT],
                                        int64_t rows, int64_t turn);
row_backward_args rows_backward_arguments(const cuda_plan *plan, void *const b[ROLE_COUNT],
                                          int64_t rows, int64_t turn, char *sums, int64_t partials);

#endif
