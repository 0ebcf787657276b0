#include "tensor_view.h"

#include "../views.h"

static void set_dense_strides(tensor_view *view) {
    int64_t stride = 1;
    for (int i = view->tensor.ndim - 1; i >= 0; i--) {
        view->strides[i] = stride;
        stride *= view->sizes[i];
    }
}

void view_dense(tensor_view *view, void *data, DLDataType dtype, const int64_t *sizes, int rank) {
    view->tensor = (DLTensor){
        .data = data,
        .device = {kDLCPU, 0},
        .ndim = rank,
        .dtype = dtype,
        .shape = view->sizes,
        .strides = view->strides,
    };
    for (int i = 0; i < rank; i++)
        view->sizes[i] = sizes[i];
    set_dense_strides(view);
}

bool view_broadcast(tensor_view *view, const int64_t *sizes, int rank) {
    const int more = rank - view->tensor.ndim;
    if (more < 0)
        return false;
    for (int i = rank - 1; i >= 0; i--) {
        const int64_t own = i < more ? 1 : view->sizes[i - more];
        if (own != sizes[i] && own != 1)
            return false;
        view->strides[i] = own == 1 ? 0 : view->strides[i - more];
        view->sizes[i] = sizes[i];
    }
    view->tensor.ndim = rank;
    return true;
}

void view_split(tensor_view *view, int64_t groups, bool channels_last) {
    const int rank = view->tensor.ndim, channels = channels_last ? rank - 1 : 1;
    const int64_t each = view->sizes[channels] / groups, stride = view->strides[channels];
    /* The other axes, in their order, stand behind the two that are made. */
    for (int i = rank - 1; i > 1; i--) {
        const int from = channels_last ? i - 1 : i;
        view->sizes[i + 1] = view->sizes[from];
        view->strides[i + 1] = view->strides[from];
    }
    view->sizes[1] = groups;
    view->strides[1] = stride * each;
    view->sizes[2] = each;
    view->strides[2] = stride;
    view->tensor.ndim = rank + 1;
}

bool view_along(tensor_view *view, const tensor_view *x, uint64_t axes) {
    int64_t wanted = 1;
    const int rank = x->tensor.ndim;
    for (int i = 0; i < rank; i++)
        wanted *= axes & PLANISH_AXIS(i) ? x->sizes[i] : 1;
    if (view_elements(&view->tensor) != wanted)
        return false;
    for (int i = 0; i < rank; i++)
        view->sizes[i] = axes & PLANISH_AXIS(i) ? x->sizes[i] : 1;
    view->tensor.ndim = rank;
    set_dense_strides(view);
    return true;
}

void view_copy(tensor_view *to, const tensor_view *from) {
    *to = *from;
    to->tensor.shape = to->sizes;
    to->tensor.strides = to->strides;
}
