/*
 * In one read: images stored by pixel in strips (strips.c), the backward of rows that fit a block's
 * shared memory, and rows in tiles (tiles.c). Everything else in two (groups_geometry.c).
 */
#include "groups.h"

#include <stdio.h>
#include <string.h>

#include "finish.h"
#include "groups_geometry.h"
#include "images.h"
#include "integers.h"
#include "rows.h"
#include "strips.h"
#include "tiles.h"

enum { MOST_GRID = 1 << 30 };

static bool is_backward(const int32_t *c) {
    return c[C_PASS] == PLANISH_BACKWARD;
}

static int images_of(const cuda_plan *plan) {
    return (int)(plan->rows / plan->main.constant[C_GROUPS]);
}

static bool reads_once(const int32_t *c) {
    return c[C_STAGE] == STAGE_ROW || c[C_STAGE] == STAGE_TILE;
}

static int64_t pieces_of(const int32_t *c) {
    return reads_once(c) ? 0 : ceil_div(c[C_PIXELS], c[C_PIECE]);
}

static size_t sums_bytes(const cuda_plan *plan) {
    const int32_t *c = plan->main.constant;
    return (size_t)images_of(plan) * (size_t)pieces_of(c) * 3 * (size_t)c[C_COLS] * sizeof(float);
}

static size_t moments_bytes(const cuda_plan *plan) {
    return reads_once(plan->main.constant) ? 0 : (size_t)plan->rows * 8 * sizeof(float);
}

/* The kernel that runs where the device holds it. */
static const cuda_spec *first_of(const cuda_plan *plan) {
    return plan->wide.kernel >= 0 ? &plan->wide : &plan->main;
}

/* Of dweight and dbias: one of each image, or of each of its blocks; of tiles, of those images that
 * have blocks of their own. */
static int64_t partial_rows(const cuda_plan *plan, const cuda_spec *spec) {
    if (spec->constant[C_STAGE] == STAGE_TILE)
        return tiles_images_at_once(spec, images_of(plan), &plan->limits);
    return images_of(plan) * (spec->kernel == CUDA_STRIPS ? strips_blocks(spec) : 1);
}

static int64_t strips_held(const cuda_plan *plan, const cuda_spec *spec) {
    return strips_at_once(spec, images_of(plan), &plan->limits);
}

/* Rounded, as partial sums follow. */
static size_t mail_bytes(const cuda_plan *plan, const cuda_spec *spec) {
    if (spec->kernel != CUDA_STRIPS || spec->constant[C_GROUP] <= 1)
        return 0;
    return round_up((size_t)strips_held(plan, spec) * strips_mail_bytes(spec));
}

static void groups_plan_size(cuda_plan *plan) {
    const int32_t *c = plan->main.constant;
    plan->partials = partial_rows(plan, &plan->main);
    if (plan->wide.kernel >= 0 && partial_rows(plan, &plan->wide) > plan->partials)
        plan->partials = partial_rows(plan, &plan->wide);
    plan->workspace_bytes = sums_bytes(plan) + moments_bytes(plan) +
                            mail_bytes(plan, first_of(plan)) +
                            (size_t)plan->partials * (size_t)c[C_COLS] * sizeof(float) *
                                (size_t)(c[C_WANT_DWEIGHT] + c[C_WANT_DBIAS]);
}

/* Describes the problem; false where it is none for these kernels. */
static bool describe(cuda_plan *plan, const problem *p, const image_view *v) {
    if (problem_is_double(p) || v->images > MOST_GRID)
        return false;
    int32_t *c = plan->main.constant;
    images_describe(plan, p, v, CUDA_GROUPS);
    c[C_GROUPS] = (int)v->groups;
    c[C_DEPTH] = (int)v->depth;
    c[C_LAST] |= v->pixels == 1;
    c[C_CLUSTER] = 1;
    return true;
}

/* Where rows go in tiles, forward and backward (tiles.h). */
static bool tiles_plan_make(cuda_plan *plan, const problem *p, const image_view *v) {
    if (describe(plan, p, v) && !plan->main.constant[C_LAST] &&
        tiles_geometry(&plan->main, &plan->limits)) {
        const int32_t *c = plan->main.constant;
        groups_plan_size(plan);
        if (c[C_WANT_DWEIGHT] || c[C_WANT_DBIAS])
            cuda_plan_finish(plan, p, c[C_COLS], plan->partials);
        return true;
    }
    memset(&plan->main, 0, sizeof plan->main);
    return false;
}

