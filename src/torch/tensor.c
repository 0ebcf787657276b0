/*
 * torch tensors as DLTensors; see tensor.h.
 */
#include "tensor.h"

#include <string.h>

#include "../pages.h"
#include "stack.h"

static DLDataType dtype_from_torch(int32_t dtype) {
    if (dtype == torch.f32)
        return (DLDataType){kDLFloat, 32, 1};
    if (dtype == torch.bf16)
        return (DLDataType){kDLBfloat, 16, 1};
    if (dtype == torch.f16)
        return (DLDataType){kDLFloat, 16, 1};
    if (dtype == torch.f64)
        return (DLDataType){kDLFloat, 64, 1};
    return (DLDataType){kDLOpaqueHandle, 0, 1};
}

int32_t view_dtype(const DLTensor *view) {
    if (view->dtype.code == kDLBfloat)
        return torch.bf16;
    switch (view->dtype.bits) {
    case 16:
        return torch.f16;
    case 32:
        return torch.f32;
    case 64:
        return torch.f64;
    default:
        return -1;
    }
}

bool same_shape(const DLTensor *a, const DLTensor *b) {
    if (a->ndim != b->ndim)
        return false;
    for (int32_t i = 0; i < a->ndim; i++)
        if (a->shape[i] != b->shape[i])
            return false;
    return true;
}

/* torch's number for a device type that planish does not know becomes an extension's. */
static DLDevice device_of(tensor_handle tensor) {
    int32_t type = 0, index = 0;
    torch_check(torch.get_device_type(tensor, &type));
    if (type == torch.cpu)
        return (DLDevice){kDLCPU, 0};
    torch_check(torch.get_device_index(tensor, &index));
    return (DLDevice){type == torch.cuda ? kDLCUDA : kDLExtDev, index};
}

/* Views of other devices never get as far as making outputs. */
static int32_t torch_device_type(const DLTensor *view) {
    return view->device.device_type == kDLCUDA ? torch.cuda : torch.cpu;
}

bool view_description(tensor_handle tensor, DLTensor *view) {
    int64_t ndim = 0;
    int32_t dtype = 0;
    torch_check(torch.get_dim(tensor, &ndim));
    torch_check(torch.get_dtype(tensor, &dtype));
    *view = (DLTensor){
        .device = device_of(tensor),
        .ndim = (int32_t)ndim,
        .dtype = dtype_from_torch(dtype),
    };
    return torch.get_sizes(tensor, &view->shape) == 0;
}

DLTensor view_input(tensor_handle tensor) {
    DLTensor view;
    const void *data = NULL;
    if (!view_description(tensor, &view))
        torch_throw_last();
    torch_check(torch.get_strides(tensor, &view.strides));
    if (view.device.device_type != kDLExtDev)
        torch_check(torch.get_const_data_ptr(tensor, &data));
    view.data = (void *)(uintptr_t)data;
    return view;
}

bool channels_last_strides(const DLTensor *view, int64_t *strides) {
    /* From the axis that moves fastest to the slowest. */
    static const int orders[2][5] = {{1, 3, 2, 0}, {1, 4, 3, 2, 0}};
    if (view->ndim != 4 && view->ndim != 5)
        return false;
    const int *order = orders[view->ndim - 4];
    if (view->strides[1] == 0)
        return false;
    int64_t least = 0, stride = 1;
    for (int32_t i = 0; i < view->ndim; i++) {
        int axis = order[i];
        if (view->shape[axis] == 0 || view->strides[axis] < least)
            return false;
        /* N x 1 x 1 x 1 and slices of such fit both orders; torch calls them contiguous. */
        if (axis == 0 && least == view->strides[1])
            return false;
        least = view->strides[axis];
        if (view->shape[axis] > 1)
            least *= view->shape[axis];
        strides[axis] = stride;
        stride *= view->shape[axis];
    }
    return true;
}

bool view_has_strides(const DLTensor *view, const int64_t *strides) {
    for (int32_t i = 0; i < view->ndim; i++)
        if (view->shape[i] != 1 && view->strides[i] != strides[i])
            return false;
    return true;
}

/* Whether axis `a` belongs outside axis `b`, a later one; a stride of 0 says nothing. */
static bool steps_further(const DLTensor *view, int a, int b) {
    const int64_t i = view->strides[a], j = view->strides[b];
    if (i == 0 || j == 0)
        return false;
    return i > j || (i == j && view->shape[a] > view->shape[b]);
}

static bool steps_less(const DLTensor *view, int a, int b) {
    return view->strides[a] && view->strides[b] && view->strides[a] < view->strides[b];
}

void strides_like(const DLTensor *view, int64_t *strides) {
    /* The axes from the fastest to the slowest: insertion, from the last axis on. */
    int order[PLANISH_MAX_NDIM];
    const int32_t ndim = view->ndim;
    for (int i = 0; i < ndim; i++)
        order[i] = ndim - 1 - i;
    for (int i = 1; i < ndim; i++) {
        int moving = i;
        for (int k = i - 1; k >= 0; k--) {
            if (steps_further(view, order[k], order[moving])) {
                int axis = order[k];
                order[k] = order[moving];
                order[moving] = axis;
                moving = k;
            } else if (steps_less(view, order[k], order[moving])) {
                break;
            }
        }
    }
    bool dense = true;
    int64_t step = 1;
    for (int i = 0; i < ndim; i++) {
        const int axis = order[i];
        strides[axis] = step;
        if (view->shape[axis] > 1) {
            dense = dense && view->strides[axis] == step;
            step *= view->shape[axis];
        }
    }
    dense = dense || view_elements(view) == 0;
    for (int i = 0; dense && i < ndim; i++)
        strides[i] = view->strides[i];
}

