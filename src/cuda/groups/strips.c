/*
 * A strip is some groups wide, so that what it has of a pixel is whole sectors of memory and not
 * fewer than two. One block has its pixels where a multiprocessor holds several such; else a
 * cluster of blocks, of the fewest where a strip has many groups, several blocks to a
 * multiprocessor where that holds. Where that does not, blocks anywhere on the device have them,
 * which live on (kernels/ strips.cu) and so read one strip while they write another.
 *
 * Which it is and how pixels are cut follows from an image and the device. Only where a cluster
 * cuts them as blocks anywhere do, which gives the same bits, does the number of images choose.
 */
#include "cuda/groups/strips.h"

#include "cuda/backend.h"
#include "cuda/common/integers.h"
#include "cuda/groups/strips_cut.h"

static bool is_backward(const cuda_spec *spec) {
    return spec->pass == PLANISH_BACKWARD;
}

/* A strip of whole lines over eight blocks that leaves no room for four of them. */
static bool is_large(const cuda_spec *spec, const struct cuda_limits *limits) {
    const strips_tuning *t = &limits->tuning->strips;
    cuda_spec made = *spec;
    const int tile = strips_tile(&made, LINE_BYTES);
    return limits->max_cluster >= t->most_cluster && tile &&
           strips_pieces(t, &made, tile, t->some_cluster) > strips_room(limits) / 4;
}

/* Channels of strips over few blocks: a line wide or little less, in whole sectors; several lines
 * where that is little work for a block. */
static int small_tile_of(const strips_tuning *t, const cuda_spec *spec) {
    const groups_constants *c = &spec->groups;
    const int each = role_bytes(spec, ROLE_X);
    const int64_t pixels = (int64_t)c->pixels * each * (is_backward(spec) ? 2 : 1);
    int tile = strips_tile(spec, LINE_BYTES);
    const int narrow = tile * each > LINE_BYTES ? strips_tile(spec, t->strip_bytes) : tile;
    if (narrow * each % SECTOR == 0)
        tile = narrow;
    for (int bytes = 2 * LINE_BYTES; tile && tile * pixels < t->alone_bytes; bytes *= 2) {
        const int wider = strips_tile(spec, bytes), planes = LANES * c->width / most(wider, 1);
        /* Not where a warp would add up too many squares of a channel one after the other. */
        const bool few = strips_together(spec) > 1 || c->pixels <= t->few_squares * planes;
        if (wider <= tile || !few)
            break;
        tile = wider;
    }
    return tile;
}

/* Warps of a block of few: as many as leave a thread enough steps for what a warp costs, which is
 * most where chunks have a column for each channel. */
static int few_warps(const strips_tuning *t, const cuda_spec *spec) {
    const groups_constants *c = &spec->groups;
    const bool columns = 4 * strips_together(spec) < c->width;
    const int steps = is_backward(spec) ? columns ? t->column_backward_steps : t->backward_steps
                      : columns         ? t->column_steps
                                        : t->forward_steps;
    const int warps = most(1, least(t->few_warps, c->piece / (steps * c->planes)));
    return !columns ? warps : warps >= 8 ? 8 : warps >= 4 ? 4 : least(warps, 2);
}

/* The fewest blocks of which a multiprocessor has several: messages go from each to each for every
 * group, and so decide where a strip has many groups, or few channels of a chunk are of one. */
static bool cut_few(cuda_spec *spec, const struct cuda_limits *limits) {
    const strips_tuning *t = &limits->tuning->strips;
    groups_constants *c = &spec->groups;
    const int tile = small_tile_of(t, spec);
    if (!tile)
        return false;
    const bool alone = strips_together(spec) == 1, many = alone || tile / c->depth > t->few_groups;
    const int wanted = !many                         ? 1 + is_backward(spec)
                       : alone || !is_backward(spec) ? t->some_cluster
                                                     : 4;
    const int few = least(wanted, limits->max_cluster);
    for (int cluster = 1; cluster <= few; cluster *= 2) {
        if (!strips_pieces(t, spec, tile, cluster))
            return false;
        c->warps = few_warps(t, spec);
        const int fit =
            least(limits->tuning->block_slots, strips_room(limits) / strips_block_bytes(spec));
        spec->min_blocks = least(fit, strips_most_warps(t, spec) / c->warps);
        if (fit >= (many || is_backward(spec) ? 2 : 4))
            return true;
    }
    return false;
}

