#include "cuda/common/images.h"

#include <string.h>

#include "stages.h"

enum { MOST_SIZE = 1 << 30 }; /* kernels count an image's elements in 32 bits */

static bool is_empty_or_large(const problem *p) {
    return p->rows < 1 || p->cols < 1 || p->cols > MOST_SIZE;
}

static bool is_full(role r) {
    return ROLE_BIT(r) & FULL_ROLES;
}

static bool is_affine(role r) {
    return ROLE_BIT(r) & AFFINE_ROLES;
}

/* An axis of the problem, or one of size 1 that stands for an axis that is not there. */
static const axis *or_one(const axis *a) {
    static const axis one = {.size = 1};
    return a ? a : &one;
}

static bool has_stride(const problem *p, const axis *a, role r, int64_t stride) {
    return a->size == 1 || axis_stride(p, a, r) == stride;
}

/* ---- Channels -------------------------------------------------------------------------------- */

/* Whether a tensor's channels are dense within a pixel. */
static bool is_channels_last(const problem *p, const axis *channel, const axis *pixel, role r) {
    return has_stride(p, channel, r, 1) && has_stride(p, pixel, r, channel->size);
}

bool images_of_channels(image_view *v, const problem *p) {
    if (is_empty_or_large(p) || p->kept_count > 2 || p->reduced_count != 1)
        return false;
    const axis *channel = &p->reduced[0], *pixel = &p->kept[p->kept_count - 1];
    const axis *image = or_one(p->kept_count == 2 ? &p->kept[0] : NULL);
    if (pixel->affine || image->affine || (p->affine > 1 && !channel->affine) ||
        pixel->size * channel->size > MOST_SIZE)
        return false;
    *v = (image_view){
        .images = image->size, .groups = 1, .depth = channel->size, .pixels = pixel->size};
    for (role r = 0; r < NORM_ROLES; r++) {
        v->stride[r] = image->size > 1 ? axis_stride(p, image, r) : 0;
        if (!has(p, r))
            continue;
        if (is_affine(r) ? !has_stride(p, channel, r, 1)
            : !is_full(r)
                ? !has_stride(p, pixel, r, 1)
                : !has_stride(p, pixel, r, 1) || !has_stride(p, channel, r, pixel->size)) {
            if (r != ROLE_Y || !is_channels_last(p, channel, pixel, r))
                return false;
            v->last = true;
        }
    }
    return true;
}

/* ---- Groups ---------------------------------------------------------------------------------- */

typedef struct group_axes {
    const axis *image, *group, *channel, *pixel;
} group_axes;

/* Whether the tensors lie as the axes' sizes say. */
static bool groups_lie(image_view *v, const problem *p, const group_axes *a, bool last) {
    const int64_t depth = a->channel->size, pixels = a->pixel->size, groups = a->group->size;
    const int64_t channel = last ? 1 : pixels, pixel = last ? groups * depth : 1;
    *v = (image_view){a->image->size, groups, depth, pixels, last, {0}};
    for (role r = 0; r < NORM_ROLES; r++) {
        if (!has(p, r))
            continue;
        const int64_t image = a->image->size > 1 ? axis_stride(p, a->image, r) : 0;
        v->stride[r] = image;
        if (is_full(r)) {
            if (!has_stride(p, a->pixel, r, pixel) || !has_stride(p, a->channel, r, channel) ||
                !has_stride(p, a->group, r, channel * depth))
                return false;
        } else if (is_affine(r)) {
            if (!has_stride(p, a->channel, r, 1) || !has_stride(p, a->group, r, depth))
                return false;
        } else { /* mean and rstd: one stride from row to row */
            v->stride[r] = groups > 1 ? axis_stride(p, a->group, r) : image;
            if (a->image->size > 1 && groups > 1 && image != groups * v->stride[r])
                return false;
        }
    }
    return true;
}

/* The axes as one image by groups, by channels of a group, by pixels; which of two lists' axes is
 * which is told by `swap`s and held against the strides afterwards. */
