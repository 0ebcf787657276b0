/* Arguments of the kernels of batches, for C and for the kernels (../../words.h). */
#ifndef PLANISH_CUDA_BATCH_ARGS_H
#define PLANISH_CUDA_BATCH_ARGS_H

#include "divisor.h"

/* Where a tensor's elements are, in bytes: from row to row along the outer and the inner of two axes
 * that number them, and from one run of a row's elements to the next. */
typedef struct batch_place {
    i64 outer, inner, run;
} batch_place;

typedef struct batch_args {
    const void *x, *weight, *bias, *dy;
    void *mean, *rstd, *out, *dweight, *dbias;
    partial_sum *sums;      /* [pieces][3][rows] */
    partial_sum *constants; /* [5][rows] */
    i64 rows, inner_rows;   /* of all; of the inner axis */
    batch_place x_at, dy_at, out_at, weight_at, bias_at, mean_at, rstd_at, dweight_at, dbias_at;
    u32 steps; /* of a row; STEP_ELEMENTS of it each */
    u32 run_steps;
    u32 piece, pieces; /* steps of a piece, and pieces of a row */
    divisor run_divisor;
    double cols, eps;
    u32 eps_is_small; /* below 1e-30: squares may have to be scaled up */
} batch_args;

#endif
