/*
 * The rows are made once, each from the one before it: `sm_80` says everything, and every later row
 * only what is otherwise there (tuning_stages.c: of rows with stages around the norm). All values
 * were measured on H100 and H200 (sm_90) but where a comment says so; of the other architectures
 * the compiler's reports are known (registers and spills, tests/cuda/test_compile.py), not times.
 */
#include "cuda/tuning.h"

#include <pthread.h>

#include "cuda/tuning_stages.h"

static const gpu_tuning sm_80 = {
    .arch = 80,
    .most_cluster = 1,
    .has_dependent_runs = false,
    .lane_registers = 2048,
    .block_slots = 32,
    .rows_forward =
        {
            .elements = 32,
            .most_lanes = 1024,
            .direct_lanes = 256,
            .most_vecs = 6,
            .three_lanes = 320,
            .short_lanes = 512,
            .turns = 2,
            .threads = 1024, /* 64 registers each */
            .many_threads = 1536,
            .narrow_threads = 768,
            .some_threads = 640,
            .few_threads = 512,
            .long_threads = 512, /* without Hopper's addressing the ring takes registers more */
            .warps = 4,
            .whole_warps = false,
            .quarter_warps = false,
            .single_chunks = true,
            .early = false,
            .early_threads = 768,
            .few_chunks = 192,
            .few_lanes = 96,
            .least_lanes = 128,
            .lane_chunks = 4,
            .centred_cols = 512,
            .centred_elements = 32,
            .centred_all_elements = 64,
            .centred_rows = 4,
            .centred_warps = 2,
            .centred_threads = 512,
            .centred_many_threads = 640,
            .centred_few_vecs = 2,
            .tiled_cols = 1024,
            .tiled_half_cols = 192,
            .tiled_whole_cols = 64,
            .tiled_elements = 40,
            .tiled_most_elements = 66,
            .tiled_warps = 36,
            .tiled_registers = 54,
            .tiled_scaled = 5,
            .tiled_few_scaled = 11,
            .runs_least_cols = 321,
            .runs_most_cols = 2111,
            .runs_least_4_cols = 500,
            .runs_most_4_cols = 1020,
            .runs_half_cols = 544,
            .runs_most_words = 17,
            .runs_warps = 32,
            .runs_registers = 50,
            .runs_held_registers = 54,
            .group_row_chunks = 1536,
            .group_row_threads = 1024, /* addresses take registers of their own before Hopper */
            .group_row_blocks = 3,
            .group_row_vecs = 7,
        },
    .rows_backward =
        {
            .threads = 512,
            .elements = 16,
            .few_threads = 384,
            .most_elements = 32,
            .block_cols = 2048,
            .cluster_cols = 8192,
            .hold_cols = 131072,
            .in_flight = 46 << 10,
            .most_warps = 12,
            .few_least_chunks = 321,
            .few_most_chunks = 384,
            .is_spread = false,
            .spread_cols = 2560,
            .spread_gain = 1.25,
            .tiled_cols = 72,
            .tiled_whole_cols = 16,
            .tiled_warps = 8,
            .has_runs = false,
            .runs_least_cols = 147,
            .runs_quarter_cols = 300,
            .runs_half_cols = 544,
            .runs_warps = 8,
            .runs_bytes = 150 << 10,
            .runs_each = 4,
            .runs_pair = .4,
            .long_warps = 8,
            .long_blocks = 4,
        },
    .rows_cooperative =
        {
            .chunks = 3328,
            .backward_cols = 65537,
            .vecs = 8,
            .rms_vecs = 16,
            .few_blocks = 64,
            .summed_vecs = 2,
            .f32_vecs = 3,
            .threads = 256,
            .summed_threads = 512,
            .ring_slots = 7,
            .few_ring_slots = 6,
            .summed_ring_slots = 6,
        },
    .channels =
        {
            .few_pixels = 256,
            .alone_bytes = 64 << 10,
            .whole_bytes = 160 << 10,
            .large_bytes = 200 << 10,
            .forward_bytes = 64 << 10,
            .backward_bytes = 84 << 10,
            .many_bytes = 200 << 10,
            .wide_bytes = 196 << 10,
            .wide_planes = 26,
            .threads = 128,
            .whole_planes = 8,
            .most_threads = 512,
            .most_tile = 112,
            .most_each = 16,
            .forward_each = 64,
            .shared_each = 32,
            .lines_each = 16,
            .light_each = 8,
            .forward_threads = 1024, /* 64 registers each */
            .backward_threads = 448,
            .backward_many_threads = 512,
            .light_threads = 832,
            .lines_threads = 512, /* 128 registers each */
            .light_lines_threads = 768,
            .shifted_threads = 1536,
            .many_channels = 64,
            .many_each = 10,
            .line_channels = 256,
            .lines_summed = 10,
            .shifted_tile = 64,
            .shifted_many = 128,
            .shifted_each = 32,
            .shift_cost = 10,
        },
    .groups =
        {
            .threads = 256,
            .most_lanes = 64,
            .piece_bytes = 64 << 10,
            .most_steps = 16,
            .forward_blocks = 3,
            .backward_blocks = 2,
            .mixed_blocks = 2, /* other assemblers spill what sm_90's does not */
            .row_vecs = 6,
            .row_threads = 768,
            .row_many_threads = 1024,
            .row_blocks = 3,
            .most_row_cluster = 8,
            .anywhere_blocks = 0,
            .anywhere_rows = 3,
            .anywhere_wait_bytes = 48 << 10,
            .segment_cost = 2,
        },
    .tiles =
        {
            .short_row = 4 << 10,
            .long_channel = 2 << 10,
            .long_row = 16 << 10,
            .tile_bytes = 25 << 10,
            .part_bytes = 32 << 10,
            .most_cluster = 8,
            .threads = 1024, /* 64 registers each */
            .half_threads = 1024,
            .most_warps = 24,
            .most_chain = 128,
            .most_words = 7,
            .run_cost = 3,
            .lane_cost = 8,
            .merge_cost = 3,
            .merge_pivots_cost = 20,
            .few_images = 256,
            .many_images = 1024,
            .least_partials = 64,
        },
    .strips =
        {
            .strip_bytes = 64, /* shorter pieces are slow to read */
            .some_cluster = 8,
            .most_cluster = 16,
            .least_pixels = 2,
            .few_groups = 8,
            .most_messages = 512,
            .most_warps = 16,
            .small_warps = 4,
            .wide_warps = 8,
            .narrow_warps = 8,
            .narrow_bf16_warps = 12,
            .shared_warps = 12,
            .fewer_warps = 8,
            .few_steps = 8,
            .least_held = 4,
            .least_block_bytes = 18 << 10,
            .alone_bytes = 8 << 10,
            .few_squares = 16,
            .large_wait_bytes = 0,
            .large_loose_bytes = 32 << 20, /* more than an L2 keeps of them */
            .large_strips = 8,
            .large_warps = 16,
            .large_column_warps = 12,
            .large_pair_warps = 10,
            .large_pair_column_warps = 8,
            .few_warps = 8,
            .forward_steps = 12,
            .backward_steps = 4,
            .column_steps = 18,
            .column_backward_steps = 9,
            .forward_warps = 32,
            .many_warps = 24,
            .spilling = 4,
            .is_lean = false,
        },
    .batch =
        {
            .blocks = 132,
            .least_steps = 4,
            .most_lanes = 16,
            .piece_steps = 16,
            .threads = 256,
            .at_once = 4,
            .most_at_once = 7,
            .backward_at_once = 3,
            .active_at_once = 2,
            .added_at_once = 2,
            .many_threads = 768, /* addresses take registers of their own before Hopper */
            .some_threads = 512,
            .few_threads = 512,
            .held_warps = 0,
            .held_bytes = 2 << 20,
            .held_at_once = 8,
            .held_backward_at_once = 4,
            .held_few_turns = 3,
            .strip_bytes = 52 << 10,
            .strip_pair_bytes = 100 << 10,
            .part_bytes = 52 << 10,
            .whole_bytes = 200 << 10,
            .hold_bytes = 200 << 10,
            .most_warps = 16,
            .slab_run_bytes = 64,
            .slab_line_bytes = 256,
            .slab_lanes = 256,
            .slab_blocks = 112,
            .slab_least_bytes = 12 << 10,
            .slab_part_bytes = 100 << 10,
            .slab_at_once = 4,
            .slab_masked_at_once = 3,
            .slab_many_threads = 640,
            .slab_some_threads = 512,
            .slab_few_threads = 384,
        },
    .general =
        {
            .short_row = 32,
            .blocks = 16,
            .partial_blocks = 4,
            .partial_elements = 8,
            .finish_rows = 10,
            .finish_few_cols = 1536,
            .finish_threads = 256,
        },
};

