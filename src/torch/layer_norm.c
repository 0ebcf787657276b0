/*
 * aten::native_layer_norm and native_layer_norm_backward on planish.
 *
 * Shapes, dtypes and strides of the results are torch's: dense y and dx, statistics in the dtype of
 * the parameters, undefined tensors for gradients not asked for. What torch refuses, and what
 * planish does not run, goes to torch's kernel.
 */
#include "calls.h"
#include "fallback.h"
#include "kernels.h"
#include "own_call.h"
#include "run.h"
#include "stack.h"
#include "tensor.h"

/* The tensors of a layer norm, and how its axes fall. */
typedef struct layer {
    tensor_handle input, weight, bias; /* weight and bias may be NULL */
    int_array_ref shape;               /* normalized_shape */
    backend whose;                     /* the key the call came in by */
    DLTensor x, w, b;
    int32_t statistics_dtype;
    bool mixed; /* half x with float parameters */
    bool own;   /* a call of planish's own, or its derivative (own_call.h) */
} layer;

static uint32_t group_of(backend whose) {
    return whose == BACKEND_CUDA ? PLANISH_TORCH_CUDA_LAYER_NORM : PLANISH_TORCH_LAYER_NORM;
}

/* Whether a parameter is one that torch takes with this x. */
static reason check_parameter(layer *l, const DLTensor *parameter) {
    if (!same_device(&l->x, parameter))
        return OTHER_DEVICE;
    if (parameter->ndim != (int32_t)l->shape.size)
        return WRONG_SHAPE;
    for (size_t i = 0; i < l->shape.size; i++)
        if (parameter->shape[i] != l->shape.data[i])
            return WRONG_SHAPE;
    if (same_dtype(&l->x, parameter))
        return SUPPORTED;
    l->mixed = true;
    return view_is_half(&l->x) && view_dtype(parameter) == torch.f32 ? SUPPORTED : MIXED_DTYPES;
}

/* Fills the views; anything but SUPPORTED is for torch. */
static reason examine(layer *l) {
    l->x = view_input(l->input);
    if (l->shape.size > PLANISH_MAX_NDIM || l->x.ndim > PLANISH_MAX_NDIM)
        return TOO_MANY_AXES;
    if (l->x.device.device_type != device_type_of(l->whose))
        return OTHER_DEVICE;
    if (view_dtype(&l->x) < 0)
        return OTHER_DTYPE;
    int32_t first = l->x.ndim - (int32_t)l->shape.size;
    if (l->shape.size == 0 || first < 0)
        return WRONG_SHAPE;
    for (size_t i = 0; i < l->shape.size; i++)
        if (l->x.shape[first + (int32_t)i] != l->shape.data[i])
            return WRONG_SHAPE;
    reason why = SUPPORTED;
    if (l->weight) {
        l->w = view_input(l->weight);
        why = check_parameter(l, &l->w);
    }
    if (why == SUPPORTED && l->bias) {
        l->b = view_input(l->bias);
        why = check_parameter(l, &l->b);
        if (why == SUPPORTED && l->weight && !same_dtype(&l->w, &l->b))
            return MIXED_DTYPES;
    }
    /* torch's on the CPU are in the dtype of the parameters; all others are as wide as the sums. */
    const bool torchs = l->whose == BACKEND_CPU && !l->own;
    bool wide = l->mixed || (!torchs && !view_is_double(&l->x));
    l->statistics_dtype = wide ? torch.f32 : view_dtype(&l->x);
    return why;
}

/* x's sizes with 1 on the normalized axes. */
static void statistics_shape(const layer *l, int64_t *sizes) {
    int32_t first = l->x.ndim - (int32_t)l->shape.size;
    for (int32_t i = 0; i < l->x.ndim; i++)
        sizes[i] = i < first ? l->x.shape[i] : 1;
}

static planish_norm operator_of(const layer *l, double eps) {
    return planish_layer_norm_op(l->x.ndim, (int32_t)l->shape.size, eps);
}

static planish_status run_layer(const layer *l, const planish_norm *op, planish_pass pass,
                                const planish_tensors *tensors) {
    return l->own ? own_call_run(op, pass, tensors)
                  : run_norm_if_fast(op, pass, tensors, (message){0});
}

