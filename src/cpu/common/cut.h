/*
 * What a plan of a problem in CPU memory says: the path that it takes, its kernels and hints, and
 * how its rows are cut into blocks that find their own parts of the workspace. Pure data, which
 * cpu/plan.h makes and everyone reads who runs a part of it.
 */
#ifndef PLANISH_CPU_CUT_H
#define PLANISH_CPU_CUT_H

#include "cpu/common/kernels.h"
#include "problem.h"

typedef enum cpu_path {
    PATH_EMPTY, /* no elements: only dweight and dbias (zeros) and statistics (NaN) are written */
    PATH_ROWS,  /* dense rows: the row kernels run on the tensors as they are */
    PATH_CHANNELS,   /* rows beside each other, each strided: tiles of them */
    PATH_GROUP_ROWS, /* rows of channels of pixels, each channel with one weight and bias: dense */
    PATH_PIXELS,     /* the same of images stored by pixel: strips of their groups */
    PATH_PLANES,     /* the same of any layout and dtypes: rows are brought into planes and back */
    PATH_BATCH,      /* rows that are channels whose elements lie apart: BatchNorm */
    PATH_STRIDED,    /* any strides and dtypes: rows are gathered into scratch and scattered back */
    PATH_STAGES /* stages around the norm, of any strides and dtypes: rows pass through scratch */
} cpu_path;

/* The most blocks of a problem whose threads each have a slot. */
enum { SLOTS = 64 };

/* Each block of rows or tiles owns a slice of the workspace, one behind the other: room for
 * gathered rows, then for each of dweight and dbias that is wanted the sums of a chunk of rows and
 * the sums of the block. */
typedef struct block_slices {
    size_t gathered_bytes;
    size_t chunk_bytes; /* of one chunk sum; 0: none wanted */
    size_t sum_bytes;   /* of one block sum */
    size_t bytes;       /* the whole slice */
} block_slices;

/* Each thread has one of the slots at the end of the workspace, for what it keeps of a block. */
typedef struct thread_slots {
    size_t offset, bytes; /* of the first one; of each, 0: there are none */
} thread_slots;

/* A sample's rows have one weight and bias: all rows, or those of each index of the first kept
 * axis. Where sums are wanted, each sample is some blocks. */
typedef struct rows_cut {
    int64_t block_rows, sample_rows, sample_blocks;
} rows_cut;

typedef struct strided_cut {
    int64_t block_rows;
    size_t row_bytes; /* of one gathered row */
} strided_cut;

/* A run, the pixels along the innermost kept axis, is cut into tiles, and a block is some of them.
 * A slot is tiles in the compute type, weight, bias and some rows. */
typedef struct channels_cut {
    int64_t tile_pixels, run_tiles, block_tiles;
    thread_slots slots;
} channels_cut;

/* What all groups have in the workspace: weight and bias in the compute type; in backward sums for
 * dweight and dbias of all affine elements, and each row's own. */
typedef struct group_space {
    size_t weight_bytes;  /* of weight, and of bias */
    size_t sum_bytes;     /* of the sums for dweight, and for dbias */
    size_t row_sum_bytes; /* the same of a row */
} group_space;

typedef struct group_rows_cut {
    group_space space;
    int64_t block_rows;
    int together;       /* rows that the kernels are given at once */
    thread_slots slots; /* backward, where it keeps what went into an activation of these */
} group_rows_cut;

/* Strips or planes: a run, the rows along the innermost kept axis, is cut into tiles, and a block
 * is some of them, which a slot has room for. */
typedef struct group_tiles_cut {
    group_space space;
    int64_t run_rows, tile_rows, run_tiles, block_tiles;
    int64_t joined_tiles; /* that a thread which has them in turn takes as one; PATH_PIXELS */
    bool keeps;           /* backward keeps what went into an activation; PATH_PIXELS */
    thread_slots slots;
} group_tiles_cut;

/*
 * Channels, the rows, in tiles along the innermost kept axis, and their pieces in parts. Where
 * there is one part a tile is done at once; else a block is a tile of a part, all channels' numbers
 * and the records of all parts are in the workspace, and a slot is room for the sums of a part.
 */
typedef struct batch_cut {
    bool by_pixel;
    int64_t pieces, span;
    int64_t run_rows, tile_rows, run_tiles, tiles;
    int64_t part_pieces, parts;
    size_t records_offset, numbers_offset;
    thread_slots slots; /* by pixel */
} batch_cut;

/* Rows with stages around the norm (cpu/stages/stages_path.h). */
typedef struct stages_cut {
    int64_t block_rows, batch_rows; /* rows in scratch together */
    size_t row_bytes;               /* of one row in scratch */
    thread_slots slots;             /* forward: scratch of each thread */
    size_t largest_offset;          /* forward: the largest |y| of each block, in f64 */
    bool general;                   /* elements are brought to and fro one by one */
} stages_cut;

/* How what the norm reads is made where a step makes it, piece by piece (cpu/stages/sum_first.h);
 * path, cut and the rest are those of the norm's step. */
typedef struct sum_cut {
    bool general;  /* elements are brought together one by one */
    size_t offset; /* of what is made, where that has no other memory */
} sum_cut;

typedef struct cpu_plan {
    cpu_path path;
    const cpu_kernels *kernels;
    bool is_double;
    bool parallel; /* worth a fork */
    traffic traffic;
    cpu_hints hints;
    int64_t pitch[ROLE_COUNT]; /* bytes from a row to the next of the innermost kept axis */
    int64_t blocks;            /* work items */
    int sums;                  /* dweight and dbias: how many of them are wanted */
    block_slices slices;       /* of PATH_ROWS, PATH_STRIDED and PATH_CHANNELS */
    sum_cut sum;
    size_t workspace_bytes;
    union { /* by path; PATH_EMPTY has none */
        rows_cut rows;
        strided_cut strided;
        channels_cut channels;
        group_rows_cut group_rows;
        group_tiles_cut tiles; /* PATH_PIXELS and PATH_PLANES */
        batch_cut batch;
        stages_cut stages;
    } cut;
} cpu_plan;

static inline bool problem_is_backward(const problem *p) {
    return p->pass == PLANISH_BACKWARD || p->pass == PLANISH_BACKWARD_FROM_Y ||
           p->pass == PLANISH_BACKWARD_STATISTICS;
}

/* Which half of a backward it is. */
static inline half problem_half(const problem *p) {
    return !problem_is_half(p)                      ? HALF_NONE
           : p->pass == PLANISH_BACKWARD_STATISTICS ? HALF_STATISTICS
                                                    : HALF_APPLY;
}

static inline bool path_is_groups(cpu_path path) {
    return path == PATH_GROUP_ROWS || path == PATH_PIXELS || path == PATH_PLANES;
}

#endif