/* Forward, clusters of 16, of which a multiprocessor has four or five blocks; four of f32. */
static bool cut_small(cuda_spec *spec, const struct cuda_limits *limits) {
    const strips_tuning *t = &limits->tuning->strips;
    groups_constants *c = &spec->groups;
    const int tile = strips_tile(spec, LINE_BYTES);
    if (is_backward(spec) || tile / c->depth > t->few_groups)
        return false;
    const int bytes = strips_pieces(t, spec, tile, t->most_cluster);
    if (!bytes || bytes > strips_room(limits) / 4)
        return false;
    c->warps = role_bytes(spec, ROLE_X) == 2 ? t->small_warps : t->wide_warps;
    spec->min_blocks = least(strips_room(limits) / strips_block_bytes(spec),
                             strips_most_warps(t, spec) / c->warps);
    return true;
}

/* Forward, half a line of a pixel, in clusters of which a multiprocessor has three blocks; two of
 * bf16, which may tell each other twice. */
static bool cut_narrow(cuda_spec *spec, const struct cuda_limits *limits) {
    const strips_tuning *t = &limits->tuning->strips;
    groups_constants *c = &spec->groups;
    const bool twice = spec->type[ROLE_X] == DTYPE_BF16;
    const int tile = strips_tile(spec, t->strip_bytes), blocks = twice ? 2 : 3;
    const int bytes =
        tile ? strips_pieces(t, spec, tile, twice ? t->some_cluster : t->most_cluster) : 0;
    if (is_backward(spec) || !bytes || bytes > strips_room(limits) / blocks)
        return false;
    c->warps = twice ? t->narrow_bf16_warps : t->narrow_warps;
    spec->min_blocks = least(blocks, strips_most_warps(t, spec) / c->warps);
    return true;
}

/* Backward, two blocks to a multiprocessor: a line of a pixel in clusters of eight, or less in
 * clusters of 16, if that is whole sectors (of 16 bits, no more than a line). */
static bool cut_pairs(cuda_spec *spec, const struct cuda_limits *limits) {
    const strips_tuning *t = &limits->tuning->strips;
    groups_constants *c = &spec->groups;
    int bytes = strips_pieces(t, spec, strips_tile(spec, LINE_BYTES), t->some_cluster);
    if (!bytes || bytes > strips_room(limits) / 2) {
        const int tile = strips_tile(spec, t->strip_bytes);
        const int each = role_bytes(spec, ROLE_X);
        const bool good = tile * each % SECTOR == 0 && (each == 4 || tile * each <= LINE_BYTES);
        bytes = tile && good ? strips_pieces(t, spec, tile, t->most_cluster) : 0;
    }
    if (!is_backward(spec) || !bytes || bytes > strips_room(limits) / 2)
        return false;
    c->warps = least(t->shared_warps, strips_most_warps(t, spec) / 2);
    spec->min_blocks = 2;
    return true;
}

/* In one of the ways above, of which all but the first are for large strips. */
static bool cut_small_blocks(cuda_spec *spec, const struct cuda_limits *limits) {
    static bool (*const ways[])(cuda_spec *, const struct cuda_limits *) = {cut_few, cut_small,
                                                                            cut_narrow, cut_pairs};
    const int count = is_large(spec, limits) ? 4 : 1;
    for (int i = 0; i < count; i++) {
        cuda_spec made = *spec;
        if (ways[i](&made, limits)) {
            *spec = made;
            return true;
        }
    }
    return false;
}

/* Blocks anywhere on the device, two to a multiprocessor; one, where 16 are too large for that. */
static bool cut_shared(cuda_spec *spec, const struct cuda_limits *limits) {
    const strips_tuning *t = &limits->tuning->strips;
    groups_constants *c = &spec->groups;
    const int tile = strips_tile(spec, LINE_BYTES), room = strips_room(limits);
    int blocks = t->some_cluster;
    if (strips_pieces(t, spec, tile, blocks) > room / 2)
        strips_pieces(t, spec, tile, blocks = t->most_cluster);
    spec->cluster = 1;
    spec->cooperating_blocks = blocks;
    const int fit = least(2, room / strips_block_bytes(spec));
    if (!fit || !limits->cooperative || tile / c->depth * blocks > t->most_messages ||
        limits->multiprocessors * fit < t->least_held * blocks)
        return false;
    const int steps = ceil_div(c->piece, t->shared_warps * c->planes);
    const int wanted = fit == 1                ? t->most_warps
                       : steps <= t->few_steps ? t->fewer_warps
                                               : t->shared_warps;
    c->warps = least(wanted, strips_most_warps(t, spec) / fit);
    spec->min_blocks = fit;
    return true;
}

/* The same in a cluster; false where it has no room for its messages, or would take whole
 * multiprocessors, of which a device may not have 16 together. */
