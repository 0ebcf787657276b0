/*
 * Problems seen as images: N images of channels by pixels, normalized over the channels of a pixel
 * or over groups of channels with all their pixels. Pure; says whether a problem is one and names
 * its sizes.
 */
#ifndef PLANISH_CUDA_IMAGES_H
#define PLANISH_CUDA_IMAGES_H

#include "cuda/backend.h"

typedef struct image_view {
    int64_t images, groups, depth, pixels; /* depth: channels of a group */
    bool last;                             /* groups: channels are dense; channels: those of y */
    int64_t stride[NORM_ROLES]; /* from image to image; groups' mean and rstd: from row to row */
} image_view;

/* Reduced over channels, whose pixels are dense in x, dy and dx. `groups` is 1. */
bool images_of_channels(image_view *v, const problem *p);

/* Reduced over groups of channels, dense pixels or (last) dense channels in every tensor. */
bool images_of_groups(image_view *v, const problem *p);

/*
 * Has the kernels of a plan to an f32 dx of its own add dsum to that and write p's dx; false, and
 * nothing changed, where one of the two lies otherwise than the images. `view` is that of the
 * plan's family. They know what they write as dresidual, which is the norm's dx and dsum; dx stays
 * of f32, which decides how the arithmetic goes.
 */
typedef bool view_of_images(image_view *v, const problem *p);
bool images_plan_dsum(cuda_plan *plan, const problem *p, view_of_images *view);

/* Sets what every kernel for images knows of its problem. */
void images_describe(cuda_plan *plan, const problem *p, const image_view *v, cuda_kernel kernel);

/* Bytes of an element of what the kernels write: y, dx, or dx with dsum. */
int images_out_bytes(const cuda_spec *spec);

/* Whether a tensor with elements of x's size is as far from a multiple of 16 bytes as x in each of
 * so many images. */
bool images_lie_as_x(const cuda_plan *plan, void *const *buffers, int64_t images, role r);

/*
 * The backward of an activation asks for the mean before the sums. But for rows and the general
 * kernels it has to be given with all its digits, where they show: whether it is not. Of 16 bits
 * they show where the slope jumps, too.
 */
bool images_lack_digits(const problem *p);
#define IMAGES_LACK_DIGITS "the backward of an activation without f64 mean, whose digits show"

#endif
