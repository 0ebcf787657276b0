/*
 * What the backward of the stages around a norm is given for one row, and the table of its kernels
 * for one compute type. Every pointer is to dense elements in the compute type, of any alignment;
 * NULL: absent. Who brings rows there, and back, is cpu/stages/backward.c's affair.
 */
#ifndef PLANISH_CPU_STAGES_BACKWARD_KERNELS_H
#define PLANISH_CPU_STAGES_BACKWARD_KERNELS_H

#include "cpu/common/kernels.h"

/*
 * The stages behind the norm:
 *
 *     xhat = (s - mean) * rstd + minus_delta            RMS: s * rstd
 *     z    = xhat * (weight_offset + weight) + bias
 *     m    = z * (1 + scale) + shift
 *     a    = m + addend
 *     dm   = dy * silu(gate) * f'(a)                    dgate = dy * f(a) * silu'(gate)
 *     dz   = dm * (1 + scale)                           daddend = dm
 *
 * and dm * z is added to dscale, dm to dshift.
 */
typedef struct behind_args {
    int64_t cols;
    const void *s, *dy;
    void *dz; /* it may be dy */
    const void *weight, *bias, *scale, *shift, *addend, *gate;
    const void
        *y;       /* of ReLU: where this is more than 0 f' is 1; NULL: a is made again, and is to */
    double least; /* be more than this */
    int weight_offset;
    bool rms;
    double mean, rstd, minus_delta; /* numbers of the compute type */
    planish_activation activation;
    void *dgate, *daddend;
    void *dscale, *dshift;
} behind_args;

/*
 * The norm's own backward where what it would sum over the row is known:
 *
 *     xhat = (s - mean) * rstd + minus_delta            RMS: s * rstd
 *     g    = dz * (weight_offset + weight)
 *     ds   = ds_rstd * (g - c1 - xhat * c2)
 *
 * and dz * xhat is added to dweight, dz to dbias.
 */
typedef struct given_args {
    int64_t cols;
    const void *s, *dz;
    void *ds; /* NULL: not wanted */
    const void *weight;
    int weight_offset;
    bool rms;
    double mean, rstd, minus_delta, ds_rstd, c1, c2; /* numbers of the compute type */
    void *dweight, *dbias;
} given_args;

/* What x is multiplied by before the norm, in this order; keep is 0 or 1 / (1 - p), and what meets
 * 0 there is 0. */
typedef struct factor_rows {
    const void *gate; /* its silu */
    const void *column;
    bool has_row_scale;
    double row_scale; /* a number of the compute type */
    const void *keep;
} factor_rows;

/*
 * The stages before the norm, of ds, which the norm's own backward made:
 *
 *     ds   += dsum
 *     dx    = ds * (what x was multiplied by)
 *     dgate = ds * x * silu'(gate) * (the other factors)
 *
 * and ds * branch * (the factors but column) is added to dcolumn.
 */
typedef struct before_args {
    int64_t cols;
    void *ds;
    const void *dsum, *x, *branch;
    factor_rows by;
    void *dx, *dgate, *dcolumn;
} before_args;

typedef struct stages_backward_kernels {
    void (*behind)(const behind_args *);
    void (*before)(const before_args *);
    void (*given)(const given_args *);
    /* The sum of s - mean over a row. */
    double (*distance)(const void *s, int64_t cols, double mean);
} stages_backward_kernels;

#endif
