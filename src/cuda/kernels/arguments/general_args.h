/* Arguments of the general kernels, for C and for the kernels (../../words.h). */
#ifndef PLANISH_CUDA_GENERAL_ARGS_H
#define PLANISH_CUDA_GENERAL_ARGS_H

/* Tensors are counted in the order of their roles, and only those that a specialisation has a dtype
 * for. Behind them come, as two more, the numbers that a backward leaves of each row, and the
 * number of an element, which dropout counts. */
enum { GENERAL_TENSORS = 26, GENERAL_ROW_NUMBERS = 3, GENERAL_AXES = 17 };

typedef struct general_axis {
    i64 size;
    i64 stride[GENERAL_TENSORS]; /* bytes; of an element's number elements */
} general_axis;

typedef struct general_args {
    void *data[GENERAL_TENSORS];
    double *partials; /* [2][gridDim.y][outer_size]: of dweight, of dbias */
    i64 outer_size, inner_size, parts;
    i64 block, scale_stride; /* elements under one scale, bytes from scale to scale */
    u64 dropped;             /* dropout's p * 2^32, rounded up */
    double keep_factor;      /* what is not dropped is multiplied by */
    double eps, clamped;     /* common/rule.cu */
    float scale_least, scale_most;
    int outer, inner; /* axes of each list, outer ones first */
    general_axis axis[GENERAL_AXES];
} general_args;

#endif
