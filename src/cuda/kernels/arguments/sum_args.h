/*
 * Arguments of the kernel of what stands before or behind a norm of another family, for C and for
 * the kernel (../../words.h); and which tensors it knows, in the order of their numbers: MAKE(role)
 * of each.
 */
#ifndef PLANISH_CUDA_SUM_ARGS_H
#define PLANISH_CUDA_SUM_ARGS_H

#define EACH_SUM_TENSOR(MAKE)                                                                      \
    MAKE(X)                                                                                        \
    MAKE(RESIDUAL)                                                                                 \
    MAKE(SUM)                                                                                      \
    MAKE(ROW_SCALE)                                                                                \
    MAKE(COLUMN_SCALE)                                                                             \
    MAKE(MASK)

#define SUM_TENSORS_ONE(role) +1
enum { SUM_TENSORS = 0 EACH_SUM_TENSOR(SUM_TENSORS_ONE), SUM_AXES = 18 };
#undef SUM_TENSORS_ONE

typedef struct sum_axis { /* by the result's strides, the smallest last */
    i64 size, index_step;
    i64 stride[SUM_TENSORS]; /* bytes */
} sum_axis;

typedef struct sum_args {
    void *data[SUM_TENSORS];
    const void *rng;
    i64 elements;
    u64 dropped; /* dropout's p * 2^32, rounded up */
    double keep_factor;
    sum_axis axis[SUM_AXES];
} sum_args;

#endif
