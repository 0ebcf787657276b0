/*
 * In one read: images stored by pixel in strips (strips.c), the backward of rows that fit a block's
 * shared memory, and rows in tiles (tiles.c). Everything else in two (groups_geometry.c).
 */
#include "cuda/groups/groups.h"

#include <stdio.h>
#include <string.h>

#include "cuda/common/finish.h"
#include "cuda/common/images.h"
#include "cuda/common/integers.h"
#include "cuda/groups/groups_geometry.h"
#include "cuda/groups/strips.h"
#include "cuda/groups/tiles.h"
#include "cuda/rows/rows.h"

enum { MOST_GRID = 1 << 30, MOST_VARIANTS = 3 };

static bool is_backward(const cuda_spec *spec) {
    return spec->pass == PLANISH_BACKWARD;
}

static int images_of(const cuda_plan *plan) {
    return (int)(plan->rows / plan->main.groups.groups);
}

static bool reads_once(const cuda_spec *spec) {
    const groups_constants *c = &spec->groups;
    return c->variant == GROUPS_BY_ROW || c->variant == GROUPS_IN_TILES;
}

static int64_t pieces_of(const cuda_spec *spec) {
    const groups_constants *c = &spec->groups;
    return reads_once(spec) ? 0 : ceil_div(c->pixels, c->piece);
}

/* Rounded, as words of mail may follow. */
static size_t sums_bytes(const cuda_plan *plan) {
    const cuda_spec *spec = &plan->main;
    const groups_constants *c = &spec->groups;
    return round_up((size_t)images_of(plan) * (size_t)pieces_of(spec) * 3 * (size_t)c->cols *
                    sizeof(float));
}

static size_t moments_bytes(const cuda_plan *plan) {
    return reads_once(&plan->main) ? 0 : (size_t)plan->rows * 8 * sizeof(float);
}

/* The kernel that runs where the device holds it. */
static const cuda_spec *first_of(const cuda_plan *plan) {
    return plan->cooperative.kernel >= 0 ? &plan->cooperative : &plan->main;
}

/* Of dweight and dbias: one of each image, or of each of its blocks; of tiles, of those images that
 * have blocks of their own. */
static int64_t partial_rows(const cuda_plan *plan, const cuda_spec *spec) {
    if (spec->groups.variant == GROUPS_IN_TILES)
        return tiles_images_at_once(spec, images_of(plan), &plan->limits);
    return images_of(plan) *
           (spec->kernel == CUDA_STRIPS ? strips_blocks(spec) : groups_split(spec));
}

/* Strips or rows that groups of blocks anywhere take at a time. */
static int64_t held_at_once(const cuda_plan *plan, const cuda_spec *spec) {
    if (spec->kernel == CUDA_STRIPS)
        return strips_at_once(spec, images_of(plan), &plan->limits);
    return least_i64(plan->rows,
                     plan->limits.multiprocessors * spec->min_blocks / spec->cooperating_blocks);
}

enum { MAIL_BYTES = 2 * 6 * sizeof(uint64_t) }; /* of a block of a row, as the kernel has it */

/* Rounded, as partial sums follow. */
static size_t mail_bytes(const cuda_plan *plan, const cuda_spec *spec) {
    if (spec->cooperating_blocks <= 1)
        return 0;
    return round_up((size_t)held_at_once(plan, spec) *
                    (spec->kernel == CUDA_STRIPS ? strips_mail_bytes(spec)
                                                 : MAIL_BYTES * (size_t)spec->cooperating_blocks));
}

static void groups_plan_size(cuda_plan *plan) {
    const cuda_spec *spec = &plan->main;
    const groups_constants *c = &spec->groups;
    plan->partials = partial_rows(plan, &plan->main);
    if (plan->cooperative.kernel >= 0 && partial_rows(plan, &plan->cooperative) > plan->partials)
        plan->partials = partial_rows(plan, &plan->cooperative);
    plan->workspace_bytes = sums_bytes(plan) + moments_bytes(plan) +
                            mail_bytes(plan, first_of(plan)) +
                            (size_t)plan->partials * (size_t)c->cols * sizeof(float) *
                                (size_t)(spec->want_dweight + spec->want_dbias);
}