/* Consumer Ampere: less shared memory, which the device says itself. */
static void sm_86(gpu_tuning *t) {
    (void)t;
}

/* Rows of 104 to 256 and of 512 columns go without a ring, as on sm_90. */
static void sm_89(gpu_tuning *t) {
    t->rows_forward.quarter_warps = true;
}

/* Four teams of 128 lanes, or five of 96, over clusters of a few blocks, where they leave hardly a
 * lane idle; two teams of 224 where there would be one. As measured: more teams hide more of the
 * exchange, and what a cluster adds to it is less (docs/notebook/008). */
static const backward_spread hopper_spreads[] = {
    {2, 128, 2, 512, .87}, {3, 128, 2, 512, .87}, {4, 128, 2, 512, .87}, {5, 128, 2, 512, .93},
    {2, 96, 2, 512, .99},  {3, 96, 2, 512, .99},  {2, 224, 2, 512, .92}, {4, 224, 2, 512, .92}};

/* Everything was measured here. */
static void sm_90(gpu_tuning *t) {
    t->most_cluster = 16; /* when asked to; 8 are always taken */
    t->has_dependent_runs = true;
    t->rows_forward.long_threads = 0;
    t->rows_forward.whole_warps = t->rows_forward.early = true;
    t->rows_forward.centred_few_vecs = 3; /* narrow chunks take registers for their addresses */
    t->rows_forward.tiled_registers = t->rows_forward.runs_held_registers = 34;
    t->rows_forward.runs_registers = 30;
    t->rows_forward.group_row_threads = 1344;
    t->rows_backward.is_spread = true;
    t->rows_backward.spreads = hopper_spreads;
    t->rows_backward.spread_count = sizeof hopper_spreads / sizeof *hopper_spreads;
    t->rows_backward.has_runs = true;
    t->channels.lines_summed = 13;
    t->groups.mixed_blocks = 3;
    t->groups.anywhere_blocks = 3;
    t->tiles.half_threads = 1344; /* 48 registers each */
    t->batch.many_threads = 1024; /* 64 registers each */
    t->batch.some_threads = 768;
    t->batch.held_warps = 16;
    t->batch.held_come = true;
    t->batch.strip_blocks = 64;
    t->batch.slab_many_threads = 896; /* 72 registers each */
    t->batch.slab_some_threads = 576;
    t->batch.slab_few_threads = 448;
    t->strips.is_lean = true;
    t->strips.large_wait_bytes = 12 << 20;
}