static reason forward_on_planish(layer *l, double eps, returned_tensors *made) {
    int64_t sizes[PLANISH_MAX_NDIM], strides[PLANISH_MAX_NDIM], dense[PLANISH_MAX_NDIM];
    DLTensor y, mean, rstd;
    statistics_shape(l, sizes);
    NEW_TENSOR out = new_dense_tensor(&l->x, l->x.ndim, l->x.shape, view_dtype(&l->x), dense, &y);
    const int32_t ndim = l->x.ndim, dtype = l->statistics_dtype;
    const bool saves = saves_statistics(l->own);
    NEW_TENSOR mean_out = {NULL}, rstd_out = {NULL};
    if (saves) {
        mean_out = new_statistic(&l->x, ndim, sizes, dtype, l->own, strides, &mean);
        rstd_out = new_statistic(&l->x, ndim, sizes, dtype, l->own, strides, &rstd);
    }
    planish_norm op = operator_of(l, eps);
    planish_tensors tensors = {
        .struct_size = sizeof tensors,
        .x = &l->x,
        .weight = l->weight ? &l->w : NULL,
        .bias = l->bias ? &l->b : NULL,
        .y = &y,
        .mean = saves ? &mean : NULL,
        .rstd = saves ? &rstd : NULL,
    };
    planish_status status = run_layer(l, &op, PLANISH_FORWARD, &tensors);
    if (status != PLANISH_OK)
        return refusal(status);
    *made = give_tensors(&out, &mean_out, &rstd_out);
    return SUPPORTED;
}

/* Whether what planish has no CUDA kernel for as it lies is copied and tried again, as torch's
 * kernel would copy it, which is no faster then and takes no mixed dtypes. */
static bool is_for_copies(const layer *l, reason why) {
    return why == NO_GPU_KERNEL && !l->own && l->whose == BACKEND_CUDA;
}

static returned_tensors forward(operation_counts *call, backend whose, bool own,
                                tensor_handle input, int_array_ref shape, tensor_handle weight,
                                tensor_handle bias, double eps) {
    layer l = {
        .input = input, .weight = weight, .bias = bias, .shape = shape, .whose = whose, .own = own};
    NEW_TENSOR dense_x = {NULL};
    returned_tensors made;
    reason why =
        own || group_is_active(group_of(whose)) ? examine(&l) : idle_reason(group_of(whose));
    if (why == SUPPORTED && whose == BACKEND_CUDA && l.mixed && !own &&
        !group_is_active(PLANISH_TORCH_CUDA_MIXED))
        why = MIXED_DTYPES;
    if (why == SUPPORTED) {
        why = forward_on_planish(&l, eps, &made);
        if (is_for_copies(&l, why) && see_dense(input, &l.x, &dense_x))
            why = forward_on_planish(&l, eps, &made);
    }
    if (why == SUPPORTED)
        return made;
    if (own && why == TOO_MANY_AXES) /* planish's functions have an error for that */
        torch_throw(reason_text(why));
    count_reason(call, why);
    return torch_layer_norm(whose, input, shape, weight, bias, eps);
}

static void boxed_forward(backend whose, stack_value *stack) {
    const bool own = own_call_take();
    INSIDE call =
        call_enter(operation_of(own, group_of(whose), NATIVE_LAYER_NORM, NORM_FORWARD), BOXED);
    OWNED_TENSOR input = take_tensor(stack[0]);
    OWNED_LIST list = take_list(stack[1]);
    OWNED_TENSOR weight = take_optional_tensor(stack[2]);
    OWNED_TENSOR bias = take_optional_tensor(stack[3]);
    double eps = take_double(stack[4]);
    int64_t sizes[LIST_ROOM];
    int_array_ref shape = {sizes, read_list(list, sizes, LIST_ROOM)};
    returned_tensors made = forward(call, whose, own, input, shape, weight, bias, eps);
    give_returned(stack, &made, 3);
}

void layer_norm_forward(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    boxed_forward(BACKEND_CPU, stack);
}

void layer_norm_forward_cuda(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    boxed_forward(BACKEND_CUDA, stack);
}

