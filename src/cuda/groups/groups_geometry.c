/*
 * How groups of channels are cut: rows that fit a block's shared memory, x and dy (backward),
 * images stored by pixel whose strips fit a cluster of blocks (strips.c), everything else in pieces
 * that are read twice. Pieces and segments follow from the sizes of an image and the dtypes alone.
 */
#include "cuda/groups/groups_geometry.h"

#include "cuda/common/integers.h"
#include "cuda/groups/strips.h"
#include "cuda/groups/tiles.h"

enum { LEAST_CHUNK = 4 }; /* bytes, of strips: what a copy to shared memory takes */

static bool is_backward(const cuda_spec *spec) {
    return spec->pass == PLANISH_BACKWARD;
}

/* Blocks that share a row. */
static int sharers(const cuda_spec *spec) {
    return spec->cooperating_blocks > 1 ? spec->cooperating_blocks : spec->cluster;
}

int groups_split(const cuda_spec *spec) {
    return ceil_div(sharers(spec), spec->groups.depth);
}

/* Channels of a row in a block, and its chunks of each. */
static int part_of(const cuda_spec *spec) {
    return most(spec->groups.depth / sharers(spec), 1);
}

static int part_chunks(const cuda_spec *spec) {
    const groups_constants *c = &spec->groups;
    const int chunks = ceil_div(c->pixels, c->width), split = groups_split(spec);
    return split > 1 ? ceil_div(chunks, split * WARP) * WARP : chunks;
}

size_t groups_shared_bytes(const cuda_spec *spec) {
    const groups_constants *c = &spec->groups;
    if (spec->kernel == CUDA_STRIPS)
        return strips_shared_bytes(spec);
    if (c->variant == GROUPS_IN_TILES)
        return tiles_shared_bytes(spec);
    if (c->variant == GROUPS_BY_ROW) {
        const int part = part_of(spec), chunks = part_chunks(spec);
        const size_t row = (size_t)part * (size_t)chunks * (size_t)c->width;
        const int sums = 3 * part * ceil_div(chunks, c->piece);
        const int known = (spec->cooperating_blocks > 1 ? 4 : 2) * part; /* weights and biases */
        return round_up(row * (size_t)role_bytes(spec, ROLE_X)) +
               round_up(row * (size_t)role_bytes(spec, ROLE_DY)) +
               (size_t)(known + sums) * sizeof(float);
    }
    if (c->variant == GROUPS_SUMS && c->last)
        return (size_t)(3 * c->planes * c->lanes * c->width) * sizeof(float);
    return 0;
}

/* Elements of a chunk: a power of two that divides `run`, of at most 16 bytes. */
static int width_of(const cuda_spec *spec, int run) {
    int bytes =
        most(role_bytes(spec, ROLE_X), role_bytes(spec, is_backward(spec) ? ROLE_DX : ROLE_Y));
    if (is_backward(spec))
        bytes = most(bytes, role_bytes(spec, ROLE_DY));
    int width = 16 / bytes;
    while (run % width)
        width /= 2;
    return width;
}

/* Warps of a block and chunks of a segment, so that all warps have about the same to do:
 * segment_cost is what a segment costs beside its chunks, in turns of a warp. */
static void set_segments(const groups_tuning *t, cuda_spec *spec, int part, int chunks,
                         int most_warps) {
    groups_constants *c = &spec->groups;
    const int turns = ceil_div(chunks, WARP);
    int best_cost = 0;
    for (int warps = most_warps / 2; warps <= most_warps; warps++)
        for (int cuts = 1; cuts <= turns && cuts <= 2 * most_warps; cuts++) {
            const int each = ceil_div(turns, cuts);
            const int cost = ceil_div(part * cuts, warps) * (each + t->segment_cost);
            if (best_cost && cost >= best_cost)
                continue;
            best_cost = cost;
            c->warps = warps;
            c->piece = WARP * each;
        }
}

/* A row at a time in a block, or in a cluster where a block does not hold it (or not two, of f32
 * with an activation, whose arithmetic one block would wait for); false where neither does. */
static bool row_geometry(cuda_plan *plan) {
    const groups_tuning *t = &plan->limits.tuning->groups;
    cuda_spec *spec = &plan->main;
    groups_constants *c = &spec->groups;
    c->variant = GROUPS_BY_ROW;
    c->lanes = WARP;
    c->planes = spec->cluster = 1;
    c->width = width_of(spec, c->pixels);
    const int chunks = c->pixels / c->width;
    const size_t room = (size_t)plan->limits.shared_per_block - 1024;
    if (plan->cols > 1 << 20)
        return false;
    c->piece = WARP;
    const size_t whole = groups_shared_bytes(&plan->main);
    const bool slow = spec->activation != PLANISH_IDENTITY && spec->type[ROLE_X] == DTYPE_F32;
    const size_t blocks = whole > room ? t->row_blocks : slow ? 2 : 1;
    for (int more = 2; more <= least(t->most_row_cluster, plan->limits.max_cluster); more++)
        if (c->depth % more == 0 && blocks * groups_shared_bytes(&plan->main) > room)
            spec->cluster = more;
    const int fits = (int)(room / groups_shared_bytes(&plan->main));
    if (!fits)
        return false;
    const int part = c->depth / spec->cluster;
    const int wanted = ceil_div(part * chunks, WARP * t->row_vecs);
    const int many = fits == 1 ? 20 : spec->cluster == 1 ? 16 : fits < t->row_blocks ? 12 : 8;
    set_segments(t, spec, part, chunks, most(2, least(wanted, many)));
    const size_t fit = (room + 2048) / (groups_shared_bytes(&plan->main) + 1536);
    const int threads = c->warps > 12 && fits > 1 ? t->row_many_threads : t->row_threads;
    spec->min_blocks = most(1, least((int)fit, threads / (WARP * c->warps)));
    return true;
}

