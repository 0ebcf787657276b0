/*
 * What a norm is besides its tensors, as planish's operators of torch take it. It is whole numbers
 * alone, so that the C++ of a compiled graph calls the operators without Python, and a call of few
 * arguments costs the host little. python/planish/operators/call.py packs the same.
 *
 *     axes       four sets of 16 axes: reduce, affine, column, modulation, from the lowest bits on
 *     options    the bits and fields below
 *     split      0, or n > 0: axis 1 of x is seen as (n, size / n), or n < 0: its last axis as
 *                (-n, size / -n); `axes` are those of that view, results have x's own shape
 */
#ifndef PLANISH_TORCH_OPTIONS_H
#define PLANISH_TORCH_OPTIONS_H

#include "planish.h"

enum {
    OPTION_RMS = 1 << 0,
    OPTION_ROUND_XHAT = 1 << 1,
    OPTION_GATE_BEFORE = 1 << 2,
    OPTION_DENSE = 1 << 3,           /* y is row-major, else laid out as torch.empty_like(x) */
    OPTION_SAVE = 1 << 4,            /* the statistics are results, too */
    OPTION_POWER_OF_TWO = 1 << 5,    /* of scales: powers of two, */
    OPTION_SCALES_AS_BYTES = 1 << 6, /* as the bytes of f8_e8m0, */
    OPTION_TRANSPOSED = 1 << 7,      /* blocks first, rows padded */
};

/* The spread of statistics that are given is the running variance, and not rstd. */
#define OPTION_RUNNING (UINT64_C(1) << 40)
/* Beside OPTION_RMS: an L2 norm. Nothing is dropped of what it reads, and norm_backward has eps in
 * the place of dropout_p. */
#define OPTION_L2 (UINT64_C(1) << 41)

/* Fields of options: where they begin, and how many bits they have. */
enum {
    ACTIVATION_AT = 8,     /* planish_activation */
    WEIGHT_OFFSET_AT = 12, /* 0 or 1 */
    WANTED_AT = 16,        /* which gradients, in the order of the results */
    DTYPE_AT = 24,         /* torch's number of y's, q's or dx's dtype, plus 1; 0: x's */
    SUM_DTYPE_AT = 32,     /* the same of sum's or dresidual's; 0: there is no sum, or x's */
    SMALL_BITS = 4,
    BYTE_BITS = 8,
};

static inline int option_field(uint64_t options, int at, int bits) {
    return (int)(options >> at & ((1u << bits) - 1));
}

/* The operator of these numbers, but for eps and the like. */
static inline planish_norm op_of(uint64_t axes, uint64_t options) {
    const uint64_t set = PLANISH_AXIS(PLANISH_MAX_NDIM) - 1;
    return (planish_norm){
        .struct_size = sizeof(planish_norm),
        .kind = options & OPTION_L2    ? PLANISH_L2
                : options & OPTION_RMS ? PLANISH_RMS
                                       : PLANISH_LAYER,
        .weight_offset = option_field(options, WEIGHT_OFFSET_AT, SMALL_BITS),
        .activation = (planish_activation)option_field(options, ACTIVATION_AT, SMALL_BITS),
        .gate = options & OPTION_GATE_BEFORE ? PLANISH_GATE_BEFORE : PLANISH_GATE_AFTER,
        .rounding = options & OPTION_ROUND_XHAT ? PLANISH_ROUND_XHAT : PLANISH_ROUND_ONCE,
        .scale_format =
            options & OPTION_POWER_OF_TWO ? PLANISH_SCALE_POWER_OF_TWO : PLANISH_SCALE_FLOAT,
        .reduce_axes = axes & set,
        .affine_axes = axes >> PLANISH_MAX_NDIM & set,
        .column_axes = axes >> 2 * PLANISH_MAX_NDIM & set,
        .modulation_axes = axes >> 3 * PLANISH_MAX_NDIM & set,
    };
}

/* Sets what norm_backward has behind `split`. */
static inline void set_last(planish_norm *op, double number) {
    *(op->kind == PLANISH_L2 ? &op->eps : &op->dropout_p) = number;
}

#endif
