/*
 * torch tensors as DLTensors on the stack, and new torch tensors.
 *
 * A view borrows shape, strides and data from its tensor and lives no longer than that.
 */
#ifndef PLANISH_TORCH_TENSOR_H
#define PLANISH_TORCH_TENSOR_H

#include "../views.h"
#include "aoti.h"
#include "planish.h"

/* A tensor that was made here, or NULL: a TensorImpl and one reference to it, as C++ has them. */
typedef struct new_tensor {
    void *impl;
} new_tensor;

/* For the rare case that a new tensor is not returned. */
void free_new_tensor(new_tensor *tensor);

#define NEW_TENSOR __attribute__((cleanup(free_new_tensor))) new_tensor

/* As a handle, which lives as long as `tensor`. */
static inline tensor_handle handle_of(new_tensor *tensor) {
    return (tensor_handle)tensor;
}

/* Gives up owning the tensor; NULL becomes an undefined one. */
static inline void *give_tensor(new_tensor *tensor) {
    void *given = tensor->impl ? tensor->impl : torch.undefined;
    tensor->impl = NULL;
    return given;
}

/* The results of a call, in the order of C++. */
static inline returned_tensors give_tensors(new_tensor *first, new_tensor *second,
                                            new_tensor *third) {
    return (returned_tensors){{give_tensor(third), give_tensor(second), give_tensor(first)}};
}

/* Describes `tensor`, to be read only. A dtype that planish does not know gets 0 bits. */
DLTensor view_input(tensor_handle tensor);

/* As view_input, but without the data: for tensors that may have none. False where the tensor does
 * not tell its sizes (symbolic ones). */
bool view_description(tensor_handle tensor, DLTensor *view);

/* torch's number for the dtype of a view, or -1. */
int32_t view_dtype(const DLTensor *view);

/* f16 or bf16. */
static inline bool view_is_half(const DLTensor *view) {
    return view->dtype.bits == 16;
}
static inline bool view_is_double(const DLTensor *view) {
    return view->dtype.bits == 64;
}
static inline bool same_dtype(const DLTensor *a, const DLTensor *b) {
    return a->dtype.code == b->dtype.code && a->dtype.bits == b->dtype.bits;
}
static inline bool same_device(const DLTensor *a, const DLTensor *b) {
    return a->device.device_type == b->device.device_type &&
           a->device.device_id == b->device.device_id;
}
bool same_shape(const DLTensor *a, const DLTensor *b);

/* Dense row-major strides. As torch does, a size of 0 counts as 1. */
static inline void contiguous_strides(int32_t ndim, const int64_t *sizes, int64_t *strides) {
    int64_t stride = 1;
    for (int32_t i = ndim - 1; i >= 0; i--) {
        strides[i] = stride;
        stride *= sizes[i] > 1 ? sizes[i] : 1;
    }
}

/*
 * Where torch takes the tensor for channels last (of 4 or 5 axes, by its sizes and strides), writes
 * the dense strides of that order and returns true.
 */
bool channels_last_strides(const DLTensor *view, int64_t *strides);

/* Whether it lies by these strides, those of axes of one element aside. */
bool view_has_strides(const DLTensor *view, const int64_t *strides);

/* The strides of torch.empty_like(view): its own where it is dense in any order, else dense in the
 * order of its strides. */
void strides_like(const DLTensor *view, int64_t *strides);

/*
 * A new tensor on the device of `like`, with its view for writing. The view's shape is `sizes` and
 * its strides are `strides`, which must outlive it; for a dense tensor they are written here.
 */
new_tensor new_dense_tensor(const DLTensor *like, int32_t ndim, int64_t *sizes, int32_t dtype,
                            int64_t *strides, DLTensor *view);
new_tensor new_strided_tensor(const DLTensor *like, int32_t ndim, int64_t *sizes, int64_t *strides,
                              int32_t dtype, DLTensor *view);

/* The same laid out as torch.empty_like(like), of whose shape `sizes` is. */
new_tensor new_tensor_like(const DLTensor *like, int64_t *sizes, int32_t dtype, int64_t *strides,
                           DLTensor *view);

/* A new channels-last tensor of like's rank, 4 or 5, on the CPU; `strides` are those it has. */
new_tensor new_channels_last_tensor(const DLTensor *like, int64_t *sizes, int32_t dtype,
                                    int64_t *strides, DLTensor *view);

/* Of a new vector, the `size` elements from `offset` on, as a tensor of their own in its memory. */
new_tensor new_part(new_tensor *of, int64_t size, int64_t offset);

/* A row-major copy of a tensor of at most PLANISH_MAX_NDIM axes, on its device. */
new_tensor new_dense_copy(tensor_handle tensor);

/* Has the view of a tensor be that of such a copy, which is then *owned, where it is not dense and
 * has no more axes than planish takes. Returns whether it is. */
bool see_dense(tensor_handle tensor, DLTensor *view, new_tensor *owned);

#endif
