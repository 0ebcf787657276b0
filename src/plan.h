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
    PATH_GROUPS,   /* dense rows of channels, each with one weight and bias */
    PATH_GATHERED  /* any strides and dtypes: rows are gathered into scratch and scattered back */
} plan_path;

/* The most blocks of a problem on PATH_CHANNELS, and so the most threads that have a tile. */
enum { SLOTS = 64 };

/* What the caller's machine offers. No result depends on it, only speed. */
typedef struct cpu_limits {
    const cpu_kernels *kernels;
    size_t cache_bytes; /* outputs larger than this are written past the cache */
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
    /* PATH_CHANNELS: a run of rows is cut into tiles, a block is some of them. Each thread has one
     * of the slots behind the blocks' slices: weight and bias, rows, tiles in the compute type. */
    int64_t tile_pixels, run_tiles, block_tiles;
    size_t slot_bytes;
    size_t weight_bytes;  /* PATH_GROUPS: of weight, and of bias, in the compute type */
    size_t row_sum_bytes; /* of a row's sums for dweight, and for dbias */
};

/* Decide how to run plan->problem, which is made already: in CPU memory, or in that of a GPU. */
void plan_make(planish_plan *plan, const cpu_limits *limits);
planish_status plan_make_gpu(planish_plan *plan, const cuda_limits *limits, message error);

static inline bool is_gpu(DLDevice device) {
    return device.device_type == kDLCUDA || device.device_type == kDLCUDAManaged;
}

#endif
