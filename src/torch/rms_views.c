/*
 * What planish runs of torch's RMS norms; see rms_views.h.
 */
#include "rms_views.h"

#include <float.h>

static bool fits(const DLTensor *view, int32_t first, int_array_ref shape) {
    if (shape.size == 0 || first < 0 || view->ndim != first + (int32_t)shape.size)
        return false;
    for (size_t i = 0; i < shape.size; i++)
        if (view->shape[first + (int32_t)i] != shape.data[i])
            return false;
    return true;
}

/* What can be told without the data; anything but SUPPORTED is for torch. */
static reason examine_views(const rms *r) {
    if (r->x.ndim > PLANISH_MAX_NDIM)
        return TOO_MANY_AXES;
    if (r->x.device.device_type != device_type_of(r->whose) ||
        (r->weight && !same_device(&r->x, &r->w)))
        return OTHER_DEVICE;
    if (view_dtype(&r->x) < 0 || (r->weight && view_dtype(&r->w) < 0))
        return OTHER_DTYPE;
    if (!fits(&r->x, r->x.ndim - (int32_t)r->shape.size, r->shape) ||
        (r->weight && !fits(&r->w, 0, r->shape)))
        return WRONG_SHAPE;
    return SUPPORTED;
}

reason rms_examine(rms *r) {
    r->x = view_input(r->input);
    if (r->weight)
        r->w = view_input(r->weight);
    return examine_views(r);
}

reason rms_examine_descriptions(rms *r) {
    if (!view_description(r->input, &r->x) || (r->weight && !view_description(r->weight, &r->w)))
        return OTHER_DTYPE;
    return examine_views(r);
}

static double epsilon(const rms *r) {
    if (r->eps.engaged)
        return r->eps.value;
    return view_is_double(&r->x) ? DBL_EPSILON : FLT_EPSILON;
}

planish_norm rms_operator(const rms *r) {
    return planish_rms_norm_op(r->x.ndim, (int32_t)r->shape.size, epsilon(r));
}

void rms_statistics_shape(const rms *r, int64_t *sizes) {
    int32_t first = r->x.ndim - (int32_t)r->shape.size;
    for (int32_t i = 0; i < r->x.ndim; i++)
        sizes[i] = i < first ? r->x.shape[i] : 1;
}
