/*
 * Of rows in runs a cluster has one, where its blocks may hold their parts; else they are read
 * twice, in pieces of one size. Of short runs a cluster has those of some neighbouring rows, which
 * are read together.
 */
#include "cuda/batch/batch_geometry.h"

#include "cuda/batch/batch_pixels.h"
#include "cuda/common/integers.h"
#include "cuda/common/lanes.h"

static bool is_backward(const cuda_spec *spec) {
    return spec->pass == PLANISH_BACKWARD;
}

int64_t batch_steps(const cuda_plan *plan) {
    const batch_constants *c = &plan->main.batch;
    return c->last ? plan->cols : plan->cols / (c->pixels ? c->pixels : c->width);
}

int64_t batch_pieces(const cuda_plan *plan) {
    return ceil_div_i64(batch_steps(plan), plan->turns);
}

bool batch_leaves_gradient(const cuda_spec *spec) {
    return is_backward(spec) && !spec->batch.alone && spec->activation == PLANISH_RELU &&
           spec->type[ROLE_DADDEND] != DTYPE_NONE &&
           spec->type[ROLE_DADDEND] == spec->type[ROLE_DY];
}

static int bytes_if(const cuda_spec *spec, role r) {
    return spec->type[r] == DTYPE_NONE ? 0 : role_bytes(spec, r);
}

int batch_step_bytes(const cuda_spec *spec) {
    int bytes = role_bytes(spec, ROLE_X);
    if (is_backward(spec))
        bytes += role_bytes(spec, ROLE_DY);
    if (is_backward(spec) && spec->activation != PLANISH_IDENTITY && !batch_leaves_gradient(spec))
        bytes += bytes_if(spec, ROLE_ADDEND) + bytes_if(spec, ROLE_Y);
    return spec->batch.width * bytes;
}

size_t batch_shared_bytes(const cuda_spec *spec) {
    const batch_constants *c = &spec->batch;
    const int workers = c->warps * WARP / c->lanes * c->lanes;
    return (size_t)c->hold * (size_t)workers * (size_t)batch_step_bytes(spec);
}

/* Of a multiprocessor. */
static int threads_in(const batch_tuning *t, const cuda_spec *spec) {
    const bool active = spec->activation != PLANISH_IDENTITY;
    const bool light = batch_leaves_gradient(spec) && spec->type[ROLE_Y] != DTYPE_NONE;
    if (spec->real_double || (is_backward(spec) && active && !light))
        return t->few_threads;
    const bool slow = active && !slope_jumps(spec->activation);
    return is_backward(spec) || slow ? t->some_threads : t->many_threads;
}

int batch_at_once_within(int64_t turns, int fewest, int largest) {
    int best = fewest;
    int64_t best_turns = INT64_MAX;
    for (int each = fewest; each <= largest; each++) {
        const int64_t all = ceil_div_i64(turns, each) * each;
        if (all > best_turns)
            continue;
        best_turns = all;
        best = each;
    }
    return best;
}

static int at_once_of(const batch_tuning *t, const cuda_spec *spec, int64_t turns) {
    const bool back = is_backward(spec), active = spec->activation != PLANISH_IDENTITY;
    const bool light = !active || (!back && slope_jumps(spec->activation));
    const int fewest = back && active ? t->active_at_once : back ? t->backward_at_once : t->at_once;
    return batch_at_once_within(turns, fewest,
                                !light ? fewest
                                : back ? fewest + 1
                                       : t->most_at_once);
}

/* Warps of a block, of `most` at most, so that few of its threads are idle in the last turn. */
static int warps_of(int64_t part, int largest) {
    int best = largest;
    double best_cost = 0;
    for (int warps = largest; warps >= 4; warps--) {
        const int threads = warps * WARP;
        const double cost = (double)(ceil_div_i64(part, threads) * threads) / (double)part;
        if (best_cost > 0 && cost >= best_cost - .01)
            continue;
        best_cost = cost;
        best = warps;
    }
    return best;
}

/* The blocks that share a row whole, and what they hold of it; false where no cluster may. Two
 * blocks in a multiprocessor at least: one reads while the other writes. */
