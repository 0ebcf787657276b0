/*
 * A tile is as many pixels as fill whole sectors of memory and leave room for several blocks in a
 * multiprocessor. Images of few pixels, or of pixels that do not come in whole sectors, are taken
 * whole, their channels shared by a cluster of blocks.
 */
#include "channels.h"

#include <stdio.h>

#include "images.h"
#include "integers.h"

enum {
    SECTOR = 32,               /* bytes: tiles begin and end on one */
    FEW_PIXELS = 256,          /* images below this are taken whole where they fit */
    ALONE_BYTES = 64 << 10,    /* of such an image in one block */
    WHOLE_BYTES = 110 << 10,   /* of its part in a block of a cluster */
    FORWARD_BYTES = 64 << 10,  /* of a tile, rather */
    BACKWARD_BYTES = 84 << 10, /* of a ring of tiles, rather */
    THREADS = 128,             /* of a block, rather: many small blocks hide each other's merges */
    WHOLE_PLANES = 8,          /* of a block with a whole image */
    MOST_THREADS = 512,
    MOST_EACH = 16,         /* channels whose sums a thread keeps in registers */
    FORWARD_EACH = 64,      /* channels of a thread, where threads are left */
    FORWARD_THREADS = 1024, /* in a multiprocessor: 64 registers each */
    BACKWARD_THREADS = 384, /* up to 168 registers each */
    MOST_GRID = 1 << 30
};

/* Bytes of an element that is held in shared memory. */
static int held_bytes(const int32_t *c) {
    return constant_bytes(c, C_X_TYPE) +
           (c[C_PASS] == PLANISH_BACKWARD ? constant_bytes(c, C_G_TYPE) : 0);
}

static size_t tile_bytes(const int32_t *c, int element_bytes) {
    const size_t gap = c[C_LAST] && c[C_TILE] != c[C_PIXELS] ? 16 : 0;
    return round_up((size_t)c[C_DEPTH] * (size_t)c[C_TILE] * (size_t)element_bytes +
                    (size_t)(c[C_DEPTH] / 8) * gap);
}

/* As the kernel lays it out. */
size_t channels_shared_bytes(const cuda_spec *spec) {
    const int32_t *c = spec->constant;
    const bool backward = c[C_PASS] == PLANISH_BACKWARD;
    const size_t tile = (size_t)c[C_TILE], depth = (size_t)c[C_DEPTH];
    const int fewest = c[C_COLS] - (c[C_CLUSTER] - 1) * c[C_DEPTH];
    const bool floats = constant_bytes(c, C_X_TYPE) == 2 && fewest / c[C_ROWS] / c[C_PLANES] >= 4;
    const size_t rows = (size_t)c[C_ROWS], stages = (size_t)c[C_STAGES];
    const size_t parts = !backward || c[C_CORRECT] ? 3 : 2;
    const size_t entry = (parts == 3 ? 4 : 2) * (floats ? sizeof(float) : sizeof(double));
    size_t bytes = tile_bytes(c, constant_bytes(c, C_X_TYPE));
    if (backward)
        bytes += tile_bytes(c, constant_bytes(c, C_G_TYPE));
    bytes = stages * bytes + round_up(parts * (size_t)c[C_PLANES] * rows * tile * 4) + 16 * tile;
    if (backward)
        bytes += round_up(stages * 2 * tile * 4);
    if (c[C_W_TYPE] != DTYPE_NONE)
        bytes += round_up(depth * 4);
    if (!backward && c[C_B_TYPE] != DTYPE_NONE)
        bytes += round_up(depth * 4);
    if (backward)
        bytes += round_up((rows - 1) * (depth / rows) * 8);
    if (c[C_CLUSTER] > 1)
        bytes += 2 * (size_t)c[C_CLUSTER] * tile * entry;
    return bytes;
}

/* ---- Geometry ----------------------------------------------------------------------------------
 */

static bool fits(const cuda_plan *plan) {
    return channels_shared_bytes(&plan->main) + 256 <= (size_t)plan->limits.shared_per_block;
}

/* Neighbouring pixels of a thread. */
static int width_of(int pixels, int wanted) {
    while (pixels % wanted)
        wanted /= 2;
    return wanted;
}