/* Some kernels take more registers than on sm_90 by the compiler's reports, so what fills them to
 * the last there is left out. */
static void sm_100(gpu_tuning *t) {
    t->rows_forward.quarter_warps = t->rows_forward.single_chunks = false;
    t->rows_forward.early = false;
    t->rows_forward.runs_held_registers = 64;
    t->rows_backward.most_warps = 8;
    t->rows_backward.few_most_chunks = 0;
    t->rows_backward.is_spread = false;
    t->rows_backward.hold_cols = 0;
    t->groups.mixed_blocks = 2;
    t->groups.anywhere_blocks = 0; /* not measured */
    t->tiles.half_threads = 1024;
    t->strips.is_lean = false;
    t->strips.large_wait_bytes = 0;                  /* not measured */
    t->batch.held_warps = t->batch.strip_blocks = 0; /* not measured */
    t->batch.held_come = false;
}

/* Variants of sm_100, of which no report is known. */
static void sm_101(gpu_tuning *t) {
    t->channels.lines_summed = 10;
}

static void sm_110(gpu_tuning *t) {
    t->most_cluster = 8;
}

/* Consumer Blackwell: its assembler takes as many registers as those before Hopper. */
static void sm_120(gpu_tuning *t) {
    t->rows_forward.tiled_registers = t->rows_forward.runs_held_registers = 54;
    t->rows_forward.runs_registers = 50;
    t->rows_backward.has_runs = false;
    t->batch.many_threads = 768;
    t->batch.some_threads = 512;
    t->batch.slab_many_threads = 640;
    t->batch.slab_some_threads = 512;
    t->batch.slab_few_threads = 384;
}

/* Each row: a copy of the one before it, and what is otherwise. */
static const struct {
    int arch;
    void (*change)(gpu_tuning *row);
} changes[] = {{86, sm_86},   {89, sm_89},   {90, sm_90},  {100, sm_100},
               {101, sm_101}, {110, sm_110}, {120, sm_120}};

enum { ROWS = 1 + sizeof changes / sizeof *changes };

static gpu_tuning rows[ROWS];

static void make_rows(void) {
    rows[0] = sm_80;
    stages_tuning_change(80, &rows[0].stages);
    for (int i = 1; i < ROWS; i++) {
        rows[i] = rows[i - 1];
        rows[i].arch = changes[i - 1].arch;
        changes[i - 1].change(&rows[i]);
        stages_tuning_change(rows[i].arch, &rows[i].stages);
    }
}

const gpu_tuning *gpu_tuning_of(int arch) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_rows);
    int row = ROWS - 1;
    while (row > 0 && rows[row].arch > arch)
        row--;
    return &rows[row];
}