static bool whole_geometry(cuda_plan *plan) {
    const batch_tuning *t = &plan->limits.tuning->batch;
    cuda_spec *spec = &plan->main;
    batch_constants *c = &spec->batch;
    const int64_t steps = batch_steps(plan), bytes = steps * batch_step_bytes(spec);
    const int most_cluster = least(plan->limits.max_cluster, 16), threads = threads_in(t, spec);
    int cluster = 1;
    while (2 * cluster <= most_cluster && bytes > (int64_t)cluster * t->part_bytes)
        cluster *= 2;
    const int64_t part = ceil_div_i64(steps, cluster), part_bytes = part * batch_step_bytes(spec);
    if (part_bytes > t->whole_bytes)
        return false;
    int blocks = most(2, threads / t->threads);
    while (blocks > 2 && blocks * part_bytes > t->hold_bytes)
        blocks--;
    c->warps = warps_of(part, least(t->most_warps, threads / blocks / WARP));
    const int64_t turns = ceil_div_i64(part, c->warps * WARP);
    c->at_once = at_once_of(t, spec, turns);
    const int room = least(t->hold_bytes, plan->limits.shared_per_block - 4096) / blocks;
    const int fits = room / (c->warps * WARP * batch_step_bytes(spec)) / c->at_once;
    c->variant = BATCH_WHOLE;
    c->hold = c->at_once * (int)least_i64(fits, ceil_div_i64(turns, c->at_once));
    spec->cluster = cluster;
    spec->min_blocks = blocks;
    plan->turns = part;
    /* Asking for all of it first costs a backward more than it hides, but where there is an
     * activation's arithmetic, or where most rows find others under way. */
    const int64_t waves = plan->rows * cluster / ((int64_t)plan->limits.multiprocessors * blocks);
    const bool worth = !is_backward(spec) || spec->activation != PLANISH_IDENTITY || waves > 1;
    c->held_come = t->held_come && worth && c->hold && !batch_leaves_gradient(spec);
    return true;
}

/* Of a multiprocessor that has slabs, whose threads have constants of WIDTH places. */
static int slab_threads(const batch_tuning *t, const cuda_spec *spec) {
    const bool slow = spec->activation != PLANISH_IDENTITY && spec->activation != PLANISH_RELU;
    if (spec->batch.width <= 4)
        return threads_in(t, spec);
    if (is_backward(spec))
        return t->slab_few_threads;
    return slow || spec->type[ROLE_ADDEND] != DTYPE_NONE ? t->slab_some_threads
                                                         : t->slab_many_threads;
}

static int slab_at_once(const batch_tuning *t, const cuda_spec *spec, int64_t turns) {
    const bool masked = is_backward(spec) && spec->activation != PLANISH_IDENTITY;
    if (masked && spec->type[ROLE_Y] == DTYPE_NONE)
        return t->active_at_once;
    const int largest = masked ? t->slab_masked_at_once : t->slab_at_once;
    return batch_at_once_within(turns, largest - 1, largest);
}

/* Warps of a block that has `images` of a slab, `largest` at most, steps under way and steps held
 * in `room` bytes: so that few threads are idle, few steps are none, and few are read again. */
static void share_images(const batch_tuning *t, cuda_spec *spec, int largest, int64_t images,
                         int room) {
    enum { LEAST_WARPS = 4 };
    batch_constants *c = &spec->batch;
    double best_cost = 0;
    for (int warps = largest; warps >= most(LEAST_WARPS, ceil_div(c->lanes, WARP)); warps--) {
        const int planes = warps * WARP / c->lanes,
                  step = planes * c->lanes * batch_step_bytes(spec);
        const int64_t turns = ceil_div_i64(images, planes);
        const int at_once = slab_at_once(t, spec, turns);
        const int64_t all = ceil_div_i64(turns, at_once);
        const int64_t held = least_i64(room / step / at_once, all);
        const double again = (double)(all - held) / (double)all;
        const double cost = (double)(warps * at_once * all) * (1 + again);
        if (best_cost > 0 && cost >= .99 * best_cost)
            continue;
        best_cost = cost;
        c->warps = warps;
        c->at_once = at_once;
        c->hold = at_once * (int)held;
    }
}

/* The blocks that share a slab of so many rows, and what they hold of it; false where no cluster
 * may. */
static bool slabs_whole(cuda_plan *plan, int64_t slabs, int rows) {
    enum {
        BESIDE = 20 << 10, /* bytes of shared memory that hold no step */
        MOST_SENT = 128    /* sums of rows that a block is told */
    };
    const batch_tuning *t = &plan->limits.tuning->batch;
    cuda_spec *spec = &plan->main;
    batch_constants *c = &spec->batch;
    const int most_cluster = least(plan->limits.max_cluster, 16), threads = slab_threads(t, spec);
    const int64_t images = batch_steps(plan), image_bytes = c->lanes * batch_step_bytes(spec);
    int cluster = 1;
    while (2 * cluster <= most_cluster && 2 * cluster * rows <= MOST_SENT &&
           (images * image_bytes > cluster * t->slab_part_bytes ||
            (slabs * cluster < t->slab_blocks &&
             images * image_bytes >= 2 * cluster * t->slab_least_bytes)))
        cluster *= 2;
    const int64_t part = ceil_div_i64(images, cluster), part_bytes = part * image_bytes;
    if (part_bytes > t->whole_bytes)
        return false;
    const int least_threads = most(t->threads / 2, ceil_div(c->lanes, WARP) * WARP);
    int blocks = (int)least_i64(ceil_div_i64(slabs * cluster, t->blocks), threads / least_threads);
    while (blocks > 2 && blocks * part_bytes > t->hold_bytes)
        blocks--;
    blocks = most(blocks, least(2, threads / least_threads));
    const int room = least(t->hold_bytes, most(plan->limits.shared_per_block - BESIDE, 0)) / blocks;
    share_images(t, spec, least(t->most_warps, threads / blocks / WARP), part, room);
    c->variant = BATCH_WHOLE;
    spec->cluster = cluster;
    spec->min_blocks = blocks;
    plan->turns = part;
    return true;
}

