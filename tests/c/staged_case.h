/*
 * A norm with stages around it, for tests: an operator, which tensors there are, their dtypes and
 * layouts; made into tensors with numbers in them, and run.
 */
#ifndef STAGED_CASE_H
#define STAGED_CASE_H

#include "tensor.h"

/* In planish_tensors' order. */
typedef enum stage_part {
    S_X,
    S_WEIGHT,
    S_BIAS,
    S_Y,
    S_MEAN,
    S_RSTD,
    S_M2,
    S_DY,
    S_DX,
    S_DWEIGHT,
    S_DBIAS,
    S_RESIDUAL,
    S_SUM,
    S_ROW_SCALE,
    S_COLUMN_SCALE,
    S_SCALE,
    S_SHIFT,
    S_GATE,
    S_RNG,
    S_MASK,
    S_Q,
    S_Y_SCALE,
    S_Y_SCALES,
    S_AMAX,
    S_BRANCH,
    S_DSUM,
    S_DRESIDUAL,
    S_DSCALE,
    S_DSHIFT,
    S_DGATE,
    S_DCOLUMN_SCALE,
    STAGE_PARTS
} stage_part;

#define PART(p) ((uint64_t)1 << (p))

/* ---- What every pass has in common, forward and backward (backward_case.h) ---- */

/* The axes that a part has, and the elements along them; whether it has all. */
uint64_t part_axes(const planish_norm *op, int ndim, stage_part p);
int64_t part_count(const planish_norm *op, int ndim, const int64_t shape[], stage_part p);
bool part_is_full(stage_part p);

const DLTensor **staged_field(planish_tensors *t, stage_part p);

/* Reals of a part in row-major order, `otherwise` where it is absent; to be freed. */
real *part_reals(planish_tensors *t, stage_part p, int64_t count, real otherwise);

/* A hash of the elements of these parts, of those that are there. */
uint64_t parts_digest(planish_tensors *t, uint64_t parts);

/* Runs a pass with exactly the workspace that it asks for, which is made anew. */
planish_status parts_run(const planish_norm *op, planish_pass pass, const planish_tensors *t,
                         guarded *workspace, const planish_exec *exec, char *message, size_t bytes);
void parts_free(tensor parts[STAGE_PARTS], guarded *workspace);

/* ---- The forward ---- */

typedef struct staged_case {
    planish_norm op;
    int ndim;
    int64_t shape[5];
    uint64_t has;          /* PART(...): x is always there */
    element type;          /* of x, */
    element residual, sum; /* these, */
    element y;             /* y, */
    element params;        /* weight, bias, the scales, shift and gate */
    DLDataType q;          /* and of this */
    bool e8m0;             /* y_scales are bytes */
    layout in, out;        /* of what is read, of what is written, of x's shape */
    bool full_rank;        /* scales and weights have x's rank */
    stage_part sum_over;   /* S_X or S_RESIDUAL: sum is that tensor; else its own */
    bool y_over_x;
    double spread;    /* of x and residual; 0: 1 */
    uint64_t seed;    /* of the numbers */
    uint64_t draw[2]; /* dropout's seed and offset */
} staged_case;

/* Must not be copied: tensors point into it. */
typedef struct staged_run {
    staged_case c;
    tensor parts[STAGE_PARTS];
    planish_tensors tensors;
    guarded workspace;
} staged_run;

/* A case of rows with nothing around the norm, f32, dense; op as planish_last_axes_op. */
staged_case staged_rows(planish_kind kind, int64_t rows, int64_t cols);

void staged_make(staged_run *r, const staged_case *c);
void staged_free(staged_run *r);

/* The tensor of a part; where the case has one in place of another, that. */
DLTensor *staged_tensor(staged_run *r, stage_part p);

/* With exactly the workspace that is asked for. */
planish_status staged_forward(staged_run *r, const planish_exec *exec, char *message, size_t bytes);

/* Reals of a part in row-major order, `otherwise` where it is absent; to be freed. Bytes of one. */
real *staged_reals(staged_run *r, stage_part p, int64_t count, real otherwise);
unsigned char *staged_bytes(staged_run *r, stage_part p);

/* A hash of the elements of all outputs. */
uint64_t staged_digest(staged_run *r);

#endif
