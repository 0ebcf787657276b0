/*
 * Dense rows that do not all lie one stride apart, or that have weights of their own: how they are
 * numbered and cut (kernels/rows/row_levels.cu). Pure.
 */
#ifndef PLANISH_CUDA_ROWS_LEVELS_H
#define PLANISH_CUDA_ROWS_LEVELS_H

#include "cuda/launches.h"

/*
 * Sets the plan's strides, levels and slices, and `known`: the problem of one slice, whose rows
 * are one axis. False: not rows of three levels at most.
 */
bool rows_levels_make(cuda_plan *plan, const problem *p, problem *known);

/* Whether the sums of a slice's columns lie behind those of the slice before it, as one finish of
 * all of them wants it. */
bool rows_sums_follow(const cuda_plan *plan, const problem *p);

/* What kernels are told. */
row_levels rows_levels_arguments(const cuda_plan *plan);

/* Bytes that a step along each axis but the last adds for a tensor, and from slice to slice. */
void rows_level_jumps(const cuda_plan *plan, role r, int bytes, int64_t jump[2]);
int64_t rows_slice_bytes(const cuda_plan *plan, role r, int bytes);

/* Slices of the plan's rows; 1: they are not cut. */
int64_t rows_slices(const cuda_plan *plan);

/* Whose rows follow each other without a gap: 1 x, 2 y or dy, 4 dx. */
int rows_that_follow(const cuda_plan *plan);

/* Whether more than its stride leads from row to row of a tensor. */
bool rows_have_jumps(const cuda_plan *plan, role r);

/* Every stride that leads from one row of a tensor to another: what divides them all divides
 * this. */
uint64_t rows_stride_bits(const cuda_plan *plan, role r);

#endif
