#include "plan.h"

#include <stdio.h>

enum {
    FORK_ELEMENTS = 32768,    /* less work than this is done by the calling thread */
    ALONE_ROW_BYTES = 2048,   /* f32 rows from here on go one at a time, forward, on a CPU that */
    FETCHED_ROW_BYTES = 4096, /* ... fetches rows itself; but those below this, of no more than */
    FETCHED_BYTES = 6 << 20,  /* ... this, it brings in time */
    ASK_BYTES = 2 << 20,      /* of more than this y is asked for before it is made, ... */
    ASK_BYTES_16 = 24 << 20,  /* ... of 16 bits, which waits for conversions, of more than this */
    FAR_BYTES = 10 << 20,   /* of more than this y is made row by row, up to where it is streamed */
    BLOCK_ELEMENTS = 16384, /* forward: elements in one work item */
    CHANNEL_BYTES = 1 << 18, /* of a tile of pixels, or of two in backward */
    LEAST_PIXELS = 32,       /* in a tile, where there are as many in a run */
    LINE_CHANNELS = 16,      /* of rows brought into planes together, or more */
    PLANES_BYTES = 3 << 18,  /* of these planes, or less */
    LINE_BYTES = 64,
    STRIP_PIXEL_BYTES = 1024,   /* of a pixel of groups taken together, or more, */
    STRIP_BYTES_NEAR = 1 << 18, /* where all their pixels are less than this; */
    STRIP_LEAST_BYTES = 128,    /* or less, */
    TOGETHER_BYTES = 16384,     /* the longest rows of groups that are done together, ... */
    TOGETHER_BACKWARD = 4096,   /* ... and in backward */
    KEPT_BYTES = 4 << 20,       /* of what backward keeps of a row or a strip, or less */
    FEW_STRIPS = 8,             /* where all images have no more strips than this */
    JOINED_BYTES = 8192,        /* of a pixel of strips taken as one, on a CPU that fetches rows */
    ASKED_AHEAD = 2048,         /* elements of rows that are asked for before they are taken, */
    MOST_AHEAD = 32,            /* and how many rows at most */
    GRADIENT_BLOCKS = 64,       /* most blocks where dweight or dbias is summed over them */
    GRADIENT_BLOCK_ROWS = 128   /* fewest rows in one of them, where there are many rows */
};

/* Scratch for gathered rows of all blocks together stays below this, as long as there is one block.
 */
static const size_t gathered_limit = (size_t)256 << 20;

static int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

static size_t round_up(size_t bytes) {
    return (bytes + 63) & ~(size_t)63;
}

static bool is_backward(const problem *p) {
    return p->pass == PLANISH_BACKWARD || p->pass == PLANISH_BACKWARD_FROM_Y;
}

/* Whether the group kernels have these dtypes: one for x, y, dy and dx; weights of any. */
static bool group_dtypes(const problem *p) {
    const dtype element = p->dtypes[has(p, ROLE_X) ? ROLE_X : ROLE_Y];
    for (unsigned rest = p->present & FULL_ROLES; rest; rest &= rest - 1)
        if (p->dtypes[first_role(rest)] != element)
            return false;
    return problem_is_double(p) == (element == DTYPE_F64);
}

/* Whether the row kernels have these dtypes: one for x, y, dy and dx; weights the same or f32. */
static bool kernel_dtypes(const problem *p) {
    const dtype element = p->dtypes[has(p, ROLE_X) ? ROLE_X : ROLE_Y];
    static const role elements[] = {ROLE_X, ROLE_Y, ROLE_DY, ROLE_DX};
    for (int i = 0; i < 4; i++)
        if (has(p, elements[i]) && p->dtypes[elements[i]] != element)
            return false;
    const role weight = has(p, ROLE_WEIGHT) ? ROLE_WEIGHT : ROLE_BIAS;
    if (has(p, ROLE_BIAS) && p->dtypes[ROLE_BIAS] != p->dtypes[weight])
        return false;
    if (has(p, weight) && p->dtypes[weight] != element &&
        !(p->dtypes[weight] == DTYPE_F32 && element != DTYPE_F64))
        return false;
    /* A double gradient of float rows is summed in double all the way. */
    return problem_is_double(p) == (element == DTYPE_F64);
}

