/* Arguments of rows with a modulation alone, for C and for the kernels (../../words.h): those of
 * the first sample, and bytes from sample to sample. */
#ifndef PLANISH_CUDA_MODULATED_ARGS_H
#define PLANISH_CUDA_MODULATED_ARGS_H

typedef struct modulated_forward_args {
    row_forward_args rows; /* rows.rows: of each sample */
    i64 x_sample, y_sample, mean_sample, rstd_sample, weight_sample, bias_sample;
} modulated_forward_args;

typedef struct modulated_backward_args {
    row_backward_args rows; /* turns and rest: of each sample */
    i64 x_sample, dy_sample, dx_sample, mean_sample, rstd_sample;
    i64 weight_sample, bias_sample, dweight_sample, dbias_sample;
    i64 partial_sample; /* numbers */
} modulated_backward_args;

#endif
