/*
 * Arguments of the kernels of dense rows, for C and for the kernels (../../words.h). Strides,
 * turns, jumps and slices are in bytes, but row_turn, which counts rows.
 */
#ifndef PLANISH_CUDA_ROW_ARGS_H
#define PLANISH_CUDA_ROW_ARGS_H

#include "divisor.h"

typedef struct row_levels {
    divisor rows[2]; /* of the last axis, of the last two */
} row_levels;

/* Where a set's blocks are in a launch of two sets (rows/row_levels.cu); else nobody asks. */
typedef struct pair_place {
    u32 first_block, slices;
} pair_place;

typedef struct row_forward_args {
    const void *x, *weight, *bias;
    void *y, *mean;
    union {
        void *rstd;
        void *m2; /* of statistics alone */
    };
    i64 rows, x_stride, y_stride, mean_stride; /* from row to row */
    union {
        i64 rstd_stride, m2_stride;
    };
    i64 row_turn, x_turn, y_turn; /* from turn to turn of a team */
    double eps;
    float eps_rounded;
    u32 eps_is_small; /* below 1e-30: squares may have to be scaled up */
    u32 zero;         /* 0, which the compiler cannot know */
    u64 *mail;        /* COOPERATING_BLOCKS > 1: two lines for each group */
    row_levels levels;
    i64 x_jump[2], y_jump[2];                                               /* rows/row_levels.cu */
    i64 x_slice, weight_slice, bias_slice, y_slice, mean_slice, rstd_slice; /* slice to slice */
    pair_place place;
} row_forward_args;

typedef struct row_backward_args {
    const void *dy, *x, *mean, *rstd, *weight;
    void *dx;
    partial_sum *partial_weight, *partial_bias;                   /* [gridDim.x / SHARERS][COLS] */
    void *dweight, *dbias;                                        /* alone */
    i64 x_stride, dy_stride, dx_stride, mean_stride, rstd_stride; /* from row to row */
    i64 x_turn, dy_turn, dx_turn, mean_turn, rstd_turn;           /* from turn to turn of a team */
    u32 turns, rest; /* of the rows: whole turns, and rows of the last */
    u32 zero;        /* 0, which the compiler cannot know */
    u32 alone;       /* no other block has rows */
    u64 *mail;       /* COOPERATING_BLOCKS > 1: a line for each group */
    union {
        const void *bias; /* with an activation */
        void *c1;         /* of half a backward, which has neither this nor dsum */
    };
    union {
        const void *dsum;
        void *c2;
    };
    union {
        i64 dsum_stride, c_stride;
    };
    union {
        i64 dsum_turn, c_turn;
    };
    row_levels levels;
    i64 row_turn;                          /* from turn to turn */
    i64 x_jump[2], dy_jump[2], dx_jump[2]; /* rows/row_levels.cu */
    i64 x_slice, dy_slice, dx_slice, mean_slice, rstd_slice, weight_slice, bias_slice;
    i64 dweight_slice, dbias_slice; /* from slice to slice */
    pair_place place;
    double clamped; /* common/rule.cu */
} row_backward_args;

/* Of rows with a modulation alone (stages/modulated_backward.cu), whose slices are the samples. */
typedef struct modulated_backward_args {
    row_backward_args rows; /* turns and rest: of each sample */
    i64 partial_slice;      /* numbers */
} modulated_backward_args;

/* Of two sets of rows in one launch. */
typedef struct row_forward_pair_args {
    row_forward_args of[2];
} row_forward_pair_args;

typedef struct row_backward_pair_args {
    row_backward_args of[2];
} row_backward_pair_args;

/* Of rows that are read twice (rows/backward_long.cu). */
typedef struct row_long_args {
    const void *dy, *x, *mean, *rstd, *weight;
    void *dx;
    partial_sum *partial_weight, *partial_bias; /* [gridDim.y][COLS] */
    partial_sum *sums;                          /* [rows][PIECES][4]: of g, of g * d, of d */
    i64 rows, x_stride, dy_stride, dx_stride, mean_stride, rstd_stride; /* from row to row */
    const void *dsum;
    i64 dsum_stride;
    double clamped; /* common/rule.cu */
} row_long_args;

#endif
