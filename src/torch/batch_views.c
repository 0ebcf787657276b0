/*
 * Views and results of batch norm; see batch_views.h.
 */
#include "batch_views.h"

#include <string.h>

/* Whether a vector is one number for each of x's channels, on x's device. */
static reason check_vector(const batch *b, const DLTensor *vector) {
    if (!same_device(&b->x, vector))
        return OTHER_DEVICE;
    if (view_dtype(vector) < 0)
        return OTHER_DTYPE;
    return vector->ndim == 1 && vector->shape[0] == b->channels ? SUPPORTED : WRONG_SHAPE;
}

/* x's dtype, or f32 beside 16 bits. */
static bool is_beside_x(const batch *b, const DLTensor *vector) {
    return same_dtype(&b->x, vector) || (view_is_half(&b->x) && view_dtype(vector) == torch.f32);
}

static reason see(const batch *b, tensor_handle tensor, DLTensor *view) {
    if (!tensor)
        return SUPPORTED;
    *view = view_input(tensor);
    return check_vector(b, view);
}

/* Which dtypes torch takes: on the CPU and in cuDNN's operator one for all vectors; on CUDA weights
 * of one and running statistics of any. */
static reason check_dtypes(batch *b) {
    const DLTensor *vectors[4] = {b->weight ? &b->w : NULL, b->bias ? &b->b : NULL,
                                  b->running_mean ? &b->mean : NULL,
                                  b->running_var ? &b->var : NULL};
    const int pairs[2][2] = {{0, 1}, {2, 3}};
    const DLTensor *first = NULL;
    for (int p = 0; p < 2; p++) {
        if (b->habit == HABIT_CUDA)
            first = NULL;
        for (int i = 0; i < 2; i++) {
            const DLTensor *vector = vectors[pairs[p][i]];
            if (!vector)
                continue;
            if (first && !same_dtype(first, vector))
                return MIXED_DTYPES;
            if ((p == 0 || b->habit != HABIT_CUDA) && !is_beside_x(b, vector))
                return MIXED_DTYPES;
            first = vector;
        }
    }
    const DLTensor *parameter = vectors[0] ? vectors[0] : vectors[1];
    const DLTensor *of_all = parameter || b->habit == HABIT_CUDA ? parameter : first;
    b->parameter_dtype = view_dtype(of_all ? of_all : &b->x);
    b->statistics_dtype = b->parameter_dtype;
    if (b->habit != HABIT_CPU || b->own)
        b->statistics_dtype = view_is_double(&b->x) ? torch.f64 : torch.f32;
    return SUPPORTED;
}

/* What cuDNN's operator asks for beyond the others; the rest raises there. */
static reason check_cudnn(const batch *b) {
    if (!b->weight || b->x.ndim > 6)
        return WRONG_SHAPE;
    if (b->x.dtype.code == kDLBfloat || (view_is_half(&b->x) && view_dtype(&b->w) != torch.f32))
        return MIXED_DTYPES;
    const DLTensor *vectors[4] = {&b->w, b->bias ? &b->b : NULL, b->running_mean ? &b->mean : NULL,
                                  b->running_var ? &b->var : NULL};
    for (int i = 0; i < 4; i++)
        if (vectors[i] && !view_is_contiguous(vectors[i]))
            return NOT_DENSE;
    const bool lies =
        b->channels_last ? view_has_strides(&b->x, b->dense) : view_is_contiguous(&b->x);
    return lies ? SUPPORTED : NOT_DENSE;
}

reason batch_examine(batch *b) {
    b->x = view_input(b->input);
    if (b->x.ndim > PLANISH_MAX_NDIM)
        return TOO_MANY_AXES;
    if (b->x.device.device_type != device_type_of(batch_backend(b->habit)))
        return OTHER_DEVICE;
    if (view_dtype(&b->x) < 0)
        return OTHER_DTYPE;
    if (b->x.ndim < 2 || (b->running_mean != NULL) != (b->running_var != NULL))
        return WRONG_SHAPE;
    if (view_elements(&b->x) == 0)
        return NO_ELEMENTS;
    b->channels = b->x.shape[1];
    b->channels_last = channels_last_strides(&b->x, b->dense);
    reason why = see(b, b->weight, &b->w);
    if (why == SUPPORTED)
        why = see(b, b->bias, &b->b);
    if (why == SUPPORTED)
        why = see(b, b->running_mean, &b->mean);
    if (why == SUPPORTED)
        why = see(b, b->running_var, &b->var);
    if (why == SUPPORTED)
        why = check_dtypes(b);
    return why == SUPPORTED && b->habit == HABIT_CUDNN ? check_cudnn(b) : why;
}