/* Describes the problem; false where it is none for these kernels. */
static bool describe(cuda_plan *plan, const problem *p, const image_view *v) {
    if (problem_is_double(p) || v->images > MOST_GRID)
        return false;
    cuda_spec *spec = &plan->main;
    groups_constants *c = &spec->groups;
    images_describe(plan, p, v, CUDA_GROUPS);
    c->groups = (int)v->groups;
    c->depth = (int)v->depth;
    c->pixels = (int)v->pixels;
    c->cols = (int)(v->groups * v->depth);
    c->last = v->last || v->pixels == 1;
    spec->cluster = 1;
    return true;
}

/* Where rows go in tiles, forward and backward (tiles.h). */
static bool tiles_plan_make(cuda_plan *plan, const problem *p, const image_view *v) {
    if (describe(plan, p, v) && !plan->main.groups.last &&
        tiles_geometry(&plan->main, &plan->limits)) {
        const cuda_spec *spec = &plan->main;
        groups_plan_size(plan);
        if (spec->want_dweight || spec->want_dbias)
            cuda_plan_finish(plan, p, spec->groups.cols, plan->partials);
        return true;
    }
    memset(&plan->main, 0, sizeof plan->main);
    return false;
}

/* Strips, rows or pieces. */
static bool other_plan_make(cuda_plan *plan, const problem *p, const image_view *v) {
    if (!describe(plan, p, v))
        return false;
    const cuda_spec *spec = &plan->main;
    const groups_constants *c = &spec->groups;
    groups_set_geometry(plan);
    plan->cooperative = plan->main;
    if (plan->main.kernel == CUDA_STRIPS
            ? !strips_shared_geometry(&plan->cooperative, v->images, &plan->limits)
            : !groups_large_geometry(&plan->cooperative, &plan->limits))
        plan->cooperative.kernel = -1;
    groups_plan_size(plan);
    if (spec->want_dweight || spec->want_dbias)
        cuda_plan_finish(plan, p, c->cols, plan->partials);
    return true;
}

static const char *groups_plan_make(cuda_plan *plan, const problem *p) {
    image_view v;
    if (images_lack_digits(p))
        return IMAGES_LACK_DIGITS;
    if (!images_of_groups(&v, p))
        return "what is no images of dense pixels or channels, reduced over groups of channels";
    /* As a batch norm's are: many blocks have to share a row. */
    if (v.last && v.images == 1 && v.depth == 1 && v.groups > 1)
        return "channels of one image that are neighbours";
    if (tiles_plan_make(plan, p, &v) || group_rows_plan_make(plan, p, &v) ||
        other_plan_make(plan, p, &v))
        return NULL;
    return "groups of these dtypes";
}

/* Tiles hold dx where x was, all its digits: they add an f32 dsum to an f32 dx as that leaves. */
static bool groups_plan_dsum(cuda_plan *plan, const problem *p) {
    const bool tiles = plan->main.groups.variant == GROUPS_IN_TILES;
    if ((tiles && (p->dtypes[ROLE_DX] != DTYPE_F32 || p->dtypes[ROLE_DSUM] != DTYPE_F32)) ||
        !images_plan_dsum(plan, p, images_of_groups))
        return false;
    if (plan->cooperative.kernel >= 0) {
        plan->cooperative.type[ROLE_DRESIDUAL] = plan->main.type[ROLE_DRESIDUAL];
        plan->cooperative.type[ROLE_DSUM] = plan->main.type[ROLE_DSUM];
    }
    return true;
}

static int groups_plan_describe(const cuda_plan *plan, char *text, size_t bytes) {
    const cuda_spec *spec = first_of(plan);
    const groups_constants *c = &spec->groups;
    return snprintf(text, bytes,
                    "cuda groups %s %dx%dx%dx%d%s: %s, chunks of %d, %d lanes x %d planes, "
                    "pieces of %d, %d warps, cluster %d, group %d%s",
                    is_backward(spec) ? "backward" : "forward", images_of(plan), c->groups,
                    c->depth, c->pixels, c->last ? " channels last" : "",
                    c->variant == GROUPS_IN_TILES ? "tiles"
                    : c->variant == GROUPS_BY_ROW ? "one read"
                                                  : "two reads",
                    c->width, c->lanes, c->planes, c->piece, c->warps, spec->cluster,
                    spec->cooperating_blocks,
                    spec->type[ROLE_DSUM] == DTYPE_NONE ? "" : ", with dsum");
}

