/*
 * A tile is as many pixels as fill whole sectors of memory and leave room for several blocks in a
 * multiprocessor. Images of few pixels, or of pixels that do not come in whole sectors, are taken
 * whole, their channels shared by a cluster of blocks; so are tiles of many channels.
 */
#include "cuda/channels/channels_geometry.h"

#include "cuda/channels/channels_shape.h"
#include "cuda/common/integers.h"

enum { ALIKE = 8 }; /* channels of a shifted tile, of which every eighth begins alike */

/* Bytes of an element that is held in shared memory. */
static int held_bytes(const cuda_spec *spec) {
    return role_bytes(spec, ROLE_X) +
           (spec->pass == PLANISH_BACKWARD ? role_bytes(spec, ROLE_DY) : 0);
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

static int lanes_of(const cuda_spec *spec) {
    const channels_constants *c = &spec->channels;
    return c->line_channels * c->tile_pixels / c->width;
}

/* Planes of threads over a block's channels, of which the fewest a block has are `fewest`, in at
 * most `threads`; false: more threads than that, or (backward) than `each` channels in one. */
static bool set_planes(const channels_tuning *t, cuda_spec *spec, int planes, int fewest, int each,
                       int threads) {
    channels_constants *c = &spec->channels;
    const bool backward = spec->pass == PLANISH_BACKWARD;
    const int rows = c->line_channels, lanes = lanes_of(spec), depth = c->depth / rows;
    planes = most(planes, ceil_div(depth, backward ? each : t->forward_each));
    planes = least(planes, least(fewest / rows, most(1, threads / lanes)));
    if (backward && ceil_div(depth, planes) > each)
        return false;
    c->lanes = lanes;
    c->planes = planes;
    c->warps = ceil_div(lanes * planes, WARP);
    return c->warps <= threads / WARP;
}

/* Neighbouring pixels of a thread of a tile: two that are shifted. */
static int tile_width(const cuda_spec *spec, int wanted) {
    return channels_is_shifted(spec) ? 2 : width_of(spec->channels.pixels, wanted);
}

/* Planes over channels that begin alike. */
static int shifted_planes(const cuda_spec *spec, int each) {
    return ceil_div(ceil_div(spec->channels.depth, each), ALIKE) * ALIKE;
}

/* Lines of as many channels as make whole chunks of pixels for the threads of an image. */
static void set_lines(cuda_spec *spec) {
    channels_constants *c = &spec->channels;
    int rows = 1;
    while (rows * c->pixels % 4)
        rows *= 2;
    c->line_channels = c->pixels >= 4 && c->cols % rows == 0 ? rows : 1;
}

/* Shares the channels between the blocks of a cluster; returns the fewest a block has. */
static int share_channels(cuda_spec *spec, int cluster) {
    channels_constants *c = &spec->channels;
    const int channels = c->cols, depth = ceil_div(ceil_div(channels, cluster), 8) * 8;
    spec->cluster = cluster;
    c->depth = cluster > 1 ? depth : channels;
    return channels - (cluster - 1) * c->depth;
}

static int64_t part_bytes(const cuda_spec *spec) {
    return (int64_t)spec->channels.depth * spec->channels.tile_pixels * held_bytes(spec);
}

/* Whether a block has a large part of f32, of which a multiprocessor holds one or two (forward). */
static bool is_large(const channels_tuning *t, const cuda_spec *spec) {
    const channels_constants *c = &spec->channels;
    return spec->pass == PLANISH_FORWARD && c->line_channels == 1 &&
           part_bytes(spec) > (spec->cluster == 1 ? t->alone_bytes : t->whole_bytes);
}

/* Planes over a whole image's part in a forward block. */
static bool set_forward_planes(const channels_tuning *t, cuda_spec *spec, int fewest) {
    channels_constants *c = &spec->channels;
    if (is_large(t, spec))
        return set_planes(t, spec, t->whole_planes / 2, fewest, 0, t->most_threads);
    const int lines = c->depth / c->line_channels, wanted = ceil_div(lines, t->shared_each);
    if (spec->cluster > 1 && wanted > t->whole_planes)
        return set_planes(t, spec, ceil_div(wanted, 4) * 4, fewest, 0, 2 * t->most_threads);
    const bool alone = spec->cluster == 1;
    const int each =
        c->line_channels > 1 ? lines / t->lines_each : (lines + t->most_each / 2) / t->most_each;
    const int planes = alone ? most(2, least(each, t->whole_planes)) : t->whole_planes;
    return set_planes(t, spec, planes, fewest, 0, t->most_threads);
}

/* Whether a tile has twice the threads: whole lines of 16-bit pixels in the backward, which has few
 * blocks to a multiprocessor. */
static bool has_many(const channels_tuning *t, const cuda_spec *spec) {
    const channels_constants *c = &spec->channels;
    return spec->pass == PLANISH_BACKWARD && c->tile_pixels == 64 && c->tile_pixels != c->pixels &&
           role_bytes(spec, ROLE_X) == 2 && c->cols >= t->many_channels;
}

/* Threads of a multiprocessor, by the registers they need. */
static int threads_of(const channels_tuning *t, const cuda_spec *spec) {
    const channels_constants *c = &spec->channels;
    const int each = ceil_div(c->depth / c->line_channels, c->planes);
    if (spec->pass == PLANISH_FORWARD)
        return channels_is_shifted(spec) ? t->shifted_threads : t->forward_threads;
    if (((has_many(t, spec) && each <= t->many_each) || channels_is_shifted(spec)) &&
        spec->cluster == 1)
        return t->backward_many_threads;
    if (c->line_channels > 1)
        return each < t->light_each && role_bytes(spec, ROLE_X) == 2 ? t->light_lines_threads
                                                                     : t->lines_threads;
    return c->tile_pixels == c->pixels && each <= t->light_each ? t->light_threads
                                                                : t->backward_threads;
}

/* Blocks of a multiprocessor that has so many threads. */
static int blocks_of(const cuda_plan *plan, int threads) {
    const int room = plan->limits.shared_per_block + 1024;
    const int fit = room / ((int)channels_shared_bytes(&plan->main) + 1280);
    return most(1, least(fit, threads / (WARP * plan->main.channels.warps)));
}

/* Planes over lines of several channels in a block that has them all (backward): the fewest of
 * those with the most threads in a multiprocessor that have something to do. */
static bool set_planes_of_lines(cuda_plan *plan) {
    const channels_tuning *t = &plan->limits.tuning->channels;
    cuda_spec *spec = &plan->main;
    channels_constants *c = &spec->channels;
    const int lanes = lanes_of(spec), lines = c->depth / c->line_channels;
    const int largest = least(lines, t->most_threads / lanes);
    int best = 0, best_planes = 0;
    c->lanes = lanes;
    for (int planes = ceil_div(lines, t->lines_summed); planes <= largest; planes++) {
        c->planes = planes;
        c->warps = ceil_div(lanes * planes, WARP);
        const int busy = blocks_of(plan, t->lines_threads) * lanes * planes;
        if (busy > best && fits(plan)) {
            best = busy;
            best_planes = planes;
        }
    }
    c->planes = best_planes;
    c->warps = ceil_div(lanes * best_planes, WARP);
    return best > 0;
}

/* The same in the backward: a large part has its multiprocessor alone. */
static bool set_backward_planes(cuda_plan *plan, int fewest, int each) {
    const channels_tuning *t = &plan->limits.tuning->channels;
    cuda_spec *spec = &plan->main;
    channels_constants *c = &spec->channels;
    if (spec->cluster == 1 && c->line_channels > 1)
        return set_planes_of_lines(plan);
    if (spec->cluster == 1 && part_bytes(spec) <= t->alone_bytes)
        return set_planes(t, spec, t->whole_planes, fewest, each, t->most_threads);
    return set_planes(t, spec, t->most_threads / lanes_of(spec), fewest, 2 * t->most_each,
                      t->most_threads);
}

/* Whether a block takes as much of a whole image as it may: forward blocks are the more in number
 * the less each has; a backward block has what it can hold, but for lines of several channels. Not
 * where messages would be much beside it. */
static bool may_hold(const channels_tuning *t, const cuda_spec *spec) {
    const channels_constants *c = &spec->channels;
    const bool forward = spec->pass == PLANISH_FORWARD;
    const bool large = forward && role_bytes(spec, ROLE_X) == 4 && c->line_channels == 1;
    if (spec->cluster == 1)
        return part_bytes(spec) <= (large ? t->large_bytes : t->alone_bytes) || !forward;
    if (3 * channels_message_bytes(spec) > part_bytes(spec))
        return false;
    return !forward || part_bytes(spec) <= (large ? t->large_bytes : t->whole_bytes);
}

/* The whole image in a block or in the smallest cluster that may hold it; single blocks of the
 * backward have a ring where two images fit. */
static bool whole_image(cuda_plan *plan, int each) {
    const channels_tuning *t = &plan->limits.tuning->channels;
    static const int clusters[] = {1, 2, 3, 4, 6, 8, 16};
    cuda_spec *spec = &plan->main;
    channels_constants *c = &spec->channels;
    const bool backward = spec->pass == PLANISH_BACKWARD;
    const int largest = least(plan->limits.max_cluster, backward ? 16 : 8);
    c->tile_pixels = c->pixels;
    c->ring_slots = 1;
    set_lines(spec);
    for (size_t i = 0; i < sizeof clusters / sizeof *clusters && clusters[i] <= largest; i++) {
        const int fewest = share_channels(spec, clusters[i]);
        if (fewest < least(8, c->cols) || !may_hold(t, spec))
            continue;
        /* Fewer planes of more threads have fewer sums. */
        c->width = width_of(c->line_channels * c->pixels, is_large(t, spec) ? 2 : 4);
        if (!(backward ? set_backward_planes(plan, fewest, each)
                       : set_forward_planes(t, spec, fewest)) ||
            !fits(plan))
            continue;
        c->ring_slots = backward && clusters[i] == 1 && c->line_channels == 1 ? 2 : 1;
        if (!fits(plan))
            c->ring_slots = 1;
        return true;
    }
    c->line_channels = 1;
    return false;
}

/* Planes of such a tile, in warps that a multiprocessor's four schedulers share alike. */
static int many_planes(const channels_tuning *t, const cuda_spec *spec, int each) {
    const channels_constants *c = &spec->channels;
    const int lanes = c->tile_pixels / c->width, step = most(1, t->threads / lanes);
    return ceil_div(most(2 * step, ceil_div(c->cols, each)), step) * step;
}

/* Whether it is of f32 in the backward, of many channels, of which a ring of two lines fits: such
 * do best with all of a multiprocessor's memory. */
static bool is_wide(const channels_tuning *t, const cuda_spec *spec) {
    const channels_constants *c = &spec->channels;
    return spec->pass == PLANISH_BACKWARD && held_bytes(spec) == 2 * (int)sizeof(float) &&
           c->cols >= t->many_channels &&
           2 * LINE / (int)sizeof(float) * c->cols * held_bytes(spec) <= t->wide_bytes;
}

/* Planes of such a tile: more where its block has the multiprocessor alone. */
static int wide_planes(const channels_tuning *t, const cuda_spec *spec) {
    const channels_constants *c = &spec->channels;
    const int each = ceil_div(c->depth, t->light_each);
    const int bytes = 2 * c->tile_pixels * c->depth * held_bytes(spec);
    return 2 * bytes > t->wide_bytes ? most(each, t->wide_planes) : each;
}

/* The most pixels of a tile that are of use, as measured. */
static int most_pixels(const channels_tuning *t, const cuda_spec *spec) {
    const channels_constants *c = &spec->channels;
    if (!channels_is_shifted(spec))
        return t->most_tile;
    const bool wide = spec->pass == PLANISH_FORWARD && c->cols > t->shifted_many;
    return wide ? 2 * t->shifted_tile : t->shifted_tile;
}

/* Idle lanes, more than fits several times, and segments below full speed. */
static double cost_of_tile(const channels_tuning *t, const cuda_spec *spec) {
    const channels_constants *c = &spec->channels;
    const int tile = c->tile_pixels, pixels = c->pixels;
    const double bytes = (double)c->ring_slots * c->cols * tile * held_bytes(spec);
    const bool shifted = channels_is_shifted(spec), forward = spec->pass == PLANISH_FORWARD;
    const bool many = (has_many(t, spec) || shifted) && c->ring_slots == 2;
    const double room = forward            ? t->forward_bytes
                        : is_wide(t, spec) ? t->wide_bytes
                        : many             ? t->many_bytes
                                           : t->backward_bytes;
    const bool narrow = tile * role_bytes(spec, ROLE_X) < (is_wide(t, spec) ? LINE : 2 * SECTOR);
    if (shifted) /* the pieces at a channel's ends */
        return (double)ceil_div(pixels, tile) * tile / pixels * (bytes > room ? bytes / room : 1) *
               (1 + t->shift_cost / tile);
    const bool by_elements = pixels * role_bytes(spec, ROLE_X) % 4;
    /* Lines of f32 are nearly as good as two of them; of the backward's other tiles, the larger. */
    const bool line =
        forward && tile == 32 && role_bytes(spec, ROLE_X) == 4 && c->cols >= t->many_channels;
    const double wide = 1.1 - .001 * least(tile, 64);
    const double shape = tile == 64 ? 1 : line ? 1.03 : is_wide(t, spec) && !narrow ? wide : 1.1;
    const bool single = is_wide(t, spec) && c->ring_slots == 1;
    /* Lines of f32 that go on are no better for it, as measured. */
    const bool spanning = channels_is_spanning(spec) && role_bytes(spec, ROLE_X) == 2;
    const double idle = spanning ? 1 : (double)ceil_div(pixels, tile) * tile / pixels;
    return idle * (bytes > room ? bytes / room : 1) * (narrow ? 1.4 : 1) * shape *
           (by_elements ? 1.4 : 1) * (single ? 1.5 : 1);
}

/* Some pixels of an image in a block. */
static bool some_pixels(cuda_plan *plan, int each) {
    const channels_tuning *t = &plan->limits.tuning->channels;
    static const int tiles[] = {64, 32, 112, 96, 80, 48, 40, 16, 8, 4, 128};
    cuda_spec *spec = &plan->main;
    channels_constants *c = &spec->channels;
    const bool backward = spec->pass == PLANISH_BACKWARD;
    double best_cost = 0;
    cuda_spec best = plan->main;
    bool found = false;
    spec->cluster = 1;
    c->depth = c->cols;
    for (size_t i = 0; i < sizeof tiles / sizeof *tiles; i++) {
        c->tile_pixels = tiles[i];
        /* Fewer threads of more pixels, so that each has few channels to sum. */
        const bool eight = backward && tiles[i] == 32 && role_bytes(spec, ROLE_X) == 2;
        c->width = tile_width(spec, eight ? 8 : 4);
        c->ring_slots = backward ? 2 : 1;
        const bool shifted = channels_is_shifted(spec);
        const int planes = shifted ? shifted_planes(spec, backward ? each : t->shifted_each)
                           : is_wide(t, spec)  ? wide_planes(t, spec)
                           : has_many(t, spec) ? many_planes(t, spec, each)
                                               : most(1, t->threads * c->width / tiles[i]);
        const bool sectors = tiles[i] != 40 || role_bytes(spec, ROLE_X) == 4;
        if (tiles[i] == c->pixels || tiles[i] > most_pixels(t, spec) || !sectors ||
            !set_planes(t, spec, planes, c->cols, each, t->most_threads) ||
            (shifted && c->planes % ALIKE && c->cols >= ALIKE))
            continue;
        if (!fits(plan))
            c->ring_slots = 1;
        if (!fits(plan))
            continue;
        const double cost = cost_of_tile(t, spec);
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
static int shared_tile(const cuda_spec *spec, int wanted) {
    const channels_constants *c = &spec->channels;
    const int bytes = role_bytes(spec, ROLE_X), pixels = c->pixels;
    const int unit = pixels * bytes % SECTOR ? 4 : SECTOR / bytes;
    return ceil_div(ceil_div(pixels, ceil_div(pixels, wanted)), unit) * unit;
}

/* Whether blocks of a cluster have rings of whole lines of 16-bit pixels, of equal parts of many
 * channels (backward). */
static bool share_lines(const channels_tuning *t, const cuda_spec *spec) {
    const channels_constants *c = &spec->channels;
    const int parts = c->cols / t->line_channels;
    return spec->pass == PLANISH_BACKWARD && held_bytes(spec) == 4 &&
           c->cols % t->line_channels == 0 && (parts == 2 || parts == 4 || parts == 8) &&
           c->pixels * 2 % SECTOR == 0;
}

/* Some pixels of an image in the smallest cluster whose blocks have small parts of them. */
static bool shared_pixels(cuda_plan *plan) {
    const channels_tuning *t = &plan->limits.tuning->channels;
    cuda_spec *spec = &plan->main;
    channels_constants *c = &spec->channels;
    const bool backward = spec->pass == PLANISH_BACKWARD;
    const bool ring = backward && c->pixels * role_bytes(spec, ROLE_X) % SECTOR == 0;
    c->tile_pixels = shared_tile(spec, ring && !share_lines(t, spec) ? 32 : 64);
    c->width = tile_width(spec, 4);
    c->ring_slots = ring ? 2 : 1;
    if (c->tile_pixels >= c->pixels)
        return false;
    for (int cluster = 2; cluster <= plan->limits.max_cluster; cluster *= 2) {
        const int fewest = share_channels(spec, cluster);
        const int each = backward ? t->most_each : t->shared_each;
        if (fewest >= 8 && part_bytes(spec) <= t->alone_bytes &&
            set_planes(t, spec, ceil_div(c->depth, each), fewest, each, t->most_threads) &&
            fits(plan))
            return true;
    }
    return false;
}

/* Tiles of fewer pixels than make two sectors (one in the backward) are shared instead. */
static bool tiles(cuda_plan *plan, int each) {
    const channels_tuning *t = &plan->limits.tuning->channels;
    const cuda_spec *spec = &plan->main;
    const channels_constants *c = &spec->channels;
    if (share_lines(t, spec) && shared_pixels(plan))
        return true;
    const bool found = some_pixels(plan, each);
    if (found && c->tile_pixels >= (spec->pass == PLANISH_FORWARD ? 32 : 16))
        return true;
    const cuda_spec narrow = plan->main;
    if (shared_pixels(plan))
        return true;
    plan->main = narrow;
    return found;
}

static bool set_geometry(cuda_plan *plan, int each) {
    const channels_tuning *t = &plan->limits.tuning->channels;
    const cuda_spec *spec = &plan->main;
    const channels_constants *c = &spec->channels;
    const bool few = c->pixels < t->few_pixels || c->pixels * role_bytes(spec, ROLE_X) % SECTOR;
    return (few && whole_image(plan, each)) || tiles(plan, each) || whole_image(plan, each);
}

bool channels_set_geometry(cuda_plan *plan) {
    const channels_tuning *t = &plan->limits.tuning->channels;
    cuda_spec *spec = &plan->main;
    channels_constants *c = &spec->channels;
    c->ring_slots = c->line_channels = 1;
    if (!set_geometry(plan, t->most_each) && !set_geometry(plan, 2 * t->most_each))
        return false;
    spec->min_blocks = blocks_of(plan, threads_of(t, spec));
    return true;
}