returned_tensors layer_norm_at_once(backend whose, bool own, tensor_handle input,
                                    int_array_ref shape, const optional_tensor *weight,
                                    const optional_tensor *bias, double eps) {
    INSIDE call =
        call_enter(operation_of(own, group_of(whose), NATIVE_LAYER_NORM, NORM_FORWARD), UNBOXED);
    return forward(call, whose, own, input, shape, optional_handle(weight), optional_handle(bias),
                   eps);
}

returned_tensors layer_norm_forward_unboxed(void *functor, uint64_t keys, tensor_handle input,
                                            int_array_ref shape, const optional_tensor *weight,
                                            const optional_tensor *bias, double eps) {
    (void)functor, (void)keys;
    return layer_norm_at_once(BACKEND_CPU, own_call_take(), input, shape, weight, bias, eps);
}

/* The saved mean or rstd, seen with x's rank. torch reads them as dense rows of any shape. */
static reason examine_statistics(const layer *l, tensor_handle tensor, int64_t *sizes,
                                 int64_t *strides, DLTensor *view) {
    DLTensor found = view_input(tensor);
    if (!same_device(&l->x, &found))
        return OTHER_DEVICE;
    if (view_dtype(&found) != l->statistics_dtype)
        return MIXED_DTYPES;
    *view = (DLTensor){
        .data = found.data,
        .device = found.device,
        .ndim = l->x.ndim,
        .dtype = found.dtype,
        .shape = sizes,
        .strides = strides,
    };
    return view_is_contiguous(&found) && view_elements(&found) == view_elements(view) ? SUPPORTED
                                                                                      : WRONG_SHAPE;
}

static reason examine_gradient(const layer *l, const DLTensor *dy, const mask3 *mask) {
    if (!same_device(&l->x, dy))
        return OTHER_DEVICE;
    if (!same_dtype(&l->x, dy))
        return MIXED_DTYPES;
    if (!same_shape(&l->x, dy))
        return WRONG_SHAPE;
    bool odd = (mask->wanted[1] && !l->weight) || (mask->wanted[2] && !l->bias);
    return odd ? ODD_GRADIENT : SUPPORTED;
}

static reason backward_on_planish(layer *l, const DLTensor *dy, tensor_handle mean_handle,
                                  tensor_handle rstd_handle, const mask3 *mask,
                                  returned_tensors *made) {
    int64_t sizes[PLANISH_MAX_NDIM], strides[PLANISH_MAX_NDIM];
    int64_t dense[PLANISH_MAX_NDIM], parameter_dense[PLANISH_MAX_NDIM];
    int32_t normalized_ndim = (int32_t)l->shape.size;
    int64_t *parameter_sizes = l->x.shape + l->x.ndim - normalized_ndim;
    DLTensor mean, rstd, dx, dweight, dbias;
    statistics_shape(l, sizes);
    contiguous_strides(l->x.ndim, sizes, strides);
    reason why = examine_statistics(l, mean_handle, sizes, strides, &mean);
    if (why == SUPPORTED)
        why = examine_statistics(l, rstd_handle, sizes, strides, &rstd);
    if (why != SUPPORTED)
        return why;

    NEW_TENSOR dx_out = {NULL};
    NEW_TENSOR dweight_out = {NULL};
    NEW_TENSOR dbias_out = {NULL};
    if (mask->wanted[0])
        dx_out = new_dense_tensor(&l->x, l->x.ndim, l->x.shape, view_dtype(&l->x), dense, &dx);
    if (mask->wanted[1])
        dweight_out = new_dense_tensor(&l->x, normalized_ndim, parameter_sizes, view_dtype(&l->w),
                                       parameter_dense, &dweight);
    if (mask->wanted[2])
        dbias_out = new_dense_tensor(&l->x, normalized_ndim, parameter_sizes, view_dtype(&l->b),
                                     parameter_dense, &dbias);

    planish_norm op = operator_of(l, 0);
    planish_tensors tensors = {
        .struct_size = sizeof tensors,
        .x = &l->x,
        .weight = l->weight ? &l->w : NULL,
        .mean = &mean,
        .rstd = &rstd,
        .dy = dy,
        .dx = dx_out.impl ? &dx : NULL,
        .dweight = dweight_out.impl ? &dweight : NULL,
        .dbias = dbias_out.impl ? &dbias : NULL,
    };
    if (dx_out.impl || dweight_out.impl || dbias_out.impl) {
        planish_status status = run_layer(l, &op, PLANISH_BACKWARD, &tensors);
        if (status != PLANISH_OK)
            return refusal(status);
    }
    *made = give_tensors(&dx_out, &dweight_out, &dbias_out);
    return SUPPORTED;
}

