/*
 * A tile is as many pixels as fill whole sectors of memory and leave room for several blocks in a
 * multiprocessor. Images of few pixels, or of pixels that do not come in whole sectors, are taken
 * whole, their channels shared by a cluster of blocks; so are tiles of many channels.
 */
#include "channels_geometry.h"

#include "channels_shape.h"
#include "integers.h"

enum { ALIKE = 8 }; /* channels of a shifted tile, of which every eighth begins alike */

/* Bytes of an element that is held in shared memory. */
static int held_bytes(const int32_t *c) {
    return constant_bytes(c, C_X_TYPE) +
           (c[C_PASS] == PLANISH_BACKWARD ? constant_bytes(c, C_G_TYPE) : 0);
}

static bool fits(const cuda_plan *plan) {
    return channels_shared_bytes(&plan->main) + 256 <= (size_t)plan->limits.shared_per_block;
}

/* Neighbouring pixels of a thread. */
static int width_of(int pixels, int wanted) {
    while (pixels % wanted)
        wanted /= 2;
    return wanted;
}

static int lanes_of(const int32_t *c) {
    return c[C_ROWS] * c[C_TILE] / c[C_WIDTH];
}

/* Planes of threads over a block's channels, of which the fewest a block has are `fewest`, in at
 * most `threads`; false: more threads than that, or (backward) than `each` channels in one. */
static bool set_planes(const channels_tuning *t, int32_t *c, int planes, int fewest, int each,
                       int threads) {
    const bool backward = c[C_PASS] == PLANISH_BACKWARD;
    const int rows = c[C_ROWS], lanes = lanes_of(c), depth = c[C_DEPTH] / rows;
    planes = most(planes, ceil_div(depth, backward ? each : t->forward_each));
    planes = least(planes, least(fewest / rows, most(1, threads / lanes)));
    if (backward && ceil_div(depth, planes) > each)
        return false;
    c[C_LANES] = lanes;
    c[C_PLANES] = planes;
    c[C_WARPS] = ceil_div(lanes * planes, 32);
    return c[C_WARPS] <= threads / 32;
}

/* Neighbouring pixels of a thread of a tile: two that are shifted. */
static int tile_width(const int32_t *c, int wanted) {
    return channels_is_shifted(c) ? 2 : width_of(c[C_PIXELS], wanted);
}

/* Planes over channels that begin alike. */
static int shifted_planes(const int32_t *c, int each) {
    return ceil_div(ceil_div(c[C_DEPTH], each), ALIKE) * ALIKE;
}

/* Lines of as many channels as make whole chunks of pixels for the threads of an image. */
static void set_lines(int32_t *c) {
    int rows = 1;
    while (rows * c[C_PIXELS] % 4)
        rows *= 2;
    c[C_ROWS] = c[C_PIXELS] >= 4 && c[C_COLS] % rows == 0 ? rows : 1;
}

/* Shares the channels between the blocks of a cluster; returns the fewest a block has. */
static int share_channels(int32_t *c, int cluster) {
    const int channels = c[C_COLS], depth = ceil_div(ceil_div(channels, cluster), 8) * 8;
    c[C_CLUSTER] = cluster;
    c[C_DEPTH] = cluster > 1 ? depth : channels;
    return channels - (cluster - 1) * c[C_DEPTH];
}

static int64_t part_bytes(const int32_t *c) {
    return (int64_t)c[C_DEPTH] * c[C_TILE] * held_bytes(c);
}

/* Whether a block has a large part of f32, of which a multiprocessor holds one or two (forward). */
static bool is_large(const channels_tuning *t, const int32_t *c) {
    return c[C_PASS] == PLANISH_FORWARD && c[C_ROWS] == 1 &&
           part_bytes(c) > (c[C_CLUSTER] == 1 ? t->alone_bytes : t->whole_bytes);
}

