/*
 * What the geometry of the kernels asks of a machine, as data: one row for each architecture, in
 * which a new one is a row more (tuning.c). The values are from measurements (docs/notebook,
 * bench/results). What a device says of itself (multiprocessors, shared memory) is in cuda_limits,
 * and which variant of a kernel is what is code.
 *
 * "Threads in a multiprocessor" say how many registers the compiler may give each: the most that do
 * not spill (tests/cuda/test_compile.py). Where a value decides over how many lanes or chunks a row
 * is spread, it decides the order of the row's sums too: another value may change last bits.
 */
#ifndef PLANISH_CUDA_TUNING_H
#define PLANISH_CUDA_TUNING_H

#include <stdbool.h>
#include <stdint.h>

/* Forward of dense rows (rows_forward.c). "Chunks" are of up to 16 bytes. */
typedef struct rows_forward_tuning {
    int elements;   /* a thread holds of its rows, of 16 bits; half as many of 32 */
    int most_lanes; /* of a row in one block */
    /* Rows in one block. */
    int direct_lanes;   /* most lanes without a ring of rows in shared memory */
    int most_vecs;      /* chunks of 16 bits that each of direct_lanes may have */
    int three_lanes;    /* most lanes of 16-bit rows in registers: three blocks, without a ring */
    int short_lanes;    /* most of 16-bit rows without a ring: two blocks */
    int turns;          /* rows a team takes with a ring, where there are enough */
    int threads;        /* in a multiprocessor, */
    int many_threads;   /* with up to two chunks each, */
    int narrow_threads; /* of rows within warps, */
    int some_threads;   /* of chunks below 16 bytes, */
    int few_threads;    /* of f64, of chunks below 4 bytes or rows that wait in shared memory, */
    int long_threads;   /* of more than direct_lanes, which have no ring beyond 512; 0: as others */
    int warps;          /* of a block whose rows are within warps */
    bool whole_warps;   /* 16-bit rows of whole warps need neither a ring nor more registers */
    bool quarter_warps; /* nor do those of few lanes that hold `elements` each */
    bool single_chunks; /* 16-bit rows of a chunk for a lane take `threads` */
    bool early;         /* weight and bias are asked for before the statistics (rows_early.c): */
    int early_threads;  /* in a multiprocessor then, of rows of a warp with f32 in registers */
    /* 16-bit rows of whole chunks in a block. */
    int few_chunks;  /* rows of up to so many */
    int few_lanes;   /* have at least these, */
    int least_lanes; /* longer ones these, */
    int lane_chunks; /* of so many each, rather */
    /* 16-bit rows whose sums are exact, in one step (kernels/centred_words.cu). */
    int centred_cols;         /* the longest */
    int centred_elements;     /* a thread holds of a row, */
    int centred_all_elements; /* of all its rows */
    int centred_rows;         /* of a thread */
    int centred_warps;        /* of a block */
    int centred_threads;      /* in a multiprocessor, */
    int centred_many_threads; /* of fewer elements or addresses: */
    int centred_few_vecs;     /* up to so many chunks of 16 bytes; two narrower ones */
    /* 16-bit rows in tiles (kernels/tiled_words.cu). */
    int tiled_cols;          /* the longest, */
    int tiled_half_cols;     /* of 8-byte chunks, */
    int tiled_whole_cols;    /* of 16-byte chunks */
    int tiled_elements;      /* a thread holds of a row; */
    int tiled_most_elements; /* one alone or of two */
    int tiled_warps;         /* in a multiprocessor, at most */
    int tiled_registers;     /* that a thread needs beside its elements', */
    int tiled_scaled;        /* beside those where bf16 is summed again, scaled, */
    int tiled_few_scaled;    /* where one lane or two have a row */
    /* 16-bit rows in runs of words (kernels/forward_runs.cu). */
    int runs_least_cols, runs_most_cols;     /* of an odd length */
    int runs_least_4_cols, runs_most_4_cols; /* in 8-byte chunks */
    int runs_half_cols;                      /* the longest row that half a warp takes */
    int runs_most_words;                     /* of a lane, as f32 */
    int runs_warps;                          /* in a multiprocessor, at most */
    int runs_registers, runs_held_registers; /* beside its words'; where these are kept */
    /* Rows that are groups of channels, which wait in shared memory. */
    int group_row_chunks;  /* the longest in registers */
    int group_row_threads; /* in a multiprocessor, but of bf16, */
    int group_row_blocks;  /* rather than more */
    int group_row_vecs;    /* chunks of a thread */
} rows_forward_tuning;

