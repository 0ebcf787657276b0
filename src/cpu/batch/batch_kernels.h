/*
 * What the kernels of batch norms are given, and their table for one element dtype. Rows of such a
 * norm are channels of an image, each with one weight and bias, whose elements lie apart: pieces of
 * neighbours (images stored by channel), or single elements beside those of the other channels
 * (images stored by pixel). Who cuts a problem, and on which thread, is cpu/batch/batch_run.c's
 * affair. Channels' numbers are arrays, one element for each channel; `real` ones are of the
 * compute type.
 */
#ifndef PLANISH_CPU_BATCH_KERNELS_H
#define PLANISH_CPU_BATCH_KERNELS_H

#include "cpu/common/exports.h"
#include "cpu/common/saved_mean.h"

/* Some channels of some pieces. by_pixel: span is 1 and the channels' elements are neighbours. */
typedef struct batch_tile {
    int64_t channels, pieces, span;
    bool by_pixel;
    bool prefetches; /* by pixel: the next pixels, which come from memory */
} batch_tile;

/* A tensor's elements of a tile; data NULL: absent. From channel to channel and from piece to
 * piece: bytes. */
typedef struct batch_side {
    char *data;
    int64_t channel, piece;
} batch_side;

/* By channel, of one part of its elements. Forward: the mean as a center and its distance from
 * that, and the sum of squared deviations from it. Backward: sums of xhat by the mean as it is
 * held, of the gradient of what the norm returns, and of both's product. */
enum { RECORD_CENTER, RECORD_DISTANCE, RECORD_M2, RECORDS };
enum { RECORD_XHAT = RECORD_CENTER, RECORD_D, RECORD_PRODUCT };

/* By channel, real: what makes z = (x - mean) * scale + offset, xhat = (x - mean) * rstd, and dx =
 * (x - mean) * of_x + d * scale + rest. */
typedef enum batch_factor {
    FACTOR_MEAN,
    FACTOR_SCALE,
    FACTOR_OFFSET,
    FACTOR_RSTD,
    FACTOR_OF_X,
    FACTOR_REST,
    BATCH_FACTORS
} batch_factor;

/* Bytes of scratch for one channel of a tile by pixel. */
enum { BATCH_SCRATCH = 8 * sizeof(double) };
/* The most channels of a tile by channel. */
enum { BATCH_TILE_CHANNELS = 16 };

typedef struct batch_moments_args {
    batch_tile tile;
    batch_side x;
    double *record[RECORDS];
    void *scratch; /* by pixel */
} batch_moments_args;

/* How d, the gradient of what the norm returns, comes of dy; constants where kernels are made. */
typedef enum batch_through {
    THROUGH_NOTHING, /* it is dy */
    THROUGH_MASK,    /* where y is more than 0 */
    THROUGH_RELU,    /* where z + addend is more than `least` */
    THROUGH_ACTIVATION,
    BATCH_THROUGHS
} batch_through;

typedef struct batch_gradient_args {
    batch_tile tile;
    batch_side x, dy, y, addend, dx, daddend; /* dx and daddend: of `gradient` alone */
    const void *factor[BATCH_FACTORS];        /* real */
    planish_activation activation;
    batch_through through;
    double least;
    bool fixed; /* of_x and rest are 0 */
    traffic traffic;
    double *record[RECORDS]; /* of `sums` alone */
    void *scratch;           /* by pixel */
} batch_gradient_args;

typedef struct batch_apply_args {
    batch_tile tile;
    batch_side x, y, addend;
    const void *factor[FACTOR_OFFSET + 1]; /* real */
    planish_activation activation;
    traffic traffic;
    void *scratch; /* by pixel */
} batch_apply_args;

/* From the records of `parts` parts, one `part_step` doubles behind the other, of which each has
 * part_count elements of a channel and the last one last_count. */
typedef struct batch_finish_args {
    int64_t channels, parts, part_step, part_count, last_count;
    const double *record[RECORDS]; /* NULL: there are none, for nothing was summed */
    double *total[RECORDS];        /* merged; of one part they may be its records */
    double eps;
    double *mean, *rstd; /* of the channels. Forward makes them of the totals where there are any */
    const void *weight, *bias; /* real; NULL: absent */
    int weight_offset;
    void *factor[BATCH_FACTORS]; /* real */
    unsigned char *wide; /* 1 where a channel leaves the range of the compute type, else 0 */
    /* Backward. */
    mean_reach reach;      /* what is mended of the mean; is_exact: nothing */
    const double *c1, *c2; /* NULL: made of the totals, */
    bool fixed;            /* or 0 */
    double *dweight, *dbias;
} batch_finish_args;

typedef struct batch_kernels {
    void (*moments)(const batch_moments_args *);
    void (*finish_forward)(const batch_finish_args *);
    void (*apply)(const batch_apply_args *);
    void (*sums)(const batch_gradient_args *);
    void (*finish_backward)(const batch_finish_args *);
    void (*gradient)(const batch_gradient_args *);
} batch_kernels;

/* What a unit exports (cpu/common/exports.h). */
#define DECLARE_BATCH(element, real, tier)                                                         \
    extern const batch_kernels UNIT(batch, element, real, tier);

#endif