static bool groups_match(image_view *v, const problem *p, bool swap_kept, bool swap_reduced) {
    const axis *kept[2] = {&p->kept[0], p->kept_count > 1 ? &p->kept[1] : NULL};
    const axis *reduced[2] = {&p->reduced[0], p->reduced_count > 1 ? &p->reduced[1] : NULL};
    const group_axes a = {or_one(kept[swap_kept]), or_one(kept[!swap_kept]),
                          or_one(reduced[swap_reduced]), or_one(reduced[!swap_reduced])};
    if (a.image->affine || a.pixel->affine)
        return false;
    if (p->affine > 1 &&
        ((a.group->size > 1 && !a.group->affine) || (a.channel->size > 1 && !a.channel->affine)))
        return false;
    return groups_lie(v, p, &a, false) || groups_lie(v, p, &a, true);
}

bool images_of_groups(image_view *v, const problem *p) {
    if (is_empty_or_large(p) || p->kept_count > 2 || p->reduced_count > 2)
        return false;
    for (int swaps = 0; swaps < 4; swaps++)
        if (groups_match(v, p, swaps & 1, swaps & 2) && v->groups * v->depth <= MOST_SIZE &&
            v->groups * p->cols <= MOST_SIZE)
            return true;
    return false;
}

/* ---- Plans ----------------------------------------------------------------------------------- */

void images_describe(cuda_plan *plan, const problem *p, const image_view *v, cuda_kernel kernel) {
    cuda_spec *spec = &plan->main;
    cuda_spec_describe(spec, p);
    spec->kernel = kernel;
    spec->pass = p->pass;
    spec->cooperating_blocks = 1;
    for (int r = 0; r < NORM_ROLES; r++)
        plan->stride[r] = v->stride[r];
    if (p->pass != PLANISH_BACKWARD)
        return;
    /* What goes into an activation is made by the saved mean: then it has all its digits (plan.c).
     */
    spec->correct =
        p->kind == PLANISH_LAYER && !problem_hides_rounding(p) && p->activation == PLANISH_IDENTITY;
    spec->want_dweight = has(p, ROLE_DWEIGHT);
    spec->want_dbias = has(p, ROLE_DBIAS);
}

bool images_plan_dsum(cuda_plan *plan, const problem *p, view_of_images *view) {
    static const role written[] = {ROLE_DX, ROLE_DSUM};
    image_view planned, v[2];
    problem norm;
    stages_norm_before_dsum(p, &norm);
    if (!view(&planned, &norm))
        return false;
    for (int i = 0; i < 2; i++) {
        stages_norm_lying_as(p, written[i], &norm);
        if (!view(&v[i], &norm) || v[i].images != planned.images || v[i].groups != planned.groups ||
            v[i].depth != planned.depth || v[i].pixels != planned.pixels ||
            v[i].last != planned.last)
            return false;
    }
    plan->main.type[ROLE_DRESIDUAL] = p->dtypes[ROLE_DX];
    plan->main.type[ROLE_DSUM] = p->dtypes[ROLE_DSUM];
    plan->stride[ROLE_DX] = plan->stride[ROLE_DRESIDUAL] = v[0].stride[ROLE_DX];
    plan->stride[ROLE_DSUM] = v[1].stride[ROLE_DX];
    return true;
}

int images_out_bytes(const cuda_spec *spec) {
    return role_bytes(spec, spec->pass == PLANISH_FORWARD              ? ROLE_Y
                            : spec->type[ROLE_DRESIDUAL] != DTYPE_NONE ? ROLE_DRESIDUAL
                                                                       : ROLE_DX);
}

bool images_lie_as_x(const cuda_plan *plan, void *const *buffers, int64_t images, role r) {
    const uint64_t bytes = (uint64_t)role_bytes(&plan->main, ROLE_X);
    const uint64_t apart = (uint64_t)(uintptr_t)buffers[ROLE_X] - (uint64_t)(uintptr_t)buffers[r];
    const uint64_t each = (uint64_t)(plan->stride[ROLE_X] - plan->stride[r]) * bytes;
    return (apart | (images > 1 ? each : 0)) % 16 == 0;
}

bool images_lack_digits(const problem *p) {
    if (p->activation == PLANISH_IDENTITY || p->pass != PLANISH_BACKWARD ||
        p->kind != PLANISH_LAYER || p->dtypes[ROLE_MEAN] == DTYPE_F64)
        return false;
    return !problem_hides_rounding(p) || slope_jumps(p->activation);
}