/* Strips, rows or pieces. */
static bool other_plan_make(cuda_plan *plan, const problem *p, const image_view *v) {
    if (!describe(plan, p, v))
        return false;
    const int32_t *c = plan->main.constant;
    groups_set_geometry(plan);
    plan->wide = plan->main;
    if (plan->main.kernel != CUDA_STRIPS ||
        !strips_shared_geometry(&plan->wide, v->images, &plan->limits))
        plan->wide.kernel = -1;
    groups_plan_size(plan);
    if (c[C_WANT_DWEIGHT] || c[C_WANT_DBIAS])
        cuda_plan_finish(plan, p, c[C_COLS], plan->partials);
    return true;
}

static bool groups_plan_make(cuda_plan *plan, const problem *p) {
    image_view v;
    return images_of_groups(&v, p) &&
           (tiles_plan_make(plan, p, &v) || group_rows_plan_make(plan, p, &v) ||
            other_plan_make(plan, p, &v));
}

static int groups_plan_describe(const cuda_plan *plan, char *text, size_t bytes) {
    const int32_t *c = first_of(plan)->constant;
    return snprintf(text, bytes,
                    "cuda groups %s %dx%dx%dx%d%s: %s, chunks of %d, %d lanes x %d planes, "
                    "pieces of %d, %d warps, cluster %d, group %d",
                    is_backward(c) ? "backward" : "forward", images_of(plan), c[C_GROUPS],
                    c[C_DEPTH], c[C_PIXELS], c[C_LAST] ? " channels last" : "",
                    c[C_STAGE] == STAGE_TILE  ? "tiles"
                    : c[C_STAGE] == STAGE_ROW ? "one read"
                                              : "two reads",
                    c[C_WIDTH], c[C_LANES], c[C_PLANES], c[C_PIECE], c[C_WARPS], c[C_CLUSTER],
                    c[C_GROUP]);
}

/* ---- Launches ----------------------------------------------------------------------------------
 */

/* Alignment of a tensor's rows: of an image, of a group of it, or of the channels of a pixel. */
static int32_t access_of(const cuda_plan *plan, void *const *buffers, role r, int bytes) {
    const int32_t *c = first_of(plan)->constant;
    uint64_t bits = (uint64_t)(uintptr_t)buffers[r] | (uint64_t)(plan->stride[r] * bytes);
    const int64_t run = c[C_LAST] ? c[C_COLS]
                        : c[C_STAGE] == STAGE_TILE
                            ? (int64_t)(c[C_CLUSTER] > 1 ? 1 : c[C_ROWS] * c[C_DEPTH]) * c[C_PIXELS]
                        : c[C_STAGE] == STAGE_ROW
                            ? (int64_t)(c[C_DEPTH] / c[C_CLUSTER]) * c[C_PIXELS]
                            : c[C_PIXELS];
    bits |= (uint64_t)(run * bytes);
    if (plan->main.kernel == CUDA_STRIPS)
        bits |= (uint64_t)(c[C_TILE] * bytes);
    return common_alignment(bits);
}

static cuda_spec stage_of(const cuda_plan *plan, void *const *buffers, int stage) {
    const groups_tuning *t = &plan->limits.tuning->groups;
    cuda_spec spec = *first_of(plan);
    int32_t *c = spec.constant;
    c[C_STAGE] = stage;
    if (!is_backward(c) && (stage == STAGE_SUMS || stage == STAGE_MOMENTS))
        c[C_ACTIVATION] = PLANISH_IDENTITY;
    if (stage == STAGE_MOMENTS) {
        const int64_t entries = c[C_DEPTH] * (is_backward(c) ? 1 : pieces_of(plan->main.constant));
        c[C_WARPS] = entries <= 128 ? 1 : entries <= 2048 ? 4 : 16;
        c[C_MIN_BLOCKS] = 1;
    }
    /* Chunks of several rows hold the moments of each. */
    if (stage == STAGE_APPLY && c[C_LAST] && c[C_DEPTH] % c[C_WIDTH])
        c[C_MIN_BLOCKS] = least(c[C_MIN_BLOCKS], t->mixed_blocks);
    c[C_X_ACCESS] = access_of(plan, buffers, ROLE_X, constant_bytes(c, C_X_TYPE));
    c[C_Y_ACCESS] = access_of(plan, buffers, ROLE_Y, constant_bytes(c, C_Y_TYPE));
    c[C_G_ACCESS] = access_of(plan, buffers, ROLE_DY, constant_bytes(c, C_G_TYPE));
    c[C_D_ACCESS] = access_of(plan, buffers, ROLE_DX, constant_bytes(c, C_D_TYPE));
    if (stage == STAGE_TILE)
        c[C_HOLD] =
            images_lie_as_x(plan, buffers, images_of(plan), is_backward(c) ? ROLE_DX : ROLE_Y);
    return spec;
}

