/* The axes of a problem in one list, for kernels that walk all of them. */
#ifndef PLANISH_CUDA_AXES_H
#define PLANISH_CUDA_AXES_H

#include "problem.h"

typedef struct cuda_axis {
    const axis *of; /* the problem's */
    bool reduced;
} cuda_axis;

typedef struct cuda_axes {
    const problem *problem;
    int count;
    cuda_axis axis[2 * PLANISH_MAX_NDIM];
} cuda_axes;

/* The kept ones first. */
void cuda_axes_of(cuda_axes *list, const problem *p);

/* By the strides of one tensor, the smallest last. */
void cuda_axes_by(cuda_axes *list, const problem *p, role by);

/* A tensor's stride along one of them, in bytes. */
int64_t cuda_axis_bytes(const cuda_axes *list, const cuda_axis *a, role r);

/* The rows that a step along a kept axis passes, where rows are numbered in the list's order. */
int64_t cuda_axes_rows_behind(const cuda_axes *list, int k);

#endif