/* How a row of the backward is spread: over `cluster` blocks, in each over `lanes` threads that
 * take `vecs` chunks, by as many teams of a block as its most `threads` allow; where the row's
 * chunks fill that much of it. */
typedef struct backward_spread {
    int cluster, lanes, vecs, threads;
    double fill;
} backward_spread;

/* Backward of dense rows (rows_backward.c, rows.c). */
typedef struct rows_backward_tuning {
    int threads;       /* in a multiprocessor, that sum so many */
    int elements;      /* columns each; or else */
    int few_threads;   /* of so many */
    int most_elements; /* columns, for rows that fill a cluster */
    int block_cols;    /* of a row in one block, where clusters are */
    int cluster_cols;  /* the shortest row for a cluster */
    int hold_cols;     /* the longest that is read from the ring twice; 0: none */
    int in_flight;     /* bytes under way in a multiprocessor; more is slower */
    int most_warps;    /* of a block whose threads hold 17 to 24 columns */
    /* 16-bit rows of so many chunks (none: 0) in one block have fewer threads of more columns. */
    int few_least_chunks, few_most_chunks;
    /* Longer rows than `spread_cols` may be spread otherwise: if it is better by `spread_gain`, or
     * as in a list. */
    bool is_spread;
    int spread_cols;
    double spread_gain;
    const backward_spread *spreads;
    int spread_count;
    /* Rows in tiles (kernels/backward_tiles.cu). */
    int tiled_cols;       /* the longest */
    int tiled_whole_cols; /* the longest that a thread takes whole; else two take a half each */
    int tiled_warps;      /* of a block */
    /* Rows in runs (kernels/backward_runs.cu), which one thread copies in bulk. */
    bool has_runs;
    int runs_least_cols;
    int runs_quarter_cols; /* the longest row of 8 lanes, */
    int runs_half_cols;    /* of 16 */
    int runs_warps;        /* of a block */
    int runs_bytes;        /* of three blocks; else two */
    int runs_each;         /* words of a row that a thread sums columns of, at most */
    double runs_pair;      /* what a thread does for a pair of rows besides its words, in words */
    /* Rows that are read twice (kernels/backward_long.cu). */
    int long_warps;  /* of a block */
    int long_blocks; /* in a multiprocessor */
} rows_backward_tuning;

/* Rows over groups of blocks (rows_cooperative.c). */
typedef struct rows_cooperative_tuning {
    int chunks;            /* of the shortest row, in the forward of 16 bits; */
    int backward_cols;     /* the shortest in the backward */
    int vecs;              /* chunks a thread holds weights of; */
    int rms_vecs;          /* of RMSNorm of f32 whose groups had more blocks */
    int few_blocks;        /* than these */
    int summed_vecs;       /* chunks a thread sums columns of, 16 bits; */
    int f32_vecs;          /* f32 */
    int threads;           /* in a multiprocessor: the fewer warps, the fewer sums to add up; */
    int summed_threads;    /* in the backward, of registers for the columns */
    int ring_slots;        /* rows in a ring; */
    int few_ring_slots;    /* of 16 bits in the forward; */
    int summed_ring_slots; /* in the backward */
} rows_cooperative_tuning;