/* ---- Launches -------------------------------------------------------------------------------- */

/* Alignment of a tensor's rows: of an image, of a group of it, or of the channels of a pixel. */
static int32_t access_of(const cuda_plan *plan, void *const *buffers, role r, int bytes) {
    const cuda_spec *spec = first_of(plan);
    const groups_constants *c = &spec->groups;
    uint64_t bits = (uint64_t)(uintptr_t)buffers[r] | (uint64_t)(plan->stride[r] * bytes);
    const int64_t run = c->last ? c->cols
                        : c->variant == GROUPS_IN_TILES
                            ? (int64_t)(spec->cluster > 1 ? 1 : c->rows * c->depth) * c->pixels
                        : c->variant == GROUPS_BY_ROW && spec->cooperating_blocks <= 1
                            ? (int64_t)(c->depth / spec->cluster) * c->pixels
                            : c->pixels;
    bits |= (uint64_t)(run * bytes);
    if (spec->kernel == CUDA_STRIPS)
        bits |= (uint64_t)(c->tile_channels * bytes);
    return common_alignment(bits);
}

static cuda_spec variant_of(const cuda_plan *plan, void *const *buffers, int variant) {
    const groups_tuning *t = &plan->limits.tuning->groups;
    cuda_spec made = *first_of(plan), *spec = &made;
    groups_constants *c = &spec->groups;
    c->variant = variant;
    if (!is_backward(spec) && (variant == GROUPS_SUMS || variant == GROUPS_MOMENTS))
        spec->activation = PLANISH_IDENTITY;
    if (variant == GROUPS_MOMENTS) {
        const int64_t entries = c->depth * pieces_of(&plan->main);
        c->warps = entries <= 128 ? 1 : entries <= 2048 ? 4 : 16;
        spec->min_blocks = 1;
    }
    /* Chunks of several rows hold the moments of each. */
    if (variant == GROUPS_APPLY && c->last && c->depth % c->width)
        spec->min_blocks = least(spec->min_blocks, t->mixed_blocks);
    spec->access[ROLE_X] = access_of(plan, buffers, ROLE_X, role_bytes(spec, ROLE_X));
    spec->access[ROLE_Y] = access_of(plan, buffers, ROLE_Y, role_bytes(spec, ROLE_Y));
    spec->access[ROLE_DY] = access_of(plan, buffers, ROLE_DY, role_bytes(spec, ROLE_DY));
    spec->access[ROLE_DX] = access_of(plan, buffers, ROLE_DX, role_bytes(spec, ROLE_DX));
    if (spec->type[ROLE_DSUM] != DTYPE_NONE) {
        spec->access[ROLE_DSUM] = access_of(plan, buffers, ROLE_DSUM, role_bytes(spec, ROLE_DSUM));
        spec->access[ROLE_DRESIDUAL] = access_of(plan, buffers, ROLE_DX, images_out_bytes(spec));
    }
    if (variant == GROUPS_IN_TILES)
        c->out_lies_as_x =
            images_lie_as_x(plan, buffers, images_of(plan), is_backward(spec) ? ROLE_DX : ROLE_Y);
    return made;
}

/* Those that are launched, in their order; returns how many. */
static int variants_of_plan(const cuda_plan *plan, int variants[MOST_VARIANTS]) {
    const cuda_spec *spec = first_of(plan);
    int count = 0;
    if (reads_once(spec)) {
        variants[count++] = spec->groups.variant;
    } else {
        variants[count++] = GROUPS_SUMS;
        variants[count++] = GROUPS_MOMENTS;
        if (!is_backward(spec) || spec->type[ROLE_DX] != DTYPE_NONE)
            variants[count++] = GROUPS_APPLY;
    }
    return count;
}

static int groups_launch_specs(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                               cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    int variants[MOST_VARIANTS], count = variants_of_plan(plan, variants);
    for (int i = 0; i < count; i++)
        launches[i].spec = variant_of(plan, buffers, variants[i]);
    if (plan->finish.kernel >= 0)
        launches[count++].spec = plan->finish;
    return count;
}

