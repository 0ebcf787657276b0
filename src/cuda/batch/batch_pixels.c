/*
 * Of channels stored by pixel a block has neighbours in memory of 64 bytes or more, and as many
 * pixels as make work for the device. Where there are few bytes a cluster has some channels, and
 * where there are more one launch does all, if the device runs all blocks at once.
 */
#include "cuda/batch/batch_pixels.h"

#include "cuda/batch/batch_geometry.h"
#include "cuda/common/integers.h"
#include "cuda/common/lanes.h"

static bool is_backward(const cuda_spec *spec) {
    return spec->pass == PLANISH_BACKWARD;
}

/* Whether an activation's arithmetic leaves registers for more addresses and elements. */
static bool is_light(const cuda_spec *spec) {
    return spec->activation == PLANISH_IDENTITY || slope_jumps(spec->activation);
}

/* Threads of a block: the chunks of channels that are read together. As few lanes as can be idle,
 * but neighbours enough. */
static int lanes_of(const batch_tuning *t, int chunks, int chunk_bytes) {
    int best = 1;
    double best_waste = 0;
    for (int lanes = 1; lanes <= WARP; lanes *= 2) {
        const bool enough = lanes * chunk_bytes >= SEGMENT_BYTES || lanes >= chunks;
        const bool many = lanes > t->most_lanes && lanes / 2 * chunk_bytes >= SEGMENT_BYTES;
        const double waste = (double)ceil_div(chunks, lanes) * lanes / chunks;
        if (!enough || many || (best_waste > 0 && waste > best_waste))
            continue;
        best = lanes;
        best_waste = waste;
    }
    return best;
}

/* One launch of a block for each multiprocessor, as far as they go, where the device runs them all
 * at once; the three kernels have the same pieces, for the same bits. False where nothing is cut
 * so. */
static bool held_geometry(cuda_plan *plan, const batch_view *v, int bytes) {
    enum { BESIDE = 28 << 10 }; /* bytes of shared memory that hold no step */
    const batch_tuning *t = &plan->limits.tuning->batch;
    cuda_spec *spec = &plan->main;
    batch_constants *c = &spec->batch;
    const int threads = t->held_warps * WARP;
    const int64_t chunks = v->rows / c->width;
    c->lanes = lanes_of(t, (int)least_i64(chunks, 1 << 20), c->width * bytes);
    while (c->lanes * c->width > 64 && c->lanes * c->width * bytes > 128)
        c->lanes /= 2;
    const int64_t strips = ceil_div_i64(chunks, c->lanes);
    if (!threads || c->variant != BATCH_SUMS || strips > t->blocks || c->lanes * c->width < WARP ||
        c->lanes * c->width > threads / 4)
        return false;
    const int planes = threads / c->lanes, step = threads * batch_step_bytes(spec);
    const int64_t steps = ceil_div_i64(ceil_div_i64(plan->cols, t->blocks / strips), planes);
    const int64_t turns = most_i64(steps, t->least_steps);
    if (turns * step > t->held_bytes)
        return false;
    c->warps = t->held_warps;
    c->at_once =
        is_backward(spec)
            ? batch_at_once_within(turns, t->held_backward_at_once / 2, t->held_backward_at_once)
            : batch_at_once_within(turns, t->held_at_once / 2, t->held_at_once);
    spec->min_blocks = 1;
    plan->turns = turns * planes;
    const int room = least(t->hold_bytes, plan->limits.shared_per_block - BESIDE);
    const int64_t blocks = strips * batch_pieces(plan);
    if (!plan->limits.cooperative || blocks > plan->limits.multiprocessors)
        return true;
    plan->cooperative = *spec;
    plan->cooperative.cooperating_blocks = (int)blocks;
    plan->cooperative.batch.variant = BATCH_HELD;
    plan->cooperative.batch.held_come = t->held_come && !is_backward(spec);
    const bool many = is_backward(spec) && turns > t->held_few_turns * c->at_once;
    plan->cooperative.batch.ask_ahead = many && is_light(spec);
    plan->cooperative.batch.hold =
        c->at_once * (int)least_i64(room / step / c->at_once, ceil_div_i64(turns, c->at_once));
    return true;
}

