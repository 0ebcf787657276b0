/*
 * A specialisation: which kernel text, with which compile-time constants. Pure data, comparable as
 * bytes; its prelude is the text that goes in front of the kernel.
 */
#ifndef PLANISH_CUDA_SPEC_H
#define PLANISH_CUDA_SPEC_H

#include <stddef.h>
#include <stdint.h>

#include "problem.h"

typedef enum cuda_kernel {
    CUDA_FORWARD,
    CUDA_BACKWARD,
    CUDA_SUMS,  /* of long rows */
    CUDA_APPLY, /* the same */
    CUDA_FINISH,
    CUDA_FORWARD_PAIR, /* two of the same in one launch */
    CUDA_BACKWARD_PAIR,
    CUDA_FINISH_PAIR,
    CUDA_CHANNELS,
    CUDA_GROUPS,
    CUDA_STRIPS, /* of groups, in one read */
    CUDA_BATCH,
    CUDA_GENERAL_FORWARD, /* any axes and strides, with stages or without */
    CUDA_GENERAL_CLEAR,   /* what becomes a maximum */
    CUDA_GENERAL_ROWS,    /* of a backward */
    CUDA_GENERAL_COLUMNS,
    CUDA_GENERAL_FINISH,
    CUDA_GENERAL_ELEMENTS,
    CUDA_STAGES_FORWARD, /* with stages around the norm */
    CUDA_STAGES_CLEAR,
    CUDA_STAGES_SUM,      /* what a norm of another family reads */
    CUDA_STAGES_BACKWARD, /* of rows, with stages */
    CUDA_STAGES_SAMPLES,
    CUDA_MODULATED_FORWARD, /* of rows, with a modulation alone */
    CUDA_MODULATED_BACKWARD,
    CUDA_MERGE, /* of what parts of rows sent */
    CUDA_KERNEL_COUNT
} cuda_kernel;

/* Lanes of a warp: for planners, and for the kernels, whose preludes say it. */
enum { WARP = 32 };

/* ---- Constants of a family ------------------------------------------------------------------- */

/* What each is, the head of its kernel's text says. */

/* Which kernel dense rows go through: those of 16 bits have others. */
enum rows_variant {
    ROWS_PLAIN,
    ROWS_TILED,  /* tiled_words.cu, backward_tiles.cu */
    ROWS_IN_RUNS /* of words: forward_runs.cu, backward_runs.cu */
};

/* HOLD of the forward of dense rows: where a row is between its statistics and its output. */
enum forward_hold { HOLD_IN_REGISTERS, HOLD_IN_SHARED, READ_AGAIN };

/* EARLY of the forward of dense rows: where weights wait that are asked for before they are needed;
 * 0: they are not. Only rows with stages around the norm have the second. */
enum forward_early { EARLY_IN_REGISTERS = 1, EARLY_IN_SHARED, EARLY_TO_L1 };

/* HOLD of the backward of dense rows: where a row is between its sums and its output. */
enum backward_hold {
    HOLD_IN_THREAD,
    HOLD_IN_RING, /* it is read again; over groups of blocks it always is */
    HOLD_THE_NEXT /* over groups of blocks: the row put out next is in registers */
};

typedef struct rows_constants {
    int32_t cols, width, threads_per_row, chunks_per_thread, rows, warps, teams;
    int32_t ring_slots, delay;
    int32_t groups, pixels; /* of rows that are groups of channels */
    int32_t planes;         /* of ROWS_IN_RUNS */
    uint8_t variant;
    uint8_t hold;          /* forward_hold or backward_hold */
    uint8_t held_as_words; /* forward ROWS_IN_RUNS: registers hold a row as it is in memory */
    uint8_t early;
    uint8_t dense;          /* not ROWS_PLAIN: whose rows follow each other */
    uint8_t dsum_in_ring;   /* backward: dsum comes as x and dy do */
    uint8_t levels, sliced; /* row_levels.cu */
} rows_constants;

typedef struct channels_constants {
    int32_t cols, pixels;
    int32_t tile_pixels;
    int32_t depth, line_channels, width, lanes, planes, warps, ring_slots;
    int32_t last;
    int32_t out_through_shared;
} channels_constants;

/* Which kernel groups go through. */
enum groups_variant {
    GROUPS_BY_ROW, /* one read, of a row (or a strip) */
    GROUPS_SUMS,   /* of two reads: the sums of channels, */
    GROUPS_MOMENTS,
    GROUPS_APPLY,   /* and the output */
    GROUPS_IN_TILES /* one read, of several rows */
};

typedef struct groups_constants {
    int32_t groups, depth, pixels, cols;
    int32_t tile_channels; /* of a strip */
    int32_t piece, width, planes, warps;
    int32_t lanes;   /* of tiles: the threads that share a channel */
    int32_t rows;    /* of a tile */
    int32_t hold;    /* of strips: steps of a thread that wait in shared memory; 0: all */
    uint8_t variant; /* groups_variant */
    uint8_t last;
    uint8_t out_lies_as_x; /* of tiles */
    uint8_t ahead;         /* of strips over blocks anywhere: summed while others are written */
    uint8_t late_half; /* of strips over blocks anywhere: the later half begins after the barrier */
} groups_constants;

