/*
 * One case of a table: an operator, a pass, dtypes, layouts and values; made into tensors, run, and
 * held against the reference with the bounds of docs/guide/reproducibility.md.
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
    OWN,         /* those of x, rounded */
    OWN_BY_F32,  /* rounded to f32 or two of them before: the same bits on every machine */
    RANDOM,      /* numbers that have nothing to do with x */
    FROZEN,      /* those of the first row for every row */
    SHIFTED,     /* means `distance` standard deviations from x's */
    OFF_BY_ULPS, /* means `distance` ULP from x's, rounded */
    STATISTICS_COUNT
} statistics;

/* The tensors of a norm alone, and those between the halves of a backward, in planish_tensors'
 * order. */
typedef enum part {
    X,
    WEIGHT,
    BIAS,
    Y,
    MEAN,
    RSTD,
    M2,
    DY,
    DX,
    DWEIGHT,
    DBIAS,
    C1,
    C2,
    PARTS
} part;

#define HAS(p) (1u << (p))

const char *part_name(part p);

typedef struct norm_case {
    planish_pass pass;
    planish_kind kind;
    int ndim;
    int64_t shape[PLANISH_MAX_NDIM];
    uint64_t reduce_axes, affine_axes;
    double eps;
    int weight_offset;
    planish_activation activation;
    element x;      /* x and dx */
    element y;      /* y and dy */
    element weight; /* weight and bias */
    element grad;   /* dweight and dbias */
    element stats;  /* mean, rstd and m2 */
    unsigned has;   /* of what the pass lets be absent; HAS(...) bits */
    layout in;      /* x, dy, and y where it is read */
    layout out;     /* y, dx */
    layout params;  /* weight, bias, dweight, dbias */
    bool full_rank; /* weight, bias and statistics have x's rank, with ones */
    numbers numbers;
    statistics given;
    double distance;
    double dy_center, dy_spread; /* its mean and standard deviation; of spread 0: 0 and 1 */
    uint64_t seed;
} norm_case;

/* A case of `pass` over (rows, cols) with all optional tensors, f32, dense. */
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

/* The tensors of a case, inputs filled in. */
typedef struct bundle {
    norm_case test;
    planish_norm op;
    tensor tensor[PARTS];
    planish_tensors tensors; /* those that are there */
    guarded workspace;
} bundle;

/* A bundle must not be copied: its tensors point into it. */
void bundle_make(bundle *b, const norm_case *c);
void bundle_free(bundle *b);

/* Whether the pass writes this tensor. */
bool bundle_has_output(const bundle *b, part p);

/* Copies of the outputs' memory, guards and gaps included, to be freed; NULL where there is none.
 */
void bundle_keep_outputs(const bundle *b, unsigned char *kept[PARTS]);
void bundle_clear_outputs(bundle *b);

/* The field of planish_tensors for a part. */
const DLTensor **tensors_field(planish_tensors *t, part p);
void **buffers_field(planish_buffers *b, part p);

/* Whether the pass writes this part. */
bool part_is_output(planish_pass pass, part p);

/* Asks for the workspace and runs the pass with exactly that much; `exec` may be NULL. */
planish_status bundle_run(bundle *b, const planish_exec *exec, char *message, size_t bytes);

/* Whether rows of f64 are summed plainly, as on the GPU: rstd and m2 may then be off by half an ULP
 * for each element. */
extern bool plain_f64_sums;

/* Holds every output of a run against the reference: expectations of the open case. */
void bundle_check(bundle *b);

/* Makes a case of the table: builds, runs, checks. */
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