/* Blocks of rows for the sums of dweight and dbias: a function of the rows alone, so that the bits
 * are too. */
static int64_t gradient_block_rows(int64_t rows) {
    const int64_t even = ceil_div(rows, GRADIENT_BLOCKS);
    const int64_t least = rows > 8 * GRADIENT_BLOCK_ROWS ? GRADIENT_BLOCK_ROWS : CHUNK_ROWS;
    return ceil_div(even > least ? even : least, CHUNK_ROWS) * CHUNK_ROWS;
}

static size_t bytes_of_elements(const problem *p) {
    static const role elements[] = {ROLE_X, ROLE_Y, ROLE_DY, ROLE_DX};
    size_t bytes = 0;
    for (int i = 0; i < 4; i++)
        bytes += (size_t)dtype_bytes(p->dtypes[elements[i]]);
    return (size_t)p->rows * (size_t)p->cols * bytes;
}

/* Whether the forward takes rows one at a time where they are neither near nor left to the CPU. */
static bool goes_alone(const problem *p, const cpu_limits *limits, plan_path path) {
    return limits->fetches_rows && path == PATH_ROWS && !is_backward(p) &&
           p->dtypes[ROLE_X] == DTYPE_F32 && p->cols * (int64_t)sizeof(float) >= ALONE_ROW_BYTES;
}

static traffic traffic_of(const problem *p, const cpu_limits *limits, plan_path path) {
    const size_t count = (size_t)p->rows * (size_t)p->cols, bytes = bytes_of_elements(p);
    const role output = has(p, ROLE_DX) ? ROLE_DX : ROLE_Y;
    const bool forward = path == PATH_ROWS && !is_backward(p);
    if (forward ? bytes > limits->rows_bytes
                : count * (size_t)dtype_bytes(p->dtypes[output]) > limits->cache_bytes)
        return TRAFFIC_STREAM;
    /* 16-bit rows wait for their conversions, and what is asked for is there in time. */
    const bool fetched =
        forward ? goes_alone(p, limits, path) && bytes <= FETCHED_BYTES &&
                      p->cols * (int64_t)sizeof(float) < FETCHED_ROW_BYTES
                : limits->fetches_rows && path == PATH_ROWS && dtype_bytes(p->dtypes[ROLE_X]) > 2;
    return bytes > limits->near_bytes && !fetched ? TRAFFIC_AHEAD : TRAFFIC_CACHED;
}

/* Whether a group's y waits for the next group's moments. Both groups, two rows of y, weight and
 * bias are to stay in the first-level cache, or all but those two rows where a core's own cache has
 * everything (bench/results/zen4/turns.txt). */
static bool goes_in_turn(const problem *p, const cpu_limits *limits) {
    const size_t row = (size_t)p->cols * (size_t)dtype_bytes(p->dtypes[ROLE_X]);
    const size_t rows = bytes_of_elements(p) > limits->near_bytes ? 12 : 10;
    return !limits->first_bytes || row <= limits->first_bytes / rows;
}

/* Whether the next step's rows are asked for. Of f32 rows from memory, as measured: on Zen 4 it
 * gains nothing but in forward where they fill four lines (bench/results/zen4/asks.txt, zen4-3), on
 * Zen 5 much but in backward where they are fewer (bench/results/zen5/asks.txt). 16-bit rows make
 * no difference. */
static bool asks_steps(const problem *p, const cpu_limits *limits, traffic t) {
    if (t != TRAFFIC_STREAM || !limits->writes_lines || p->dtypes[ROLE_X] != DTYPE_F32)
        return t != TRAFFIC_CACHED;
    const int64_t bytes = p->cols * (int64_t)sizeof(float);
    if (limits->fetches_short_rows)
        return !is_backward(p) && bytes == 256;
    return !is_backward(p) || bytes == 256 || bytes >= 384;
}

/* How many rows before they are taken they are asked for, 0: a step. As measured on Zen 5, the
 * others were timed with a step (bench/results/zen5-2/asks.txt). */
