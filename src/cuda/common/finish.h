/*
 * The kernel that adds up rows of partial sums (kernels/finish.cu), behind the kernels of any plan
 * whose blocks leave some. Pure.
 */
#ifndef PLANISH_CUDA_FINISH_H
#define PLANISH_CUDA_FINISH_H

#include "cuda/families.h"

extern const cuda_family finish_family;

/* Adds it to a plan, for `partials` rows of `cols` columns each. */
void cuda_plan_finish(cuda_plan *plan, const problem *p, int cols, int64_t partials);

/* Its launch, for `count` rows, which begin at `partials`; those of dbias lie `room` rows after
 * those of dweight. */
void cuda_finish_arguments(const cuda_plan *plan, void *const buffers[ROLE_COUNT], char *partials,
                           int64_t room, int64_t count, cuda_launch *launch);

#endif