static int groups_launch_specs(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                               cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    const int32_t *c = plan->main.constant;
    int count = 0;
    if (reads_once(c)) {
        launches[count++].spec = stage_of(plan, buffers, c[C_STAGE]);
    } else {
        launches[count++].spec = stage_of(plan, buffers, STAGE_SUMS);
        launches[count++].spec = stage_of(plan, buffers, STAGE_MOMENTS);
        if (!is_backward(c) || c[C_D_TYPE] != DTYPE_NONE)
            launches[count++].spec = stage_of(plan, buffers, STAGE_APPLY);
    }
    if (plan->finish.kernel >= 0)
        launches[count++].spec = plan->finish;
    return count;
}

/* Blocks of strips: a cluster for each strip; of those that live on, as many as the device holds at
 * once. */
static int64_t strips_grid(const cuda_plan *plan, int resident) {
    const cuda_spec *spec = first_of(plan);
    if (spec->constant[C_GROUP] <= 1)
        return strips_blocks(spec) * strips_of(spec, images_of(plan));
    const int64_t held = strips_held(plan, spec);
    return strips_blocks(spec) * (resident > 0 ? least_i64(held, resident) : held);
}

static int64_t grid_of(const cuda_plan *plan, const int32_t *c, int resident) {
    const int64_t pieces = (int64_t)images_of(plan) * pieces_of(plan->main.constant);
    int64_t grid =
        plan->main.kernel == CUDA_STRIPS ? strips_grid(plan, resident) : plan->rows * c[C_CLUSTER];
    if (c[C_STAGE] == STAGE_TILE)
        return plan->partials * tiles_of_image(first_of(plan)) * c[C_CLUSTER];
    if (c[C_STAGE] == STAGE_SUMS || c[C_STAGE] == STAGE_APPLY)
        grid = c[C_LAST] ? pieces * ceil_div(ceil_div(c[C_COLS], c[C_WIDTH]), c[C_LANES])
                         : (pieces * c[C_COLS] + c[C_WARPS] - 1) / c[C_WARPS];
    return grid < MOST_GRID ? grid : MOST_GRID; /* whole clusters: both are multiples */
}

static void groups_launch_arguments(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                                    void *workspace, int resident,
                                    cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    const cuda_spec *first = first_of(plan);
    const int32_t *c = first->constant;
    const int count = groups_launch_specs(plan, buffers, launches) - (plan->finish.kernel >= 0);
    char *sums = workspace, *moments = sums + sums_bytes(plan);
    char *mail = moments + moments_bytes(plan);
    float *partials = (float *)(mail + mail_bytes(plan, first));
    for (int i = 0; i < count; i++) {
        launches[i].blocks_x = grid_of(plan, launches[i].spec.constant, resident);
        launches[i].blocks_y = 1;
        launches[i].args.groups = (cuda_groups_args){
            .x = buffers[ROLE_X],
            .weight = buffers[ROLE_WEIGHT],
            .bias = buffers[ROLE_BIAS],
            .dy = buffers[ROLE_DY],
            .mean = buffers[ROLE_MEAN],
            .rstd = buffers[ROLE_RSTD],
            .out = buffers[is_backward(c) ? ROLE_DX : ROLE_Y],
            .sums = (float *)sums,
            .moments = (float *)moments,
            .partial_weight = partials,
            .partial_bias = partials + (c[C_WANT_DWEIGHT] ? plan->partials * c[C_COLS] : 0),
            .mail = (uint64_t *)mail,
            .images = images_of(plan),
            .x_image = plan->stride[ROLE_X] * constant_bytes(c, C_X_TYPE),
            .dy_image = plan->stride[ROLE_DY] * constant_bytes(c, C_G_TYPE),
            .out_image = is_backward(c) ? plan->stride[ROLE_DX] * constant_bytes(c, C_D_TYPE)
                                        : plan->stride[ROLE_Y] * constant_bytes(c, C_Y_TYPE),
            .mean_stride = plan->stride[ROLE_MEAN] * constant_bytes(c, C_MEAN_TYPE),
            .rstd_stride = plan->stride[ROLE_RSTD] * constant_bytes(c, C_RSTD_TYPE),
            .eps = plan->eps,
            .eps_is_small = plan->eps < 1e-30};
    }
    if (plan->finish.kernel >= 0)
        cuda_finish_arguments(plan, buffers, (char *)partials, plan->partials,
                              partial_rows(plan, first), &launches[count]);
}

static unsigned groups_threads(const cuda_spec *spec) {
    return 32u * (unsigned)spec->constant[C_WARPS];
}

const cuda_family groups_family = {
    .plan_make = groups_plan_make,
    .plan_size = groups_plan_size,
    .plan_describe = groups_plan_describe,
    .launch_specs = groups_launch_specs,
    .launch_arguments = groups_launch_arguments,
    .threads = groups_threads,
    .shared_bytes = groups_shared_bytes,
};
