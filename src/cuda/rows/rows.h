/*
 * Plans for dense rows, and for groups of channels that are rows (kernels/forward.cu, backward.cu
 * and backward_long.cu). Pure.
 */
#ifndef PLANISH_CUDA_ROWS_H
#define PLANISH_CUDA_ROWS_H

#include "cuda/common/images.h"
#include "cuda/families.h"

extern const cuda_family rows_family;

/* Makes plans of the same kernels for rows that several strides lead to, or that have weights of
 * their own (rows_levels.h). */
extern const cuda_family row_levels_family;

/* Completes a plan for groups whose pixels are dense, one stride from each to the next:
 * rows that have weights of their own. False: these are not such. */
bool group_rows_plan_make(cuda_plan *plan, const problem *p, const image_view *v);

#endif
