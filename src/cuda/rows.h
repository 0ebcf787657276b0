/*
 * Plans for dense rows, and for groups of channels that are rows (kernels/forward.cu, backward.cu
 * and backward_long.cu). Pure.
 */
#ifndef PLANISH_CUDA_ROWS_H
#define PLANISH_CUDA_ROWS_H

#include "images.h"

/* Completes a plan whose limits, rows, cols and eps are set; false: not a problem of dense rows. */
bool rows_plan_make(cuda_plan *plan, const problem *p);

/* The same for groups whose pixels are dense, one stride from each to the next: rows that have
 * weights of their own. */
bool group_rows_plan_make(cuda_plan *plan, const problem *p, const image_view *v);

/* As cuda_plan_describe. */
int rows_plan_describe(const cuda_plan *plan, char *text, size_t bytes);

#endif