static returned_tensors backward(operation_counts *call, backend whose, bool own,
                                 tensor_handle grad_out, tensor_handle input, int_array_ref shape,
                                 tensor_handle mean, tensor_handle rstd, tensor_handle weight,
                                 tensor_handle bias, mask3 mask) {
    layer l = {
        .input = input, .weight = weight, .bias = bias, .shape = shape, .whose = whose, .own = own};
    DLTensor dy;
    NEW_TENSOR dense_x = {NULL};
    NEW_TENSOR dense_dy = {NULL};
    returned_tensors made;
    reason why =
        own || group_is_active(group_of(whose)) ? examine(&l) : idle_reason(group_of(whose));
    if (why == SUPPORTED) {
        dy = view_input(grad_out);
        why = examine_gradient(&l, &dy, &mask);
    }
    if (why == SUPPORTED) {
        why = backward_on_planish(&l, &dy, mean, rstd, &mask, &made);
        if (is_for_copies(&l, why)) {
            const bool x_is_copied = see_dense(input, &l.x, &dense_x);
            if (see_dense(grad_out, &dy, &dense_dy) || x_is_copied)
                why = backward_on_planish(&l, &dy, mean, rstd, &mask, &made);
        }
    }
    if (own)
        own_call_tell_recorded(grad_out);
    if (why == SUPPORTED)
        return made;
    count_reason(call, why);
    return torch_layer_norm_backward(whose, grad_out, input, shape, mean, rstd, weight, bias, mask);
}

static void boxed_backward(backend whose, stack_value *stack) {
    const bool own = is_own_statistic(take_tensor(stack[4]));
    INSIDE call = call_enter(
        operation_of(own, group_of(whose), NATIVE_LAYER_NORM_BACKWARD, NORM_BACKWARD), BOXED);
    OWNED_TENSOR grad_out = take_tensor(stack[0]);
    OWNED_TENSOR input = take_tensor(stack[1]);
    OWNED_LIST list = take_list(stack[2]);
    OWNED_TENSOR mean = take_tensor(stack[3]);
    OWNED_TENSOR rstd = take_tensor(stack[4]);
    OWNED_TENSOR weight = take_optional_tensor(stack[5]);
    OWNED_TENSOR bias = take_optional_tensor(stack[6]);
    OWNED_LIST mask_list = take_list(stack[7]);
    int64_t sizes[LIST_ROOM];
    int_array_ref shape = {sizes, read_list(list, sizes, LIST_ROOM)};
    mask3 mask;
    read_mask(mask_list, mask.wanted, 3);
    returned_tensors made =
        backward(call, whose, own, grad_out, input, shape, mean, rstd, weight, bias, mask);
    give_returned(stack, &made, 3);
}

void layer_norm_backward(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    boxed_backward(BACKEND_CPU, stack);
}

void layer_norm_backward_cuda(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    boxed_backward(BACKEND_CUDA, stack);
}

returned_tensors layer_norm_backward_unboxed(void *functor, uint64_t keys, tensor_handle grad_out,
                                             tensor_handle input, int_array_ref shape,
                                             tensor_handle mean, tensor_handle rstd,
                                             const optional_tensor *weight,
                                             const optional_tensor *bias, mask3 mask) {
    (void)functor, (void)keys;
    const bool own = is_own_statistic(rstd);
    INSIDE call = call_enter(
        operation_of(own, group_of(BACKEND_CPU), NATIVE_LAYER_NORM_BACKWARD, NORM_BACKWARD),
        UNBOXED);
    return backward(call, BACKEND_CPU, own, grad_out, input, shape, mean, rstd,
                    optional_handle(weight), optional_handle(bias), mask);
}
