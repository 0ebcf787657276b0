/*
 * The kernels of a run as data: of each its specialisation, its grid and its arguments, whose text
 * the kernels include as well (kernels/arguments).
 */
#ifndef PLANISH_CUDA_LAUNCHES_H
#define PLANISH_CUDA_LAUNCHES_H

#include "cuda/backend.h"
#include "cuda/words.h"

#include "cuda/kernels/arguments/batch_args.h"
#include "cuda/kernels/arguments/channel_args.h"
#include "cuda/kernels/arguments/finish_args.h"
#include "cuda/kernels/arguments/general_args.h"
#include "cuda/kernels/arguments/group_args.h"
#include "cuda/kernels/arguments/merge_args.h"
#include "cuda/kernels/arguments/row_args.h"
#include "cuda/kernels/arguments/stages_args.h"

enum { CUDA_MOST_LAUNCHES = 5 };

/* A kernel has 4 KiB of arguments. */
#define FIT(args) _Static_assert(sizeof(args) <= 4096, #args " are more than a kernel may have")
FIT(row_backward_pair_args);
FIT(general_args);
#undef FIT
/* Tensors' axes, and what a kernel makes of them beside. */
_Static_assert(GENERAL_AXES == PLANISH_MAX_NDIM + 1 && SUM_AXES == PLANISH_MAX_NDIM + 2,
               "the arguments have room for the axes of another rank");

/* ---- Launches -------------------------------------------------------------------------------- */

typedef struct cuda_launch {
    cuda_spec spec;
    int64_t blocks_x; /* 0: nothing to do */
    unsigned blocks_y;
    union {
        row_forward_args forward;
        row_backward_args backward;
        row_long_args lengthy; /* of both its kernels */
        finish_args finish;
        row_forward_pair_args forward_pair;
        row_backward_pair_args backward_pair;
        finish_pair_args finish_pair;
        channels_args channels;
        groups_args groups;
        batch_args batch;
        general_args general;
        stages_forward_args stages_forward;
        stages_backward_args stages_backward;
        samples_args samples;
        modulated_backward_args modulated_backward;
        sum_args sum;
    } args;
} cuda_launch;

#endif
