/*
 * The kernels of a run as data: of each its specialisation, its grid and its arguments.
 */
#ifndef PLANISH_CUDA_LAUNCHES_H
#define PLANISH_CUDA_LAUNCHES_H

#include "cuda/backend.h"

enum { CUDA_MOST_LAUNCHES = 5 };

/* ---- Arguments, as the kernels declare them ------------------------------------------------- */

typedef struct cuda_row_divisor {
    uint32_t multiplier, shift;
} cuda_row_divisor;

typedef struct cuda_row_levels {
    cuda_row_divisor rows[2];
} cuda_row_levels;

typedef struct cuda_forward_args {
    const void *x, *weight, *bias;
    void *y, *mean, *rstd;
    int64_t rows, x_stride, y_stride, mean_stride, rstd_stride;
    int64_t row_turn, x_turn, y_turn;
    double eps;
    float eps_rounded;
    uint32_t eps_is_small, zero;
    void *mail;
    cuda_row_levels levels;
    int64_t x_jump[2], y_jump[2];
    int64_t x_slice, weight_slice, bias_slice, y_slice, mean_slice, rstd_slice;
} cuda_forward_args;

typedef struct cuda_backward_args {
    const void *dy, *x, *mean, *rstd, *weight;
    void *dx;
    void *partial_weight, *partial_bias, *dweight, *dbias;
    int64_t x_stride, dy_stride, dx_stride, mean_stride, rstd_stride;
    int64_t x_turn, dy_turn, dx_turn, mean_turn, rstd_turn;
    uint32_t turns, rest, zero, alone;
    void *mail;
    const void *bias;
    const void *dsum;
    int64_t dsum_stride, dsum_turn;
    cuda_row_levels levels;
    int64_t row_turn;
    int64_t x_jump[2], dy_jump[2], dx_jump[2];
    int64_t x_slice, dy_slice, dx_slice, mean_slice, rstd_slice, weight_slice, bias_slice;
    int64_t dweight_slice, dbias_slice;
} cuda_backward_args;

/* Of the first sample, and bytes (partial_sample: numbers) from sample to sample. */
typedef struct cuda_modulated_forward_args {
    cuda_forward_args rows;
    int64_t x_sample, y_sample, mean_sample, rstd_sample, weight_sample, bias_sample;
} cuda_modulated_forward_args;

typedef struct cuda_modulated_backward_args {
    cuda_backward_args rows;
    int64_t x_sample, dy_sample, dx_sample, mean_sample, rstd_sample;
    int64_t weight_sample, bias_sample, dweight_sample, dbias_sample;
    int64_t partial_sample;
} cuda_modulated_backward_args;

typedef struct cuda_long_args {
    const void *dy, *x, *mean, *rstd, *weight;
    void *dx;
    void *partial_weight, *partial_bias;
    void *sums;
    int64_t rows, x_stride, dy_stride, dx_stride, mean_stride, rstd_stride;
    const void *dsum;
    int64_t dsum_stride;
} cuda_long_args;

typedef struct cuda_finish_args {
    const void *partial_weight, *partial_bias;
    void *dweight, *dbias;
    int64_t count;
} cuda_finish_args;

/* Of two sets of rows, or of sums, in one launch: their arguments, and where the blocks of each
 * begin. */
typedef struct cuda_forward_pair_args {
    struct {
        cuda_forward_args rows;
        uint32_t first_block, slices;
    } of[2];
} cuda_forward_pair_args;

typedef struct cuda_backward_pair_args {
    struct {
        cuda_backward_args rows;
        uint32_t first_block, slices;
    } of[2];
} cuda_backward_pair_args;
_Static_assert(sizeof(cuda_backward_pair_args) <= 4096, "a kernel has 4 KiB of arguments");

typedef struct cuda_finish_pair_args {
    cuda_finish_args of[2];
    uint32_t first_block; /* of the second */
} cuda_finish_pair_args;

typedef struct cuda_channels_args {
    const void *x, *weight, *bias, *dy;
    void *mean, *rstd, *out;
    float *partial_weight, *partial_bias;
    int64_t units, images;
    int64_t x_image, dy_image, out_image, mean_image, rstd_image;
    double eps;
    uint32_t eps_is_small;
    const void *dsum;
    int64_t dsum_image;
} cuda_channels_args;

typedef struct cuda_groups_args {
    const void *x, *weight, *bias, *dy;
    void *mean, *rstd, *out;
    float *sums, *moments, *partial_weight, *partial_bias;
    uint64_t *mail;
    int64_t images;
    int64_t x_image, dy_image, out_image, mean_stride, rstd_stride;
    double eps;
    uint32_t eps_is_small;
    const void *dsum;
    int64_t dsum_image;
} cuda_groups_args;

