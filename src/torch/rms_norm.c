/*
 * aten::_fused_rms_norm, its backward, and aten::rms_norm on planish.
 *
 * torch has no CPU kernel of the fused operators: it makes them of six others. planish is the
 * kernel, and torch's own autograd formula, which covers double backward too, comes with it.
 * rms_norm goes to _fused_rms_norm at two keys: below autograd, where it is run at once, and at the
 * autograd key, where it must go back through the dispatcher and may look at no data (fake tensors
 * come there).
 */
#include <stdio.h>

#include "calls.h"
#include "fallback.h"
#include "kernels.h"
#include "own_call.h"
#include "rms_views.h"
#include "run.h"
#include "stack.h"
#include "tensor.h"

static bool is_active(backend whose) {
    return group_is_active(rms_group_of(whose));
}

static planish_status run_rms(const rms *r, const planish_norm *op, planish_pass pass,
                              const planish_tensors *tensors, message error) {
    return r->own ? own_call_run(op, pass, tensors) : run_norm_if_fast(op, pass, tensors, error);
}

/*
 * y and, where wanted, rstd. torch derives the strides of an empty
 * y from a chain of operators: that is left to it, and there is nothing to compute.
 */
static reason forward_on_planish(rms *r, bool rstd_wanted, returned_tensors *made) {
    if (view_elements(&r->x) == 0)
        return NO_ELEMENTS;
    int64_t sizes[PLANISH_MAX_NDIM], strides[PLANISH_MAX_NDIM], out_strides[PLANISH_MAX_NDIM];
    DLTensor y, rstd;
    /* torch's CUDA kernel, which is _fused_rms_norm there, makes dense results only. */
    bool follow = r->whose == BACKEND_CPU || !rstd_wanted;
    NEW_TENSOR out =
        follow && channels_last_strides(&r->x, out_strides)
            ? new_strided_tensor(&r->x, r->x.ndim, r->x.shape, out_strides, view_dtype(&r->x), &y)
            : new_dense_tensor(&r->x, r->x.ndim, r->x.shape, view_dtype(&r->x), out_strides, &y);
    const bool saves = rstd_wanted && saves_statistics(r->own);
    NEW_TENSOR rstd_out = {NULL};
    if (saves) {
        rms_statistics_shape(r, sizes);
        const int32_t dtype = view_is_double(&r->x) ? torch.f64 : torch.f32;
        rstd_out = new_statistic(&r->x, r->x.ndim, sizes, dtype, r->own, strides, &rstd);
    }
    planish_norm op = rms_operator(r);
    planish_tensors tensors = {
        .struct_size = sizeof tensors,
        .x = &r->x,
        .weight = r->weight ? &r->w : NULL,
        .y = &y,
        .rstd = saves ? &rstd : NULL,
    };
    planish_status status = run_rms(r, &op, PLANISH_FORWARD, &tensors, (message){0});
    if (status != PLANISH_OK)
        return refusal(status);
    *made = give_tensors(&out, &rstd_out, &(new_tensor){NULL});
    return SUPPORTED;
}

/* Moves the first of three results to the stack, so many. */
static void give_first(stack_value *stack, const returned_tensors *made, int count) {
    returned_tensors first = {{NULL}};
    for (int i = 0; i < count; i++)
        first.impl[i] = made->impl[i + 3 - count];
    give_returned(stack, &first, count);
}

static optional_double take_optional_double(stack_value value) {
    stack_value inside;
    return take_optional(value, &inside) ? (optional_double){take_double(inside), true}
                                         : (optional_double){0, false};
}

/* What a forward takes off the stack. */
typedef struct arguments {
    tensor_handle input, weight;
    list_handle list;
    optional_double eps;
    int64_t sizes[LIST_ROOM];
    int_array_ref shape;
} arguments;

static void free_arguments(arguments *a) {
    free_tensor(&a->input);
    free_tensor(&a->weight);
    free_list(&a->list);
}

#define ARGUMENTS __attribute__((cleanup(free_arguments))) arguments

static void take_arguments(arguments *a, const stack_value *stack) {
    a->input = take_tensor(stack[0]);
    a->list = take_list(stack[1]);
    a->weight = take_optional_tensor(stack[2]);
    a->eps = take_optional_double(stack[3]);
    a->shape = (int_array_ref){a->sizes, read_list(a->list, a->sizes, LIST_ROOM)};
}

