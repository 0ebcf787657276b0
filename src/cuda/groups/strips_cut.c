/* What a block of a strip has, and what that takes of its multiprocessor. */
#include "cuda/groups/strips_cut.h"

#include "cuda/backend.h"
#include "cuda/common/integers.h"
#include "cuda/groups/strips.h"

enum {
    BLOCK_RESERVE = 1 << 10, /* of shared memory, that a block takes beside its own */
    MAILBOX_BYTES = 128      /* its place in a cluster's blocks, whose tiles begin on a line */
};

static int gcd(int a, int b) {
    return b ? gcd(b, a % b) : a;
}

static bool is_backward(const cuda_spec *spec) {
    return spec->pass == PLANISH_BACKWARD;
}

int strips_together(const cuda_spec *spec) {
    const groups_constants *c = &spec->groups;
    return gcd(c->depth, c->width);
}

/* Forward rows that may leave float's range are summed twice. */
static bool sums_again(const cuda_spec *spec) {
    return !is_backward(spec) &&
           (spec->type[ROLE_X] == DTYPE_F32 || spec->type[ROLE_X] == DTYPE_BF16);
}

size_t strips_message_bytes(const cuda_spec *spec) {
    return spec->type[ROLE_X] == DTYPE_F32 ? 4 * sizeof(double) : 4 * sizeof(float);
}

/* Pixels of a block that wait in shared memory. */
static int held_pixels(const cuda_spec *spec) {
    const groups_constants *c = &spec->groups;
    return c->hold ? least(c->piece, c->hold * c->warps * c->planes) : c->piece;
}

size_t strips_shared_bytes(const cuda_spec *spec) {
    const groups_constants *c = &spec->groups;
    const size_t chunks = (size_t)held_pixels(spec) * (size_t)c->lanes * (size_t)c->width;
    const size_t tiles =
        round_up(chunks * (size_t)role_bytes(spec, ROLE_X)) +
        (is_backward(spec) ? round_up(chunks * (size_t)role_bytes(spec, ROLE_DY)) : 0);
    const int together = is_backward(spec) ? 1 : strips_together(spec);
    const int kinds = is_backward(spec) && !spec->correct ? 2 : 3;
    const size_t sums =
        round_up((size_t)(kinds * c->warps * c->tile_channels / together) * sizeof(float));
    const size_t groups = (size_t)(c->tile_channels / c->depth);
    const size_t mail = spec->cluster == 1 ? 0 : strips_message_bytes(spec) * (size_t)spec->cluster;
    const bool in_shared =
        spec->cooperating_blocks <= 1 && (spec->cluster == 1 || strips_together(spec) == 1);
    const size_t staging =
        in_shared ? 2 * (size_t)c->tile_channels + (is_backward(spec) ? 3 * groups : 0) : 0;
    return tiles + sums + groups * (mail + 4 * sizeof(float)) + staging * sizeof(float);
}

int strips_tile(const cuda_spec *spec, int bytes) {
    const groups_constants *c = &spec->groups;
    const int each = role_bytes(spec, ROLE_X), widest = least(c->cols, LANES * c->width);
    if (c->depth > widest)
        return 0;
    const int unit = c->depth / gcd(c->depth, c->width) * c->width;
    int found = 0, best = 0;
    for (int tile = unit; tile <= widest; tile += unit) {
        const int merit = 1 + 2 * (c->cols % tile == 0) + (tile * each % SECTOR == 0);
        const bool wide = tile * each >= bytes || tile == c->cols;
        if (wide && merit > best) {
            best = merit;
            found = tile;
        }
    }
    return found;
}

int strips_block_bytes(const cuda_spec *spec) {
    const size_t mailbox = spec->cluster > 1 ? MAILBOX_BYTES : 0;
    const size_t bytes = strips_shared_bytes(spec) + mailbox + BLOCK_RESERVE;
    return bytes < INT32_MAX ? (int)bytes : INT32_MAX;
}

int strips_pieces(const strips_tuning *t, cuda_spec *spec, int tile, int cluster) {
    groups_constants *c = &spec->groups;
    c->tile_channels = tile;
    c->lanes = tile / c->width;
    c->planes = LANES / c->lanes;
    spec->cluster = cluster;
    spec->cooperating_blocks = 1;
    c->piece = ceil_div(c->pixels, cluster);
    c->hold = 0;
    c->warps = t->most_warps;
    const int bytes = strips_block_bytes(spec);
    return (cluster - 1) * c->piece < c->pixels && bytes < INT32_MAX ? bytes : 0;
}

int strips_most_warps(const strips_tuning *t, const cuda_spec *spec) {
    const groups_constants *c = &spec->groups;
    const bool alone = strips_together(spec) == 1, many = is_backward(spec) || alone;
    const bool uneven = spec->type[ROLE_X] == DTYPE_BF16 && WARP % c->lanes;
    const bool again = sums_again(spec) && (uneven || !t->is_lean);
    const bool held = is_backward(spec) && alone && spec->activation != PLANISH_IDENTITY;
    const int normal = spec->activation != PLANISH_GELU   ? 0
                       : is_backward(spec) && !t->is_lean ? 2
                                                          : 1;
    return (many ? t->many_warps : t->forward_warps) -
           t->spilling * (again + (held || !t->is_lean) + normal);
}

int strips_room(const struct cuda_limits *limits) {
    return limits->shared_per_block + BLOCK_RESERVE;
}