void free_new_tensor(new_tensor *tensor) {
    tensor_handle handle = NULL;
    if (!tensor->impl || torch.new_undefined(&handle) != 0)
        return;
    *(void **)handle = tensor->impl;
    torch.delete_tensor(handle);
}

/* The tensor out of its handle, which goes. */
static new_tensor unwrap(tensor_handle handle) {
    new_tensor tensor = {*(void **)handle};
    *(void **)handle = torch.undefined;
    torch.delete_tensor(handle);
    return tensor;
}

/* Fills the view of a new tensor, and passes it on. */
static new_tensor viewed(new_tensor *tensor, const DLTensor *like, int32_t ndim, int64_t *sizes,
                         int64_t *strides, int32_t dtype, DLTensor *view) {
    *view = (DLTensor){
        .device = like->device,
        .ndim = ndim,
        .dtype = dtype_from_torch(dtype),
        .shape = sizes,
        .strides = strides,
    };
    torch_check(torch.get_mutable_data_ptr(handle_of(tensor), &view->data));
    if (like->device.device_type == kDLCPU) {
        size_t bytes = view->dtype.bits / 8;
        for (int32_t i = 0; i < ndim; i++)
            bytes *= (size_t)sizes[i];
        ask_for_huge_pages(view->data, bytes);
    }
    return (new_tensor){give_tensor(tensor)};
}

new_tensor new_strided_tensor(const DLTensor *like, int32_t ndim, int64_t *sizes, int64_t *strides,
                              int32_t dtype, DLTensor *view) {
    tensor_handle made = NULL;
    torch_check(torch.empty_strided(ndim, sizes, strides, dtype, torch_device_type(like),
                                    like->device.device_id, &made));
    NEW_TENSOR tensor = unwrap(made);
    return viewed(&tensor, like, ndim, sizes, strides, dtype, view);
}

new_tensor new_dense_tensor(const DLTensor *like, int32_t ndim, int64_t *sizes, int32_t dtype,
                            int64_t *strides, DLTensor *view) {
    bool on_cuda = like->device.device_type == kDLCUDA;
    contiguous_strides(ndim, sizes, strides);
    if (on_cuda ? !torch.empty_cuda : !torch.empty_cpu)
        return new_strided_tensor(like, ndim, sizes, strides, dtype, view);
    int_array_ref size = {sizes, (size_t)ndim};
    optional_layout row_major = {0};
    returned_tensors made;
    if (on_cuda) {
        optional_device device = {(int8_t)torch.cuda, (int8_t)like->device.device_id, true};
        made = torch.empty_cuda(size, (int8_t)dtype, device, row_major);
    } else {
        made = torch.empty_cpu(size, (int8_t)dtype, false, row_major);
    }
    NEW_TENSOR tensor = {made.impl[0]};
    return viewed(&tensor, like, ndim, sizes, strides, dtype, view);
}

new_tensor new_tensor_like(const DLTensor *like, int64_t *sizes, int32_t dtype, int64_t *strides,
                           DLTensor *view) {
    contiguous_strides(like->ndim, sizes, strides);
    if (!memcmp(strides, like->strides, (size_t)like->ndim * sizeof *strides))
        return new_dense_tensor(like, like->ndim, sizes, dtype, strides, view);
    strides_like(like, strides);
    return new_strided_tensor(like, like->ndim, sizes, strides, dtype, view);
}

new_tensor new_channels_last_tensor(const DLTensor *like, int64_t *sizes, int32_t dtype,
                                    int64_t *strides, DLTensor *view) {
    if (!torch.empty_cpu)
        return new_strided_tensor(like, like->ndim, sizes, strides, dtype, view);
    /* c10::MemoryFormat: ChannelsLast, ChannelsLast3d */
    optional_layout layout = {like->ndim == 4 ? 2 : 3, true};
    returned_tensors made =
        torch.empty_cpu((int_array_ref){sizes, (size_t)like->ndim}, (int8_t)dtype, false, layout);
    NEW_TENSOR tensor = {made.impl[0]};
    return viewed(&tensor, like, like->ndim, sizes, strides, dtype, view);
}

new_tensor new_part(new_tensor *of, int64_t size, int64_t offset) {
    static const int64_t stride = 1;
    tensor_handle part = NULL;
    torch_check(torch.reinterpret(handle_of(of), 1, &size, &stride, offset, &part));
    return unwrap(part);
}

new_tensor new_dense_copy(tensor_handle tensor) {
    int64_t strides[PLANISH_MAX_NDIM];
    DLTensor view = view_input(tensor), made;
    NEW_TENSOR copy =
        new_dense_tensor(&view, view.ndim, view.shape, view_dtype(&view), strides, &made);
    torch_check(torch.copy(handle_of(&copy), tensor, 0));
    return (new_tensor){give_tensor(&copy)};
}

bool see_dense(tensor_handle tensor, DLTensor *view, new_tensor *owned) {
    if (view->ndim > PLANISH_MAX_NDIM || view_is_contiguous(view))
        return false;
    *owned = new_dense_copy(tensor);
    *view = view_input(handle_of(owned));
    return true;
}