static rms rms_of(const arguments *a, backend whose) {
    return (rms){
        .input = a->input, .weight = a->weight, .shape = a->shape, .eps = a->eps, .whose = whose};
}

static void fused_forward(backend whose, stack_value *stack) {
    const bool own = own_call_take();
    INSIDE call =
        call_enter(operation_of(own, rms_group_of(whose), FUSED_RMS_NORM, NORM_FORWARD), BOXED);
    ARGUMENTS a = {NULL};
    take_arguments(&a, stack);
    rms r = rms_of(&a, whose);
    r.own = own;
    reason why = own || is_active(whose) ? rms_examine(&r) : idle_reason(rms_group_of(whose));
    returned_tensors made;
    if (why == SUPPORTED)
        why = forward_on_planish(&r, true, &made);
    if (why == SUPPORTED) {
        give_first(stack, &made, 2);
        return;
    }
    /* torch's operator of this name does not look at shapes, and has no backward on the CPU. */
    if (own && (why == WRONG_SHAPE || why == TOO_MANY_AXES || whose == BACKEND_CPU))
        torch_throw(reason_text(why));
    count_reason(call, why);
    /* torch's CUDA kernel takes no mixed dtypes; torch's other operators do. */
    bool fused = whose == BACKEND_CUDA && !(why == NO_GPU_KERNEL && rms_is_mixed(&r));
    torch_rms_norm(fused ? FUSED_CUDA : FUSED_COMPOSITE, stack, a.input, a.shape, a.weight, a.eps);
}

void fused_rms_norm_forward(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    fused_forward(BACKEND_CPU, stack);
}

void fused_rms_norm_forward_cuda(stack_value *stack, uint64_t argument_count,
                                 uint64_t return_count) {
    (void)argument_count, (void)return_count;
    fused_forward(BACKEND_CUDA, stack);
}

returned_tensors rms_norm_at_once(backend whose, tensor_handle input, int_array_ref shape,
                                  const optional_tensor *weight, optional_double eps) {
    const bool own = !is_active(whose);
    INSIDE call =
        call_enter(operation_of(own, rms_group_of(whose), FUSED_RMS_NORM, NORM_FORWARD), UNBOXED);
    rms r = {.input = input,
             .weight = optional_handle(weight),
             .shape = shape,
             .eps = eps,
             .whose = whose,
             .own = own};
    returned_tensors made;
    reason why = rms_examine(&r);
    if (why == SUPPORTED)
        why = forward_on_planish(&r, false, &made);
    if (why != SUPPORTED)
        torch_throw(reason_text(why));
    return made;
}

/* ---- aten::rms_norm -------------------------------------------------------------------------- */

static void inference(backend whose, stack_value *stack) {
    INSIDE call = call_enter(RMS_NORM, BOXED);
    ARGUMENTS a = {NULL};
    take_arguments(&a, stack);
    rms r = rms_of(&a, whose);
    reason why = is_active(whose) ? rms_examine(&r) : DISABLED;
    returned_tensors made;
    if (why == SUPPORTED)
        why = forward_on_planish(&r, false, &made);
    if (why == SUPPORTED) {
        give_first(stack, &made, 1);
        return;
    }
    count_reason(call, why);
    torch_rms_norm(NORM_COMPOSITE, stack, a.input, a.shape, a.weight, a.eps);
}

void rms_norm_inference(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    inference(BACKEND_CPU, stack);
}

void rms_norm_inference_cuda(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    inference(BACKEND_CUDA, stack);
}

/*
 * On CUDA torch's composition goes to _fused_rms_norm by itself unless dtypes are mixed, which
 * planish runs there, or the result has to be channels last, which is left to torch.
 */
static bool is_for_composition(const rms *r) {
    int64_t *strides = NULL, unused[PLANISH_MAX_NDIM];
    if (r->whose == BACKEND_CPU)
        return false;
    if (torch.get_strides(r->input, &strides) != 0)
        return true;
    DLTensor seen = r->x;
    seen.strides = strides;
    return channels_last_strides(&seen, unused) && !view_is_contiguous(&seen);
}

/* torch's formula of forward mode for _fused_rms_norm makes f32 of short dtypes. */
static bool has_tangent(tensor_handle tensor) {
    if (!tensor || !torch.fw_grad)
        return false;
    return *(void **)torch.fw_grad(*(void **)tensor, 0, tensor) != torch.undefined;
}