/* Norms over channels (channels_geometry.c). A "part" is what a block has of an image. */
typedef struct channels_tuning {
    int few_pixels;     /* images below this are taken whole where they fit */
    int alone_bytes;    /* of such an image in one block, or of a part that is not alone */
    int whole_bytes;    /* of its part in a block of a cluster (forward), of 16 bits; */
    int large_bytes;    /* of f32, also alone */
    int forward_bytes;  /* of a tile, rather; */
    int backward_bytes; /* of a ring of tiles, */
    int many_bytes;     /* of many threads; */
    int wide_bytes;     /* of f32 */
    int wide_planes;    /* of threads in a block of it that is alone, or more */
    int threads;        /* of a block, rather: many small blocks hide each other's merges */
    int whole_planes;   /* of a block with a whole image */
    int most_threads;   /* of a block, rather */
    int most_tile;      /* pixels of a tile that is not shifted */
    int most_each;      /* channels whose sums a thread keeps in registers */
    int forward_each;   /* channels of a thread, where threads are left */
    int shared_each;    /* of a cluster's thread (forward) */
    int lines_each;     /* lines of several channels of a thread, rather (forward) */
    int light_each;     /* channels of a thread that needs 72 registers (backward) */
    /* Threads in a multiprocessor. */
    int forward_threads;
    int backward_threads;      /* up to 144 registers each */
    int backward_many_threads; /* of many threads to a block */
    int light_threads;         /* of light_each */
    int lines_threads;         /* of lines of several channels, */
    int light_lines_threads;   /* of fewer lines of 16 bits */
    int shifted_threads;       /* of shifted tiles (forward) */
    int many_channels;         /* fewest of a tile with twice the threads (backward) */
    int many_each;             /* of its channels a thread sums in 128 registers */
    int line_channels; /* of a block in a cluster whose tiles are lines of 16 bits (backward) */
    int lines_summed;  /* lines of several channels that a thread sums (backward) */
    /* Tiles whose channels lie as far within 16 bytes as they do in memory. */
    int shifted_tile;  /* pixels at most; twice as many in the forward of */
    int shifted_many;  /* more channels than these */
    int shifted_each;  /* channels of a thread (forward) */
    double shift_cost; /* of a channel beside its pixels, in pixels */
} channels_tuning;

/* Classes of quantised rows (stages_registers.c): what they may be, sets of bits. */
enum { SCALE_OF_ROWS = 1, SCALE_OF_BLOCKS = 2, SCALE_GIVEN = 4, ANY_SCALE = 7 };
enum { QUANTISED_F8 = 1, QUANTISED_I8 = 2, ANY_QUANTISED = 3 };
typedef struct quantised_rows {
    int kinds;   /* 1 << planish_kind */
    int scales;  /* found for a row or for each of its blocks, or given */
    int types;   /* of q */
    bool ragged; /* some lanes may have no last chunk */
} quantised_rows;

/* Rows of 16 bits, one at a time in registers, with little around the norm. */
typedef enum early_class {
    EARLY_NONE,
    EARLY_GATED,     /* RMSNorm and a gate that waits in shared memory */
    EARLY_SUM,       /* a residual, and its sum */
    EARLY_DROPPED,   /* the same, and dropout */
    EARLY_QUANTISED, /* whose y waits in the registers that had the row (`lean`) */
} early_class;

/* Where weight and bias of such rows wait that are asked for before the statistics. */
typedef struct early_rows {
    early_class of;
    int kinds;                   /* 1 << planish_kind */
    uint64_t has, lacks;         /* roles */
    int least_lanes, most_lanes; /* of a row */
    int where;                   /* a forward_early; 0: they are not */
    int threads;                 /* in a multiprocessor then; 0: as many as else */
    int warps;                   /* of a block then; 0: as many as else */
} early_rows;

/* Rows with stages around the norm (stages_registers.c, stages_backward.c, modulated_fit.c). */
typedef struct stages_tuning {
    int held_chunks; /* most of a thread that lean rows and those of `early` have */
    int gated_columns, gated_threads; /* most columns of a thread of EARLY_GATED rows that are so
                                         many threads of a multiprocessor */
    const quantised_rows *lean;       /* whose y needs no registers of its own */
    int lean_count;
    const early_rows *early; /* the first that rows are of */
    int early_count;
    quantised_rows short_rows; /* of up to centred_cols, one at a time, */
    int short_threads;         /* in a multiprocessor */
    /* Registers of any other rows, beside those for what is held and what is under way. */
    int registers, double_registers; /* of a thread, and more in f64; */
    int column_registers;            /* for each column of a chunk; */
    int scaled_registers;            /* where y waits for its scale; */
    int most_registers;              /* with more than these a thread has fewer rows */
    /* Rows with a modulation alone. */
    bool has_room;         /* for as many blocks in bf16 as plain rows of f16 have */
    int modulated_cluster; /* blocks that share a row, rather */
    /* The backward. */
    int back_lanes;   /* of a row in a block, at most; */
    int back_teams;   /* of a block, by the barriers that it has; */
    int back_warps;   /* of a block whose rows are within warps; */
    int back_words;   /* of a thread's registers, for its columns; */
    int back_threads; /* in a multiprocessor */
} stages_tuning;