/* Planes of threads over a block's channels, of which the fewest a block has are `fewest`; false:
 * more threads than a block may have, or (backward) than `each` channels in one. */
static bool set_planes(int32_t *c, int planes, int fewest, int each) {
    const bool backward = c[C_PASS] == PLANISH_BACKWARD;
    const int rows = c[C_ROWS], lanes = rows * c[C_TILE] / c[C_WIDTH], depth = c[C_DEPTH] / rows;
    planes = most(planes, backward ? ceil_div(depth, each) : ceil_div(depth, FORWARD_EACH));
    planes = least(planes, least(fewest / rows, most(1, MOST_THREADS / lanes)));
    if (backward && ceil_div(depth, planes) > each)
        return false;
    c[C_LANES] = lanes;
    c[C_PLANES] = planes;
    c[C_WARPS] = ceil_div(lanes * planes, 32);
    return c[C_WARPS] <= MOST_THREADS / 32;
}

/* Lines of as many channels as make whole chunks of pixels for the threads of an image. */
static void set_lines(int32_t *c) {
    int rows = 1;
    while (rows * c[C_PIXELS] % 4)
        rows *= 2;
    c[C_ROWS] = c[C_PIXELS] >= 4 && c[C_COLS] % rows == 0 ? rows : 1;
    c[C_WIDTH] = width_of(c[C_ROWS] * c[C_PIXELS], 4);
}

/* Shares the channels of a whole image between the blocks of a cluster and sets planes over them;
 * false: too few channels, or they do not fit. */
static bool set_cluster(cuda_plan *plan, int cluster, int each) {
    int32_t *c = plan->main.constant;
    /* The one block of a multiprocessor. */
    const bool large = cluster > 1 && c[C_PASS] == PLANISH_BACKWARD;
    const int channels = c[C_COLS], depth = ceil_div(ceil_div(channels, cluster), 8) * 8;
    const int fewest = cluster > 1 ? channels - (cluster - 1) * depth : channels;
    c[C_CLUSTER] = cluster;
    c[C_DEPTH] = cluster > 1 ? depth : channels;
    const int planes = large ? MOST_THREADS * c[C_WIDTH] / (c[C_ROWS] * c[C_TILE]) : WHOLE_PLANES;
    return (cluster == 1 || fewest >= 8) &&
           set_planes(c, planes, fewest, large ? 2 * MOST_EACH : each) && fits(plan);
}

/* The whole image in a block or a cluster: the smallest that leaves a block few enough bytes. */
static bool whole_image(cuda_plan *plan, int each) {
    static const int clusters[] = {1, 2, 3, 4, 6, 8, 16};
    int32_t *c = plan->main.constant;
    const int64_t many = c[C_PASS] == PLANISH_FORWARD ? WHOLE_BYTES : INT64_MAX;
    c[C_TILE] = c[C_PIXELS];
    c[C_STAGES] = 1;
    set_lines(c);
    bool found = false;
    cuda_spec last = plan->main;
    for (size_t i = 0; i < sizeof clusters / sizeof *clusters; i++) {
        if (clusters[i] > plan->limits.max_cluster)
            break;
        if (!set_cluster(plan, clusters[i], each))
            continue;
        found = true;
        last = plan->main;
        if ((int64_t)c[C_DEPTH] * c[C_PIXELS] * held_bytes(c) <=
            (clusters[i] == 1 ? ALONE_BYTES : many))
            break;
    }
    plan->main = last;
    if (!found)
        c[C_ROWS] = 1;
    return found;
}

/* Idle lanes, more than fits several times, and segments below full speed. */
static double cost_of_tile(const int32_t *c) {
    const int tile = c[C_TILE], pixels = c[C_PIXELS];
    const double bytes = (double)c[C_STAGES] * c[C_COLS] * tile * held_bytes(c);
    const double room = c[C_PASS] == PLANISH_FORWARD ? FORWARD_BYTES : BACKWARD_BYTES;
    const bool narrow = tile * constant_bytes(c, C_X_TYPE) < 2 * SECTOR;
    return (double)ceil_div(pixels, tile) * tile / pixels * (bytes > room ? bytes / room : 1) *
           (narrow ? 1.4 : 1) * (tile == 64 ? 1 : 1.1);
}

