/* Arguments of the kernels that add up partial sums, for C and for the kernels (../../words.h). */
#ifndef PLANISH_CUDA_FINISH_ARGS_H
#define PLANISH_CUDA_FINISH_ARGS_H

typedef struct finish_args {
    const partial_sum *partial_weight, *partial_bias; /* [count][COLS] */
    void *dweight, *dbias;
    i64 count;
} finish_args;

/* Of two sets of rows in one launch. */
typedef struct finish_pair_args {
    finish_args of[2];
    u32 first_block; /* of the second */
} finish_pair_args;

/* Of sums for each sample (stages/stages_samples.cu). */
typedef struct samples_args {
    const partial_sum *partial_weight, *partial_bias; /* [samples][parts][COLS]; either may lack */
    partial_sum *sample_weight, *sample_bias;         /* [samples][COLS] */
    const void *weight, *bias, *scale;
    void *dscale, *dshift;
    i64 scale_stride, dscale_stride, dshift_stride; /* bytes from sample to sample */
    i64 samples, parts;
} samples_args;

#endif