static int rows_ahead(const problem *p, const cpu_limits *limits, traffic t) {
    if (!limits->writes_lines || limits->fetches_short_rows || !p->cols ||
        (!is_backward(p) && t != TRAFFIC_STREAM))
        return 0;
    const int64_t rows = ASKED_AHEAD / p->cols;
    return rows < 2 ? 2 : rows > MOST_AHEAD ? MOST_AHEAD : (int)rows;
}

/*
 * Tiles of pixels that stay near a core between their sweeps, all of a run's about the same size,
 * and blocks of them. As the sums of dweight and dbias are cut so too, this is a function of the
 * problem alone.
 */
static void plan_channels(planish_plan *plan, size_t real_bytes) {
    const problem *p = &plan->problem;
    const int64_t run = p->kept[p->kept_count - 1].size;
    const int64_t tiles = is_backward(p) ? 2 : 1;
    const int64_t column = p->cols * (int64_t)real_bytes * tiles;
    /* Lines of the cache are not cut where the run is whole lines, of 16 bits too. */
    const int64_t step = run % LEAST_PIXELS ? TILE_STEP : LEAST_PIXELS;
    int64_t pixels = CHANNEL_BYTES / column / TILE_STEP * TILE_STEP;
    pixels = pixels < LEAST_PIXELS ? LEAST_PIXELS : pixels > TILE_PIXELS ? TILE_PIXELS : pixels;
    pixels = ceil_div(ceil_div(run, ceil_div(run, pixels)), step) * step;
    plan->tile_rows = pixels;
    plan->run_tiles = ceil_div(run, pixels);
    plan->block_tiles = ceil_div(p->rows / run * plan->run_tiles, SLOTS);
    plan->blocks = ceil_div(p->rows / run * plan->run_tiles, plan->block_tiles);
    const int64_t rows = 5 + tiles * (pixels + TILE_STEP);
    plan->slot_offset = (size_t)plan->blocks * plan->block_bytes;
    plan->slot_bytes = round_up((size_t)(p->cols * rows) * real_bytes);
    plan->workspace_bytes = plan->slot_offset + (size_t)plan->blocks * plan->slot_bytes;
}

/* Whether it pays to keep what the gradient of an activation is made to be, for it is wanted twice.
 */
static bool keeps_gradient(const planish_plan *plan) {
    return plan->problem.activation != PLANISH_IDENTITY && has(&plan->problem, ROLE_DX);
}

/* Cuts every run of rows into tiles of this many, and gives each block some tiles and each of
 * the threads a slot for `most_rows`, which are no fewer. */
static void plan_tiles(planish_plan *plan, int64_t run, int64_t tile_rows, int64_t most_rows,
                       int64_t row_bytes) {
    const problem *p = &plan->problem;
    tile_rows = tile_rows > run ? run : tile_rows;
    plan->run_rows = run;
    plan->tile_rows = tile_rows;
    plan->run_tiles = ceil_div(run, plan->tile_rows);
    plan->joined_tiles = most_rows < run ? most_rows / tile_rows : plan->run_tiles;
    const int64_t slot_rows = plan->joined_tiles * tile_rows;
    plan->slot_bytes =
        round_up((size_t)((slot_rows < run ? slot_rows : run) * row_bytes) + STRIP_REST);
    const int64_t all = p->rows / run * plan->run_tiles;
    const size_t most = gathered_limit / plan->slot_bytes;
    plan->block_tiles = ceil_div(all, most > SLOTS ? SLOTS : most ? (int64_t)most : 1);
    plan->blocks = ceil_div(all, plan->block_tiles);
    plan->slot_offset = plan->workspace_bytes;
    plan->workspace_bytes += (size_t)plan->blocks * plan->slot_bytes;
}

/*
 * Groups of images stored by pixel: so many together that what they have of a pixel is some lines
 * of memory, or that all of theirs stays in a cache between the reads; fewer where that leaves few
 * strips for the threads, or would be too many to keep their gradients. A thread that has several
 * in turn takes up to `joined` bytes of a pixel at once.
 */
