/* Plans for norms over channels, and the grids and arguments of their launches. */
#include "channels.h"

#include <stdio.h>

#include "channels_geometry.h"
#include "channels_shape.h"
#include "finish.h"
#include "images.h"
#include "integers.h"

enum { MOST_GRID = 1 << 30 };

/* Blocks, or clusters of them, that the device holds at once, as planned. */
static int held_at_once(const cuda_plan *plan) {
    const int32_t *c = plan->main.constant;
    return most(1, plan->limits.multiprocessors * c[C_MIN_BLOCKS] / c[C_CLUSTER]);
}

static void channels_plan_size(cuda_plan *plan) {
    const int32_t *c = plan->main.constant;
    plan->partials = plan->finish.kernel >= 0 ? held_at_once(plan) : 0;
    plan->workspace_bytes = (size_t)plan->partials * (size_t)c[C_COLS] * sizeof(float) *
                            (size_t)(c[C_WANT_DWEIGHT] + c[C_WANT_DBIAS]);
}

static bool channels_plan_make(cuda_plan *plan, const problem *p) {
    image_view v;
    if (p->activation != PLANISH_IDENTITY || problem_is_double(p) || !images_of_channels(&v, p))
        return false;
    int32_t *c = plan->main.constant;
    const bool backward = p->pass == PLANISH_BACKWARD;
    images_describe(plan, p, &v, CUDA_CHANNELS);
    if (!channels_set_geometry(plan))
        return false;
    const int bytes = constant_bytes(c, C_X_TYPE);
    const int out = constant_bytes(c, backward ? C_D_TYPE : C_Y_TYPE);
    c[C_HOLD] = c[C_TILE] == c[C_PIXELS] && c[C_WIDTH] * bytes < 8 && out == bytes && !c[C_LAST];
    if (c[C_WANT_DWEIGHT] || c[C_WANT_DBIAS])
        cuda_plan_finish(plan, p, c[C_COLS], held_at_once(plan));
    channels_plan_size(plan);
    return true;
}

static int channels_plan_describe(const cuda_plan *plan, char *text, size_t bytes) {
    const int32_t *c = plan->main.constant;
    return snprintf(text, bytes,
                    "cuda channels %s %lldx%dx%d%s: %d pixels of %d channels a block, "
                    "%d lanes of %d x %d planes, cluster %d",
                    c[C_PASS] == PLANISH_FORWARD ? "forward" : "backward",
                    (long long)(plan->rows / c[C_PIXELS]), c[C_COLS], c[C_PIXELS],
                    c[C_LAST] ? " to channels last" : "", c[C_TILE], c[C_DEPTH], c[C_LANES],
                    c[C_WIDTH], c[C_PLANES], c[C_CLUSTER]);
}

/* ---- Launches ----------------------------------------------------------------------------------
 */

/* Alignment of a tensor's parts as the kernel takes them: of an image, a block's channels of it, a
 * channel, a tile. */
static int32_t access_of(const cuda_plan *plan, void *const *buffers, role r, int bytes,
                         bool last) {
    const int32_t *c = plan->main.constant;
    const int64_t unit = last ? 1 : c[C_PIXELS];
    uint64_t bits = (uint64_t)(uintptr_t)buffers[r] | (uint64_t)(plan->stride[r] * bytes);
    bits |= (uint64_t)(c[C_COLS] * unit * bytes);
    if (c[C_CLUSTER] > 1)
        bits |= (uint64_t)(c[C_DEPTH] * unit * bytes);
    if (!last && c[C_TILE] != c[C_PIXELS])
        bits |= (uint64_t)(c[C_PIXELS] * bytes) | (uint64_t)(c[C_TILE] * bytes);
    return common_alignment(bits);
}

/* Whether the output has elements of x's size and lies as x does. */
static bool lies_as_x(const cuda_plan *plan, void *const *buffers) {
    const int32_t *c = plan->main.constant;
    const bool backward = c[C_PASS] == PLANISH_BACKWARD;
    const role out = backward ? ROLE_DX : ROLE_Y;
    return buffers[out] &&
           constant_bytes(c, backward ? C_D_TYPE : C_Y_TYPE) == constant_bytes(c, C_X_TYPE) &&
           images_lie_as_x(plan, buffers, plan->rows / c[C_PIXELS], out);
}