/* Some pixels of an image in a block. */
static bool some_pixels(cuda_plan *plan, int each) {
    static const int tiles[] = {64, 32, 112, 96, 80, 48, 16, 8, 4};
    int32_t *c = plan->main.constant;
    const bool backward = c[C_PASS] == PLANISH_BACKWARD;
    double best_cost = 0;
    cuda_spec best = plan->main;
    bool found = false;
    c[C_CLUSTER] = 1;
    c[C_DEPTH] = c[C_COLS];
    for (size_t i = 0; i < sizeof tiles / sizeof *tiles; i++) {
        c[C_TILE] = tiles[i];
        /* Fewer threads of more pixels, so that each has few channels to sum. */
        const bool eight = backward && tiles[i] == 32 && constant_bytes(c, C_X_TYPE) == 2;
        c[C_WIDTH] = width_of(c[C_PIXELS], eight ? 8 : 4);
        c[C_STAGES] = backward ? 2 : 1;
        if (tiles[i] == c[C_PIXELS] ||
            !set_planes(c, most(1, THREADS * c[C_WIDTH] / tiles[i]), c[C_COLS], each))
            continue;
        if (!fits(plan))
            c[C_STAGES] = 1;
        if (!fits(plan))
            continue;
        const double cost = cost_of_tile(c);
        if (!found || cost < best_cost) {
            found = true;
            best_cost = cost;
            best = plan->main;
        }
    }
    plan->main = best;
    return found;
}

static bool set_geometry(cuda_plan *plan, int each) {
    const int32_t *c = plan->main.constant;
    const bool few = c[C_PIXELS] < FEW_PIXELS || c[C_PIXELS] * constant_bytes(c, C_X_TYPE) % SECTOR;
    return (few && whole_image(plan, each)) || some_pixels(plan, each) || whole_image(plan, each);
}

bool channels_plan_make(cuda_plan *plan, const problem *p) {
    image_view v;
    if (problem_is_double(p) || !images_of_channels(&v, p))
        return false;
    int32_t *c = plan->main.constant;
    const bool backward = p->pass == PLANISH_BACKWARD;
    images_describe(plan, p, &v, CUDA_CHANNELS);
    c[C_STAGES] = c[C_ROWS] = 1;
    if (!set_geometry(plan, MOST_EACH) && !set_geometry(plan, 2 * MOST_EACH))
        return false;
    const int bytes = constant_bytes(c, C_X_TYPE);
    const int out = constant_bytes(c, backward ? C_D_TYPE : C_Y_TYPE);
    c[C_HOLD] = c[C_TILE] == c[C_PIXELS] && c[C_WIDTH] * bytes < 8 && out == bytes && !c[C_LAST];
    const int threads = 32 * c[C_WARPS];
    const int room = plan->limits.shared_per_block + 1024;
    const int fit = room / ((int)channels_shared_bytes(&plan->main) + 1280);
    c[C_MIN_BLOCKS] =
        most(1, least(fit, (backward ? BACKWARD_THREADS : FORWARD_THREADS) / threads));
    if (c[C_WANT_DWEIGHT] || c[C_WANT_DBIAS])
        cuda_plan_finish(plan, p, c[C_COLS],
                         most(1, plan->limits.multiprocessors * c[C_MIN_BLOCKS] / c[C_CLUSTER]));
    plan->workspace_bytes = (size_t)plan->partials * (size_t)c[C_COLS] * sizeof(float) *
                            (size_t)(c[C_WANT_DWEIGHT] + c[C_WANT_DBIAS]);
    return true;
}

int channels_plan_describe(const cuda_plan *plan, char *text, size_t bytes) {
    const int32_t *c = plan->main.constant;
    return snprintf(text, bytes,
                    "cuda channels %s %lldx%dx%d%s: %d pixels of %d channels a block, "
                    "%d lanes of %d x %d planes, cluster %d",
                    c[C_PASS] == PLANISH_FORWARD ? "forward" : "backward",
                    (long long)(plan->rows / c[C_PIXELS]), c[C_COLS], c[C_PIXELS],
                    c[C_LAST] ? " to channels last" : "", c[C_TILE], c[C_DEPTH], c[C_LANES],
                    c[C_WIDTH], c[C_PLANES], c[C_CLUSTER]);
}

