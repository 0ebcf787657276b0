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
 *     xhat = (s - mean) * rstd + rest                   RMS: s * rstd
 *     z    = xhat * (weight_offset + weight) + bias
 *     m    = z * (1 + scale) + shift
 *     dm   = dy * silu(gate) * f'(m)                    dgate = dy * f(m) * silu'(gate)
 *     dz   = dm * (1 + scale)
 *
 * and dm * z is added to dscale, dm to dshift.
 */
typedef struct behind_args {
    int64_t cols;
    const void *s, *dy;
    void *dz; /* it may be dy */
    const void *weight, *bias, *scale, *shift, *gate;
    int weight_offset;
    bool rms;
    double mean, rstd, rest; /* numbers of the compute type */
    planish_activation activation;
    void *dgate;
    void *dscale, *dshift;
} behind_args;

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
    /* The sum of s - mean over a row. */
    double (*distance)(const void *s, int64_t cols, double mean);
} stages_backward_kernels;

#endif
