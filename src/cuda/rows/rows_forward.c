/*
 * Geometry of the forward of dense rows: how many lanes, chunks, rows and blocks. What they are cut
 * by is in tuning.h.
 */
#include "cuda/rows/rows_forward.h"
#include "cuda/rows/rows_early.h"

#include "cuda/common/integers.h"
#include "cuda/common/lanes.h"
#include "cuda/rows/rows_levels.h"
#include "cuda/rows/rows_shape.h"

enum {
    RUNS_TILE_ROWS = 16, /* of a block whose warps take a row each */
};

/* Lanes and chunks of 16-bit rows of whole chunks in a block, as measured; 0: too long. Full warps
 * of four chunks each do best; fewer than three warps a block do not, and from 10240 to 12288
 * columns blocks of more chunks do better than fewer of more threads. */
static int lanes_of_short_row(const rows_forward_tuning *t, int chunks, int *vecs) {
    const int least_lanes = chunks <= t->few_chunks ? t->few_lanes : t->least_lanes;
    int lanes = most(least_lanes, in_warps(chunks, t->lane_chunks));
    if (lanes > t->three_lanes && chunks <= t->direct_lanes * t->most_vecs)
        lanes = t->direct_lanes;
    *vecs = ceil_div(chunks, lanes);
    return lanes <= t->short_lanes ? lanes : 0;
}

/* A few chunks: a lane for each. Else a power of two of lanes, so that as few as possible go
 * without a chunk; of two such, the more lanes (bench/results/gpu-7/centred-lanes.csv has every
 * number of chunks). */
static void centred_geometry(const rows_forward_tuning *t, cuda_spec *spec, int chunks) {
    rows_constants *c = &spec->rows;
    const int width = c->width, fewest = SEGMENT_BYTES / (2 * width);
    int lanes = least(chunks, WARP), vecs = ceil_div(chunks, lanes), slots = 0;
    for (int l = fewest; chunks > 5 && l <= WARP; l *= 2) {
        const int v = ceil_div(chunks, l);
        if (v * width > t->centred_elements || (v == 1 && l != chunks) || (slots && l == WARP))
            continue;
        if (!slots || l * v <= slots) {
            lanes = l;
            vecs = v;
            slots = l * v;
        }
    }
    const int elements = vecs * width;
    /* Narrow chunks take registers for their addresses. */
    const int few = vecs <= 2 || (width == 8 && vecs <= t->centred_few_vecs);
    c->threads_per_row = lanes;
    c->chunks_per_thread = vecs;
    c->warps = t->centred_warps;
    c->rows = least(width == 8 || vecs <= 2 ? t->centred_rows
                    : vecs <= 8             ? 2
                                            : 1,
                    t->centred_all_elements / elements);
    spec->min_blocks =
        (few && elements * c->rows < t->centred_all_elements ? t->centred_many_threads
                                                             : t->centred_threads) /
        (WARP * t->centred_warps);
}

/* Rows of an odd number of chunks that are short of 16 bytes, or few. */
static int is_tiled(const rows_forward_tuning *t, const cuda_spec *spec, int cols, int chunks) {
    const rows_constants *c = &spec->rows;
    const int width = c->width;
    return role_bytes(spec, ROLE_Y) == 2 && chunks > 1 && chunks % 2 &&
           cols <= (width == 8   ? t->tiled_whole_cols
                    : width == 4 ? t->tiled_half_cols
                                 : t->tiled_cols);
}

static void tiled_geometry(const gpu_tuning *gpu, cuda_spec *spec, int chunks) {
    rows_constants *c = &spec->rows;
    const rows_forward_tuning *t = &gpu->rows_forward;
    const int width = c->width;
    int lanes = 1;
    while (ceil_div(chunks, lanes) * width >
           (lanes <= 2 ? t->tiled_most_elements : t->tiled_elements))
        lanes *= 2;
    const int elements = ceil_div(chunks, lanes) * width;
    c->variant = ROWS_TILED;
    c->threads_per_row = lanes;
    c->chunks_per_thread = ceil_div(chunks, lanes);
    c->warps = lanes == WARP ? 8 : lanes >= 8 || chunks * width < 20 ? 4 : 2;
    c->rows = lanes == WARP ? 2 : 1;
    int registers = t->tiled_registers + (lanes > 2 ? elements : elements * 3 / 2);
    if (spec->type[ROLE_X] == DTYPE_BF16)
        registers += lanes > 2 ? t->tiled_scaled : t->tiled_few_scaled;
    spec->min_blocks = least(t->tiled_warps, gpu->lane_registers / registers) / c->warps;
}

