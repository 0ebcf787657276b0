/* Arguments of the general kernels, for C and for the kernels (../../words.h). */
#ifndef PLANISH_CUDA_GENERAL_ARGS_H
#define PLANISH_CUDA_GENERAL_ARGS_H

/* The tensors that they know, by number: those of a norm alone, by their roles, the distance of
 * each row's exact mean from the one given, and what stands between the halves of a backward. */
enum { GENERAL_DELTA = ROLE_DBIAS + 1, GENERAL_C1, GENERAL_C2, GENERAL_TENSORS };
enum { GENERAL_AXES = 17 };

typedef struct general_axis {
    i64 size;
    i64 stride[GENERAL_TENSORS]; /* bytes */
} general_axis;

typedef struct general_args {
    void *data[GENERAL_TENSORS];
    double *partials; /* [2][gridDim.y][outer_size]: of dweight, of dbias */
    i64 outer_size, inner_size, parts;
    double eps;
    int outer, inner; /* axes of each list, outer ones first */
    general_axis axis[GENERAL_AXES];
    double clamped; /* common/rule.cu */
} general_args;

#endif