static void plan_strips(planish_plan *plan, int64_t groups, int64_t channels, int64_t pixels,
                        int64_t joined, int64_t real_bytes) {
    const int64_t bytes = dtype_bytes(plan->problem.dtypes[ROLE_X]) * channels;
    int64_t strip = STRIP_BYTES_NEAR / pixels;
    strip = strip < STRIP_PIXEL_BYTES ? STRIP_PIXEL_BYTES : strip;
    int64_t most_rows = ceil_div(strip < joined ? joined : strip, bytes);
    const int64_t images = plan->problem.rows / groups;
    while (strip > STRIP_LEAST_BYTES && images * ceil_div(groups * bytes, strip) < FEW_STRIPS)
        strip /= 2;
    const int64_t kept = channels * pixels * real_bytes;
    while (keeps_gradient(plan) && strip > STRIP_LEAST_BYTES &&
           ceil_div(strip, bytes) * kept > KEPT_BYTES)
        strip /= 2;
    /* Strips that end where a line does. */
    int64_t unit = LINE_BYTES;
    while (unit > 1 && bytes * (unit / 2) % LINE_BYTES == 0)
        unit /= 2;
    const int64_t tile_rows = ceil_div(ceil_div(strip, bytes), unit) * unit;
    most_rows = most_rows < tile_rows ? tile_rows : most_rows;
    plan->keeps = keeps_gradient(plan) && kept * tile_rows <= KEPT_BYTES;
    if (plan->keeps && kept * most_rows > KEPT_BYTES)
        most_rows = KEPT_BYTES / kept;
    plan_tiles(plan, groups, tile_rows, most_rows,
               channels * STRIP_BYTES + (plan->keeps ? kept : 0));
}

/* Groups that are brought into planes: so many together that their channels are whole lines, where
 * they fit a cache. x and dy have a tile each; the results come in place of one of them. */
static void plan_planes(planish_plan *plan, int64_t channels, int64_t real_bytes) {
    const problem *p = &plan->problem;
    const int64_t row_bytes = p->cols * real_bytes * (is_backward(p) ? 2 : 1);
    int64_t rows = ceil_div(LINE_CHANNELS, channels);
    if (rows > PLANES_BYTES / row_bytes)
        rows = PLANES_BYTES / row_bytes;
    const int64_t run = p->kept[p->kept_count - 1].size;
    rows = rows < 1 ? 1 : ceil_div(run, ceil_div(run, rows));
    plan_tiles(plan, run, rows, rows, row_bytes);
}

/* A slot for each thread, of what its rows keep that are done together, where that stays near the
 * core. */
static void plan_kept(planish_plan *plan, size_t bytes) {
    const int64_t rows = plan->problem.rows;
    if (bytes > KEPT_BYTES)
        return;
    const int64_t least = ceil_div(rows, SLOTS);
    plan->block_rows = plan->block_rows < least ? least : plan->block_rows;
    plan->blocks = ceil_div(rows, plan->block_rows);
    plan->slot_bytes = round_up(bytes);
    plan->slot_offset = plan->workspace_bytes;
    plan->workspace_bytes += (size_t)plan->blocks * plan->slot_bytes;
}

/* Blocks of rows or tiles. Each row has its own sums of every channel, for the calling thread to
 * add up in the order of the rows, in sums of all affine elements. */