/* Blocks of strips and rows: a cluster for each; of those that live on, as many as the device holds
 * at once. */
static int64_t whole_grid(const cuda_plan *plan, int resident) {
    const cuda_spec *spec = first_of(plan);
    if (spec->cooperating_blocks <= 1)
        return spec->cluster *
               (spec->kernel == CUDA_STRIPS ? strips_of(spec, images_of(plan)) : plan->rows);
    const int64_t held = held_at_once(plan, spec);
    return spec->cooperating_blocks * (resident > 0 ? least_i64(held, resident) : held);
}

static int64_t grid_of(const cuda_plan *plan, const cuda_spec *spec, int resident) {
    const groups_constants *c = &spec->groups;
    const int64_t pieces = (int64_t)images_of(plan) * pieces_of(&plan->main);
    int64_t grid = whole_grid(plan, resident);
    if (c->variant == GROUPS_IN_TILES)
        return plan->partials * tiles_of_image(first_of(plan)) * spec->cluster;
    if (c->variant == GROUPS_SUMS || c->variant == GROUPS_APPLY)
        grid = c->last ? pieces * ceil_div(ceil_div(c->cols, c->width), c->lanes)
                       : (pieces * c->cols + c->warps - 1) / c->warps;
    return grid < MOST_GRID ? grid : MOST_GRID; /* whole clusters: both are multiples */
}

static void groups_launch_arguments(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                                    void *workspace, int resident,
                                    cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    const cuda_spec *first = first_of(plan);
    const cuda_spec *spec = first;
    const groups_constants *c = &spec->groups;
    int variants[MOST_VARIANTS];
    const int count = variants_of_plan(plan, variants);
    char *sums = workspace, *moments = sums + sums_bytes(plan);
    char *mail = moments + moments_bytes(plan);
    float *partials = (float *)(mail + mail_bytes(plan, first));
    for (int i = 0; i < count; i++) {
        launches[i].blocks_x = grid_of(plan, &launches[i].spec, resident);
        launches[i].blocks_y = 1;
        launches[i].args.groups = (groups_args){
            .x = buffers[ROLE_X],
            .weight = buffers[ROLE_WEIGHT],
            .bias = buffers[ROLE_BIAS],
            .dy = buffers[ROLE_DY],
            .mean = buffers[ROLE_MEAN],
            .rstd = buffers[ROLE_RSTD],
            .out = buffers[is_backward(spec) ? ROLE_DX : ROLE_Y],
            .sums = (float *)sums,
            .moments = (float *)moments,
            .partial_weight = partials,
            .partial_bias = partials + (spec->want_dweight ? plan->partials * c->cols : 0),
            .mail = (uint64_t *)mail,
            .images = images_of(plan),
            .x_image = plan->stride[ROLE_X] * role_bytes(spec, ROLE_X),
            .dy_image = plan->stride[ROLE_DY] * role_bytes(spec, ROLE_DY),
            .out_image =
                plan->stride[is_backward(spec) ? ROLE_DX : ROLE_Y] * images_out_bytes(spec),
            .mean_stride = plan->stride[ROLE_MEAN] * role_bytes(spec, ROLE_MEAN),
            .rstd_stride = plan->stride[ROLE_RSTD] * role_bytes(spec, ROLE_RSTD),
            .eps = plan->eps,
            .clamped = plan->problem->rule.clamped,
            .eps_is_small = plan->eps < 1e-30,
            .dsum = buffers[ROLE_DSUM],
            .dsum_image = plan->stride[ROLE_DSUM] * role_bytes(spec, ROLE_DSUM)};
    }
    if (plan->finish.kernel >= 0)
        cuda_finish_arguments(plan, buffers, (char *)partials, plan->partials,
                              partial_rows(plan, first), &launches[count]);
}

static unsigned groups_threads(const cuda_spec *spec) {
    return WARP * (unsigned)spec->groups.warps;
}

const cuda_family groups_family = {
    .name = "groups",
    .plan_make = groups_plan_make,
    .plan_dsum = groups_plan_dsum,
    .plan_size = groups_plan_size,
    .plan_describe = groups_plan_describe,
    .launch_specs = groups_launch_specs,
    .launch_arguments = groups_launch_arguments,
    .threads = groups_threads,
    .shared_bytes = groups_shared_bytes,
};
