/* Arguments of the kernels of groups and of strips, for C and for the kernels (../../words.h). */
#ifndef PLANISH_CUDA_GROUP_ARGS_H
#define PLANISH_CUDA_GROUP_ARGS_H

typedef struct groups_args {
    const void *x, *weight, *bias, *dy;
    void *mean, *rstd, *out;
    float *sums;                          /* [images][PIECES][3][COLS] */
    float *moments;                       /* [images * GROUPS][8] */
    float *partial_weight, *partial_bias; /* [images][COLS] */
    u64 *mail;                            /* of blocks anywhere that share a strip */
    i64 images;
    i64 x_image, dy_image, out_image; /* bytes from image to image */
    i64 mean_stride, rstd_stride;     /* bytes from row to row */
    double eps;
    u32 eps_is_small;
    const void *dsum;
    i64 dsum_image;
    double clamped; /* common/rule.cu */
} groups_args;

#endif