/* Planes over a whole image's part in a forward block. */
static bool set_forward_planes(const channels_tuning *t, int32_t *c, int fewest) {
    if (is_large(t, c))
        return set_planes(t, c, t->whole_planes / 2, fewest, 0, t->most_threads);
    const int lines = c[C_DEPTH] / c[C_ROWS], wanted = ceil_div(lines, t->shared_each);
    if (c[C_CLUSTER] > 1 && wanted > t->whole_planes)
        return set_planes(t, c, ceil_div(wanted, 4) * 4, fewest, 0, 2 * t->most_threads);
    const bool alone = c[C_CLUSTER] == 1;
    const int each =
        c[C_ROWS] > 1 ? lines / t->lines_each : (lines + t->most_each / 2) / t->most_each;
    const int planes = alone ? most(2, least(each, t->whole_planes)) : t->whole_planes;
    return set_planes(t, c, planes, fewest, 0, t->most_threads);
}

/* Whether a tile has twice the threads: whole lines of 16-bit pixels in the backward, which has few
 * blocks to a multiprocessor. */
static bool has_many(const channels_tuning *t, const int32_t *c) {
    return c[C_PASS] == PLANISH_BACKWARD && c[C_TILE] == 64 && c[C_TILE] != c[C_PIXELS] &&
           constant_bytes(c, C_X_TYPE) == 2 && c[C_COLS] >= t->many_channels;
}

/* Threads of a multiprocessor, by the registers they need. */
static int threads_of(const channels_tuning *t, const int32_t *c) {
    const int each = ceil_div(c[C_DEPTH] / c[C_ROWS], c[C_PLANES]);
    if (c[C_PASS] == PLANISH_FORWARD)
        return channels_is_shifted(c) ? t->shifted_threads : t->forward_threads;
    if (((has_many(t, c) && each <= t->many_each) || channels_is_shifted(c)) && c[C_CLUSTER] == 1)
        return t->backward_many_threads;
    if (c[C_ROWS] > 1)
        return each < t->light_each && constant_bytes(c, C_X_TYPE) == 2 ? t->light_lines_threads
                                                                        : t->lines_threads;
    return c[C_TILE] == c[C_PIXELS] && each <= t->light_each ? t->light_threads
                                                             : t->backward_threads;
}

/* Blocks of a multiprocessor that has so many threads. */
static int blocks_of(const cuda_plan *plan, int threads) {
    const int room = plan->limits.shared_per_block + 1024;
    const int fit = room / ((int)channels_shared_bytes(&plan->main) + 1280);
    return most(1, least(fit, threads / (32 * plan->main.constant[C_WARPS])));
}

/* Planes over lines of several channels in a block that has them all (backward): the fewest of
 * those with the most threads in a multiprocessor that have something to do. */
static bool set_planes_of_lines(cuda_plan *plan) {
    const channels_tuning *t = &plan->limits.tuning->channels;
    int32_t *c = plan->main.constant;
    const int lanes = lanes_of(c), lines = c[C_DEPTH] / c[C_ROWS];
    const int largest = least(lines, t->most_threads / lanes);
    int best = 0, best_planes = 0;
    c[C_LANES] = lanes;
    for (int planes = ceil_div(lines, t->lines_summed); planes <= largest; planes++) {
        c[C_PLANES] = planes;
        c[C_WARPS] = ceil_div(lanes * planes, 32);
        const int busy = blocks_of(plan, t->lines_threads) * lanes * planes;
        if (busy > best && fits(plan)) {
            best = busy;
            best_planes = planes;
        }
    }
    c[C_PLANES] = best_planes;
    c[C_WARPS] = ceil_div(lanes * best_planes, 32);
    return best > 0;
}