/* Longer ones, of an odd length or of chunks of 8 bytes, where they are faster. Three blocks or
 * more are to fit a multiprocessor's shared memory. */
static int is_in_runs(const cuda_spec *spec, int cols, const cuda_limits *limits) {
    const rows_constants *c = &spec->rows;
    const rows_forward_tuning *t = &limits->tuning->rows_forward;
    const int odd = c->width == 1 && cols >= t->runs_least_cols && cols <= t->runs_most_cols;
    const int by_8_bytes =
        c->width == 4 && cols >= t->runs_least_4_cols && cols <= t->runs_most_4_cols;
    return role_bytes(spec, ROLE_Y) == 2 && (odd || by_8_bytes) &&
           2 * RUNS_TILE_ROWS * cols <= limits->shared_per_block / 3;
}

/* A warp for a row, or half of one though its two rows meet in banks, for that takes fewer
 * instructions. */
static void runs_geometry(const gpu_tuning *gpu, cuda_spec *spec, int cols, int chunks) {
    rows_constants *c = &spec->rows;
    const rows_forward_tuning *t = &gpu->rows_forward;
    const int lanes = cols <= t->runs_half_cols ? 16 : WARP, words = run_words(cols, lanes);
    c->variant = ROWS_IN_RUNS;
    c->threads_per_row = lanes;
    c->chunks_per_thread = ceil_div(chunks, lanes);
    c->warps = lanes == 16 ? 4 : 8;
    c->rows = lanes == 16 ? 4 : 2;
    c->held_as_words = words > t->runs_most_words;
    const int registers =
        c->held_as_words ? words + t->runs_held_registers : 2 * words + t->runs_registers;
    spec->min_blocks = least(t->runs_warps, gpu->lane_registers / registers) / c->warps;
}

/* A row as its geometry sees it. */
typedef struct forward_row {
    int chunks, width, x_bytes;
    int elements; /* a thread holds of it */
    int is_double, wide_range;
    const cuda_limits *limits;
} forward_row;

/* In whole 16-byte chunks of 16-bit elements. */
static int is_whole(const forward_row *r) {
    return r->x_bytes == 2 && r->width == 8;
}

/* Long rows in one block that wait in shared memory, which leaves registers for more blocks. */
static int is_in_shared(const forward_row *r) {
    const rows_forward_tuning *t = &r->limits->tuning->rows_forward;
    int vecs;
    return is_whole(r) && !r->is_double && !r->wide_range && r->chunks < 4 * t->short_lanes &&
           lanes_of_short_row(t, r->chunks, &vecs) > t->three_lanes;
}

/* Lanes within warps; 0: too long. */
static int warps_lanes(cuda_spec *spec, const forward_row *r, int *vecs) {
    rows_constants *c = &spec->rows;
    const rows_forward_tuning *t = &r->limits->tuning->rows_forward;
    int lanes = lanes_within_warp(r->chunks, r->width, r->width * r->x_bytes, r->elements,
                                  r->elements, 40, 8, vecs);
    if (!lanes)
        return 0;
    if (lanes == 8 && *vecs == 4 && r->x_bytes == 2)
        lanes = ceil_div(r->chunks, *vecs); /* 7: no lane without a chunk */
    c->warps = t->warps;
    /* Several rows at once until each thread has its share of loads under way. */
    /* The scaled sums of types that leave float's range take registers of their own. */
    c->rows = most(1, least(r->wide_range ? 2 : 4, r->elements / (*vecs * r->width)));
    return lanes;
}

/* Lanes, whole warps, of as few blocks as hold a row; where none do, of those that read it in
 * parts. */
static int blocks_lanes(cuda_spec *spec, const forward_row *r, int *vecs) {
    rows_constants *c = &spec->rows;
    const rows_forward_tuning *t = &r->limits->tuning->rows_forward;
    const cuda_limits *limits = r->limits;
    int lanes = is_whole(r) && !r->is_double ? lanes_of_short_row(t, r->chunks, vecs) : 0;
    int cluster = 1;
    if (is_in_shared(r)) {
        c->hold = HOLD_IN_SHARED;
        lanes = r->chunks <= 5 * t->three_lanes ? t->three_lanes : t->short_lanes;
        *vecs = ceil_div(r->chunks, lanes);
    }
    if (!lanes)
        lanes = lanes_of_block(r->chunks, r->width, 1, r->elements, t->most_lanes, vecs);
    while (!lanes && cluster < limits->max_cluster)
        lanes = lanes_of_block(r->chunks, r->width, cluster *= 2, r->elements, t->most_lanes, vecs);
    if (!lanes) {
        lanes = 512;
        *vecs = ceil_div(r->chunks, cluster * lanes);
        const int chunk_bytes = r->width * r->x_bytes;
        const int room = limits->shared_per_block - (20 << 10); /* less the exchange's */
        c->hold =
            chunk_bytes >= 4 && *vecs <= room / (lanes * chunk_bytes) ? HOLD_IN_SHARED : READ_AGAIN;
    }
    c->warps = lanes / WARP;
    spec->cluster = cluster;
    return lanes;
}

