/*
 * One case of a table: an operator, with or without stages around the norm, a pass, dtypes, layouts
 * and values; made into tensors, run, and held against the reference with the bounds of
 * docs/guide/reproducibility.md.
 */
#ifndef CASES_H
#define CASES_H

#include "reference.h"
#include "tensor.h"

/* What the numbers in x look like. */
typedef enum numbers {
    NORMAL,      /* mean 0, standard deviation 1 */
    MEAN_100,    /* mean 100 standard deviations, another one in each row */
    MEAN_1E4,    /* mean 1e4 standard deviations */
    SCALE_BIG,   /* standard deviation 1e30 (f16: 6000) */
    SCALE_TINY,  /* standard deviation 1e-30 (f16: 1e-6) */
    CONSTANT,    /* each row one number */
    OUTLIER,     /* one element of the row 1000 times the others */
    SUBNORMAL,   /* no element is a normal number of its type */
    SCALE_MIXED, /* every fifth row as SCALE_BIG */
    BEGINNING,   /* the first 40 elements of two rows of three far from the others */
    NUMBERS_COUNT
} numbers;

const char *numbers_name(numbers n);

/* What the mean and rstd are that a pass is given. */
typedef enum statistics {
    OWN,         /* those of x, rounded; rstd to f32 before */
    OWN_BY_F32,  /* rounded to f32 or two of them before: the same bits on every machine */
    RANDOM,      /* numbers that have nothing to do with x */
    FROZEN,      /* those of the first row for every row */
    SHIFTED,     /* means `distance` standard deviations from x's */
    OFF_BY_ULPS, /* means `distance` ULP from x's, rounded */
    OWN_WHOLE,   /* those of x, with all digits of rstd that its dtype has */
    STATISTICS_COUNT
} statistics;

/* An output in the place of an input. */
typedef struct over {
    part output, input; /* the same: nothing */
} over;

typedef struct norm_case {
    planish_pass pass;
    planish_norm op;
    int ndim;
    int64_t shape[PLANISH_MAX_NDIM];
    uint64_t has;          /* of what the pass lets be absent; HAS(...) bits */
    element x, dx;         /* dx and dresidual */
    element y;             /* y and dy */
    element residual, sum; /* before the norm */
    element stages;        /* gate and dgate, dsum, branch */
    element weight;        /* weight, bias, scale, shift and the scales before the norm */
    element grad;          /* the gradients of these */
    element stats;         /* mean, rstd, m2, c1 and c2 */
    DLDataType q;
    bool e8m0;      /* y_scales are bytes */
    layout in;      /* what is read and has x's shape */
    layout out;     /* what is written and has x's shape */
    layout params;  /* weight, bias, dweight, dbias */
    bool full_rank; /* what has not all of x's axes has its rank, with ones */
    over over[2];
    numbers numbers;
    double x_center, x_spread; /* of normal numbers: mean and standard deviation; spread 0: 0, 1 */
    double dy_center, dy_spread; /* likewise */
    double weight_spread;        /* around 0; 0: 0.5 around 1 - weight_offset */
    statistics given;
    double distance;
    uint64_t seed;
    bool one_draw;    /* the parts' numbers are drawn one after the other; else each by itself */
    uint64_t draw[2]; /* dropout's seed and offset */
} norm_case;

/* A case of `pass` over (rows, cols) with y, rstd and nothing else that may be absent, f32, dense;
 * weights, if there are, around 0. The numbers of a part are the same whatever else there is. */
norm_case bare_case(planish_pass pass, planish_kind kind, int64_t rows, int64_t cols);

/* The same with all tensors that a norm alone may have, and weights near 1. */
norm_case rows_case(planish_pass pass, planish_kind kind, int64_t rows, int64_t cols);

/* The layers over images that have kernels of their own, as a view of (N, C, H, W). */
typedef enum image_layer { CHANNEL_NORM, GROUP_NORM, INSTANCE_NORM, IMAGE_LAYERS } image_layer;

/* A case of `layer` over (batch, channels, height, width), f32, dense, with all optional tensors.
 * GroupNorm has `groups` of them: (batch, groups, channels / groups, height, width). */
norm_case image_case(planish_pass pass, planish_kind kind, image_layer layer, int64_t batch,
                     int64_t channels, int64_t height, int64_t width, int64_t groups);

/* Makes eps of an L2 case the length of rows of normal numbers, of which then about half are too
 * short. */
void case_set_length(norm_case *c);

/* In `text`, what tells this case from others. */
const char *case_text(const norm_case *c, char *text, size_t bytes);

/* x, y, weights, gradients and what stands around the norm of this dtype; statistics of f32, or of
 * f64 if that is f64. */
void case_set_types(norm_case *c, element all);

/* The dtype of a part. */
element part_type(const norm_case *c, part p);

/* The tensors of a case, inputs filled in. */
typedef struct bundle {
    norm_case test;
    tensor tensor[PARTS];
    planish_tensors tensors; /* those that are there */
    guarded workspace;
} bundle;

/* A bundle must not be copied: its tensors point into it. */
void bundle_make(bundle *b, const norm_case *c);
void bundle_free(bundle *b);

/* Fills in again what the pass reads though another pass writes it, after x was changed. */
void bundle_fill_saved(bundle *b);

/* Whether the pass has this part, and writes it. */
bool bundle_has(const bundle *b, part p);
bool bundle_has_output(const bundle *b, part p);

/* The tensor of a part, or the one it lies over. */
DLTensor *bundle_tensor(bundle *b, part p);

/* Reals of a part in row-major order, `otherwise` where it is absent; to be freed. Bytes of one. */
real *bundle_reals(bundle *b, part p, real otherwise);
unsigned char *bundle_bytes(bundle *b, part p);
int64_t bundle_count(const bundle *b, part p);

/* Copies of the outputs' memory, guards and gaps included, to be freed; NULL where there is none.
 */
void bundle_keep_outputs(const bundle *b, unsigned char *kept[PARTS]);
void bundle_clear_outputs(bundle *b);

/* Asks for the workspace and runs the pass with exactly that much; `exec` may be NULL. */
planish_status bundle_run(bundle *b, const planish_exec *exec, char *message, size_t bytes);

/* Whether rows of f64 are summed plainly, as on the GPU: rstd and m2 may then be off by half an ULP
 * for each element. */
extern bool plain_f64_sums;

/* Holds every output of a run against the reference: expectations of the open case. */
void bundle_check(bundle *b);

/* The same where the run may have written over its inputs: against bundle_reference() before it. */
reference bundle_reference(const bundle *b);
void bundle_check_against(bundle *b, reference *exact);

/* Builds, runs, checks: expectations of the open case. */
void run_and_check(const norm_case *c, const planish_exec *exec);

/* The same as a case of the table. */
void run_case(const norm_case *c, const planish_exec *exec);

/* Closes the books: 16-bit outputs off by one value in at most 1 of 1000, as a case of its own; and
 * prints the largest errors seen. */
void report_accuracy(void);

/* A hash of every output's elements. */
uint64_t bundle_digest(const bundle *b);

/* ---- Ways to run ---------------------------------------------------------------------------- */

/* Calls the items one at a time, last first. */
void backwards_for(void *context, int64_t count, planish_task task, void *task_data);

/* On *(int *)context threads of its own, in uneven ranges. */
void threads_for(void *context, int64_t count, planish_task task, void *task_data);

planish_exec exec_backwards(void);
planish_exec exec_threads(int *threads);

#endif