static int channels_launch_specs(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                                 cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    cuda_spec *spec = &launches[0].spec;
    *spec = plan->main;
    int32_t *c = spec->constant;
    c[C_X_ACCESS] = access_of(plan, buffers, ROLE_X, constant_bytes(c, C_X_TYPE), false);
    c[C_Y_ACCESS] = access_of(plan, buffers, ROLE_Y, constant_bytes(c, C_Y_TYPE), c[C_LAST]);
    c[C_G_ACCESS] = access_of(plan, buffers, ROLE_DY, constant_bytes(c, C_G_TYPE), false);
    c[C_D_ACCESS] = access_of(plan, buffers, ROLE_DX, constant_bytes(c, C_D_TYPE), false);
    if (channels_is_shifted(c))
        c[C_HOLD] = lies_as_x(plan, buffers);
    if (plan->finish.kernel < 0)
        return 1;
    launches[1].spec = plan->finish;
    return 2;
}

static void channels_launch_arguments(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                                      void *workspace, int resident,
                                      cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    const int32_t *c = launches[0].spec.constant;
    const bool backward = c[C_PASS] == PLANISH_BACKWARD;
    const int64_t images = plan->rows / c[C_PIXELS];
    const int64_t units = channels_is_spanning(c) ? (plan->rows + c[C_TILE] - 1) / c[C_TILE]
                                                  : images * ceil_div(c[C_PIXELS], c[C_TILE]);
    int64_t grid = units;
    if (grid > MOST_GRID / c[C_CLUSTER])
        grid = MOST_GRID / c[C_CLUSTER];
    if (backward) {
        const int64_t held = c[C_CLUSTER] > 1 ? resident : held_at_once(plan);
        grid = grid < held ? grid : held;
        if (plan->finish.kernel >= 0 && grid > plan->partials)
            grid = plan->partials;
    }
    float *partials = workspace;
    launches[0].blocks_x = grid * c[C_CLUSTER];
    launches[0].blocks_y = 1;
    launches[0].args.channels = (cuda_channels_args){
        .x = buffers[ROLE_X],
        .weight = buffers[ROLE_WEIGHT],
        .bias = buffers[ROLE_BIAS],
        .dy = buffers[ROLE_DY],
        .mean = buffers[ROLE_MEAN],
        .rstd = buffers[ROLE_RSTD],
        .out = buffers[backward ? ROLE_DX : ROLE_Y],
        .partial_weight = partials,
        .partial_bias = partials + (c[C_WANT_DWEIGHT] ? plan->partials * c[C_COLS] : 0),
        .units = units,
        .images = images,
        .x_image = plan->stride[ROLE_X] * constant_bytes(c, C_X_TYPE),
        .dy_image = plan->stride[ROLE_DY] * constant_bytes(c, C_G_TYPE),
        .out_image = backward ? plan->stride[ROLE_DX] * constant_bytes(c, C_D_TYPE)
                              : plan->stride[ROLE_Y] * constant_bytes(c, C_Y_TYPE),
        .mean_image = plan->stride[ROLE_MEAN] * constant_bytes(c, C_MEAN_TYPE),
        .rstd_image = plan->stride[ROLE_RSTD] * constant_bytes(c, C_RSTD_TYPE),
        .eps = plan->eps,
        .eps_is_small = plan->eps < 1e-30};
    if (plan->finish.kernel >= 0)
        cuda_finish_arguments(plan, buffers, workspace, plan->partials, grid, &launches[1]);
}

static unsigned channels_threads(const cuda_spec *spec) {
    return 32u * (unsigned)spec->constant[C_WARPS];
}

const cuda_family channels_family = {
    .plan_make = channels_plan_make,
    .plan_size = channels_plan_size,
    .plan_describe = channels_plan_describe,
    .launch_specs = channels_launch_specs,
    .launch_arguments = channels_launch_arguments,
    .threads = channels_threads,
    .shared_bytes = channels_shared_bytes,
};