/* Bytes of x, dy and what is beside them in a block of a cluster, at most. */
static int64_t most_bytes_of(const batch_tuning *t, const cuda_spec *spec, int cluster) {
    const bool light = !is_backward(spec) && spec->type[ROLE_ADDEND] == DTYPE_NONE;
    return cluster <= 2 && light ? t->strip_pair_bytes : t->strip_bytes;
}

/* A cluster has SEGMENT_BYTES of neighbours, of which its blocks hold all. Two of these find room
 * in a multiprocessor, or some clusters would wait for others: of 132 multiprocessors not all are
 * in whole clusters. As few blocks as hold it all and make work for the device: an exchange between
 * more costs more. */
static bool strip_geometry(cuda_plan *plan, const batch_view *v, int bytes) {
    enum { BLOCKS = 2, OF_ROW = 80, RESERVED = 1 << 10 };
    const batch_tuning *t = &plan->limits.tuning->batch;
    cuda_spec *spec = &plan->main;
    batch_constants *c = &spec->batch;
    const int rows = SEGMENT_BYTES / bytes, most_cluster = least(plan->limits.max_cluster, 16);
    const int64_t strips = ceil_div_i64(v->rows, rows);
    if (!t->strip_blocks || c->variant != BATCH_SUMS || c->width * bytes < 8)
        return false;
    const int64_t all_bytes = plan->cols * rows / c->width * batch_step_bytes(spec);
    int cluster = 1;
    while (cluster < most_cluster &&
           (strips * cluster < t->strip_blocks ||
            ceil_div_i64(all_bytes, cluster) > most_bytes_of(t, spec, cluster)))
        cluster *= 2;
    if (ceil_div_i64(all_bytes, cluster) > most_bytes_of(t, spec, cluster) ||
        strips * cluster > t->blocks)
        return false;
    c->variant = BATCH_WHOLE;
    c->lanes = rows / c->width;
    c->warps = t->threads / WARP;
    plan->turns = ceil_div_i64(plan->cols, cluster);
    const int64_t turns = ceil_div_i64(plan->turns, t->threads / c->lanes);
    const int largest = t->held_backward_at_once - !is_light(spec);
    c->at_once = is_backward(spec)
                     ? batch_at_once_within(turns, largest - 1, largest)
                     : batch_at_once_within(turns, t->held_at_once / 2, t->held_at_once);
    const int of_row = 32 * cluster + 3 * (int)real_bytes(spec) * c->warps + OF_ROW;
    const int beside = rows * of_row + RESERVED;
    const int room = least(t->hold_bytes / BLOCKS, plan->limits.shared_per_block / BLOCKS - beside);
    const int64_t fits = most(room, 0) / (t->threads * batch_step_bytes(spec)) / c->at_once;
    c->hold = c->at_once * (int)least_i64(fits, ceil_div_i64(turns, c->at_once));
    c->held_come = t->held_come && !is_backward(spec) && c->hold;
    spec->cluster = cluster;
    spec->min_blocks = BLOCKS;
    return true;
}

/* Three kernels, one after the other, or one of given moments. */
static void piece_geometry(cuda_plan *plan, const batch_view *v, int bytes) {
    const batch_tuning *t = &plan->limits.tuning->batch;
    cuda_spec *spec = &plan->main;
    batch_constants *c = &spec->batch;
    const int chunks = (int)least_i64(v->rows / c->width, 1 << 20);
    c->warps = t->threads / WARP;
    c->lanes = lanes_of(t, chunks, c->width * bytes);
    const int planes = t->threads / c->lanes;
    const int64_t strips = ceil_div_i64(v->rows / c->width, c->lanes);
    const int64_t wanted = ceil_div_i64((int64_t)t->blocks * spec->min_blocks, strips);
    const int64_t steps = ceil_div_i64(ceil_div_i64(plan->cols, wanted), planes);
    plan->turns =
        planes * most_i64(c->alone ? least_i64(steps, t->piece_steps) : steps, t->least_steps);
}

void batch_pixels_geometry(cuda_plan *plan, const batch_view *v) {
    const int x_bytes = role_bytes(&plan->main, ROLE_X);
    if (!strip_geometry(plan, v, x_bytes) && !held_geometry(plan, v, x_bytes))
        piece_geometry(plan, v, x_bytes);
}