/* The same in the backward: a large part has its multiprocessor alone. */
static bool set_backward_planes(cuda_plan *plan, int fewest, int each) {
    const channels_tuning *t = &plan->limits.tuning->channels;
    int32_t *c = plan->main.constant;
    if (c[C_CLUSTER] == 1 && c[C_ROWS] > 1)
        return set_planes_of_lines(plan);
    if (c[C_CLUSTER] == 1 && part_bytes(c) <= t->alone_bytes)
        return set_planes(t, c, t->whole_planes, fewest, each, t->most_threads);
    return set_planes(t, c, t->most_threads / lanes_of(c), fewest, 2 * t->most_each,
                      t->most_threads);
}

/* Whether a block takes as much of a whole image as it may: forward blocks are the more in number
 * the less each has; a backward block has what it can hold, but for lines of several channels. Not
 * where messages would be much beside it. */
static bool may_hold(const channels_tuning *t, const int32_t *c) {
    const bool forward = c[C_PASS] == PLANISH_FORWARD;
    const bool large = forward && constant_bytes(c, C_X_TYPE) == 4 && c[C_ROWS] == 1;
    if (c[C_CLUSTER] == 1)
        return part_bytes(c) <= (large ? t->large_bytes : t->alone_bytes) || !forward;
    if (3 * channels_message_bytes(c) > part_bytes(c))
        return false;
    return !forward || part_bytes(c) <= (large ? t->large_bytes : t->whole_bytes);
}

/* The whole image in a block or in the smallest cluster that may hold it; single blocks of the
 * backward have a ring where two images fit. */
static bool whole_image(cuda_plan *plan, int each) {
    const channels_tuning *t = &plan->limits.tuning->channels;
    static const int clusters[] = {1, 2, 3, 4, 6, 8, 16};
    int32_t *c = plan->main.constant;
    const bool backward = c[C_PASS] == PLANISH_BACKWARD;
    const int largest = least(plan->limits.max_cluster, backward ? 16 : 8);
    c[C_TILE] = c[C_PIXELS];
    c[C_STAGES] = 1;
    set_lines(c);
    for (size_t i = 0; i < sizeof clusters / sizeof *clusters && clusters[i] <= largest; i++) {
        const int fewest = share_channels(c, clusters[i]);
        if (fewest < least(8, c[C_COLS]) || !may_hold(t, c))
            continue;
        /* Fewer planes of more threads have fewer sums. */
        c[C_WIDTH] = width_of(c[C_ROWS] * c[C_PIXELS], is_large(t, c) ? 2 : 4);
        if (!(backward ? set_backward_planes(plan, fewest, each)
                       : set_forward_planes(t, c, fewest)) ||
            !fits(plan))
            continue;
        c[C_STAGES] = backward && clusters[i] == 1 && c[C_ROWS] == 1 ? 2 : 1;
        if (!fits(plan))
            c[C_STAGES] = 1;
        return true;
    }
    c[C_ROWS] = 1;
    return false;
}

/* Planes of such a tile, in warps that a multiprocessor's four schedulers share alike. */
static int many_planes(const channels_tuning *t, const int32_t *c, int each) {
    const int lanes = c[C_TILE] / c[C_WIDTH], step = most(1, t->threads / lanes);
    return ceil_div(most(2 * step, ceil_div(c[C_COLS], each)), step) * step;
}

/* Whether it is of f32 in the backward, of many channels, of which a ring of two lines fits: such
 * do best with all of a multiprocessor's memory. */
static bool is_wide(const channels_tuning *t, const int32_t *c) {
    return c[C_PASS] == PLANISH_BACKWARD && held_bytes(c) == 2 * (int)sizeof(float) &&
           c[C_COLS] >= t->many_channels &&
           2 * LINE / (int)sizeof(float) * c[C_COLS] * held_bytes(c) <= t->wide_bytes;
}

/* Planes of such a tile: more where its block has the multiprocessor alone. */
static int wide_planes(const channels_tuning *t, const int32_t *c) {
    const int each = ceil_div(c[C_DEPTH], t->light_each);
    const int bytes = 2 * c[C_TILE] * c[C_DEPTH] * held_bytes(c);
    return 2 * bytes > t->wide_bytes ? most(each, t->wide_planes) : each;
}