static void autograd(backend whose, stack_value *stack) {
    INSIDE call = call_enter(RMS_NORM_AUTOGRAD, BOXED);
    ARGUMENTS a = {NULL};
    take_arguments(&a, stack);
    rms r = rms_of(&a, whose);
    reason why = is_active(whose) ? rms_examine_descriptions(&r) : DISABLED;
    rms_norm_variant variant = FUSED_DISPATCHED;
    if (why != SUPPORTED || is_for_composition(&r)) {
        variant = NORM_COMPOSITE;
    } else if (whose == BACKEND_CPU && torch.is_inference && torch.is_inference(a.input)) {
        /* Autograd cannot save it; torch's composition saves what it makes of it. */
        why = INFERENCE_TENSOR;
        variant = FUSED_COMPOSITE;
    } else if (whose == BACKEND_CPU && (has_tangent(a.input) || has_tangent(a.weight))) {
        why = FORWARD_MODE;
        variant = FUSED_COMPOSITE;
    }
    if (why != SUPPORTED)
        count_reason(call, why);
    if (variant == NORM_COMPOSITE) {
        torch_rms_norm(variant, stack, a.input, a.shape, a.weight, a.eps);
        return;
    }
    stack_value results[2];
    torch_rms_norm(variant, results, a.input, a.shape, a.weight, a.eps);
    torch.delete_tensor(take_tensor(results[1]));
    stack[0] = results[0];
}

void rms_norm_autograd(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    autograd(BACKEND_CPU, stack);
}

void rms_norm_autograd_cuda(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    autograd(BACKEND_CUDA, stack);
}

/* ---- Backward -------------------------------------------------------------------------------- */

/* dx, or dweight where it has dx's shape: dense, or with `like` laid out as torch.empty_like of
 * that. */
static new_tensor new_gradient(const rms *r, const DLTensor *like, int32_t dtype, int64_t *strides,
                               DLTensor *view) {
    if (!like || view_is_contiguous(like))
        return new_dense_tensor(&r->x, r->x.ndim, r->x.shape, dtype, strides, view);
    strides_like(like, strides);
    return new_strided_tensor(&r->x, r->x.ndim, r->x.shape, strides, dtype, view);
}

/*
 * torch's composition, which is what runs on the CPU without planish, and on CUDA where dtypes are
 * mixed, lays dx out as grad_out; its CUDA kernel makes it dense. `grad_out` is as it came, `dy`
 * what the kernel reads.
 */
static const char *backward_on_planish(rms *r, const DLTensor *grad_out, const DLTensor *dy,
                                       tensor_handle rstd_handle, const bool *wanted,
                                       stack_value *stack, reason *why, message error) {
    int64_t sizes[PLANISH_MAX_NDIM], strides[PLANISH_MAX_NDIM], weight_strides[PLANISH_MAX_NDIM];
    int32_t normalized_ndim = (int32_t)r->shape.size;
    int64_t *weight_sizes = r->x.shape + r->x.ndim - normalized_ndim;
    DLTensor dx, dweight, rstd = view_input(rstd_handle);
    rms_statistics_shape(r, sizes);
    DLTensor expected = {.ndim = r->x.ndim, .shape = sizes};
    *why = OTHER_DEVICE;
    if (!same_device(&r->x, dy) || !same_device(&r->x, &rstd))
        return "grad_out and rstd must be on the device of input";
    *why = WRONG_SHAPE;
    if (!same_shape(&r->x, dy) || !same_shape(&rstd, &expected))
        return "grad_out must have the shape of input, and rstd the same with 1 for the normalized "
               "axes";
    *why = ODD_GRADIENT;
    if (wanted[1] && !r->weight)
        return "the gradient of weight is asked for, but there is no weight";

    const DLTensor *like = r->whose == BACKEND_CPU ? grad_out : NULL;
    NEW_TENSOR dx_out = {NULL};
    NEW_TENSOR dweight_out = {NULL};
    if (wanted[0])
        dx_out = new_gradient(r, like, view_dtype(&r->x), strides, &dx);
    if (wanted[1] && normalized_ndim == r->x.ndim)
        dweight_out = new_gradient(r, like, view_dtype(&r->w), weight_strides, &dweight);
    else if (wanted[1])
        dweight_out = new_dense_tensor(&r->x, normalized_ndim, weight_sizes, view_dtype(&r->w),
                                       weight_strides, &dweight);
    planish_norm op = rms_operator(r);
    planish_tensors tensors = {
        .struct_size = sizeof tensors,
        .x = &r->x,
        .weight = r->weight ? &r->w : NULL,
        .rstd = &rstd,
        .dy = dy,
        .dx = dx_out.impl ? &dx : NULL,
        .dweight = dweight_out.impl ? &dweight : NULL,
    };
    if (dx_out.impl || dweight_out.impl) {
        planish_status status = run_rms(r, &op, PLANISH_BACKWARD, &tensors, error);
        *why = refusal(status);
        if (status != PLANISH_OK)
            return error.text;
    }
    NEW_TENSOR laid_out = {NULL};
    const bool is_copied =
        dx_out.impl && r->whose == BACKEND_CUDA && rms_is_mixed(r) && !view_is_contiguous(grad_out);
    if (is_copied) {
        laid_out = new_gradient(r, grad_out, view_dtype(&r->x), strides, &dx);
        torch_check(torch.copy(handle_of(&laid_out), handle_of(&dx_out), 0));
    }
    new_tensor *dx_made = is_copied ? &laid_out : &dx_out;
    returned_tensors made = {{give_tensor(&dweight_out), give_tensor(dx_made)}};
    give_returned(stack, &made, 2);
    return NULL;
}