/* Pieces of slabs whose moments are given: of as many images each. */
static void slab_pieces(cuda_plan *plan, int64_t slabs) {
    const batch_tuning *t = &plan->limits.tuning->batch;
    cuda_spec *spec = &plan->main;
    const int planes = t->threads / spec->batch.lanes;
    const int64_t images = batch_steps(plan);
    spec->min_blocks = slab_threads(t, spec) / t->threads;
    const int64_t wanted = ceil_div_i64((int64_t)t->blocks * spec->min_blocks, slabs);
    const int64_t part = most_i64(least_i64(ceil_div_i64(images, wanted), planes * t->piece_steps),
                                  planes * t->least_steps);
    plan->turns = ceil_div_i64(images, ceil_div_i64(images, part));
    share_images(t, spec, t->threads / WARP, plan->turns, 0);
}

/* Runs that no wide chunks divide, but those of some neighbours together, or that are shorter than
 * what is read at once: whether the geometry is that. A chunk has elements of two rows at most. */
static bool slab_geometry(cuda_plan *plan, const batch_view *v, int bytes) {
    const batch_tuning *t = &plan->limits.tuning->batch;
    cuda_spec *spec = &plan->main;
    const cuda_spec before = *spec;
    batch_constants *c = &spec->batch;
    const int64_t places = v->rows * v->run;
    if (!v->has_slabs || v->run > t->slab_lanes * c->width || places > INT32_MAX)
        return false;
    int width = chunk_width(places, bytes, 16);
    while (width > v->run)
        width /= 2;
    if (width == c->width && v->run * role_bytes(spec, ROLE_X) >= t->slab_run_bytes)
        return false;
    int rows = width / c->width;
    while (rows * v->run * role_bytes(spec, ROLE_X) < t->slab_line_bytes && 2 * rows <= v->rows)
        rows *= 2;
    c->lanes = rows * (int)v->run / width;
    c->width = width;
    c->pixels = (int)v->run;
    const int64_t slabs = ceil_div_i64(v->rows, rows);
    bool taken = c->lanes <= t->slab_lanes;
    if (taken && c->variant == BATCH_APPLY)
        slab_pieces(plan, slabs);
    else if (taken)
        taken = slabs_whole(plan, slabs, rows);
    if (!taken)
        *spec = before;
    return taken;
}

static void run_geometry(cuda_plan *plan, const batch_view *v, int bytes) {
    const batch_tuning *t = &plan->limits.tuning->batch;
    batch_constants *c = &plan->main.batch;
    if (slab_geometry(plan, v, bytes))
        return;
    c->lanes = 1;
    if (c->variant != BATCH_APPLY && whole_geometry(plan))
        return;
    c->warps = t->threads / WARP;
    /* A short row leaves the other threads idle. */
    while (c->alone && c->warps > 1 && c->warps * WARP / 2 >= batch_steps(plan))
        c->warps /= 2;
    plan->turns = least_i64((int64_t)t->threads * t->piece_steps, batch_steps(plan));
}

void batch_set_geometry(cuda_plan *plan, const batch_view *v) {
    const gpu_tuning *t = plan->limits.tuning;
    cuda_spec *spec = &plan->main;
    batch_constants *c = &spec->batch;
    int bytes = 1;
    for (role r = 0; r < ROLE_COUNT; r++)
        if (axes_of(r) == AXES_FULL)
            bytes = most(bytes, bytes_if(spec, r));
    c->last = v->last;
    c->width = chunk_width(v->last ? v->inner_rows : v->run, bytes, 16);
    c->at_once = at_once_of(&t->batch, spec, 1);
    c->alone = c->frozen || spec->type[ROLE_C2] != DTYPE_NONE || spec->pass == PLANISH_APPLY;
    c->alone = c->alone && !spec->want_dweight && !spec->want_dbias;
    c->variant = c->alone ? BATCH_APPLY : BATCH_SUMS;
    spec->cluster = 1;
    spec->min_blocks = threads_in(&t->batch, spec) / t->batch.threads;
    if (v->last)
        batch_pixels_geometry(plan, v);
    else
        run_geometry(plan, v, bytes);
}
