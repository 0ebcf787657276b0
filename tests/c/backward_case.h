/*
 * The backward of a norm with stages around it, for tests: an operator, which tensors there are,
 * their dtypes and layouts; made into tensors with numbers in them, run, and the same by the
 * formulas of planish.h in long double.
 */
#ifndef BACKWARD_CASE_H
#define BACKWARD_CASE_H

#include "reference.h"
#include "staged_case.h"

/* An output in the place of an input. */
typedef struct over {
    stage_part output, input; /* the same: nothing */
} over;

typedef struct backward_case {
    planish_norm op;
    int ndim;
    int64_t shape[5];
    uint64_t has;  /* PART(...): x, dy and the statistics are always there */
    element x, dy; /* and of dx and dresidual; of gate, dgate, dsum and branch */
    element dx, stages;
    element params; /* weight, bias, the scales, shift; and their gradients */
    element stats;
    layout in, out;  /* of what is read, of what is written, of x's shape */
    bool full_rank;  /* what has some of x's axes has ones on the others */
    bool far_mean;   /* x's mean is 50 */
    bool of_forward; /* x is what a forward of branch and residual made; else any numbers */
    over over[2];
    uint64_t seed, draw[2];
} backward_case;

/* Must not be copied: tensors point into it. */
typedef struct backward_run {
    backward_case c;
    tensor parts[STAGE_PARTS];
    real *branch, *residual; /* where of_forward, of the seed */
    planish_tensors tensors;
    guarded workspace;
} backward_run;

/* Rows of f32, dense. */
backward_case backward_rows(planish_kind kind, int64_t rows, int64_t cols);

void backward_make(backward_run *r, const backward_case *c);
void backward_free(backward_run *r);

/* The tensor of a part, or the one it lies over. */
DLTensor *backward_tensor(backward_run *r, stage_part p);

/* The axes that a part has. */
uint64_t backward_axes(const backward_case *c, stage_part p);
bool backward_is_output(stage_part p);

/* The part's reals, `otherwise` where it is absent; to be freed. */
real *backward_reals(backward_run *r, stage_part p, real otherwise);
int64_t backward_count(const backward_case *c, stage_part p);

/* With exactly the workspace that is asked for. */
planish_status backward_do(backward_run *r, const planish_exec *exec, char *message, size_t bytes);

/* A hash of the elements of all outputs. */
uint64_t backward_digest(backward_run *r);

/* ---- The formulas (backward_reference.c) ---- */

/* What the outputs are, and the magnitude that errors are measured against. */
typedef struct backward_reference {
    real *value[STAGE_PARTS], *scale[STAGE_PARTS];
    bool is_double; /* the arithmetic */
} backward_reference;

/* Before the run, which may write over inputs. */
backward_reference backward_reference_of(backward_run *r);
void backward_reference_free(backward_reference *f);

/* The inputs as numbers, to be changed one by one; and what the outputs are gradients of: the sum
 * of y * dy + s * dsum. Where of_forward. */
typedef struct backward_numbers {
    real *of[STAGE_PARTS]; /* S_BRANCH: x of the forward */
} backward_numbers;
backward_numbers backward_numbers_of(backward_run *r);
void backward_numbers_free(backward_numbers *n);
real backward_objective(const backward_case *c, const backward_numbers *n);

/* s of a forward with these numbers. */
void backward_sum(const backward_case *c, const backward_numbers *n, real *s);

#endif
