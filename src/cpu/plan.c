#include "cpu/plan.h"
#include "cpu/batch/batch_run.h"
#include "cpu/common/integers.h"
#include "cpu/hints.h"
#include "cpu/path.h"
#include "cpu/stages/stages_path.h"
#include "cpu/stages/sum_first.h"

#include <stdio.h>

/*
 * How work is cut. What sums over rows or pixels are cut by decides their bits, so it is the same
 * on every CPU: GRADIENT_BLOCKS, GRADIENT_BLOCK_ROWS, CHANNEL_BYTES, LEAST_PIXELS. The rest was not
 * found to differ between CPUs; what was is in cpu/tuning.c.
 */
enum {
    BLOCK_ELEMENTS = 16384,  /* forward: elements in one work item */
    EVEN_BLOCKS = 16,        /* of rows of groups, where there are few */
    CHANNEL_BYTES = 1 << 18, /* of a tile of pixels, or of two in backward */
    LEAST_PIXELS = 32,       /* in a tile, where there are as many in a run */
    LINE_CHANNELS = 16,      /* of rows brought into planes together, or more */
    PLANES_BYTES = 3 << 18,  /* of these planes, or less */
    LINE_BYTES = 64,
    STRIP_PIXEL_BYTES = 1024,   /* of a pixel of groups taken together, or more, */
    STRIP_BYTES_NEAR = 1 << 18, /* where all their pixels are less than this; */
    STRIP_LEAST_BYTES = 128,    /* or less, */
    FEW_STRIPS = 8,             /* where all images have no more strips than this */
    KEPT_BYTES = 4 << 20,       /* of what backward keeps of a row or a strip, or less */
    GRADIENT_BLOCKS = 64,       /* most blocks where dweight or dbias is summed over them */
    GRADIENT_BLOCK_ROWS = 128   /* fewest rows in one of them, where there are many rows */
};

/* Scratch for gathered rows of all blocks together stays below this, as long as there is one block.
 */
static const size_t gathered_limit = (size_t)256 << 20;

/* ---- Rows ------------------------------------------------------------------------------------ */

/* Blocks of rows for the sums of dweight and dbias: a function of the rows alone, so that the bits
 * are too. */
static int64_t gradient_block_rows(int64_t rows) {
    const int64_t even = ceil_div(rows, GRADIENT_BLOCKS);
    const int64_t least = rows > 8 * GRADIENT_BLOCK_ROWS ? GRADIENT_BLOCK_ROWS : CHUNK_ROWS;
    return ceil_div(even > least ? even : least, CHUNK_ROWS) * CHUNK_ROWS;
}

/* Blocks of rows where no sums are wanted of them. */
static int64_t forward_block_rows(int64_t cols) {
    if (cols >= BLOCK_ELEMENTS / TOGETHER)
        return 1;
    const int64_t rows = ceil_div(BLOCK_ELEMENTS, cols);
    /* Rows that are left over by a step take longer. */
    const int64_t step = rows >= 4 * SHORT_ROWS ? SHORT_ROWS : TOGETHER;
    return ceil_div(rows, step) * step;
}

/* `gathered_rows` of row_bytes and the sums that are wanted, of so many elements. */
static block_slices slices_of(const cpu_plan *plan, const problem *p, size_t real_bytes,
                              int gathered_rows, size_t row_bytes, int64_t affine) {
    block_slices slices = {.gathered_bytes = (size_t)gathered_rows * row_bytes};
    if (plan->sums) {
        slices.chunk_bytes = round_up((size_t)p->cols * real_bytes);
        slices.sum_bytes = round_up((size_t)affine * sizeof(double));
    }
    slices.bytes =
        slices.gathered_bytes + (size_t)plan->sums * (slices.chunk_bytes + slices.sum_bytes);
    return slices;
}