/* Which kernel batches go through (kernels/batch/batch.cu). */
enum batch_variant { BATCH_SUMS, BATCH_MOMENTS, BATCH_APPLY, BATCH_WHOLE, BATCH_HELD };

typedef struct batch_constants {
    int32_t variant; /* batch_variant */
    int32_t last, width, lanes, warps;
    int32_t pixels;    /* of slabs: elements of a run; else 0 */
    int32_t at_once;   /* steps of a thread under way together */
    int32_t hold;      /* of a row whole: steps of a thread that wait in shared memory */
    int32_t held_come; /* those come by asynchronous copies */
    int32_t ask_ahead; /* the L2 is asked for the steps behind those under way */
    int32_t frozen;    /* moments are statistics that are kept over many calls */
    int32_t alone;     /* of BATCH_APPLY: nothing is summed before it */
} batch_constants;

/* Whose sums planish_general_columns makes. */
enum general_target { GENERAL_AFFINE, GENERAL_SCALED, GENERAL_MODULATED };

typedef struct general_constants {
    int32_t lanes, warps, slices;
    int32_t target; /* general_target */
    int32_t stages; /* there are some around the norm */
} general_constants;

typedef struct sum_constants {
    int32_t width, chunks, warps;
    int32_t axes, narrow;
} sum_constants;

typedef struct finish_constants {
    int32_t cols, lanes, rows, slices;
} finish_constants;

/* A set of roles; the lower ones are in the first word. */
typedef struct role_words {
    uint32_t word[2];
} role_words;

static inline void role_words_add(role_words *set, role r) {
    set->word[r / 32] |= 1u << r % 32;
}

/* Of the kernels that know what stands around the norm, beside those of rows or the general ones.
 */
typedef struct stages_constants {
    uint8_t gate_before, round_xhat, dropout, power_of_two;
    uint8_t is_double, sum_type; /* general: s is made in f64; a dtype, DTYPE_NONE: not rounded */
    uint8_t want_y;              /* rows: or y only stands for what it would be */
    uint8_t two_levels, index_aligned;
    uint8_t gate_in_shared; /* forward of rows: the gate behind the norm waits there */
    uint8_t by_sample;      /* backward: rows that share a row of scale and shift belong together */
    uint8_t unused;         /* so that there are no bytes between the numbers */
    int32_t scale_block;
    role_words varies, alike;
} stages_constants;

/* ---- The specialisation ---------------------------------------------------------------------- */

typedef struct cuda_spec {
    int32_t kernel; /* a cuda_kernel */
    /* What is known of the problem. */
    uint8_t real_double; /* the kernel computes in f64 */
    uint8_t kind, activation, pass, weight_offset;
    uint8_t correct; /* backward: the saved mean's rounding is mended */
    uint8_t want_dweight, want_dbias;
    /* Whole words of bytes, so that there are none between the numbers. */
    uint8_t type[(ROLE_COUNT + 3) / 4 * 4];   /* dtypes, DTYPE_NONE: absent */
    uint8_t access[(ROLE_COUNT + 3) / 4 * 4]; /* bytes that parts are aligned to, up to 16 */
    /* How blocks are launched. */
    int32_t cluster;            /* blocks of a cluster */
    int32_t cooperating_blocks; /* blocks anywhere on the device that work together */
    int32_t min_blocks;         /* in a multiprocessor */
    union {
        rows_constants rows;
        channels_constants channels;
        groups_constants groups;
        batch_constants batch;
        general_constants general;
        sum_constants sum;
        finish_constants finish;
    };
    stages_constants stages;
} cuda_spec;

/* A constant that a kernel's text asks for: its name there, and where it is in a spec: a number of
 * one byte or four, or role_words. */
typedef struct cuda_constant {
    const char *name;
    size_t offset, bytes;
} cuda_constant;

/* The constants of a text beside those that all have, closed by a name of NULL. */
extern const cuda_constant rows_forward_list[], rows_backward_list[], rows_long_list[],
    channels_list[], groups_list[], strips_list[], batch_list[], general_list[], finish_list[],
    merge_list[], stages_forward_list[], stages_sum_list[], stages_backward_rows_list[],
    stages_samples_list[];

/* Bytes of an element of a tensor. */
static inline int role_bytes(const cuda_spec *spec, role r) {
    return dtype_bytes((dtype)spec->type[r]);
}

/* Bytes of a number that the kernel computes with. */
static inline size_t real_bytes(const cuda_spec *spec) {
    return spec->real_double ? 8 : 4;
}

/* Sets what every kernel knows of its problem: the kind, the activation, the weight offset, and the
 * dtypes. */
void cuda_spec_describe(cuda_spec *spec, const problem *p);

/* The constant of this name in the kernel's text, such as "WARPS" or "ACCESSES[x]" (roles.h has the
 * names of tensors). False: it has none, or it is a set. */
bool cuda_spec_get(const cuda_spec *spec, const char *name, int32_t *value);
bool cuda_spec_set(cuda_spec *spec, const char *name, int32_t value);

/* Writes the prelude to `start`, closed by 0 and cut to `bytes`; returns its whole length. */
size_t cuda_spec_prelude(const cuda_spec *spec, char *start, size_t bytes);

#endif