/* ---- Launches ----------------------------------------------------------------------------------
 */

/* Alignment of a tensor's parts as the kernel takes them: of an image, a block's channels of it, a
 * channel, a tile. */
static int32_t access_of(const cuda_plan *plan, void *const *buffers, role r, int bytes,
                         bool last) {
    const int32_t *c = plan->main.constant;
    const int64_t unit = last ? 1 : c[C_PIXELS];
    uint64_t bits = (uint64_t)(uintptr_t)buffers[r] | (uint64_t)(plan->stride[r] * bytes);
    bits |= (uint64_t)(c[C_COLS] * unit * bytes);
    if (c[C_CLUSTER] > 1)
        bits |= (uint64_t)(c[C_DEPTH] * unit * bytes);
    if (!last && c[C_TILE] != c[C_PIXELS])
        bits |= (uint64_t)(c[C_PIXELS] * bytes) | (uint64_t)(c[C_TILE] * bytes);
    return common_alignment(bits);
}

int channels_launch_specs(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                          cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    cuda_spec *spec = &launches[0].spec;
    *spec = plan->main;
    int32_t *c = spec->constant;
    c[C_X_ACCESS] = access_of(plan, buffers, ROLE_X, constant_bytes(c, C_X_TYPE), false);
    c[C_Y_ACCESS] = access_of(plan, buffers, ROLE_Y, constant_bytes(c, C_Y_TYPE), c[C_LAST]);
    c[C_G_ACCESS] = access_of(plan, buffers, ROLE_DY, constant_bytes(c, C_G_TYPE), false);
    c[C_D_ACCESS] = access_of(plan, buffers, ROLE_DX, constant_bytes(c, C_D_TYPE), false);
    if (plan->finish.kernel < 0)
        return 1;
    launches[1].spec = plan->finish;
    return 2;
}

void channels_launch_arguments(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                               void *workspace, int resident,
                               cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    const int32_t *c = launches[0].spec.constant;
    const bool backward = c[C_PASS] == PLANISH_BACKWARD;
    const int64_t units = plan->rows / c[C_PIXELS] * ceil_div(c[C_PIXELS], c[C_TILE]);
    int64_t grid = units;
    if (grid > MOST_GRID / c[C_CLUSTER])
        grid = MOST_GRID / c[C_CLUSTER];
    if (backward) {
        const int64_t held =
            c[C_CLUSTER] > 1
                ? resident
                : most(1, plan->limits.multiprocessors * c[C_MIN_BLOCKS] / c[C_CLUSTER]);
        grid = grid < held ? grid : held;
        if (plan->finish.kernel >= 0 && grid > plan->partials)
            grid = plan->partials;
    }
    float *partials = workspace;
    launches[0].blocks_x = grid * c[C_CLUSTER];
    launches[0].blocks_y = 1;
    launches[0].args.channels = (cuda_channels_args){
        .x = buffers[ROLE_X],
        .weight = buffers[ROLE_WEIGHT],
        .bias = buffers[ROLE_BIAS],
        .dy = buffers[ROLE_DY],
        .mean = buffers[ROLE_MEAN],
        .rstd = buffers[ROLE_RSTD],
        .out = buffers[backward ? ROLE_DX : ROLE_Y],
        .partial_weight = partials,
        .partial_bias = partials + (c[C_WANT_DWEIGHT] ? plan->partials * c[C_COLS] : 0),
        .units = units,
        .x_image = plan->stride[ROLE_X] * constant_bytes(c, C_X_TYPE),
        .dy_image = plan->stride[ROLE_DY] * constant_bytes(c, C_G_TYPE),
        .out_image = backward ? plan->stride[ROLE_DX] * constant_bytes(c, C_D_TYPE)
                              : plan->stride[ROLE_Y] * constant_bytes(c, C_Y_TYPE),
        .mean_image = plan->stride[ROLE_MEAN] * constant_bytes(c, C_MEAN_TYPE),
        .rstd_image = plan->stride[ROLE_RSTD] * constant_bytes(c, C_RSTD_TYPE),
        .eps = plan->eps,
        .eps_is_small = plan->eps < 1e-30};
    if (plan->finish.kernel >= 0)
        cuda_finish_arguments(plan, buffers, workspace, grid, &launches[1]);
}