static void plan_rows(cpu_plan *plan, const problem *p, size_t real_bytes) {
    rows_cut *cut = &plan->cut.rows;
    const bool samples = plan->sums && p->kept[0].affine;
    plan->slices = slices_of(plan, p, real_bytes, 0, 0, p->cols);
    cut->block_rows = plan->sums ? gradient_block_rows(p->rows) : forward_block_rows(p->cols);
    cut->sample_rows = samples ? p->rows / p->kept[0].size : p->rows;
    cut->sample_blocks = ceil_div(cut->sample_rows, cut->block_rows);
    plan->blocks = p->rows / cut->sample_rows * cut->sample_blocks;
    plan->workspace_bytes = (size_t)plan->blocks * plan->slices.bytes;
}

static void plan_strided(cpu_plan *plan, const problem *p, size_t real_bytes) {
    strided_cut *cut = &plan->cut.strided;
    cut->row_bytes = round_up((size_t)p->cols * real_bytes);
    /* x or y, dy; the result; weight, bias. */
    plan->slices =
        slices_of(plan, p, real_bytes, problem_is_backward(p) ? 5 : 4, cut->row_bytes, p->affine);
    const size_t most = gathered_limit / plan->slices.bytes;
    const int64_t blocks = most > GRADIENT_BLOCKS ? GRADIENT_BLOCKS : most ? (int64_t)most : 1;
    if (plan->sums) {
        const int64_t even = ceil_div(ceil_div(p->rows, blocks), CHUNK_ROWS) * CHUNK_ROWS;
        const int64_t least = blocks == 1 ? p->rows : even;
        const int64_t rows = gradient_block_rows(p->rows);
        cut->block_rows = rows < least ? least : rows;
    } else {
        cut->block_rows = ceil_div(p->rows, blocks);
    }
    plan->blocks = ceil_div(p->rows, cut->block_rows);
    plan->workspace_bytes = (size_t)plan->blocks * plan->slices.bytes;
}

/* A slot for each block at the end of the workspace. */
static thread_slots add_slots(cpu_plan *plan, size_t bytes) {
    const thread_slots slots = {plan->workspace_bytes, bytes};
    plan->workspace_bytes += (size_t)plan->blocks * bytes;
    return slots;
}

/*
 * Tiles of pixels that stay near a core between their sweeps, all of a run's about the same size,
 * and blocks of them. As the sums of dweight and dbias are cut so too, this is a function of the
 * problem alone.
 */
static void plan_channels(cpu_plan *plan, const problem *p, size_t real_bytes) {
    channels_cut *cut = &plan->cut.channels;
    const int64_t run = p->kept[p->kept_count - 1].size;
    const int64_t tiles = problem_is_backward(p) ? 2 : 1;
    const int64_t column = p->cols * (int64_t)real_bytes * tiles;
    /* Lines of the cache are not cut where the run is whole lines, of 16 bits too. */
    const int64_t step = run % LEAST_PIXELS ? TILE_STEP : LEAST_PIXELS;
    int64_t pixels = CHANNEL_BYTES / column / TILE_STEP * TILE_STEP;
    pixels = pixels < LEAST_PIXELS ? LEAST_PIXELS : pixels > TILE_PIXELS ? TILE_PIXELS : pixels;
    pixels = ceil_div(ceil_div(run, ceil_div(run, pixels)), step) * step;
    cut->tile_pixels = pixels;
    cut->run_tiles = ceil_div(run, pixels);
    cut->block_tiles = ceil_div(p->rows / run * cut->run_tiles, SLOTS);
    plan->blocks = ceil_div(p->rows / run * cut->run_tiles, cut->block_tiles);
    plan->slices = slices_of(plan, p, real_bytes, 0, 0, p->affine);
    plan->workspace_bytes = (size_t)plan->blocks * plan->slices.bytes;
    const int64_t rows = 5 + tiles * (pixels + TILE_STEP);
    cut->slots = add_slots(plan, round_up((size_t)(p->cols * rows) * real_bytes));
}