/* A row over blocks anywhere, of which a multiprocessor has `fit`. Returns what an image costs, in
 * bytes that a multiprocessor moves; 0 where there is no room. */
static int64_t cut_anywhere(const groups_tuning *t, cuda_spec *spec, const cuda_limits *limits,
                            int blocks, int fit) {
    groups_constants *c = &spec->groups;
    const int held = limits->multiprocessors * fit / blocks;
    if ((c->depth % blocks && blocks % c->depth) || held < t->anywhere_rows)
        return 0;
    spec->cooperating_blocks = blocks;
    spec->min_blocks = fit;
    const int chunks = part_chunks(spec);
    if ((int64_t)(groups_split(spec) - 1) * chunks * c->width >=
        c->pixels) /* the last would have none */
        return 0;
    set_segments(t, spec, part_of(spec), chunks, least(t->row_threads / WARP / fit, 16));
    const size_t bytes = groups_shared_bytes(spec);
    if ((bytes + 2048) * (size_t)fit > (size_t)limits->shared_per_block + 1024)
        return 0;
    return ((int64_t)bytes * fit + t->anywhere_wait_bytes) * 1024 / held;
}

/* Rows that no cluster holds, over the fewest blocks that fill the device. */
static bool anywhere_geometry(cuda_spec *spec, const cuda_limits *limits) {
    const groups_tuning *t = &limits->tuning->groups;
    cuda_spec made = *spec, best = *spec;
    int64_t best_cost = 0;
    made.groups.variant = GROUPS_BY_ROW;
    made.groups.lanes = WARP;
    made.groups.planes = made.cluster = 1;
    made.groups.width = width_of(spec, spec->groups.pixels);
    if (made.groups.width * role_bytes(spec, ROLE_X) < LEAST_CHUNK)
        return false;
    for (int fit = t->anywhere_blocks; fit >= 1 && !best_cost; fit--)
        for (int blocks = 2; blocks <= limits->multiprocessors * fit; blocks++) {
            const int64_t cost = cut_anywhere(t, &made, limits, blocks, fit);
            if (!cost || (best_cost && cost >= best_cost))
                continue;
            best_cost = cost;
            best = made;
        }
    *spec = best;
    return best_cost > 0;
}

/* Begins a spec of strips; false where chunks are too narrow for that. */
static bool begin_strips(cuda_spec *spec) {
    groups_constants *c = &spec->groups;
    c->variant = GROUPS_BY_ROW;
    c->width = width_of(spec, c->cols);
    return c->width * role_bytes(spec, ROLE_X) >= LEAST_CHUNK;
}

bool groups_large_geometry(cuda_spec *spec, const cuda_limits *limits) {
    cuda_spec made = *spec;
    /* A block alone in its multiprocessor is slower than smaller ones. */
    const bool alone = spec->cluster > 1 && spec->min_blocks == 1;
    if (!limits->cooperative || (spec->groups.variant == GROUPS_BY_ROW && !alone))
        return false;
    if (!spec->groups.last ? !is_backward(spec) || !anywhere_geometry(&made, limits)
                           : !begin_strips(&made) || !strips_large_geometry(&made, limits))
        return false;
    *spec = made;
    return true;
}

/* Channels of an image in equal strips of at most most_lanes chunks, where they divide so. */
static int lanes_of(const groups_tuning *t, int chunks) {
    const int strips = ceil_div(chunks, t->most_lanes);
    for (int more = strips; more < 2 * strips; more++)
        if (chunks % more == 0)
            return chunks / more;
    return ceil_div(chunks, strips);
}

static void piece_geometry(cuda_plan *plan) {
    const groups_tuning *t = &plan->limits.tuning->groups;
    cuda_spec *spec = &plan->main;
    groups_constants *c = &spec->groups;
    c->variant = GROUPS_APPLY;
    spec->cluster = 1;
    c->width = width_of(spec, c->last ? c->cols : c->pixels);
    c->warps = t->threads / WARP;
    spec->min_blocks = is_backward(spec) ? t->backward_blocks : t->forward_blocks;
    if (c->last) {
        c->lanes = lanes_of(t, c->cols / c->width);
        c->planes = t->threads / c->lanes;
        const int pixel = c->lanes * c->width * role_bytes(spec, ROLE_X);
        const int turns = most(1, t->piece_bytes / pixel / (4 * c->planes));
        c->piece = least(c->pixels, 4 * turns * c->planes);
    } else {
        c->lanes = WARP;
        c->planes = 1;
        c->piece = least(ceil_div(c->pixels, WARP * c->width), t->most_steps) * WARP * c->width;
    }
}

void groups_set_geometry(cuda_plan *plan) {
    const cuda_spec *spec = &plan->main;
    const groups_constants *c = &spec->groups;
    if (!(c->last ? begin_strips(&plan->main) && strips_geometry(&plan->main, &plan->limits)
                  : is_backward(spec) && row_geometry(plan)))
        piece_geometry(plan);
}
