/*
 * A specialisation: which kernel text, with which compile-time constants. Pure data, comparable as
 * bytes; its prelude is the text that goes in front of the kernel.
 */
#ifndef PLANISH_CUDA_SPEC_H
#define PLANISH_CUDA_SPEC_H

#include <stddef.h>
#include <stdint.h>

#include "../problem.h"

typedef enum cuda_kernel {
    CUDA_FORWARD,
    CUDA_BACKWARD,
    CUDA_SUMS,  /* of long rows */
    CUDA_APPLY, /* the same */
    CUDA_FINISH,
    CUDA_CHANNELS,
    CUDA_GROUPS,
    CUDA_STRIPS, /* of groups, in one read */
    CUDA_GENERAL_ROWS,
    CUDA_GENERAL_COLUMNS,
    CUDA_GENERAL_FINISH,
    CUDA_KERNEL_COUNT
} cuda_kernel;

/* Meanings are at the head of each kernel's text. */
typedef enum cuda_constant {
    C_REAL_DOUBLE,
    C_KIND,
    C_ACTIVATION,
    C_COLS,
    C_X_TYPE,
    C_Y_TYPE,
    C_G_TYPE,
    C_D_TYPE,
    C_W_TYPE,
    C_B_TYPE,
    C_MEAN_TYPE,
    C_RSTD_TYPE,
    C_DW_TYPE,
    C_DB_TYPE,
    C_WEIGHT_OFFSET,
    C_WIDTH,
    C_LANES,
    C_VECS,
    C_ROWS,
    C_WARPS,
    C_TEAMS,
    C_CLUSTER,
    C_GROUP,
    C_HOLD,
    C_STAGES,
    C_DELAY,
    C_EARLY,
    C_CORRECT,
    C_SLICES,
    C_MIN_BLOCKS,
    C_WANT_DWEIGHT,
    C_WANT_DBIAS,
    C_X_ACCESS,
    C_Y_ACCESS,
    C_G_ACCESS,
    C_D_ACCESS,
    C_W_ACCESS,
    C_B_ACCESS,
    C_PASS,
    C_M2_TYPE,
    C_STAGE,
    C_GROUPS,
    C_DEPTH,
    C_PIXELS,
    C_TILE,
    C_PIECE,
    C_PLANES,
    C_LAST,
    C_DENSE,
    C_COUNT
} cuda_constant;

typedef struct cuda_spec {
    int32_t kernel; /* a cuda_kernel */
    int32_t constant[C_COUNT];
} cuda_spec;

/* Bytes of an element of the dtype that a constant says. */
static inline int constant_bytes(const int32_t *constant, cuda_constant type) {
    return dtype_bytes((dtype)constant[type]);
}

/* Bytes of a number that the kernel computes with. */
static inline size_t real_bytes(const int32_t *constant) {
    return constant[C_REAL_DOUBLE] ? 8 : 4;
}

/* Sets what every kernel knows of its problem: the kind, the activation, the weight offset, and the
 * dtypes (m2's is the general kernels' alone). */
void cuda_spec_describe(cuda_spec *spec, const problem *p);

/* Writes the prelude, closed by 0 and cut to `bytes`; returns its whole length. */
size_t cuda_spec_prelude(const cuda_spec *spec, char *text, size_t bytes);

#endif