static bool cluster_of_shared(cuda_spec *spec, const struct cuda_limits *limits) {
    spec->cluster = spec->cooperating_blocks;
    spec->cooperating_blocks = 1;
    return spec->min_blocks == 2 && 2 * strips_block_bytes(spec) <= strips_room(limits);
}

/* Several small blocks to a multiprocessor hide each other's waiting, but messages go from every
 * block of a cluster to every other, for every group. */
static bool cut_cluster(cuda_spec *spec, const struct cuda_limits *limits) {
    const strips_tuning *t = &limits->tuning->strips;
    groups_constants *c = &spec->groups;
    const int room = strips_room(limits), whole = least(t->some_cluster, limits->max_cluster);
    int tile = strips_tile(spec, LINE_BYTES), cluster = whole;
    int bytes = tile ? strips_pieces(t, spec, tile, cluster) : 0;
    if (!bytes || bytes > room / (is_backward(spec) ? 2 : 4)) {
        tile = strips_tile(spec, t->strip_bytes);
        bytes = tile ? strips_pieces(t, spec, tile, cluster) : 0;
    }
    while (tile && cluster > 1 && bytes < t->least_block_bytes)
        bytes = strips_pieces(t, spec, tile, cluster /= 2);
    if (bytes > room / 2 && limits->max_cluster > whole)
        bytes = strips_pieces(t, spec, tile, cluster = 2 * whole);
    if (!bytes || bytes > room)
        return false;
    const int warps = strips_most_warps(t, spec), fit = room / bytes;
    c->warps = fit >= 8 ? 4 : fit >= 4 ? 8 : least(t->most_warps, warps / least(fit, 2));
    spec->min_blocks = least(fit, warps / c->warps);
    return true;
}

/* As measured (docs/notebook/010, 013, 021, 023). */
bool strips_geometry(cuda_spec *spec, const struct cuda_limits *limits) {
    if (spec->groups.pixels < limits->tuning->strips.least_pixels)
        return false;
    cuda_spec shared = *spec, made = *spec;
    if (!cut_small_blocks(&made, limits)) {
        if (is_large(spec, limits) && cut_shared(&shared, limits) &&
            cluster_of_shared(&shared, limits))
            made = shared;
        else if (!cut_cluster(&made, limits))
            return false;
    }
    made.kernel = CUDA_STRIPS;
    *spec = made;
    return true;
}

bool strips_shared_geometry(cuda_spec *spec, int64_t images, const struct cuda_limits *limits) {
    cuda_spec small = *spec, shared = *spec, large = *spec;
    /* Backward, a block alone in its multiprocessor is slower than smaller ones, two to each. */
    if (is_backward(spec) && spec->cluster > 1 && spec->min_blocks == 1 &&
        strips_large_geometry(&large, limits)) {
        *spec = large;
        return true;
    }
    if (cut_small_blocks(&small, limits) || !is_large(spec, limits) || !cut_shared(&shared, limits))
        return false;
    if (is_backward(&shared) && shared.min_blocks == 1 && strips_large_geometry(&large, limits)) {
        *spec = large;
        return true;
    }
    cuda_spec cluster = shared;
    const bool same = cluster_of_shared(&cluster, limits); /* is `spec`, then */
    const int64_t strips = strips_of(&shared, images);
    const int64_t at_once = strips_at_once(&shared, images, limits);
    if (same && strips <= at_once)
        return false;
    shared.groups.late_half = is_backward(&shared) && shared.min_blocks > 1 && strips > 2 * at_once;
    *spec = shared;
    return true;
}

int strips_blocks(const cuda_spec *spec) {
    return spec->cooperating_blocks > 1 ? spec->cooperating_blocks : spec->cluster;
}

int64_t strips_of(const cuda_spec *spec, int64_t images) {
    return images * ceil_div(spec->groups.cols, spec->groups.tile_channels);
}

int64_t strips_at_once(const cuda_spec *spec, int64_t images, const struct cuda_limits *limits) {
    const int64_t held = (int64_t)limits->multiprocessors * spec->min_blocks / strips_blocks(spec);
    return least_i64(strips_of(spec, images), held > 0 ? held : 1);
}

/* As the kernel has it: two rounds of messages. */
size_t strips_mail_bytes(const cuda_spec *spec) {
    const groups_constants *c = &spec->groups;
    if (spec->cooperating_blocks <= 1)
        return 0;
    return 2 * strips_message_bytes(spec) * (size_t)(c->tile_channels / c->depth) *
           (size_t)spec->cooperating_blocks;
}