/* As many blocks as registers allow without a spill: what is exposed of a row's exchange is hidden
 * by other rows, so this is worth more than anything else here. And a ring where few rows are under
 * way in a multiprocessor; else its slots cost more than the wait they save. */
static void ring_and_blocks(cuda_plan *plan, const forward_row *r) {
    const rows_forward_tuning *t = &plan->limits.tuning->rows_forward;
    cuda_spec *spec = &plan->main;
    rows_constants *c = &spec->rows;
    const int lanes = c->threads_per_row, vecs = c->chunks_per_thread;
    const int held = vecs * r->width, chunk_bytes = r->width * r->x_bytes;
    const int halves = is_whole(r) && !r->wide_range;
    const int whole_warp = t->whole_warps && lanes == WARP && halves;
    /* Rows of 104 to 256 and of 512 columns do better without a ring, and those of 128, 256 and
     * 512, where no lane waits for another's chunks, in more blocks. */
    const int full = halves && vecs * lanes == r->chunks && !(lanes & (lanes - 1));
    const int quarter = lanes >= 4 && lanes <= (full ? 16 : 8) && is_whole(r) &&
                        held == r->elements && t->quarter_warps;
    const int even = quarter && full, in_shared = is_in_shared(r);
    int threads = t->threads;
    if (is_whole(r) && lanes > WARP && vecs <= 2)
        threads = t->many_threads;
    else if (in_shared)
        threads = lanes == t->short_lanes ? t->many_threads : 4 * lanes;
    else if (even || (vecs == 1 && lanes < WARP && halves && t->single_chunks))
        threads = t->threads;
    else if (c->hold != HOLD_IN_REGISTERS || r->is_double || chunk_bytes < 4)
        threads = t->few_threads;
    else if (chunk_bytes < 16)
        threads = t->some_threads;
    else if (held > r->elements || (lanes <= WARP && !whole_warp))
        threads = t->narrow_threads;
    const int direct = is_whole(r) ? t->short_lanes : t->direct_lanes;
    c->ring_slots =
        c->hold == HOLD_IN_REGISTERS && chunk_bytes >= 4 && !r->is_double &&
        (lanes > direct || (lanes <= WARP && held >= r->elements && !whole_warp && !quarter));
    if (t->long_threads && lanes > t->direct_lanes) {
        threads = t->long_threads;
        c->ring_slots = c->ring_slots && lanes <= 512;
    }
    /* One block in a multiprocessor is not to be started anew. */
    plan->turns = in_shared                                             ? 1
                  : c->ring_slots && spec->cluster == 1 && lanes <= 512 ? t->turns
                                                                        : 0;
    spec->min_blocks = most(1, least(16, threads / (WARP * c->warps)));
}

/* Rows of 16 bits that have kernels of their own. */
static int is_special(cuda_spec *spec, int cols, int chunks, const cuda_limits *limits) {
    const rows_forward_tuning *t = &limits->tuning->rows_forward;
    if (is_in_runs(spec, cols, limits))
        runs_geometry(limits->tuning, spec, cols, chunks);
    else if (is_tiled(t, spec, cols, chunks))
        tiled_geometry(limits->tuning, spec, chunks);
    else if (cols <= t->centred_cols)
        centred_geometry(t, spec, chunks);
    else
        return 0;
    return 1;
}

/* What is given its moments waits for no sums, and has no use for shared memory. */
static void read_once(cuda_plan *plan) {
    rows_constants *c = &plan->main.rows;
    if (c->hold == HOLD_IN_SHARED)
        c->hold = READ_AGAIN;
    c->ring_slots = 0;
    plan->turns = 0;
}