/* ---- Groups ---------------------------------------------------------------------------------- */

/* Whether it pays to keep what the gradient of an activation is made to be, for it is wanted twice.
 */
static bool keeps_gradient(const problem *p) {
    return p->activation != PLANISH_IDENTITY && has(p, ROLE_DX);
}

static int64_t channels_of(const problem *p) {
    return p->cols / p->reduced[p->reduced_count - 1].size;
}

/* Each row has its own sums of every channel, for the calling thread to add up in the order of the
 * rows, in sums of all affine elements. */
static group_space plan_group_space(cpu_plan *plan, const problem *p, size_t real_bytes) {
    const group_space space = {
        .weight_bytes = round_up((size_t)p->affine * real_bytes),
        .sum_bytes = plan->sums ? round_up((size_t)p->affine * sizeof(double)) : 0,
        .row_sum_bytes = (size_t)channels_of(p) * sizeof(double),
    };
    plan->workspace_bytes = 2 * space.weight_bytes;
    if (problem_is_backward(p))
        plan->workspace_bytes += 2 * ((size_t)p->rows * space.row_sum_bytes + space.sum_bytes);
    return space;
}

/* Dense rows. Backward has a slot for each thread, of what its rows keep that are done together,
 * where that stays near the core. */
static void plan_group_rows(cpu_plan *plan, const problem *p, const cpu_tuning *row,
                            size_t real_bytes) {
    group_rows_cut *cut = &plan->cut.group_rows;
    const int64_t row_bytes = p->cols * dtype_bytes(p->dtypes[ROLE_X]);
    cut->space = plan_group_space(plan, p, real_bytes);
    cut->together = row_bytes <= row->together_bytes[problem_is_backward(p)] ? TOGETHER : 1;
    /* Few rows are cut so that threads have about as many of them each. */
    const int64_t few = ceil_div(ceil_div(p->rows, EVEN_BLOCKS), cut->together) * cut->together;
    cut->block_rows = ceil_div(BLOCK_ELEMENTS, p->cols);
    cut->block_rows = cut->block_rows > few ? few : cut->block_rows;
    const size_t kept = (size_t)(cut->together * p->cols) * real_bytes + KEPT_REST;
    const bool keeps = keeps_gradient(p) && kept <= KEPT_BYTES;
    const int64_t least = ceil_div(p->rows, SLOTS);
    if (keeps && cut->block_rows < least)
        cut->block_rows = least;
    plan->blocks = ceil_div(p->rows, cut->block_rows);
    if (keeps)
        cut->slots = add_slots(plan, round_up(kept));
}

/* Cuts every run of rows into tiles of this many, and gives each block some tiles and each of
 * the threads a slot for `most_rows`, which are no fewer. */
static void plan_tiles(cpu_plan *plan, const problem *p, int64_t run, int64_t tile_rows,
                       int64_t most_rows, int64_t row_bytes) {
    group_tiles_cut *cut = &plan->cut.tiles;
    tile_rows = tile_rows > run ? run : tile_rows;
    cut->run_rows = run;
    cut->tile_rows = tile_rows;
    cut->run_tiles = ceil_div(run, tile_rows);
    cut->joined_tiles = most_rows < run ? most_rows / tile_rows : cut->run_tiles;
    const int64_t rows = cut->joined_tiles * tile_rows;
    const size_t slot = round_up((size_t)((rows < run ? rows : run) * row_bytes) + STRIP_REST);
    const int64_t all = p->rows / run * cut->run_tiles;
    const size_t most = gathered_limit / slot;
    cut->block_tiles = ceil_div(all, most > SLOTS ? SLOTS : most ? (int64_t)most : 1);
    plan->blocks = ceil_div(all, cut->block_tiles);
    cut->slots = add_slots(plan, slot);
}

