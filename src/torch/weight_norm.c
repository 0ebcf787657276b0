/*
 * aten::_weight_norm_interface and its backward on planish, on the CPU: the L2 norm of each slice
 * of v along one axis, the first or the last, times g.
 *
 * Shapes, dtypes and strides of the results are torch's: dense w, grad_v and grad_g; the norms laid
 * out as g, in f32 where g is 16 bits wide. Kernels save and take 1 / norm. What torch refuses, and
 * what planish does not run, goes to torch's kernel.
 */
#include "calls.h"
#include "kernels.h"
#include "run.h"
#include "stack.h"
#include "tensor.h"
#include "weight_faster.h"

/* Whether `view` is dense and has a number for each slice. */
static reason check_numbers(const weights *w, const DLTensor *view, int32_t dtype) {
    if (!same_device(&w->v, view))
        return OTHER_DEVICE;
    if (view_dtype(view) != dtype)
        return MIXED_DTYPES;
    if (view->ndim > PLANISH_MAX_NDIM || view_elements(view) != w->v.shape[w->axis])
        return WRONG_SHAPE;
    return view_is_contiguous(view) ? SUPPORTED : NOT_DENSE;
}

/* Fills the views; anything but SUPPORTED is for torch. */
static reason examine(weights *w, tensor_handle v, tensor_handle g, int64_t axis) {
    if (!group_is_active(PLANISH_TORCH_WEIGHT_NORM))
        return DISABLED;
    w->v = view_input(v);
    if (w->v.ndim > PLANISH_MAX_NDIM)
        return TOO_MANY_AXES;
    if (w->v.device.device_type != kDLCPU)
        return OTHER_DEVICE;
    if (view_dtype(&w->v) < 0)
        return OTHER_DTYPE;
    if (w->v.ndim < 2 || (axis != 0 && axis != w->v.ndim - 1))
        return WRONG_SHAPE;
    /* Without slices torch's kernel would divide by their number, and end the process. */
    if (view_elements(&w->v) == 0 && w->v.shape[axis] != 0)
        return NO_ELEMENTS;
    if (!view_is_contiguous(&w->v))
        return NOT_DENSE;
    w->axis = (int32_t)axis;
    w->norm_dtype = view_is_half(&w->v) ? torch.f32 : view_dtype(&w->v);
    for (int32_t i = 0; i < w->v.ndim; i++)
        w->sizes[i] = i == w->axis ? w->v.shape[i] : 1;
    contiguous_strides(w->v.ndim, w->sizes, w->strides);
    w->g = view_input(g);
    return check_numbers(w, &w->g, view_dtype(&w->v));
}

/* Dense numbers, seen with v's rank. */
static DLTensor along_axis(weights *w, const DLTensor *numbers) {
    DLTensor seen = *numbers;
    seen.ndim = w->v.ndim;
    seen.shape = w->sizes;
    seen.strides = w->strides;
    return seen;
}

static planish_status run(const weights *w, planish_pass pass, const planish_tensors *tensors) {
    if (view_elements(&w->v) == 0)
        return PLANISH_OK;
    const uint64_t all = PLANISH_AXIS(w->v.ndim) - 1;
    const planish_norm op = {
        .struct_size = sizeof op,
        .kind = PLANISH_L2,
        .reduce_axes = all & ~PLANISH_AXIS(w->axis),
        .affine_axes = PLANISH_AXIS(w->axis),
    };
    return run_norm_if_faster(&op, pass, tensors, (message){0});
}

static double number_at(const DLTensor *view, int64_t i) {
    return view_is_double(view) ? ((const double *)view->data)[i] : ((const float *)view->data)[i];
}

/* Room on the stack for a number a slice, which spares a small weight a tensor. */
typedef struct few_numbers {
    double list[256];
} few_numbers;

/* f64 for a number of each slice on the CPU, in `few` or in a new tensor. */
static new_tensor new_numbers(weights *w, few_numbers *few, DLTensor *view) {
    int64_t *count = &w->v.shape[w->axis], stride[1];
    new_tensor made = {NULL};
    if (*count > (int64_t)(sizeof few->list / sizeof *few->list))
        made = new_dense_tensor(&w->v, 1, count, torch.f64, stride, view);
    else
        *view = (DLTensor){few->list, w->v.device, 1, {kDLFloat, 64, 1}, count, NULL, 0};
    view->strides = NULL; /* dense */
    return made;
}

/* The reciprocals of dense numbers on the CPU. */
static void invert(const DLTensor *from, const DLTensor *to) {
    const int64_t count = view_elements(from);
    for (int64_t i = 0; i < count; i++) {
        const double found = 1 / number_at(from, i);
        if (view_is_double(to))
            ((double *)to->data)[i] = found;
        else
            ((float *)to->data)[i] = (float)found;
    }
}

/* As C++ returns two: the first is the last field. */
static returned_tensors give_two(new_tensor *first, new_tensor *second) {
    new_tensor none = {NULL};
    return give_tensors(&none, first, second);
}

/* ---- Forward --------------------------------------------------------------------------------- */

