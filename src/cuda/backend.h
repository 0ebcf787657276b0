/*
 * The GPU backend as the rest of the library sees it: which device is there, problem -> plan, plan
 * -> work queued on a stream. Planning is pure; running allocates nothing (but a kernel's first run
 * compiles or loads it), keeps no state beyond the cache of kernels, and leaves the thread's
 * current context as it found it.
 */
#ifndef PLANISH_CUDA_BACKEND_H
#define PLANISH_CUDA_BACKEND_H

#include "cuda/spec.h"
#include "cuda/tuning.h"
#include "cuda/words.h"
#include "steps.h"
#include "text.h"

#include "cuda/kernels/arguments/sum_args.h"

/* What planning needs to know of a device. */
typedef struct cuda_limits {
    int device; /* ordinal */
    int arch;   /* compute capability, 90 for 9.0 */
    int multiprocessors;
    int shared_per_block;     /* bytes a block may have */
    int max_cluster;          /* blocks in a cluster; 1: no clusters */
    int cooperative;          /* launches whose blocks all run at once */
    const gpu_tuning *tuning; /* of the arch; cuda_plan_make sets it in a plan's own limits */
} cuda_limits;

/* What stands around the norm, of the kernels for it. Levels: the outer of two axes of rows and the
 * inner one, or the only one. */
typedef struct cuda_stages {
    int axis[2];      /* of the problem's kept ones, from 1 on; 0: no such level (stages_stride) */
    int64_t index[2]; /* of the elements that dropout counts */
    int64_t inner_rows;
    int64_t samples,
        parts; /* backward: rows of scale and shift that are summed for, and blocks of each */
} cuda_stages;

/* Of dense rows: where they begin, where one stride does not lead from each to the next
 * (rows/rows_levels.h). In elements. */
typedef struct cuda_row_places {
    int levels;      /* axes that number the rows; stride[] of the plan is that of the last */
    int64_t rows[2]; /* of the last axis, of the last two */
    int64_t jump[2][NORM_ROLES]; /* what a step of each other axis adds to the rows it passes */
    int64_t slices;              /* that have weights of their own; 0: not cut */
    int64_t slice[NORM_ROLES];   /* from one to the next */
} cuda_row_places;

/* The step beside the norm, of a kernel of its own (stages/sum_step.h): what the norm reads, made
 * before it; or what its backward made, with dsum, behind it. */
typedef struct cuda_sum {
    const problem *problem; /* the step's; NULL: there is no such step */
    cuda_spec spec;
    bool is_last;
    int place;   /* the role whose memory has what the two kernels share; ROLE_COUNT: none's, but */
    size_t room; /* so many bytes at the beginning of the workspace */
    uint8_t aligned[SUM_TENSORS]; /* what divides the strides of each */
} cuda_sum;

/* What the alignment of buffers changes in how dense rows are cut (rows/rows_fit.h). */
enum { ROWS_CLASSES = 8 };
typedef struct rows_fit {
    uint8_t rows, warps, hold, ring_slots, early, min_blocks, gate_in_shared;
} rows_fit;

typedef struct cuda_plan {
    cuda_limits limits;
    cuda_sum sum;
    cuda_spec main;
    cuda_spec cooperative; /* rows over groups of blocks, before main where the device holds them at
                       once; kernel -1: none */
    cuda_spec finish;      /* kernel -1: none */
    int64_t rows, cols;    /* of a slice, where rows are cut into such */
    int64_t stride[ROLE_COUNT]; /* from row to row, in elements */
    int dx_role; /* whose memory the rows kernels write dx to: that of dx, or of dresidual */
    double eps;
    int64_t partials; /* rows of partial sums there is room for */
    int64_t turns; /* forward whose blocks live on: rows a team takes in its life; 0: its share */
    size_t workspace_bytes;
    cuda_row_places places;
    rows_fit fits[ROWS_CLASSES]; /* of main, by the class of the buffers' alignments */
    cuda_stages stages;
    /* What the step is of that is the norm. Kernels that walk its axes find them there when they
     * are launched: it has to be there as long as the plan is. */
    const problem *problem;
    bool is_modulated; /* the step is a STEP_MODULATED_NORM */
    /* Of the general kernels. */
    int axis_count;
    int column_lanes;        /* that take neighbouring sums of columns */
    int64_t columns, column; /* such sums, and elements of one */
} cuda_plan;

/* Reads a device's limits, loading the driver at the first call. UNAVAILABLE: no driver; DEVICE: no
 * such device. */
planish_status cuda_device_limits(int device, cuda_limits *limits, message error);

/* Pure. Writes the steps of p, of which one may be of *norm, and their plan: the kernels that are
 * fast at it, else the general ones. The steps' problems have to be there as long as the plan. */
void cuda_plan_make(cuda_plan *plan, steps *s, const problem *p, problem *norm,
                    const cuda_limits *limits);

/* The plan is at another place, and so are its steps' problems. */
void cuda_plan_rebind(cuda_plan *plan, const steps *s);

/* Whether the plan's kernels know all that the problem has. Not: the name of a tensor that they do
 * not. */
bool cuda_plan_knows(const cuda_plan *plan, const problem *p, const char **unknown);

/*
 * Queues the plan on `stream` (NULL: the default stream). `buffers` as in buffers_check,
 * checked by the caller; `workspace` of workspace_bytes, aligned to 256.
 */
planish_status cuda_plan_run(const cuda_plan *plan, void *const buffers[ROLE_COUNT], void *stream,
                             void *workspace, message error);

/* Finds, compiles and loads the kernels that a run on such buffers launches. */
planish_status cuda_plan_load(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                              message error);

/*
 * Queues two plans of one device, which know nothing of each other's tensors: where one launch does
 * for both (rows/rows_pair.h) as one, else one after the other, the first's kernels first. Each has
 * buffers and a workspace of its own, as for cuda_plan_run. The results have the same bits.
 */
planish_status cuda_plan_run_pair(const cuda_plan *const plans[2], void *const *const buffers[2],
                                  void *stream, void *const workspace[2], message error);

/* Compiles what cuda_plan_run would need for buffers at these addresses (only their alignment
 * counts) and keeps it on disk. Needs no GPU. */
planish_status cuda_plan_prepare(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                                 message error);

/* Whether the general kernels run it; and why others do not, each in its own words. */
int cuda_plan_is_general(const cuda_plan *plan);
void cuda_why_general(const problem *p, const cuda_limits *limits, text *to);

/* One line such as "cuda rows forward lanes 32 x 4 chunks of 8"; returns its whole length. */
int cuda_plan_describe(const cuda_plan *plan, char *text, size_t bytes);

#endif