new_tensor batch_new_result(batch *b, const DLTensor *like, bool keeps_order, int64_t *strides,
                            DLTensor *view) {
    const int32_t dtype = view_dtype(&b->x);
    if (b->own)
        return new_tensor_like(&b->x, b->x.shape, dtype, strides, view);
    if (keeps_order && !view_is_contiguous(like)) {
        strides_like(like, strides);
        return new_strided_tensor(&b->x, b->x.ndim, b->x.shape, strides, dtype, view);
    }
    if (!keeps_order && b->channels_last) {
        if (b->habit == HABIT_CPU)
            return new_channels_last_tensor(&b->x, b->x.shape, dtype, b->dense, view);
        return new_strided_tensor(&b->x, b->x.ndim, b->x.shape, b->dense, dtype, view);
    }
    return new_dense_tensor(&b->x, b->x.ndim, b->x.shape, dtype, strides, view);
}

new_tensor batch_new_channels(const batch *b, int64_t size, int32_t dtype, channel_view *made) {
    made->size = size;
    return new_dense_tensor(&b->x, 1, &made->size, dtype, &made->stride, &made->view);
}

/* Elements that a vector has for itself, more than none; and how many stand behind the last one's,
 * which no tensor of torch's has. */
enum { ROOM = 16, MARK = 7 };

static int64_t room_of(int64_t size) {
    return (size / ROOM + 1) * ROOM;
}

void batch_new_own_statistics(const batch *b, int64_t size, new_tensor made[2],
                              channel_view views[2]) {
    const int64_t room = room_of(size);
    channel_view all;
    NEW_TENSOR both = batch_new_channels(b, 2 * room + MARK, b->statistics_dtype, &all);
    for (int i = 0; i < 2; i++) {
        channel_view *one = &views[i];
        made[i] = new_part(&both, size, i * room);
        *one = (channel_view){.view = all.view, .size = size, .stride = 1};
        one->view.data = (char *)all.view.data + i * room * (all.view.dtype.bits / 8);
        one->view.shape = &one->size;
        one->view.strides = &one->stride;
    }
}

bool batch_statistics_are_own(tensor_handle mean, tensor_handle rstd) {
    const tensor_handle given[2] = {mean, rstd};
    DLTensor view[2];
    bool defined[2] = {false, false};
    for (int i = 0; i < 2; i++)
        if (!given[i] || torch.is_defined(given[i], &defined[i]) != 0 || !defined[i])
            return false;
    for (int i = 0; i < 2; i++) {
        int64_t bytes = 0, offset = 0;
        view[i] = view_input(given[i]);
        if (view[i].ndim != 1 || torch.get_storage_offset(given[i], &offset) != 0 ||
            torch.get_storage_size(given[i], &bytes) != 0)
            return false;
        const int64_t room = room_of(view[i].shape[0]);
        if (offset != i * room || bytes != (2 * room + MARK) * (view[i].dtype.bits / 8))
            return false;
    }
    const int64_t size = view[0].shape[0], apart = room_of(size) * (view[0].dtype.bits / 8);
    return same_shape(&view[0], &view[1]) && same_dtype(&view[0], &view[1]) &&
           (size == 0 || (char *)view[1].data - (char *)view[0].data == apart);
}

reason batch_examine_statistics(const batch *b, tensor_handle mean, tensor_handle rstd,
                                DLTensor views[2]) {
    const tensor_handle given[2] = {mean, rstd};
    for (int i = 0; i < 2; i++) {
        if (!given[i])
            return WRONG_SHAPE;
        views[i] = view_input(given[i]);
        const reason why = check_vector(b, &views[i]);
        if (why != SUPPORTED)
            return why;
        if (view_dtype(&views[i]) != b->statistics_dtype)
            return MIXED_DTYPES;
    }
    return SUPPORTED;
}