static void plan_groups(planish_plan *plan, size_t real_bytes, bool fetched) {
    const problem *p = &plan->problem;
    const int64_t channels = p->cols / p->reduced[p->reduced_count - 1].size;
    plan->block_rows = ceil_div(BLOCK_ELEMENTS, p->cols);
    plan->blocks = ceil_div(p->rows, plan->block_rows);
    plan->row_sum_bytes = (size_t)channels * sizeof(double);
    plan->weight_bytes = round_up((size_t)p->affine * real_bytes);
    plan->workspace_bytes = 2 * plan->weight_bytes;
    if (is_backward(p))
        plan->workspace_bytes += 2 * ((size_t)p->rows * plan->row_sum_bytes + plan->sum_bytes);
    plan->tile_rows = 0;
    plan->by_pixel = false;
    /* Rows of 16 bits wait for their conversions, as in traffic_of. */
    plan->asks_groups = !fetched || dtype_bytes(p->dtypes[ROLE_X]) == 2;
    plan->slot_bytes = 0;
    const bool direct = group_dtypes(p);
    if (direct && problem_has_dense_groups(p)) {
        const int64_t bytes = p->cols * dtype_bytes(p->dtypes[ROLE_X]);
        plan->together = bytes <= (is_backward(p) ? TOGETHER_BACKWARD : TOGETHER_BYTES) ? GROUP : 1;
        if (keeps_gradient(plan))
            plan_kept(plan, (size_t)(plan->together * p->cols) * real_bytes + KEPT_REST);
        return;
    }
    const int64_t by_pixel = direct ? problem_groups_by_pixel(p) : 0;
    plan->by_pixel = by_pixel > 0;
    if (by_pixel) {
        plan->asks_groups = !fetched;
        plan_strips(plan, by_pixel, channels, p->reduced[p->reduced_count - 1].size,
                    fetched ? JOINED_BYTES : STRIP_PIXEL_BYTES, (int64_t)real_bytes);
    } else {
        plan_planes(plan, channels, (int64_t)real_bytes);
    }
}

void plan_make(planish_plan *plan, const cpu_limits *limits) {
    const problem *p = &plan->problem;
    plan->kernels = limits->kernels;
    /* xhat that is divided out of y has a rounding more than one from x, and an f32 row of a few
     * elements none to spare (docs/numerics.md). */
    plan->is_double = problem_is_double(p) || p->pass == PLANISH_BACKWARD_FROM_Y;
    const int64_t elements = p->rows * p->cols;
    const size_t real_bytes = plan->is_double ? sizeof(double) : sizeof(float);
    const bool from_y = p->pass == PLANISH_BACKWARD_FROM_Y;
    const bool groups = problem_is_groups(p) && !from_y;
    /* What is groups too, having no weights, goes as groups do where an activation follows. */
    const bool alone = p->activation == PLANISH_IDENTITY || !groups;
    const bool rows = alone && problem_is_rows(p) && kernel_dtypes(p) && !from_y;
    const bool channels = alone && problem_is_channels(p) && !from_y;

    plan->path = !elements  ? PATH_EMPTY
                 : rows     ? PATH_ROWS
                 : channels ? PATH_CHANNELS
                 : groups   ? PATH_GROUPS
                            : PATH_GATHERED;
    plan->parallel = elements >= FORK_ELEMENTS;
    plan->traffic = traffic_of(p, limits, plan->path);
    plan->far = plan->traffic == TRAFFIC_AHEAD && bytes_of_elements(p) > FAR_BYTES;
    plan->alone = plan->traffic == TRAFFIC_AHEAD && goes_alone(p, limits, plan->path);
    plan->in_turn = goes_in_turn(p, limits);
    plan->asks_steps = asks_steps(p, limits, plan->traffic);
    plan->rows_ahead = rows_ahead(p, limits, plan->traffic);
    /* A CPU that fetches them by itself was not timed so. */
    plan->asks_sums = plan->traffic == TRAFFIC_STREAM && !limits->fetches_rows;
    plan->by_line = limits->writes_lines; /* bench/results/zen4-2/lines.txt */
    plan->by_run = bytes_of_elements(p) > limits->run_bytes[is_backward(p)];
    plan->asks_y = plan->traffic == TRAFFIC_AHEAD &&
                   bytes_of_elements(p) >
                       (dtype_bytes(p->dtypes[ROLE_X]) > 2 ? (size_t)ASK_BYTES : ASK_BYTES_16);
    for (int r = 0; r < ROLE_COUNT; r++) /* unsigned: an empty tensor's strides may be any */
        plan->pitch[r] = (int64_t)((uint64_t)p->kept[p->kept_count - 1].stride[r] *
                                   (uint64_t)dtype_bytes(p->dtypes[r]));
    plan->sums = is_backward(p) ? has(p, ROLE_DWEIGHT) + has(p, ROLE_DBIAS) : 0;
    plan->chunk_bytes = plan->sums ? round_up((size_t)p->cols * real_bytes) : 0;
    plan->sum_bytes = plan->sums ? round_up((size_t)p->affine * sizeof(double)) : 0;
    plan->row_bytes = plan->path == PATH_GATHERED ? round_up((size_t)p->cols * real_bytes) : 0;
    /* x or y, dy; the result; weight, bias. */
    plan->gathered_rows = is_backward(p) ? 5 : 4;
    plan->block_bytes = (size_t)plan->sums * (plan->chunk_bytes + plan->sum_bytes) +
                        (size_t)plan->gathered_rows * plan->row_bytes;
    if (plan->path == PATH_CHANNELS) {
        plan_channels(plan, real_bytes);
        return;
    }
    if (plan->path == PATH_GROUPS) {
        /* Both gain by not being asked (bench/results/zen4-2/groups-asks.txt). */
        plan_groups(plan, real_bytes, limits->fetches_rows || limits->fetches_short_rows);
        return;
    }

    if (plan->sums) {
        plan->block_rows = gradient_block_rows(p->rows);
    } else if (p->cols) {
        plan->block_rows = ceil_div(BLOCK_ELEMENTS, p->cols);
        /* Rows that are left over by a step take longer. */
        const int64_t step = plan->block_rows >= 4 * SHORT_ROWS ? SHORT_ROWS : GROUP;
        plan->block_rows = ceil_div(plan->block_rows, step) * step;
        if (p->cols >= BLOCK_ELEMENTS / GROUP)
            plan->block_rows = 1;
    }
    if (plan->path == PATH_GATHERED) {
        const size_t most = gathered_limit / plan->block_bytes;
        const int64_t blocks = most > GRADIENT_BLOCKS ? GRADIENT_BLOCKS : most ? (int64_t)most : 1;
        const int64_t least = ceil_div(ceil_div(p->rows, blocks), CHUNK_ROWS) * CHUNK_ROWS;
        const int64_t least_rows = blocks == 1 ? p->rows : least;
        if (!plan->sums)
            plan->block_rows = ceil_div(p->rows, blocks);
        else if (plan->block_rows < least_rows)
            plan->block_rows = least_rows;
    }
    plan->blocks = plan->path == PATH_EMPTY ? 0 : ceil_div(p->rows, plan->block_rows);
    plan->workspace_bytes = (size_t)plan->blocks * plan->block_bytes;
}

