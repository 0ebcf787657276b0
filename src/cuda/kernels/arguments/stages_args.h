/* Arguments of the kernels of rows with stages around the norm, for C and for the kernels
 * (../../words.h). */
#ifndef PLANISH_CUDA_STAGES_ARGS_H
#define PLANISH_CUDA_STAGES_ARGS_H

typedef struct stages_tensor {
    void *data;
    i64 outer, inner; /* bytes from row to row, by each of two axes */
} stages_tensor;

typedef struct stages_forward_args {
    stages_tensor tensor[ROLE_COUNT];
    i64 rows, row_turn, inner_rows;
    i64 index_outer, index_inner; /* of elements that dropout counts, from row to row */
    i64 scale_stride;             /* bytes from block to block */
    u64 dropped;                  /* dropout's p * 2^32, rounded up */
    double eps, keep_factor;
    float eps_rounded, scale_least, scale_most;
    u32 eps_is_small, zero;
} stages_forward_args;

typedef struct stages_backward_args {
    stages_tensor tensor[ROLE_COUNT];
    partial_sum *partial_weight, *partial_bias, *partial_scaled; /* [gridDim.x / CLUSTER][COLS] */
    void *dweight, *dbias;                                       /* alone */
    i64 rows;                                                    /* BY_SAMPLE: of a sample */
    i64 inner_rows;
    i64 index_outer, index_inner; /* of elements that dropout counts, from row to row */
    u64 dropped;                  /* dropout's p * 2^32, rounded up */
    double keep_factor;
    u32 parts;      /* blocks, or clusters of them, that share the rows */
    u32 alone;      /* no other block has rows */
    double clamped; /* common/rule.cu */
} stages_backward_args;

#endif