/*
 * torch has no CPU kernel to fall back to: what planish does not run is an error that says so. On
 * CUDA torch's kernel has the last word, but takes no mixed dtypes: what planish's cannot read of
 * these is copied for it.
 */
static void backward(backend whose, stack_value *stack) {
    const bool own = is_own_statistic(take_tensor(stack[3]));
    INSIDE call = call_enter(
        operation_of(own, rms_group_of(whose), FUSED_RMS_NORM_BACKWARD, NORM_BACKWARD), BOXED);
    OWNED_TENSOR grad_out = take_tensor(stack[0]);
    OWNED_TENSOR input = take_tensor(stack[1]);
    OWNED_LIST list = take_list(stack[2]);
    OWNED_TENSOR rstd = take_tensor(stack[3]);
    OWNED_TENSOR weight = take_optional_tensor(stack[4]);
    OWNED_LIST mask_list = take_list(stack[5]);
    NEW_TENSOR dense_x = {NULL};
    NEW_TENSOR dense_dy = {NULL};
    int64_t sizes[LIST_ROOM];
    int_array_ref shape = {sizes, read_list(list, sizes, LIST_ROOM)};
    mask2 mask;
    read_mask(mask_list, mask.wanted, 2);

    rms r = {.input = input, .weight = weight, .shape = shape, .whose = whose, .own = own};
    char text[512] = "";
    /* The CPU's stays when planish is disabled: a graph recorded before must find it. */
    const bool runs = whose == BACKEND_CPU || own || is_active(whose);
    reason why = runs ? rms_examine(&r) : idle_reason(rms_group_of(whose));
    const char *wrong = reason_text(why);
    if (why == SUPPORTED) {
        const DLTensor grad = view_input(grad_out);
        DLTensor dy = grad;
        if (whose == BACKEND_CUDA && rms_is_mixed(&r)) {
            see_dense(input, &r.x, &dense_x);
            see_dense(grad_out, &dy, &dense_dy);
        }
        wrong = backward_on_planish(&r, &grad, &dy, rstd, mask.wanted, stack, &why,
                                    (message){text, sizeof text});
    }
    if (!wrong)
        return;
    if (whose == BACKEND_CUDA) {
        count_reason(call, why);
        torch_rms_norm_backward(stack, grad_out, input, shape, rstd, weight, mask);
        return;
    }
    char sentence[640];
    snprintf(sentence, sizeof sentence,
             "_fused_rms_norm_backward: %s (torch has no CPU kernel of its own for it)", wrong);
    torch_throw(sentence);
}

void fused_rms_norm_backward(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    backward(BACKEND_CPU, stack);
}

void fused_rms_norm_backward_cuda(stack_value *stack, uint64_t argument_count,
                                  uint64_t return_count) {
    (void)argument_count, (void)return_count;
    backward(BACKEND_CUDA, stack);
}
