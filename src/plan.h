/*
 * A plan: which kernels run a problem, cut how, with how much workspace. Pure functions of the
 * problem and of what the device offers; nothing is allocated and no data is looked at.
 */
#ifndef PLANISH_PLAN_H
#define PLANISH_PLAN_H

#include "cpu/kernels.h"
#include "cuda/backend.h"
#include "problem.h"

typedef enum plan_path {
    PATH_GPU,   /* everything below the path is in cuda */
    PATH_EMPTY, /* no elements: only dweight and dbias (zeros) and statistics (NaN) are written */
    PATH_ROWS,  /* dense rows: the row kernels run on the tensors as they are */
    PATH_CHANNELS, /* rows beside each other, each strided: tiles of them */
    PATH_GROUPS,   /* rows of channels of pixels, each channel with one weight and bias */
    PATH_GATHERED  /* any strides and dtypes: rows are gathered into scratch and scattered back */
} plan_path;

/* The most blocks of a problem whose threads each have a slot. */
enum { SLOTS = 64 };

/* What the caller's machine offers. No result depends on it, only speed. */
typedef struct cpu_limits {
    const cpu_kernels *kernels;
    size_t first_bytes;      /* of a core's first-level cache, 0 where it is not known */
    size_t near_bytes;       /* more than this is not all in a core's own cache */
    size_t cache_bytes;      /* outputs larger than this are written past the cache, ... */
    size_t rows_bytes;       /* ... but y of rows only where it and x are larger than this */
    size_t run_bytes[2];     /* more than this (forward, backward) is written so by_run */
    bool fetches_rows;       /* the CPU fetches the next rows by itself, ... */
    bool fetches_short_rows; /* ... or short ones that come from memory */
    bool writes_lines;       /* what goes past the cache may go each line as it is made */
} cpu_limits;

struct planish_plan {
    problem problem;
    plan_path path;
    size_t workspace_bytes;
    cuda_plan cuda; /* PATH_GPU only; what follows is for the other paths */
    const cpu_kernels *kernels;
    bool is_double;
    bool parallel; /* worth a fork */
    traffic traffic;
    bool far;                  /* TRAFFIC_AHEAD, and near TRAFFIC_STREAM */
    bool alone;                /* TRAFFIC_AHEAD, and rows are done one at a time */
    bool asks_steps;           /* the next step's rows are asked for, where rows go in steps */
    int rows_ahead;            /* how many rows before they are taken; 0: a step */
    bool asks_sums;            /* the next rows are asked for while these are summed */
    bool by_line;              /* what goes past the cache may go each line as it is made, */
    bool by_run;               /* or a few lines */
    bool asks_groups;          /* what comes next of groups is asked for */
    bool in_turn;              /* the next rows' moments come before these rows' y */
    bool asks_y;               /* TRAFFIC_AHEAD, and y is asked for before it is made */
    int64_t pitch[ROLE_COUNT]; /* bytes from a row to the next of the innermost kept axis */
    /* Rows are cut into blocks, one work item each. Each block owns a slice of the workspace:
     * gathered rows, then dweight and dbias sums of a chunk of rows, then of the block. */
    int64_t block_rows, blocks;
    size_t row_bytes;   /* of one gathered row */
    int gathered_rows;  /* how many of them */
    size_t chunk_bytes; /* of one chunk sum; 0: none wanted */
    size_t sum_bytes;   /* of one block sum */
    int sums;           /* dweight and dbias: how many of them are wanted */
    size_t block_bytes; /* the whole slice */
    /* A run of rows, those along the innermost kept axis, is cut into tiles, and a block is some of
     * them. PATH_CHANNELS: tiles of tile_rows pixels. PATH_GROUPS: of groups of an image stored by
     * pixel, or of rows that are brought into planes together; 0: rows are dense, and blocks are of
     * rows. */
    int64_t run_rows, tile_rows, run_tiles, block_tiles;
    int64_t joined_tiles; /* that a thread which has them in turn takes as one; by_pixel */
    int together;         /* rows that the kernels are given at once; PATH_GROUPS without tiles */
    bool by_pixel;
    bool keeps; /* backward keeps what went into an activation; by_pixel */
    /* Each thread has one of the slots at the end of the workspace: tiles in the compute type and,
     * for PATH_CHANNELS, weight, bias and some rows; PATH_GROUPS of rows: what those done
     * together keep in backward, 0 bytes: nothing. */
    size_t slot_offset, slot_bytes;
    size_t weight_bytes;  /* PATH_GROUPS: of weight, and of bias, in the compute type */
    size_t row_sum_bytes; /* of a row's sums for dweight, and for dbias */
};

/* Decide how to run plan->problem, which is made already: in CPU memory, or in that of a GPU. */
void plan_make(planish_plan *plan, const cpu_limits *limits);
void plan_make_gpu(planish_plan *plan, const cuda_limits *limits);

static inline bool is_gpu(DLDevice device) {
    return device.device_type == kDLCUDA || device.device_type == kDLCUDAManaged;
}

#endif
