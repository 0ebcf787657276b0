/*
 * Views and results of group norm; see group_views.h.
 */
#include "group_views.h"

#include <string.h>

/* Whether a parameter is one that torch takes with this x. */
static reason check_parameter(group *g, const DLTensor *parameter) {
    if (!same_device(&g->x, parameter))
        return OTHER_DEVICE;
    if (parameter->ndim != 1 || parameter->shape[0] != g->sizes.channels)
        return WRONG_SHAPE;
    if (same_dtype(&g->x, parameter))
        return SUPPORTED;
    g->mixed = true;
    return view_is_half(&g->x) && view_dtype(parameter) == torch.f32 ? SUPPORTED : MIXED_DTYPES;
}

/* Whether x's own axes are those the call tells of: (N, C, ...). */
static bool fits(const group *g) {
    if (g->x.ndim < 2 || g->x.shape[0] != g->sizes.batch || g->x.shape[1] != g->sizes.channels)
        return false;
    int64_t pixels = 1;
    for (int32_t i = 2; i < g->x.ndim; i++)
        pixels *= g->x.shape[i];
    return pixels == g->sizes.pixels;
}

reason group_examine(group *g) {
    const group_sizes *s = &g->sizes;
    g->x = view_input(g->input);
    if (g->x.ndim >= PLANISH_MAX_NDIM)
        return TOO_MANY_AXES;
    if (g->x.device.device_type != device_type_of(g->whose))
        return OTHER_DEVICE;
    if (view_dtype(&g->x) < 0)
        return OTHER_DTYPE;
    if (s->groups <= 0 || s->channels % s->groups || s->batch < 0 || s->channels < 0)
        return WRONG_SHAPE;
    reason why = SUPPORTED;
    if (g->weight) {
        g->w = view_input(g->weight);
        why = check_parameter(g, &g->w);
    }
    if (why == SUPPORTED && g->bias) {
        g->b = view_input(g->bias);
        why = check_parameter(g, &g->b);
        if (why == SUPPORTED && g->weight && !same_dtype(&g->w, &g->b))
            return MIXED_DTYPES;
    }
    if (why != SUPPORTED)
        return why;
    if (view_elements(&g->x) == 0)
        return NO_ELEMENTS;
    g->flat = !fits(g);
    g->channels_last = g->whose == BACKEND_CPU && channels_last_strides(&g->x, g->dense);
    return SUPPORTED;
}

static bool same_steps(const DLTensor *view, const int64_t *strides) {
    for (int32_t i = 0; i < view->ndim; i++)
        if (view->shape[i] != 1 && view->strides[i] != strides[i])
            return false;
    return true;
}

bool group_is_laid_out(const group *g, const DLTensor *view) {
    return g->channels_last ? same_steps(view, g->dense) : view_is_contiguous(view);
}

reason group_split(const group *g, const DLTensor *whole, split_view *s) {
    const group_sizes *sizes = &g->sizes;
    const int64_t width = sizes->channels / sizes->groups;
    int64_t step = sizes->pixels, sample = sizes->channels * sizes->pixels;
    int32_t ndim = 3;
    if (g->flat) {
        if (!view_is_contiguous(whole) || view_elements(whole) != sizes->batch * sample)
            return WRONG_SHAPE;
        s->shape[3] = sizes->pixels;
        s->strides[3] = 1;
        ndim = 4;
    } else {
        sample = whole->strides[0];
        step = whole->strides[1];
        for (int32_t i = 2; i < whole->ndim; i++, ndim++) {
            s->shape[ndim] = whole->shape[i];
            s->strides[ndim] = whole->strides[i];
        }
    }
    s->shape[0] = sizes->batch;
    s->shape[1] = sizes->groups;
    s->shape[2] = width;
    s->strides[0] = sample;
    s->strides[1] = width * step;
    s->strides[2] = step;
    s->view = *whole;
    s->view.ndim = ndim;
    s->view.shape = s->shape;
    s->view.strides = s->strides;
    return SUPPORTED;
}

const DLTensor *group_split_parameter(const group *g, const DLTensor *whole, split_view *s) {
    s->shape[0] = g->sizes.groups;
    s->shape[1] = g->sizes.channels / g->sizes.groups;
    s->strides[0] = s->shape[1] * whole->strides[0];
    s->strides[1] = whole->strides[0];
    s->view = *whole;
    s->view.ndim = 2;
    s->view.shape = s->shape;
    s->view.strides = s->strides;
    return &s->view;
}

new_tensor group_new_like_x(const group *g, bool keep, int64_t *strides, DLTensor *view) {
    if (keep && group_is_laid_out(g, &g->x)) {
        const size_t bytes = (size_t)g->x.ndim * sizeof *strides;
        if (!g->channels_last)
            contiguous_strides(g->x.ndim, g->x.shape, strides);
        if (memcmp(g->x.strides, g->channels_last ? g->dense : strides, bytes) != 0) {
            memcpy(strides, g->x.strides, bytes);
            return new_strided_tensor(&g->x, g->x.ndim, g->x.shape, strides, view_dtype(&g->x),
                                      view);
        }
    }
    if (!g->channels_last)
        return new_dense_tensor(&g->x, g->x.ndim, g->x.shape, view_dtype(&g->x), strides, view);
    return new_channels_last_tensor(&g->x, g->x.shape, view_dtype(&g->x), g->dense, view);
}

new_tensor group_new_copy(const group *g, tensor_handle tensor, int64_t *strides, DLTensor *view) {
    NEW_TENSOR copy = group_new_like_x(g, false, strides, view);
    torch_check(torch.copy(handle_of(&copy), tensor, 0));
    return (new_tensor){give_tensor(&copy)};
}
