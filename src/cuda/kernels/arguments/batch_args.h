/* Arguments of the kernels of batches, for C and for the kernels (../../words.h). */
#ifndef PLANISH_CUDA_BATCH_ARGS_H
#define PLANISH_CUDA_BATCH_ARGS_H

#include "divisor.h"

/* Where a tensor's elements are, in bytes: from row to row along the outer and the inner of two
 * axes that number them, and from one run of a row's elements to the next. */
typedef struct batch_place {
    i64 outer, inner, run;
} batch_place;

/* What the arguments have a place for. */
typedef struct batch_tensor {
    void *data;
    batch_place at;
} batch_tensor;

typedef struct batch_args {
    batch_tensor x, dy, beside, out, daddend;
    batch_tensor weight, bias, mean, rstd, c1, c2, dweight, dbias;
    batch_tensor running_mean, running_var;
    partial_sum *sums;      /* [pieces][3][rows] */
    partial_sum *constants; /* [5][rows] */
    i64 rows, inner_rows;   /* of all; of the inner axis */
    u32 steps;              /* of a row; STEP_ELEMENTS of it each */
    u32 run_steps;
    u32 piece, pieces; /* steps of a piece, and pieces of a row */
    divisor run_divisor;
    double cols, eps, momentum;
    u32 eps_is_small; /* below 1e-30: squares may have to be scaled up */
    double count;     /* what sums are divided by: cols; of L2 1 */
    double clamped;   /* common/rule.cu */
} batch_args;

#endif