/*
 * Groups of images stored by pixel: so many together that what they have of a pixel is some lines
 * of memory, or that all of theirs stays in a cache between the reads; fewer where that leaves few
 * strips for the threads, or would be too many to keep their gradients. A thread that has several
 * in turn takes up to joined_bytes of a pixel at once.
 */
static void plan_pixels(cpu_plan *plan, const problem *p, const cpu_tuning *row,
                        size_t real_bytes) {
    const int64_t groups = problem_groups_by_pixel(p), channels = channels_of(p);
    const int64_t pixels = p->reduced[p->reduced_count - 1].size, joined = row->joined_bytes;
    const int64_t bytes = dtype_bytes(p->dtypes[ROLE_X]) * channels;
    int64_t strip = STRIP_BYTES_NEAR / pixels;
    strip = strip < STRIP_PIXEL_BYTES ? STRIP_PIXEL_BYTES : strip;
    int64_t most_rows = ceil_div(strip < joined ? joined : strip, bytes);
    const int64_t images = p->rows / groups;
    while (strip > STRIP_LEAST_BYTES && images * ceil_div(groups * bytes, strip) < FEW_STRIPS)
        strip /= 2;
    const int64_t kept = channels * pixels * (int64_t)real_bytes;
    while (keeps_gradient(p) && strip > STRIP_LEAST_BYTES &&
           ceil_div(strip, bytes) * kept > KEPT_BYTES)
        strip /= 2;
    /* Strips that end where a line does. */
    int64_t unit = LINE_BYTES;
    while (unit > 1 && bytes * (unit / 2) % LINE_BYTES == 0)
        unit /= 2;
    const int64_t tile_rows = ceil_div(ceil_div(strip, bytes), unit) * unit;
    most_rows = most_rows < tile_rows ? tile_rows : most_rows;
    const bool keeps = keeps_gradient(p) && kept * tile_rows <= KEPT_BYTES;
    if (keeps && kept * most_rows > KEPT_BYTES)
        most_rows = KEPT_BYTES / kept;
    plan->cut.tiles.space = plan_group_space(plan, p, real_bytes);
    plan->cut.tiles.keeps = keeps;
    plan_tiles(plan, p, groups, tile_rows, most_rows, channels * STRIP_BYTES + (keeps ? kept : 0));
}

/* Groups that are brought into planes: so many together that their channels are whole lines, where
 * they fit a cache. x and dy have a tile each; the results come in place of one of them. */
static void plan_planes(cpu_plan *plan, const problem *p, size_t real_bytes) {
    const int64_t row_bytes = p->cols * (int64_t)real_bytes * (problem_is_backward(p) ? 2 : 1);
    int64_t rows = ceil_div(LINE_CHANNELS, channels_of(p));
    if (rows > PLANES_BYTES / row_bytes)
        rows = PLANES_BYTES / row_bytes;
    const int64_t run = p->kept[p->kept_count - 1].size;
    rows = rows < 1 ? 1 : ceil_div(run, ceil_div(run, rows));
    plan->cut.tiles.space = plan_group_space(plan, p, real_bytes);
    plan_tiles(plan, p, run, rows, rows, row_bytes);
}

/* ---- The plan -------------------------------------------------------------------------------- */