/* The most pixels of a tile that are of use, as measured. */
static int most_pixels(const channels_tuning *t, const int32_t *c) {
    if (!channels_is_shifted(c))
        return t->most_tile;
    const bool wide = c[C_PASS] == PLANISH_FORWARD && c[C_COLS] > t->shifted_many;
    return wide ? 2 * t->shifted_tile : t->shifted_tile;
}

/* Idle lanes, more than fits several times, and segments below full speed. */
static double cost_of_tile(const channels_tuning *t, const int32_t *c) {
    const int tile = c[C_TILE], pixels = c[C_PIXELS];
    const double bytes = (double)c[C_STAGES] * c[C_COLS] * tile * held_bytes(c);
    const bool shifted = channels_is_shifted(c), forward = c[C_PASS] == PLANISH_FORWARD;
    const bool many = (has_many(t, c) || shifted) && c[C_STAGES] == 2;
    const double room = forward         ? t->forward_bytes
                        : is_wide(t, c) ? t->wide_bytes
                        : many          ? t->many_bytes
                                        : t->backward_bytes;
    const bool narrow = tile * constant_bytes(c, C_X_TYPE) < (is_wide(t, c) ? LINE : 2 * SECTOR);
    if (shifted) /* the pieces at a channel's ends */
        return (double)ceil_div(pixels, tile) * tile / pixels * (bytes > room ? bytes / room : 1) *
               (1 + t->shift_cost / tile);
    const bool by_elements = pixels * constant_bytes(c, C_X_TYPE) % 4;
    /* Lines of f32 are nearly as good as two of them; of the backward's other tiles, the larger. */
    const bool line =
        forward && tile == 32 && constant_bytes(c, C_X_TYPE) == 4 && c[C_COLS] >= t->many_channels;
    const double wide = 1.1 - .001 * least(tile, 64);
    const double shape = tile == 64 ? 1 : line ? 1.03 : is_wide(t, c) && !narrow ? wide : 1.1;
    const bool single = is_wide(t, c) && c[C_STAGES] == 1;
    /* Lines of f32 that go on are no better for it, as measured. */
    const bool spanning = channels_is_spanning(c) && constant_bytes(c, C_X_TYPE) == 2;
    const double idle = spanning ? 1 : (double)ceil_div(pixels, tile) * tile / pixels;
    return idle * (bytes > room ? bytes / room : 1) * (narrow ? 1.4 : 1) * shape *
           (by_elements ? 1.4 : 1) * (single ? 1.5 : 1);
}

/* Some pixels of an image in a block. */
static bool some_pixels(cuda_plan *plan, int each) {
    const channels_tuning *t = &plan->limits.tuning->channels;
    static const int tiles[] = {64, 32, 112, 96, 80, 48, 40, 16, 8, 4, 128};
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
        c[C_WIDTH] = tile_width(c, eight ? 8 : 4);
        c[C_STAGES] = backward ? 2 : 1;
        const bool shifted = channels_is_shifted(c);
        const int planes = shifted          ? shifted_planes(c, backward ? each : t->shifted_each)
                           : is_wide(t, c)  ? wide_planes(t, c)
                           : has_many(t, c) ? many_planes(t, c, each)
                                            : most(1, t->threads * c[C_WIDTH] / tiles[i]);
        const bool sectors = tiles[i] != 40 || constant_bytes(c, C_X_TYPE) == 4;
        if (tiles[i] == c[C_PIXELS] || tiles[i] > most_pixels(t, c) || !sectors ||
            !set_planes(t, c, planes, c[C_COLS], each, t->most_threads) ||
            (shifted && c[C_PLANES] % ALIKE && c[C_COLS] >= ALIKE))
            continue;
        if (!fits(plan))
            c[C_STAGES] = 1;
        if (!fits(plan))
            continue;
        const double cost = cost_of_tile(t, c);
        if (!found || cost < best_cost) {
            found = true;
            best_cost = cost;
            best = plan->main;
        }
    }
    plan->main = best;
    return found;
}