/* Groups of channels that are read twice, or by the row in the backward (groups.c). */
typedef struct groups_tuning {
    int threads;          /* of a block, where rows are read twice */
    int most_lanes;       /* chunks of channels in such a block */
    int piece_bytes;      /* of x in such a block */
    int most_steps;       /* chunks of a lane, where pixels are dense */
    int forward_blocks;   /* of these in a multiprocessor; */
    int backward_blocks;  /* in the backward; */
    int mixed_blocks;     /* at most, where chunks hold the moments of several rows */
    int row_vecs;         /* chunks of a thread, of rows read once */
    int row_threads;      /* in a multiprocessor; */
    int row_many_threads; /* of two large blocks */
    int row_blocks;       /* in a multiprocessor, of rows that take a cluster */
    int most_row_cluster;
    int anywhere_blocks; /* in a multiprocessor, of rows over blocks anywhere; 0: there are none; */
    int anywhere_rows;   /* at once, at least */
    int anywhere_wait_bytes; /* that it moves while they wait for each other */
    int segment_cost;        /* of a segment beside its chunks, in turns of a warp */
} groups_tuning;

/* Groups in tiles (tiles.c). */
typedef struct tiles_tuning {
    int short_row;         /* bytes of x: rows below go in tiles whatever their length, */
    int long_channel;      /* but those of f32 channels of so many bytes, */
    int long_row;          /* in such rows */
    int tile_bytes;        /* of x and dy in a block, rather; */
    int part_bytes;        /* of a row that a cluster shares */
    int most_cluster;      /* blocks that share a row */
    int threads;           /* in a multiprocessor; */
    int half_threads;      /* of 16-bit tensors without an activation */
    int most_warps;        /* of a block */
    int most_chain;        /* elements one after the other in a lane's sum */
    int most_words;        /* of a run */
    int run_cost;          /* of a run beside its elements, in elements; */
    int lane_cost;         /* of a channel's lane beside its runs, */
    int merge_cost;        /* where it is not the only one, */
    int merge_pivots_cost; /* and its sums are merged in f64 (forward) */
    int few_images;        /* each of which has blocks of its own */
    int many_images;       /* most that have, where blocks that live on had unequal shares */
    int least_partials;
} tiles_tuning;

/* Groups of images stored by pixel, in strips (strips.c). */
typedef struct strips_tuning {
    int strip_bytes;       /* of a pixel in a strip, where no cluster holds a whole line */
    int some_cluster;      /* blocks of a cluster, rather; */
    int most_cluster;      /* of devices whose blocks have room for large strips */
    int least_pixels;      /* of an image */
    int few_groups;        /* of a strip over many small blocks: messages go for each */
    int most_messages;     /* for a strip over blocks anywhere */
    int most_warps;        /* of a block; */
    int small_warps;       /* of several small ones in a multiprocessor, of 16 bits; */
    int wide_warps;        /* of f32; */
    int narrow_warps;      /* of half a line in a block of three, */
    int narrow_bf16_warps; /* or of two */
    int shared_warps;      /* of a block of two in a multiprocessor, but */
    int fewer_warps;       /* where a thread had no more */
    int few_steps;         /* of these */
    int least_held;        /* strips at once, of blocks anywhere */
    int least_block_bytes; /* of a block of a cluster */
    int alone_bytes;       /* of a whole strip, rather */
    int few_squares;       /* of a channel, that a thread adds up */
    /* Large images, over all of the device (strips_large.c). */
    int large_wait_bytes;  /* that it moves while blocks wait for each other; 0: there are none */
    int large_loose_bytes; /* that are read again, at most */
    int large_strips;      /* at once, at most */
    int large_warps, large_column_warps; /* of a block, and with a column for each channel; */
    int large_pair_warps, large_pair_column_warps; /* of one of two in a multiprocessor */
    int few_warps; /* of one of few blocks at most, of at least so many steps of a thread: */
    int forward_steps, backward_steps;
    int column_steps, column_backward_steps; /* of chunks with a column for each channel */
    int forward_warps;                       /* in a multiprocessor: warps that do not spill; */
    int many_warps; /* of the backward, and of chunks with a column for each channel; */
    int spilling;   /* fewer of those that may sum again, or have weights for an activation */
    bool is_lean;   /* the assembler takes registers as sm_90's: fewer warps are rarely needed */
} strips_tuning;