static void plan_path(cpu_plan *plan, const problem *p, const cpu_limits *limits, cpu_path path) {
    const cpu_tuning *row = limits->tuning;
    *plan = (cpu_plan){
        .path = path,
        .kernels = limits->kernels,
        /* xhat that is divided out of y has a rounding more than one from x, and an f32 row of a
         * few elements none to spare (docs/internals/numerics.md). */
        .is_double = problem_is_double(p) || p->pass == PLANISH_BACKWARD_FROM_Y,
        .parallel = p->rows * p->cols >= (path_is_groups(path) || path == PATH_BATCH
                                              ? row->fork_group_elements
                                              : row->fork_elements),
        .traffic = cpu_traffic_of(p, limits, path),
        .sums = problem_is_backward(p) ? has(p, ROLE_DWEIGHT) + has(p, ROLE_DBIAS) : 0,
    };
    plan->hints = cpu_hints_of(p, limits, path, plan->traffic);
    for (role_set rest = p->present; rest; rest &= rest - 1) {
        const role r = first_role(rest); /* unsigned: an empty tensor's strides may be any */
        plan->pitch[r] = (int64_t)((uint64_t)kept_stride(p, p->kept_count - 1, r) *
                                   (uint64_t)dtype_bytes(p->dtypes[r]));
    }
    const size_t real_bytes = plan->is_double ? sizeof(double) : sizeof(float);
    switch (path) {
    case PATH_EMPTY:
        break;
    case PATH_ROWS:
        plan_rows(plan, p, real_bytes);
        break;
    case PATH_CHANNELS:
        plan_channels(plan, p, real_bytes);
        break;
    case PATH_GROUP_ROWS:
        plan_group_rows(plan, p, row, real_bytes);
        break;
    case PATH_PIXELS:
        plan_pixels(plan, p, row, real_bytes);
        break;
    case PATH_PLANES:
        plan_planes(plan, p, real_bytes);
        break;
    case PATH_BATCH:
        batch_plan(plan, p);
        break;
    case PATH_STRIDED:
        plan_strided(plan, p, real_bytes);
        break;
    case PATH_STAGES:
        stages_plan(plan, p);
        break;
    }
}

void cpu_plan_make(cpu_plan *plan, const steps *s, const cpu_limits *limits) {
    const step *norm = steps_norm(s);
    const bool modulated = norm->kind == STEP_MODULATED_NORM;
    plan_path(plan, norm->problem, limits, modulated ? PATH_ROWS : cpu_path_of(norm->problem));
    if (s->step[0].kind == STEP_MAKE_SUM)
        sum_first_plan(plan, s->step[0].problem);
}

int cpu_plan_is_general(const cpu_plan *plan) {
    return plan->sum.general || plan->path == PATH_PLANES || plan->path == PATH_STRIDED ||
           (plan->path == PATH_STAGES && plan->cut.stages.general);
}

const char *cpu_plan_why_general(const cpu_plan *plan, const problem *p) {
    if (plan->sum.general)
        return "x and residual are not neighbours where sum, or y in its place, has neighbours";
    if (plan->path == PATH_PLANES)
        return "the channels of x, y, dy and dx are dense neither by channel nor by pixel in all "
               "of "
               "them, or they differ in dtype";
    if (plan->path == PATH_STAGES)
        return "the elements of a row are not neighbours in every tensor that has them all";
    if (p->pass == PLANISH_BACKWARD_FROM_Y)
        return "pass is PLANISH_BACKWARD_FROM_Y";
    return "x, y, dy and dx are neither dense rows with weights along them nor images of channels, "
           "or differ in dtype";
}

int cpu_plan_describe(const cpu_plan *plan, const problem *p, char *text, size_t bytes) {
    static const char *const paths[] = {"empty",  "rows",  "channels", "groups", "pixels",
                                        "planes", "batch", "strided",  "stages"};
    static const char *const passes[] = {"forward",    "backward", "backward from y",
                                         "statistics", "apply",    "backward statistics"};
    _Static_assert(sizeof passes / sizeof *passes == PLANISH_BACKWARD_STATISTICS + 1,
                   "a pass has no name");
    char norm[160];
    stages_describe(p, norm, sizeof norm);
    const dtype element = p->dtypes[has(p, ROLE_X) ? ROLE_X : ROLE_Y];
    return snprintf(text, bytes, "%s/%s %s %s %s %lldx%lld, %lld blocks, %zu workspace bytes",
                    paths[plan->path], plan->kernels->tier, norm, passes[p->pass],
                    dtype_name(element), (long long)p->rows, (long long)p->cols,
                    (long long)plan->blocks, plan->workspace_bytes);
}