/* Pixels that a cluster shares: of about `wanted`, so that the last tile is not nearly empty. */
static int shared_tile(const int32_t *c, int wanted) {
    const int bytes = constant_bytes(c, C_X_TYPE), pixels = c[C_PIXELS];
    const int unit = pixels * bytes % SECTOR ? 4 : SECTOR / bytes;
    return ceil_div(ceil_div(pixels, ceil_div(pixels, wanted)), unit) * unit;
}

/* Whether blocks of a cluster have rings of whole lines of 16-bit pixels, of equal parts of many
 * channels (backward). */
static bool share_lines(const channels_tuning *t, const int32_t *c) {
    const int parts = c[C_COLS] / t->line_channels;
    return c[C_PASS] == PLANISH_BACKWARD && held_bytes(c) == 4 &&
           c[C_COLS] % t->line_channels == 0 && (parts == 2 || parts == 4 || parts == 8) &&
           c[C_PIXELS] * 2 % SECTOR == 0;
}

/* Some pixels of an image in the smallest cluster whose blocks have small parts of them. */
static bool shared_pixels(cuda_plan *plan) {
    const channels_tuning *t = &plan->limits.tuning->channels;
    int32_t *c = plan->main.constant;
    const bool backward = c[C_PASS] == PLANISH_BACKWARD;
    const bool ring = backward && c[C_PIXELS] * constant_bytes(c, C_X_TYPE) % SECTOR == 0;
    c[C_TILE] = shared_tile(c, ring && !share_lines(t, c) ? 32 : 64);
    c[C_WIDTH] = tile_width(c, 4);
    c[C_STAGES] = ring ? 2 : 1;
    if (c[C_TILE] >= c[C_PIXELS])
        return false;
    for (int cluster = 2; cluster <= plan->limits.max_cluster; cluster *= 2) {
        const int fewest = share_channels(c, cluster);
        const int each = backward ? t->most_each : t->shared_each;
        if (fewest >= 8 && part_bytes(c) <= t->alone_bytes &&
            set_planes(t, c, ceil_div(c[C_DEPTH], each), fewest, each, t->most_threads) &&
            fits(plan))
            return true;
    }
    return false;
}

/* Tiles of fewer pixels than make two sectors (one in the backward) are shared instead. */
static bool tiles(cuda_plan *plan, int each) {
    const channels_tuning *t = &plan->limits.tuning->channels;
    const int32_t *c = plan->main.constant;
    if (share_lines(t, c) && shared_pixels(plan))
        return true;
    const bool found = some_pixels(plan, each);
    if (found && c[C_TILE] >= (c[C_PASS] == PLANISH_FORWARD ? 32 : 16))
        return true;
    const cuda_spec narrow = plan->main;
    if (shared_pixels(plan))
        return true;
    plan->main = narrow;
    return found;
}

static bool set_geometry(cuda_plan *plan, int each) {
    const channels_tuning *t = &plan->limits.tuning->channels;
    const int32_t *c = plan->main.constant;
    const bool few =
        c[C_PIXELS] < t->few_pixels || c[C_PIXELS] * constant_bytes(c, C_X_TYPE) % SECTOR;
    return (few && whole_image(plan, each)) || tiles(plan, each) || whole_image(plan, each);
}

bool channels_set_geometry(cuda_plan *plan) {
    const channels_tuning *t = &plan->limits.tuning->channels;
    int32_t *c = plan->main.constant;
    c[C_STAGES] = c[C_ROWS] = 1;
    if (!set_geometry(plan, t->most_each) && !set_geometry(plan, 2 * t->most_each))
        return false;
    c[C_MIN_BLOCKS] = blocks_of(plan, threads_of(t, c));
    return true;
}
