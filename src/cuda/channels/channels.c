/* Plans for norms over channels, and the grids and arguments of their launches. */
#include "cuda/channels/channels.h"

#include <stdio.h>

#include "cuda/channels/channels_geometry.h"
#include "cuda/channels/channels_shape.h"
#include "cuda/common/finish.h"
#include "cuda/common/images.h"
#include "cuda/common/integers.h"

enum { MOST_GRID = 1 << 30 };

/* Blocks, or clusters of them, that the device holds at once, as planned. */
static int held_at_once(const cuda_plan *plan) {
    const cuda_spec *spec = &plan->main;
    return most(1, plan->limits.multiprocessors * spec->min_blocks / spec->cluster);
}

static void channels_plan_size(cuda_plan *plan) {
    const cuda_spec *spec = &plan->main;
    const channels_constants *c = &spec->channels;
    plan->partials = plan->finish.kernel >= 0 ? held_at_once(plan) : 0;
    plan->workspace_bytes = (size_t)plan->partials * (size_t)c->cols * sizeof(float) *
                            (size_t)(spec->want_dweight + spec->want_dbias);
}

/* Whether the output of whole images does. */
static bool goes_through_shared(const cuda_spec *spec) {
    const channels_constants *c = &spec->channels;
    const int bytes = role_bytes(spec, ROLE_X);
    return c->tile_pixels == c->pixels && c->width * bytes < 8 && images_out_bytes(spec) == bytes &&
           !c->last;
}

static const char *channels_plan_make(cuda_plan *plan, const problem *p) {
    image_view v;
    if (problem_is_double(p))
        return "f64";
    if (images_lack_digits(p))
        return IMAGES_LACK_DIGITS;
    if (!images_of_channels(&v, p))
        return "what is no images of dense pixels, reduced over their channels";
    cuda_spec *spec = &plan->main;
    channels_constants *c = &spec->channels;
    images_describe(plan, p, &v, CUDA_CHANNELS);
    c->cols = (int)v.depth;
    c->pixels = (int)v.pixels;
    c->last = v.last;
    if (!channels_set_geometry(plan))
        return "so many channels";
    c->out_through_shared = goes_through_shared(spec);
    if (spec->want_dweight || spec->want_dbias)
        cuda_plan_finish(plan, p, c->cols, held_at_once(plan));
    channels_plan_size(plan);
    return NULL;
}

static bool channels_plan_dsum(cuda_plan *plan, const problem *p) {
    if (!images_plan_dsum(plan, p, images_of_channels))
        return false;
    plan->main.channels.out_through_shared = goes_through_shared(&plan->main);
    return true;
}

static int channels_plan_describe(const cuda_plan *plan, char *text, size_t bytes) {
    const cuda_spec *spec = &plan->main;
    const channels_constants *c = &spec->channels;
    return snprintf(text, bytes,
                    "cuda channels %s %lldx%dx%d%s: %d pixels of %d channels a block, "
                    "%d lanes of %d x %d planes, cluster %d%s",
                    spec->pass == PLANISH_FORWARD ? "forward" : "backward",
                    (long long)(plan->rows / c->pixels), c->cols, c->pixels,
                    c->last ? " to channels last" : "", c->tile_pixels, c->depth, c->lanes,
                    c->width, c->planes, spec->cluster,
                    spec->type[ROLE_DSUM] == DTYPE_NONE ? "" : ", with dsum");
}

/* ---- Launches -------------------------------------------------------------------------------- */

/* Alignment of a tensor's parts as the kernel takes them: of an image, a block's channels of it, a
 * channel, a tile. */
static int32_t access_of(const cuda_plan *plan, void *const *buffers, role r, int bytes,
                         bool last) {
    const cuda_spec *spec = &plan->main;
    const channels_constants *c = &spec->channels;
    const int64_t unit = last ? 1 : c->pixels;
    uint64_t bits = (uint64_t)(uintptr_t)buffers[r] | (uint64_t)(plan->stride[r] * bytes);
    bits |= (uint64_t)(c->cols * unit * bytes);
    if (spec->cluster > 1)
        bits |= (uint64_t)(c->depth * unit * bytes);
    if (!last && c->tile_pixels != c->pixels)
        bits |= (uint64_t)(c->pixels * bytes) | (uint64_t)(c->tile_pixels * bytes);
    return common_alignment(bits);
}

/* Whether the output has elements of x's size and lies as x does. */
static bool lies_as_x(const cuda_plan *plan, void *const *buffers) {
    const cuda_spec *spec = &plan->main;
    const channels_constants *c = &spec->channels;
    const bool backward = spec->pass == PLANISH_BACKWARD;
    const role out = backward ? ROLE_DX : ROLE_Y;
    return buffers[out] && images_out_bytes(spec) == role_bytes(spec, ROLE_X) &&
           images_lie_as_x(plan, buffers, plan->rows / c->pixels, out);
}

