/*
 * How groups of channels are cut: rows that fit a block's shared memory, x and dy (backward),
 * images stored by pixel whose strips fit a cluster of blocks (strips.c), everything else in pieces
 * that are read twice. Pieces and segments follow from the sizes of an image and the dtypes alone.
 */
#include "groups_geometry.h"

#include "integers.h"
#include "strips.h"
#include "tiles.h"

enum { LEAST_CHUNK = 4 }; /* bytes, of strips: what a copy to shared memory takes */

static bool is_backward(const int32_t *c) {
    return c[C_PASS] == PLANISH_BACKWARD;
}

size_t groups_shared_bytes(const cuda_spec *spec) {
    const int32_t *c = spec->constant;
    if (spec->kernel == CUDA_STRIPS)
        return strips_shared_bytes(spec);
    if (c[C_STAGE] == STAGE_TILE)
        return tiles_shared_bytes(spec);
    if (c[C_STAGE] == STAGE_ROW) {
        const int part = c[C_DEPTH] / c[C_CLUSTER];
        const size_t row = (size_t)part * (size_t)c[C_PIXELS];
        const int chunks = ceil_div(c[C_PIXELS], c[C_WIDTH]);
        const int sums = 3 * part * ceil_div(chunks, c[C_PIECE]);
        return round_up(row * (size_t)constant_bytes(c, C_X_TYPE)) +
               round_up(row * (size_t)constant_bytes(c, C_G_TYPE)) +
               (size_t)(2 * part + sums) * sizeof(float); /* weights and biases */
    }
    if (c[C_STAGE] == STAGE_SUMS && c[C_LAST])
        return (size_t)(3 * c[C_PLANES] * c[C_LANES] * c[C_WIDTH]) * sizeof(float);
    return 0;
}

/* Elements of a chunk: a power of two that divides `run`, of at most 16 bytes. */
static int width_of(const int32_t *c, int run) {
    int bytes =
        most(constant_bytes(c, C_X_TYPE), constant_bytes(c, is_backward(c) ? C_D_TYPE : C_Y_TYPE));
    if (is_backward(c))
        bytes = most(bytes, constant_bytes(c, C_G_TYPE));
    int width = 16 / bytes;
    while (run % width)
        width /= 2;
    return width;
}

/* Warps of a block and chunks of a segment, so that all warps have about the same to do:
 * segment_cost is what a segment costs beside its chunks, in turns of a warp. */
static void set_segments(const groups_tuning *t, int32_t *c, int part, int chunks, int most_warps) {
    const int turns = ceil_div(chunks, 32);
    int best_cost = 0;
    for (int warps = most_warps / 2; warps <= most_warps; warps++)
        for (int cuts = 1; cuts <= turns && cuts <= 2 * most_warps; cuts++) {
            const int each = ceil_div(turns, cuts);
            const int cost = ceil_div(part * cuts, warps) * (each + t->segment_cost);
            if (best_cost && cost >= best_cost)
                continue;
            best_cost = cost;
            c[C_WARPS] = warps;
            c[C_PIECE] = 32 * each;
        }
}

/* A row at a time in a block, or in a cluster where a block does not hold it (or not two, of f32
 * with an activation, whose arithmetic one block would wait for); false where neither does. */
static bool row_geometry(cuda_plan *plan) {
    const groups_tuning *t = &plan->limits.tuning->groups;
    int32_t *c = plan->main.constant;
    c[C_STAGE] = STAGE_ROW;
    c[C_LANES] = 32;
    c[C_PLANES] = c[C_CLUSTER] = 1;
    c[C_WIDTH] = width_of(c, c[C_PIXELS]);
    const int chunks = c[C_PIXELS] / c[C_WIDTH];
    const size_t room = (size_t)plan->limits.shared_per_block - 1024;
    if (plan->cols > 1 << 20)
        return false;
    c[C_PIECE] = 32;
    const size_t whole = groups_shared_bytes(&plan->main);
    const bool slow = c[C_ACTIVATION] != PLANISH_IDENTITY && c[C_X_TYPE] == DTYPE_F32;
    const size_t blocks = whole > room ? t->row_blocks : slow ? 2 : 1;
    for (int more = 2; more <= least(t->most_row_cluster, plan->limits.max_cluster); more++)
        if (c[C_DEPTH] % more == 0 && blocks * groups_shared_bytes(&plan->main) > room)
            c[C_CLUSTER] = more;
    const int fits = (int)(room / groups_shared_bytes(&plan->main));
    if (!fits)
        return false;
    const int part = c[C_DEPTH] / c[C_CLUSTER];
    const int wanted = ceil_div(part * chunks, 32 * t->row_vecs);
    const int many = fits == 1 ? 20 : c[C_CLUSTER] == 1 ? 16 : fits < t->row_blocks ? 12 : 8;
    set_segments(t, c, part, chunks, most(2, least(wanted, many)));
    const size_t fit = (room + 2048) / (groups_shared_bytes(&plan->main) + 1536);
    const int threads = c[C_WARPS] > 12 && fits > 1 ? t->row_many_threads : t->row_threads;
    c[C_MIN_BLOCKS] = most(1, least((int)fit, threads / (32 * c[C_WARPS])));
    return true;
}

static bool strip_geometry(cuda_plan *plan) {
    int32_t *c = plan->main.constant;
    c[C_STAGE] = STAGE_ROW;
    c[C_WIDTH] = width_of(c, c[C_COLS]);
    return c[C_WIDTH] * constant_bytes(c, C_X_TYPE) >= LEAST_CHUNK &&
           strips_geometry(&plan->main, &plan->limits);
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
    int32_t *c = plan->main.constant;
    c[C_STAGE] = STAGE_APPLY;
    c[C_CLUSTER] = 1;
    c[C_WIDTH] = width_of(c, c[C_LAST] ? c[C_COLS] : c[C_PIXELS]);
    c[C_WARPS] = t->threads / 32;
    c[C_MIN_BLOCKS] = is_backward(c) ? t->backward_blocks : t->forward_blocks;
    if (c[C_LAST]) {
        c[C_LANES] = lanes_of(t, c[C_COLS] / c[C_WIDTH]);
        c[C_PLANES] = t->threads / c[C_LANES];
        const int pixel = c[C_LANES] * c[C_WIDTH] * constant_bytes(c, C_X_TYPE);
        const int turns = most(1, t->piece_bytes / pixel / (4 * c[C_PLANES]));
        c[C_PIECE] = least(c[C_PIXELS], 4 * turns * c[C_PLANES]);
    } else {
        c[C_LANES] = 32;
        c[C_PLANES] = 1;
        c[C_PIECE] = least(ceil_div(c[C_PIXELS], 32 * c[C_WIDTH]), t->most_steps) * 32 * c[C_WIDTH];
    }
}

void groups_set_geometry(cuda_plan *plan) {
    const int32_t *c = plan->main.constant;
    if (!(c[C_LAST] ? strip_geometry(plan) : is_backward(c) && row_geometry(plan)))
        piece_geometry(plan);
}