enum { CUDA_ROLE_DELTA = NORM_ROLES, CUDA_GENERAL_ROLES };

typedef struct cuda_general_args {
    void *data[CUDA_GENERAL_ROLES];
    void *partials;
    int64_t outer_size, inner_size, parts;
    double eps;
    int32_t outer, inner;
    struct {
        int64_t size;
        int64_t stride[CUDA_GENERAL_ROLES];
    } axis[PLANISH_MAX_NDIM + 1];
} cuda_general_args;

typedef struct cuda_around_tensor {
    void *data;
    int64_t outer, inner;
} cuda_around_tensor;

typedef struct cuda_around_args {
    cuda_around_tensor tensor[ROLE_COUNT];
    int64_t rows, row_turn, inner_rows;
    int64_t index_outer, index_inner;
    int64_t scale_stride;
    uint64_t dropped;
    double eps, keep_factor;
    float eps_rounded, scale_least, scale_most;
    uint32_t eps_is_small, zero;
} cuda_around_args;

typedef struct cuda_around_backward_args {
    cuda_around_tensor tensor[ROLE_COUNT];
    void *partial_weight, *partial_bias, *partial_scaled;
    void *dweight, *dbias;
    int64_t rows, inner_rows;
    int64_t index_outer, index_inner;
    uint64_t dropped;
    double keep_factor;
    uint32_t parts, alone;
} cuda_around_backward_args;

typedef struct cuda_samples_args {
    const void *partial_weight, *partial_bias;
    void *sample_weight, *sample_bias;
    const void *weight, *bias, *scale;
    void *dscale, *dshift;
    int64_t scale_stride, dscale_stride, dshift_stride;
    int64_t samples, parts;
} cuda_samples_args;

/* 16 tensors and the number of an element. */
enum { CUDA_AROUND_ROLES = 17 };

typedef struct cuda_around_general_args {
    void *data[CUDA_AROUND_ROLES];
    void *rng, *y_scale, *amax;
    int64_t outer_size, inner_size;
    int64_t block, scale_stride;
    uint64_t dropped;
    double eps, keep_factor;
    float scale_least, scale_most;
    int32_t outer, inner;
    struct {
        int64_t size;
        int64_t stride[CUDA_AROUND_ROLES];
    } axis[PLANISH_MAX_NDIM + 1];
} cuda_around_general_args;
_Static_assert(sizeof(cuda_around_general_args) <= 4096, "a kernel takes no more arguments");

typedef struct cuda_sum_args {
    void *data[CUDA_SUM_TENSORS];
    const void *rng;
    int64_t elements;
    uint64_t dropped;
    double keep_factor;
    struct cuda_sum_axis axis[PLANISH_MAX_NDIM + 2];
} cuda_sum_args;

enum { CUDA_AROUND_BACK_ROLES = 21 }; /* that the kernels know, in their order */

typedef struct cuda_around_back_args {
    void *data[CUDA_AROUND_BACK_ROLES + 1];
    const void *rng;
    uint64_t drop_below;
    double kept;
    int64_t outer_size, inner_size;
    int32_t outer, inner;
    struct {
        int64_t size, index_step;
        int64_t stride[CUDA_AROUND_BACK_ROLES + 1];
    } axis[PLANISH_MAX_NDIM + 1];
} cuda_around_back_args;
_Static_assert(sizeof(cuda_around_back_args) <= 4096, "a kernel has 4 KiB of arguments");

/* ---- Launches -------------------------------------------------------------------------------- */

typedef struct cuda_launch {
    cuda_spec spec;
    int64_t blocks_x; /* 0: nothing to do */
    unsigned blocks_y;
    union {
        cuda_forward_args forward;
        cuda_backward_args backward;
        cuda_long_args lengthy; /* of both its kernels */
        cuda_finish_args finish;
        cuda_forward_pair_args forward_pair;
        cuda_backward_pair_args backward_pair;
        cuda_finish_pair_args finish_pair;
        cuda_channels_args channels;
        cuda_groups_args groups;
        cuda_general_args general;
        cuda_around_args around;
        cuda_around_general_args around_general;
        cuda_around_back_args around_back;
        cuda_around_backward_args around_backward;
        cuda_samples_args samples;
        cuda_modulated_forward_args modulated_forward;
        cuda_modulated_backward_args modulated_backward;
        cuda_sum_args sum;
    } args;
} cuda_launch;

#endif
