/*
 * The loops of the stages around a norm, over dense elements in the compute type: a table for f32
 * and one for f64, of each tier. Each operation is rounded once, in the compute type, so that all
 * tiers have the same bits. What a stage is: planish.h.
 */
#ifndef PLANISH_CPU_STAGE_KERNELS_H
#define PLANISH_CPU_STAGE_KERNELS_H

#include "cpu/stages/philox.h"
#include "dtypes.h"

/* Elements in the compute type are void; `n` of them, in place where there is a first operand
 * alone. Numbers are rounded to the compute type. */
typedef struct stage_kernels {
    void (*multiply)(void *u, const void *factors, int64_t n);
    void (*scale)(void *u, double factor, int64_t n);
    void (*add)(void *u, const void *terms, int64_t n);
    /* s = x + residual of these dtypes, rounded once; s may be either. False: not made by it. */
    bool (*join)(void *s, const void *x, const void *residual, dtype x_type, dtype r_type,
                 dtype s_type, int64_t n);
    void (*gate)(void *u, const void *gate, int64_t n); /* u * silu(gate) */
    /* Elements from `index` on, one behind the other in dropout's order. mask may be NULL. */
    void (*drop)(void *u, uint8_t *mask, const philox *p, int64_t index, double factor, int64_t n);
    void (*weigh)(void *z, const void *weight, int weight_offset, int64_t n);
    void (*modulate)(void *z, const void *scale, const void *shift, int64_t n); /* or NULL */
    void (*activate)(void *m, planish_activation f, int64_t n);
    double (*largest)(const void *y, int64_t n); /* |y|, NaN passed over; at least 0 */
    void (*quantise)(void *q, const void *y, float scale, dtype type, int64_t n);
} stage_kernels;

#endif
