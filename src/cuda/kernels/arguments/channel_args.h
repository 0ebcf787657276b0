/* Arguments of the kernels of channels, for C and for the kernels (../../words.h). */
#ifndef PLANISH_CUDA_CHANNEL_ARGS_H
#define PLANISH_CUDA_CHANNEL_ARGS_H

typedef struct channels_args {
    const void *x, *weight, *bias, *dy;
    void *mean, *rstd, *out;
    float *partial_weight, *partial_bias;                     /* [gridDim.x / CLUSTER][COLS] */
    i64 units, images;                                        /* tiles of all images */
    i64 x_image, dy_image, out_image, mean_image, rstd_image; /* bytes from image to image */
    double eps;
    u32 eps_is_small; /* below 1e-30: squares may have to be scaled up */
    const void *dsum;
    i64 dsum_image;
    double clamped; /* common/rule.cu */
} channels_args;

#endif