/* A new tensor of a dtype, laid out as g. */
static new_tensor new_like_g(weights *w, int32_t dtype, DLTensor *view) {
    int64_t dense[PLANISH_MAX_NDIM];
    contiguous_strides(w->g.ndim, w->g.shape, dense);
    if (memcmp(dense, w->g.strides, (size_t)w->g.ndim * sizeof *dense) != 0)
        return new_strided_tensor(&w->v, w->g.ndim, w->g.shape, w->g.strides, dtype, view);
    new_tensor made = new_dense_tensor(&w->v, w->g.ndim, w->g.shape, dtype, dense, view);
    view->strides = w->g.strides;
    return made;
}

static reason forward_on_planish(weights *w, returned_tensors *made) {
    int64_t dense[PLANISH_MAX_NDIM];
    DLTensor y, norms, rstd;
    few_numbers few;
    NEW_TENSOR y_out = new_dense_tensor(&w->v, w->v.ndim, w->v.shape, view_dtype(&w->v), dense, &y);
    NEW_TENSOR norms_out = new_like_g(w, w->norm_dtype, &norms);
    NEW_TENSOR rstd_out = new_numbers(w, &few, &rstd);
    const DLTensor seen_g = along_axis(w, &w->g), seen_rstd = along_axis(w, &rstd);
    const planish_tensors tensors = {
        .struct_size = sizeof tensors,
        .x = &w->v,
        .weight = &seen_g,
        .y = &y,
        .rstd = &seen_rstd,
    };
    const planish_status status = run(w, PLANISH_FORWARD, &tensors);
    if (status != PLANISH_OK)
        return refusal(status);
    invert(&rstd, &norms);
    *made = give_two(&y_out, &norms_out);
    return SUPPORTED;
}

/* v, g, dim */
void weight_norm_forward(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    INSIDE call = call_enter(WEIGHT_NORM, BOXED);
    OWNED_TENSOR v = take_tensor(stack[0]);
    OWNED_TENSOR g = take_tensor(stack[1]);
    const int64_t axis = (int64_t)stack[2];
    weights w;
    returned_tensors made;
    reason why = examine(&w, v, g, axis);
    if (why == SUPPORTED)
        why = weight_torch_is_faster(&w, false) ? TORCH_IS_FASTER : forward_on_planish(&w, &made);
    if (why != SUPPORTED) {
        count_reason(call, why);
        made = torch.weight_norm(v, g, axis);
    }
    give_returned(stack, &made, 2);
}

/* ---- Backward -------------------------------------------------------------------------------- */

static reason backward_on_planish(weights *w, const DLTensor *dy, tensor_handle norms_handle,
                                  returned_tensors *made) {
    int64_t dense[PLANISH_MAX_NDIM], dense_g[PLANISH_MAX_NDIM];
    DLTensor dx, dg, rstd;
    few_numbers few;
    const DLTensor norms = view_input(norms_handle);
    const reason why = check_numbers(w, &norms, w->norm_dtype);
    if (why != SUPPORTED)
        return why;
    NEW_TENSOR dx_out =
        new_dense_tensor(&w->v, w->v.ndim, w->v.shape, view_dtype(&w->v), dense, &dx);
    NEW_TENSOR dg_out =
        new_dense_tensor(&w->v, w->g.ndim, w->g.shape, view_dtype(&w->g), dense_g, &dg);
    NEW_TENSOR rstd_out = new_numbers(w, &few, &rstd);
    invert(&norms, &rstd);
    const DLTensor seen_g = along_axis(w, &w->g), seen_rstd = along_axis(w, &rstd);
    const DLTensor seen_dg = along_axis(w, &dg);
    const planish_tensors tensors = {
        .struct_size = sizeof tensors,
        .x = &w->v,
        .weight = &seen_g,
        .rstd = &seen_rstd,
        .dy = dy,
        .dx = &dx,
        .dweight = &seen_dg,
    };
    const planish_status status = run(w, PLANISH_BACKWARD, &tensors);
    if (status != PLANISH_OK)
        return refusal(status);
    *made = give_two(&dx_out, &dg_out);
    return SUPPORTED;
}

/* grad_w, saved_v, saved_g, saved_norms, dim */
void weight_norm_backward(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    INSIDE call = call_enter(WEIGHT_NORM_BACKWARD, BOXED);
    OWNED_TENSOR dw = take_tensor(stack[0]);
    OWNED_TENSOR v = take_tensor(stack[1]);
    OWNED_TENSOR g = take_tensor(stack[2]);
    OWNED_TENSOR norms = take_tensor(stack[3]);
    const int64_t axis = (int64_t)stack[4];
    weights w;
    returned_tensors made;
    DLTensor dy;
    reason why = examine(&w, v, g, axis);
    if (why == SUPPORTED) {
        dy = view_input(dw);
        why = !same_device(&w.v, &dy)    ? OTHER_DEVICE
              : !same_dtype(&w.v, &dy)   ? MIXED_DTYPES
              : !same_shape(&w.v, &dy)   ? WRONG_SHAPE
              : !view_is_contiguous(&dy) ? NOT_DENSE
                                         : SUPPORTED;
    }
    if (why == SUPPORTED)
        why = weight_torch_is_faster(&w, true) ? TORCH_IS_FASTER
                                               : backward_on_planish(&w, &dy, norms, &made);
    if (why != SUPPORTED) {
        count_reason(call, why);
        made = torch.weight_norm_backward(dw, v, g, norms, axis);
    }
    give_returned(stack, &made, 2);
}