void plan_make_gpu(planish_plan *plan, const cuda_limits *limits) {
    cuda_plan_make(&plan->cuda, &plan->problem, limits);
    plan->path = PATH_GPU;
    plan->workspace_bytes = plan->cuda.workspace_bytes;
}

int planish_plan_is_general(const planish_plan *plan) {
    if (!plan)
        return 0;
    return plan->path == PATH_GPU      ? cuda_plan_is_general(&plan->cuda)
           : plan->path == PATH_GROUPS ? plan->tile_rows && !plan->by_pixel
                                       : plan->path == PATH_GATHERED;
}

static const char *path_name(const planish_plan *plan) {
    static const char *const names[] = {"gpu", "empty", "rows", "channels", "groups", "gathered"};
    if (plan->path == PATH_GROUPS && plan->tile_rows)
        return plan->by_pixel ? "pixels" : "planes";
    return names[plan->path];
}

int planish_plan_describe(const planish_plan *plan, char *text, size_t bytes) {
    static const char *const passes[] = {"forward", "backward", "backward from y", "statistics",
                                         "apply"};
    static const char *const activations[] = {"", "+silu", "+relu", "+gelu", "+gelu_tanh"};
    if (!plan)
        return snprintf(text, bytes, "no plan");
    if (plan->path == PATH_GPU)
        return cuda_plan_describe(&plan->cuda, text, bytes);
    const problem *p = &plan->problem;
    const dtype element = p->dtypes[has(p, ROLE_X) ? ROLE_X : ROLE_Y];
    return snprintf(text, bytes, "%s/%s %s%s %s %s %lldx%lld, %lld blocks, %zu workspace bytes",
                    path_name(plan), plan->kernels->tier, p->kind == PLANISH_RMS ? "rms" : "layer",
                    activations[p->activation], passes[p->pass], dtype_name(element),
                    (long long)p->rows, (long long)p->cols, (long long)plan->blocks,
                    plan->workspace_bytes);
}
