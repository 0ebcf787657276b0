/*
 * Strips of large images, of which no few blocks hold one: over blocks anywhere on the device,
 * which live on. Of some ways to cut them that is taken which moves the least: bytes to and from
 * memory, those that all blocks read of each other's messages, and what would have been moved while
 * they wait for these. What of a strip finds no room in shared memory is read again, from the L2
 * where it is little. Which it is follows from an image and the device alone.
 */
#include "cuda/groups/strips.h"

#include "cuda/backend.h"
#include "cuda/common/integers.h"
#include "cuda/groups/strips_cut.h"

enum { LEAST_HELD = 4 }; /* steps of a thread: what pivots are found from */

static bool is_backward(const cuda_spec *spec) {
    return spec->pass == PLANISH_BACKWARD;
}

/* Of an element: what is read of it, and what is written, too. */
static int bytes_read(const cuda_spec *spec) {
    return role_bytes(spec, ROLE_X) + (is_backward(spec) ? role_bytes(spec, ROLE_DY) : 0);
}

static int bytes_moved(const cuda_spec *spec) {
    const role out = is_backward(spec) ? ROLE_DX : ROLE_Y;
    return bytes_read(spec) + (spec->type[out] == DTYPE_NONE ? 0 : role_bytes(spec, out));
}

/* Warps of a block, whose registers do not spill. */
static int warps_of(const strips_tuning *t, const cuda_spec *spec) {
    const bool columns = strips_together(spec) == 1; /* one for each channel of a chunk */
    if (spec->min_blocks > 1)
        return columns ? t->large_pair_column_warps : t->large_pair_warps;
    return columns ? t->large_column_warps : t->large_warps;
}

/* Steps of a thread that wait in shared memory, of which a block has so many bytes; 0: all of them,
 * -1: too few. */
static int held_steps(cuda_spec *spec, int room) {
    groups_constants *c = &spec->groups;
    c->hold = 0;
    if (strips_block_bytes(spec) <= room)
        return 0;
    const int step = c->warps * c->planes * c->lanes * c->width * bytes_read(spec);
    for (c->hold = room / step; c->hold >= LEAST_HELD; c->hold--)
        if (strips_block_bytes(spec) <= room)
            return c->hold;
    return -1;
}

/* Bytes of `strips` strips that no shared memory holds. */
static int64_t loose_bytes(const cuda_spec *spec, int64_t strips) {
    const groups_constants *c = &spec->groups;
    const int64_t held = (int64_t)c->hold * c->warps * c->planes;
    if (!c->hold || held >= c->piece)
        return 0;
    return strips * spec->cooperating_blocks * (c->piece - held) * c->tile_channels *
           bytes_read(spec);
}

/* Has `at_once` strips of `tile` channels at a time, `fit` blocks in each multiprocessor. Returns
 * what it costs to take all of an image, in bytes; 0: it cannot be. */
static int64_t cut_large(cuda_spec *spec, const struct cuda_limits *limits, int tile, int fit,
                         int at_once) {
    const strips_tuning *t = &limits->tuning->strips;
    groups_constants *c = &spec->groups;
    const int blocks = limits->multiprocessors * fit / at_once;
    if (blocks < 2 || !strips_pieces(t, spec, tile, blocks))
        return 0;
    spec->cluster = 1;
    spec->cooperating_blocks = blocks;
    spec->min_blocks = fit;
    c->warps = warps_of(t, spec);
    c->hold = held_steps(spec, strips_room(limits) / fit);
    c->ahead = fit == 1;
    c->late_half = fit > 1;
    const int64_t loose = c->hold < 0 ? INT64_MAX : loose_bytes(spec, at_once);
    if (loose > t->large_loose_bytes)
        return 0;
    /* One image is to keep every multiprocessor busy. */
    const int64_t strips = ceil_div(c->cols, tile), now = least_i64(at_once, strips);
    if (at_once > strips && blocks < limits->multiprocessors)
        return 0;
    const int64_t moved = now * c->pixels * tile * bytes_moved(spec);
    /* A block moves what it has while that of another strip waits. */
    const int64_t wait = t->large_wait_bytes / (fit > 1 && at_once > 1 ? 2 : 1);
    const int64_t messages =
        now * (tile / c->depth) * blocks * blocks * (int64_t)strips_message_bytes(spec);
    return ceil_div_i64(strips, at_once) * (moved + loose + wait + messages);
}

bool strips_large_geometry(cuda_spec *spec, const struct cuda_limits *limits) {
    const strips_tuning *t = &limits->tuning->strips;
    int64_t best_cost = 0;
    cuda_spec best = *spec;
    if (!t->large_wait_bytes || !limits->cooperative)
        return false;
    /* Narrower strips are slower than two reads. */
    const int tile = strips_tile(spec, LINE_BYTES);
    for (int fit = 1; tile && fit <= 2; fit++)
        for (int at_once = 1; at_once <= t->large_strips; at_once++) {
            cuda_spec made = *spec;
            const int64_t cost = cut_large(&made, limits, tile, fit, at_once);
            if (!cost || (best_cost && cost >= best_cost))
                continue;
            best_cost = cost;
            best = made;
        }
    best.kernel = CUDA_STRIPS;
    if (best_cost)
        *spec = best;
    return best_cost > 0;
}
