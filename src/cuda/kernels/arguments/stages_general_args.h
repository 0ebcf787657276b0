/*
 * Arguments of the kernels of any problem with stages around the norm, for C and for the kernels
 * (../../words.h); and which tensors they know, in the order of their numbers: MAKE(role) of each.
 */
#ifndef PLANISH_CUDA_STAGES_GENERAL_ARGS_H
#define PLANISH_CUDA_STAGES_GENERAL_ARGS_H

/* Behind them comes, as one more, the number of an element that dropout counts. */
#define EACH_STAGES_GENERAL_TENSOR(MAKE)                                                           \
    MAKE(X)                                                                                        \
    MAKE(WEIGHT)                                                                                   \
    MAKE(BIAS)                                                                                     \
    MAKE(Y)                                                                                        \
    MAKE(MEAN)                                                                                     \
    MAKE(RSTD)                                                                                     \
    MAKE(RESIDUAL)                                                                                 \
    MAKE(SUM)                                                                                      \
    MAKE(ROW_SCALE)                                                                                \
    MAKE(COLUMN_SCALE)                                                                             \
    MAKE(SCALE)                                                                                    \
    MAKE(SHIFT)                                                                                    \
    MAKE(GATE)                                                                                     \
    MAKE(MASK)                                                                                     \
    MAKE(Q)                                                                                        \
    MAKE(Y_SCALES)

/* Of the backward; behind them come three numbers for each row, in the order of the list of axes,
 * and the number of an element. */
#define EACH_STAGES_GENERAL_BACKWARD_TENSOR(MAKE)                                                  \
    MAKE(X)                                                                                        \
    MAKE(WEIGHT)                                                                                   \
    MAKE(BIAS)                                                                                     \
    MAKE(MEAN)                                                                                     \
    MAKE(RSTD)                                                                                     \
    MAKE(DY)                                                                                       \
    MAKE(DX)                                                                                       \
    MAKE(DWEIGHT)                                                                                  \
    MAKE(DBIAS)                                                                                    \
    MAKE(ROW_SCALE)                                                                                \
    MAKE(COLUMN_SCALE)                                                                             \
    MAKE(SCALE)                                                                                    \
    MAKE(SHIFT)                                                                                    \
    MAKE(GATE)                                                                                     \
    MAKE(BRANCH)                                                                                   \
    MAKE(DSUM)                                                                                     \
    MAKE(DRESIDUAL)                                                                                \
    MAKE(DSCALE)                                                                                   \
    MAKE(DSHIFT)                                                                                   \
    MAKE(DGATE)                                                                                    \
    MAKE(DCOLUMN_SCALE)

#define STAGES_GENERAL_ONE(role) +1
enum {
    STAGES_GENERAL_INDEX = 0 EACH_STAGES_GENERAL_TENSOR(STAGES_GENERAL_ONE),
    STAGES_GENERAL_TENSORS,
    STAGES_GENERAL_ROW = 0 EACH_STAGES_GENERAL_BACKWARD_TENSOR(STAGES_GENERAL_ONE),
    STAGES_GENERAL_BACKWARD_INDEX,
    STAGES_GENERAL_BACKWARD_TENSORS,
    STAGES_GENERAL_AXES = 17
};
#undef STAGES_GENERAL_ONE

typedef struct stages_general_axis {
    i64 size;
    i64 stride[STAGES_GENERAL_TENSORS]; /* bytes; of the index elements */
} stages_general_axis;

typedef struct stages_general_args {
    void *data[STAGES_GENERAL_TENSORS];
    void *rng, *y_scale, *amax;
    i64 outer_size, inner_size;
    i64 block, scale_stride; /* elements under one scale, bytes from scale to scale */
    u64 dropped;             /* dropout's p * 2^32, rounded up */
    double eps, keep_factor;
    float scale_least, scale_most;
    int outer, inner; /* axes of each list, outer ones first */
    stages_general_axis axis[STAGES_GENERAL_AXES];
} stages_general_args;

typedef struct stages_general_backward_axis {
    i64 size;
    i64 stride[STAGES_GENERAL_BACKWARD_TENSORS]; /* bytes; of the index elements */
} stages_general_backward_axis;

typedef struct stages_general_backward_args {
    void *data[STAGES_GENERAL_BACKWARD_TENSORS];
    const u64 *rng;
    u64 drop_below; /* words that are less drop their element */
    double kept;    /* what the others are multiplied by */
    i64 outer_size, inner_size;
    int outer, inner; /* axes of each list, outer ones first */
    stages_general_backward_axis axis[STAGES_GENERAL_AXES];
    double clamped; /* common/rule.cu */
} stages_general_backward_args;

#endif