void forward_geometry(cuda_plan *plan, int cols, int x_bytes, int is_double,
                      const cuda_limits *limits) {
    const rows_forward_tuning *t = &plan->limits.tuning->rows_forward;
    cuda_spec *spec = &plan->main;
    rows_constants *c = &spec->rows;
    forward_row r = {.x_bytes = x_bytes, .is_double = is_double, .limits = limits};
    int vecs = 1;
    r.wide_range = spec->type[ROLE_X] == DTYPE_F32 || spec->type[ROLE_X] == DTYPE_BF16;
    r.elements = is_double ? 8 : x_bytes == 4 ? t->elements / 2 : t->elements;
    r.width = chunk_width(cols, x_bytes, is_double ? 4 : 8);
    r.chunks = cols / r.width;
    c->width = r.width;
    spec->cluster = c->rows = 1;
    c->hold = HOLD_IN_REGISTERS;
    if (x_bytes == 2 && !is_double && !c->groups && !rows_are_parts(spec) &&
        is_special(spec, cols, r.chunks, limits))
        return;
    c->threads_per_row = warps_lanes(spec, &r, &vecs);
    if (!c->threads_per_row)
        c->threads_per_row = blocks_lanes(spec, &r, &vecs);
    c->chunks_per_thread = vecs;
    ring_and_blocks(plan, &r);
    if (spec->pass == PLANISH_APPLY)
        read_once(plan);
}

void group_rows_geometry(cuda_plan *plan, int x_bytes) {
    const rows_forward_tuning *t = &plan->limits.tuning->rows_forward;
    cuda_spec *spec = &plan->main;
    rows_constants *c = &spec->rows;
    const int chunks = (int)plan->cols / c->width;
    const int room = plan->limits.shared_per_block + 1024;
    if (c->width * x_bytes != 16 || chunks <= t->group_row_chunks || 16 * chunks > room - (8 << 10))
        return;
    const int fit = least(room / (16 * chunks + 2048), t->group_row_blocks);
    /* The scaled sums of bf16 take registers of their own. */
    const int threads = spec->type[ROLE_X] == DTYPE_BF16 ? t->threads : t->group_row_threads;
    const int most_lanes = least(t->most_lanes, threads / fit / WARP * WARP);
    int vecs = t->group_row_vecs;
    while (in_warps(chunks, vecs) > most_lanes)
        vecs++;
    plan->cooperative.kernel = -1;
    plan->turns = 1;
    spec->cluster = c->rows = 1;
    c->hold = HOLD_IN_SHARED;
    c->ring_slots = c->early = 0;
    c->threads_per_row = in_warps(chunks, vecs);
    c->warps = c->threads_per_row / WARP;
    c->chunks_per_thread = vecs;
    spec->min_blocks = fit;
}

/* Asynchronous copies need 4 bytes. */
static bool is_narrow(const cuda_spec *spec) {
    return spec->access[ROLE_X] < 4 || spec->rows.width * role_bytes(spec, ROLE_X) < 4;
}

/* Turns of blocks over the rows of all slices. */
static int64_t all_units(const cuda_plan *plan, const cuda_spec *spec) {
    return rows_slices(plan) * rows_units(plan, spec);
}

void forward_fit(const cuda_plan *plan, cuda_spec *spec) {
    rows_constants *c = &spec->rows;
    const bool narrow = is_narrow(spec), tiled = rows_are_tiled(spec);
    /* Rows within warps that fill less than half of the device: rather more threads than several
     * rows for each. */
    while (c->threads_per_row <= WARP && c->rows > 1 &&
           2 * all_units(plan, spec) < rows_resident(plan, spec) &&
           !(tiled && rows_at_a_time(spec) % 16)) /* a tile is whole words */
        c->rows /= 2;
    if (tiled) {
        if (c->dense != 3 || spec->access[ROLE_X] < 4) /* more addresses, or loads, under way */
            spec->min_blocks = most(1, spec->min_blocks * 3 / 4);
        return;
    }
    const int few = all_units(plan, spec) <= 2 * plan->limits.multiprocessors / spec->cluster;
    if (c->hold == HOLD_IN_SHARED && few && c->chunks_per_thread <= 5)
        c->hold = HOLD_IN_REGISTERS;
    if (c->hold == HOLD_IN_SHARED && narrow)
        c->hold = READ_AGAIN;
    /* A ring needs rows to come: with one turn for each team it would only delay the first. */
    if (narrow || all_units(plan, spec) <= rows_resident(plan, spec))
        c->ring_slots = 0;
    if (c->early == EARLY_TO_L1 && !rows_early_can_be_brought(spec))
        c->early = 0;
    if (c->hold == HOLD_IN_REGISTERS && !spec->real_double && c->warps <= 16 && few) {
        c->early = 1;
        spec->min_blocks = 1;
    }
}