/* Rows that lie spread, a batch's channels first of all (batch/batch_geometry.c). */
typedef struct batch_tuning {
    int blocks;           /* that pieces of channels stored by pixel are cut for, times those in a
                             multiprocessor */
    int least_steps;      /* of a thread in such a piece, where there are enough */
    int most_lanes;       /* chunks of channels in a block, rather */
    int piece_steps;      /* of a thread in a piece of a row in runs */
    int threads;          /* of a block of these */
    int at_once;          /* steps of a thread under way; */
    int most_at_once;     /* where that leaves fewer idle; */
    int backward_at_once; /* of x and of dy each, or one more, */
    int active_at_once;   /* through an activation; */
    int added_at_once;    /* of y and an addend of channels stored by pixel */
    /* Threads in a multiprocessor. */
    int many_threads;
    int some_threads; /* of the backward, and before an activation that takes registers; */
    int few_threads;  /* of f64, and of a backward through an activation */
    /* Channels that one launch sums and writes, a block in each multiprocessor. */
    int held_warps; /* of a block; 0: there are none */
    int held_bytes; /* of x, dy and what is beside them in one at most */
    int held_at_once, held_backward_at_once;
    int held_few_turns; /* turns of a backward of more than so many ask the L2 for the next */
    /* Of few bytes, that a cluster has. */
    int strip_blocks;     /* in all, at least; 0: there are none */
    int strip_bytes;      /* of x, dy and what is beside them in one at most; */
    int strip_pair_bytes; /* of x alone, in clusters of two */
    /* Rows in runs that a cluster has whole. */
    int part_bytes;  /* of x and dy in a block, rather; */
    int whole_bytes; /* at most */
    int hold_bytes;  /* that wait in a multiprocessor's shared memory */
    bool held_come;  /* by copies that are all asked for at once, where that was measured to pay */
    int most_warps;  /* of a block */
    /* Runs of a few elements, of which neighbours are read together. */
    int slab_run_bytes;      /* of a run that is read by itself, where wide chunks divide it */
    int slab_line_bytes;     /* of x that follow each other in a slab, at least */
    int slab_lanes;          /* chunks of these at most */
    int slab_blocks;         /* that share the whole, rather; */
    int slab_least_bytes;    /* that each of them has then */
    int slab_part_bytes;     /* of x and dy in one, rather */
    int slab_at_once;        /* steps of a thread under way, or one less; */
    int slab_masked_at_once; /* of what is masked by y */
    /* Threads in a multiprocessor. */
    int slab_many_threads;
    int slab_some_threads; /* before an activation that takes registers, and with an addend; */
    int slab_few_threads;  /* of the backward */
} batch_tuning;

/* The general kernels (general.c) and the sums of partial sums (finish.c). */
typedef struct general_tuning {
    int short_row;        /* rows below this leave most threads of a block idle */
    int blocks;           /* in a grid for each multiprocessor; */
    int partial_blocks;   /* of the columns */
    int partial_elements; /* fewest that a thread of the columns adds up */
    int finish_rows;      /* partial rows a lane has under way at once */
    int finish_few_cols;  /* most columns whose lanes are to have half of them */
    int finish_threads;   /* of a block, rather, where each multiprocessor has one then */
} general_tuning;

typedef struct gpu_tuning {
    int arch; /* the first compute capability that the row is for, 90 for 9.0 */
    /* What the architecture has that a device is not asked. */
    int most_cluster;        /* blocks of a cluster, where there are clusters */
    bool has_dependent_runs; /* a kernel may begin before the one in front of it ends */
    int lane_registers;      /* of a multiprocessor, for a lane of all its warps */
    int block_slots;         /* blocks that a multiprocessor holds */
    rows_forward_tuning rows_forward;
    rows_backward_tuning rows_backward;
    rows_cooperative_tuning rows_cooperative;
    stages_tuning stages;
    channels_tuning channels;
    groups_tuning groups;
    tiles_tuning tiles;
    strips_tuning strips;
    batch_tuning batch;
    general_tuning general;
} gpu_tuning;

/* The row for a compute capability of at least 8.0: that of the newest architecture up to it. */
const gpu_tuning *gpu_tuning_of(int arch);

#endif
