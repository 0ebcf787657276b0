/*
 * Of channels stored by pixel a block has neighbours in memory of 64 bytes or more, and as many
 * pixels as make work for the device. Of rows in runs a cluster has one, where its blocks may hold
 * their parts; else they are read twice, in pieces of one size.
 */
#include "cuda/batch/batch_geometry.h"

#include "cuda/common/integers.h"
#include "cuda/common/lanes.h"

static bool is_backward(const cuda_spec *spec) {
    return spec->pass == PLANISH_BACKWARD;
}

int batch_out_bytes(const cuda_spec *spec) {
    return role_bytes(spec, is_backward(spec) ? ROLE_DX : ROLE_Y);
}

int64_t batch_steps(const cuda_plan *plan) {
    const batch_constants *c = &plan->main.batch;
    return c->last ? plan->cols : plan->cols / c->width;
}

int64_t batch_pieces(const cuda_plan *plan) {
    return ceil_div_i64(batch_steps(plan), plan->turns);
}

/* Bytes of x, and of dy, of a step. */
static int step_bytes(const cuda_spec *spec) {
    return spec->batch.width *
           (role_bytes(spec, ROLE_X) + (is_backward(spec) ? role_bytes(spec, ROLE_DY) : 0));
}

size_t batch_shared_bytes(const cuda_spec *spec) {
    const batch_constants *c = &spec->batch;
    return (size_t)c->hold * (size_t)(c->warps * WARP) * (size_t)step_bytes(spec);
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

/* Of a multiprocessor. */
static int threads_in(const batch_tuning *t, const cuda_spec *spec) {
    const bool active = spec->activation != PLANISH_IDENTITY;
    if (spec->real_double || (is_backward(spec) && active))
        return t->few_threads;
    const bool slow = spec->activation == PLANISH_GELU || spec->activation == PLANISH_GELU_TANH;
    return is_backward(spec) || slow ? t->some_threads : t->many_threads;
}

/* Channels are neighbours. */
static void pixel_geometry(cuda_plan *plan, const batch_view *v, int bytes) {
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
    plan->turns = planes * most_i64(steps, t->least_steps);
}

/* The blocks that share a row whole, and their warps, so that few of them are idle in the last
 * turn; false where no cluster may hold it. */
static bool whole_geometry(cuda_plan *plan) {
    const batch_tuning *t = &plan->limits.tuning->batch;
    cuda_spec *spec = &plan->main;
    batch_constants *c = &spec->batch;
    const int64_t steps = batch_steps(plan), bytes = steps * step_bytes(spec);
    const int most_cluster = least(plan->limits.max_cluster, 16);
    int cluster = 1;
    while (2 * cluster <= most_cluster && bytes > (int64_t)cluster * t->part_bytes)
        cluster *= 2;
    const int64_t part = ceil_div_i64(steps, cluster);
    if (part * step_bytes(spec) > t->whole_bytes)
        return false;
    double best = 0;
    const int room_for = threads_in(t, spec);
    for (int warps = least(t->most_warps, room_for / (2 * WARP)); warps >= 4; warps--) {
        const int threads = warps * WARP;
        const int64_t turns = ceil_div_i64(part, threads);
        /* A turn more costs as much as what is idle in it; short rows are for small blocks. */
        const double cost =
            (double)(turns * threads) / (double)part + (turns < c->at_once ? .1 : 0);
        if (best > 0 && cost >= best - .01)
            continue;
        best = cost;
        c->warps = warps;
    }
    const int threads = c->warps * WARP;
    const int blocks = most(1, room_for / threads);
    const int room = least(t->hold_bytes, plan->limits.shared_per_block) / blocks - 2048;
    const int fits = room / (threads * step_bytes(spec)) / c->at_once * c->at_once;
    const int turns = (int)ceil_div_i64(part, threads);
    c->variant = BATCH_WHOLE;
    c->hold = least(fits, ceil_div(turns, c->at_once) * c->at_once);
    spec->cluster = cluster;
    spec->min_blocks = blocks;
    plan->turns = part;
    return true;
}

static void run_geometry(cuda_plan *plan) {
    const batch_tuning *t = &plan->limits.tuning->batch;
    batch_constants *c = &plan->main.batch;
    c->lanes = 1;
    if (plan->main.pass != PLANISH_APPLY && whole_geometry(plan))
        return;
    c->warps = t->threads / WARP;
    plan->turns = least_i64((int64_t)t->threads * t->piece_steps, batch_steps(plan));
}

void batch_set_geometry(cuda_plan *plan, const batch_view *v) {
    const gpu_tuning *t = plan->limits.tuning;
    cuda_spec *spec = &plan->main;
    batch_constants *c = &spec->batch;
    int bytes = most(role_bytes(spec, ROLE_X), batch_out_bytes(spec));
    if (is_backward(spec))
        bytes = most(bytes, role_bytes(spec, ROLE_DY));
    c->last = v->last;
    c->width = chunk_width(v->last ? v->rows : v->run, bytes, 16);
    c->at_once = !is_backward(spec)                       ? t->batch.at_once
                 : spec->activation == PLANISH_IDENTITY ? t->batch.backward_at_once
                                                        : t->batch.active_at_once;
    c->variant = spec->pass == PLANISH_APPLY ? BATCH_APPLY : BATCH_SUMS;
    spec->cluster = 1;
    spec->min_blocks = threads_in(&t->batch, spec) / t->batch.threads;
    if (v->last)
        pixel_geometry(plan, v, role_bytes(spec, ROLE_X));
    else
        run_geometry(plan);
}