static int channels_launch_specs(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                                 cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    cuda_spec *spec = &launches[0].spec;
    *spec = plan->main;
    channels_constants *c = &spec->channels;
    spec->access[ROLE_X] = access_of(plan, buffers, ROLE_X, role_bytes(spec, ROLE_X), false);
    spec->access[ROLE_Y] = access_of(plan, buffers, ROLE_Y, role_bytes(spec, ROLE_Y), c->last);
    spec->access[ROLE_DY] = access_of(plan, buffers, ROLE_DY, role_bytes(spec, ROLE_DY), false);
    spec->access[ROLE_DX] = access_of(plan, buffers, ROLE_DX, role_bytes(spec, ROLE_DX), false);
    if (spec->type[ROLE_DSUM] != DTYPE_NONE) {
        spec->access[ROLE_DSUM] =
            access_of(plan, buffers, ROLE_DSUM, role_bytes(spec, ROLE_DSUM), false);
        spec->access[ROLE_DRESIDUAL] =
            access_of(plan, buffers, ROLE_DX, images_out_bytes(spec), false);
    }
    if (channels_is_shifted(spec))
        c->out_through_shared = lies_as_x(plan, buffers);
    if (plan->finish.kernel < 0)
        return 1;
    launches[1].spec = plan->finish;
    return 2;
}

static void channels_launch_arguments(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                                      void *workspace, int resident,
                                      cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    const cuda_spec *spec = &launches[0].spec;
    const channels_constants *c = &spec->channels;
    const bool backward = spec->pass == PLANISH_BACKWARD;
    const int64_t images = plan->rows / c->pixels;
    const int64_t units = channels_is_spanning(spec)
                              ? (plan->rows + c->tile_pixels - 1) / c->tile_pixels
                              : images * ceil_div(c->pixels, c->tile_pixels);
    int64_t grid = units;
    if (grid > MOST_GRID / spec->cluster)
        grid = MOST_GRID / spec->cluster;
    if (backward) {
        const int64_t held = spec->cluster > 1 ? resident : held_at_once(plan);
        grid = grid < held ? grid : held;
        if (plan->finish.kernel >= 0 && grid > plan->partials)
            grid = plan->partials;
    }
    float *partials = workspace;
    launches[0].blocks_x = grid * spec->cluster;
    launches[0].blocks_y = 1;
    launches[0].args.channels = (channels_args){
        .x = buffers[ROLE_X],
        .weight = buffers[ROLE_WEIGHT],
        .bias = buffers[ROLE_BIAS],
        .dy = buffers[ROLE_DY],
        .mean = buffers[ROLE_MEAN],
        .rstd = buffers[ROLE_RSTD],
        .out = buffers[backward ? ROLE_DX : ROLE_Y],
        .partial_weight = partials,
        .partial_bias = partials + (spec->want_dweight ? plan->partials * c->cols : 0),
        .units = units,
        .images = images,
        .x_image = plan->stride[ROLE_X] * role_bytes(spec, ROLE_X),
        .dy_image = plan->stride[ROLE_DY] * role_bytes(spec, ROLE_DY),
        .out_image = plan->stride[backward ? ROLE_DX : ROLE_Y] * images_out_bytes(spec),
        .mean_image = plan->stride[ROLE_MEAN] * role_bytes(spec, ROLE_MEAN),
        .rstd_image = plan->stride[ROLE_RSTD] * role_bytes(spec, ROLE_RSTD),
        .eps = plan->eps,
        .clamped = plan->problem->rule.clamped,
        .eps_is_small = plan->eps < 1e-30,
        .dsum = buffers[ROLE_DSUM],
        .dsum_image = plan->stride[ROLE_DSUM] * role_bytes(spec, ROLE_DSUM)};
    if (plan->finish.kernel >= 0)
        cuda_finish_arguments(plan, buffers, workspace, plan->partials, grid, &launches[1]);
}

static unsigned channels_threads(const cuda_spec *spec) {
    return WARP * (unsigned)spec->channels.warps;
}

const cuda_family channels_family = {
    .name = "channels",
    .plan_make = channels_plan_make,
    .plan_dsum = channels_plan_dsum,
    .plan_size = channels_plan_size,
    .plan_describe = channels_plan_describe,
    .launch_specs = channels_launch_specs,
    .launch_arguments = channels_launch_arguments,
    .threads = channels_threads,
    .shared_bytes = channels_shared_bytes,
};
