/*
 * The backwards of batch norm on planish: aten::native_batch_norm_backward, batch_norm_backward and
 * cudnn_batch_norm_backward.
 *
 * Gradients are torch's: dx laid out as x, or where it goes by the running statistics on CUDA as
 * dy; dweight and dbias in the dtype of the parameters, undefined where they are not asked for. A
 * forward of planish's has a backward of planish's also after disable(): its reserve tells.
 */
#include <string.h>

#include "batch_faster.h"
#include "batch_views.h"
#include "kernels.h"
#include "own_call.h"
#include "run.h"
#include "stack.h"

/* Whether the forward was planish's. */
static bool is_marked(tensor_handle reserve) {
    int64_t ndim = 0;
    if (!reserve)
        return false;
    torch_check(torch.get_dim(reserve, &ndim));
    return ndim == BATCH_RESERVE_NDIM;
}

static reason examine_gradient(const batch *b, const DLTensor *dy) {
    if (!same_device(&b->x, dy))
        return OTHER_DEVICE;
    if (!same_dtype(&b->x, dy))
        return MIXED_DTYPES;
    return same_shape(&b->x, dy) ? SUPPORTED : WRONG_SHAPE;
}

/* A copy of x or dy as torch lays out x's results, where it does not lie so: with the strides that
 * its view then has. */
typedef struct laid_copy {
    new_tensor tensor;
    int64_t strides[PLANISH_MAX_NDIM];
} laid_copy;

static void free_copy(laid_copy *c) {
    free_new_tensor(&c->tensor);
}

#define LAID_COPY __attribute__((cleanup(free_copy))) laid_copy

static bool lay_out(batch *b, tensor_handle tensor, DLTensor *view, laid_copy *copy) {
    if (b->channels_last ? view_has_strides(view, b->dense) : view_is_contiguous(view))
        return false;
    DLTensor made;
    if (b->channels_last) {
        memcpy(copy->strides, b->dense, sizeof copy->strides);
        copy->tensor = new_strided_tensor(view, view->ndim, view->shape, copy->strides,
                                          view_dtype(view), &made);
    } else {
        copy->tensor =
            new_dense_tensor(view, view->ndim, view->shape, view_dtype(view), copy->strides, &made);
    }
    torch_check(torch.copy(handle_of(&copy->tensor), tensor, 0));
    *view = made;
    return true;
}

static planish_status run_backward(const batch *b, const planish_norm *op,
                                   const planish_tensors *tensors) {
    return b->own ? own_call_run(op, PLANISH_BACKWARD, tensors)
                  : run_norm_if_faster(op, PLANISH_BACKWARD, tensors, (message){0});
}

static reason backward_on_planish(batch *b, DLTensor *dy, const batch_gradient_arguments *a,
                                  returned_tensors *made) {
    int64_t strides[PLANISH_MAX_NDIM];
    channel_view dweight, dbias;
    DLTensor dx, saved[2];
    /* Out of training the running statistics, whatever was saved of them. */
    reason why = a->training       ? batch_examine_statistics(b, a->mean, a->rstd, saved)
                 : b->running_mean ? SUPPORTED
                                   : WRONG_SHAPE;
    if (why == SUPPORTED && b->habit == HABIT_CPU && !b->own &&
        batch_torch_is_faster(b, dy, a->training))
        why = TORCH_IS_FASTER;
    if (why != SUPPORTED)
        return why;

    NEW_TENSOR dx_out = {NULL};
    NEW_TENSOR dweight_out = {NULL};
    NEW_TENSOR dbias_out = {NULL};
    if (a->mask.wanted[0])
        dx_out = batch_new_result(b, dy, b->habit == HABIT_CUDA && !a->training, strides, &dx);
    if (a->mask.wanted[1])
        dweight_out = batch_new_channels(b, b->channels, b->parameter_dtype, &dweight);
    if (a->mask.wanted[2])
        dbias_out = batch_new_channels(b, b->channels, b->parameter_dtype, &dbias);
    const planish_norm op = planish_batch_norm_op(b->x.ndim, a->eps, 0);
    const planish_tensors tensors = {
        .struct_size = sizeof tensors,
        .x = &b->x,
        .weight = b->weight ? &b->w : NULL,
        .mean = a->training ? &saved[0] : NULL,
        .rstd = a->training ? &saved[1] : NULL,
        .running_mean = a->training ? NULL : &b->mean,
        .running_var = a->training ? NULL : &b->var,
        .dy = dy,
        .dx = dx_out.impl ? &dx : NULL,
        .dweight = dweight_out.impl ? &dweight.view : NULL,
        .dbias = dbias_out.impl ? &dbias.view : NULL,
    };
    if (dx_out.impl || dweight_out.impl || dbias_out.impl) {
        LAID_COPY x_copy = {.tensor = {NULL}};
        LAID_COPY dy_copy = {.tensor = {NULL}};
        /* As planish's own operator has it: general kernels of a GPU come behind copies. */
        const bool copies_first = b->own && b->habit == HABIT_CUDA;
        planish_status status =
            copies_first ? PLANISH_ERROR_NO_FAST_KERNEL : run_backward(b, &op, &tensors);
        if (status == PLANISH_ERROR_NO_FAST_KERNEL) {
            const bool x_is_copied = lay_out(b, a->input, &b->x, &x_copy);
            const bool dy_is_copied = lay_out(b, a->dy, dy, &dy_copy);
            if (copies_first || x_is_copied || dy_is_copied)
                status = run_backward(b, &op, &tensors);
        }
        if (status != PLANISH_OK)
            return refusal(status);
    }
    *made = give_tensors(&dx_out, &dweight_out, &dbias_out);
    return SUPPORTED;
}

/* Whether planish made the gradients; else the reason was counted. */
static bool is_served(operation_counts *call, const batch_gradient_arguments *a, batch_habit habit,
                      bool own, returned_tensors *made) {
    batch b = {
        .input = a->input,
        .weight = a->weight,
        .running_mean = a->running_mean,
        .running_var = a->running_var,
        .habit = habit,
        .own = own,
    };
    DLTensor dy;
    const uint32_t group = batch_group(habit);
    reason why = own || group_is_active(group) || is_marked(a->reserve) ? batch_examine(&b)
                                                                        : idle_reason(group);
    if (why == SUPPORTED) {
        dy = view_input(a->dy);
        why = examine_gradient(&b, &dy);
    }
    if (why == SUPPORTED)
        why = backward_on_planish(&b, &dy, a, made);
    if (why != SUPPORTED)
        count_reason(call, why);
    if (own && why != SUPPORTED) /* torch's kernel takes no such statistics */
        torch_throw(reason_text(why));
    if (own)
        own_call_tell_recorded(a->dy);
    return why == SUPPORTED;
}

/* ---- The operators -------------------------------------------------------------------------- */

static returned_tensors native(operation_counts *call, const batch_gradient_arguments *a,
                               batch_habit habit, bool own) {
    returned_tensors made;
    return is_served(call, a, habit, own, &made)
               ? made
               : torch_batch_norm_backward(batch_backend(habit), a);
}

static operation native_operation(batch_habit habit, bool own) {
    return operation_of(own, batch_group(habit), NATIVE_BATCH_NORM_BACKWARD, NORM_BACKWARD_APPLY);
}

/* An optional tensor that is left where it is. */
static tensor_handle look_at(stack_value value) {
    const stack_value *box = (const stack_value *)(uintptr_t)value;
    return box ? take_tensor(*box) : NULL;
}

/* grad_out, input, weight?, running_mean?, running_var?, save_mean?, save_invstd?, train, eps,
 * output_mask */
static void native_backward(batch_habit habit, stack_value *stack) {
    const bool own = batch_statistics_are_own(look_at(stack[5]), look_at(stack[6]));
    INSIDE call = call_enter(native_operation(habit, own), BOXED);
    OWNED_TENSOR grad_out = take_tensor(stack[0]);
    OWNED_TENSOR input = take_tensor(stack[1]);
    OWNED_TENSOR weight = take_optional_tensor(stack[2]);
    OWNED_TENSOR running_mean = take_optional_tensor(stack[3]);
    OWNED_TENSOR running_var = take_optional_tensor(stack[4]);
    OWNED_TENSOR mean = take_optional_tensor(stack[5]);
    OWNED_TENSOR rstd = take_optional_tensor(stack[6]);
    OWNED_LIST mask_list = take_list(stack[9]);
    batch_gradient_arguments a = {.dy = grad_out,
                                  .input = input,
                                  .weight = weight,
                                  .running_mean = running_mean,
                                  .running_var = running_var,
                                  .mean = mean,
                                  .rstd = rstd,
                                  .training = take_bool(stack[7]),
                                  .eps = take_double(stack[8])};
    read_mask(mask_list, a.mask.wanted, 3);
    const returned_tensors made = native(call, &a, habit, own);
    give_returned(stack, &made, 3);
}

returned_tensors batch_norm_backward_unboxed(void *functor, uint64_t keys, tensor_handle grad_out,
                                             tensor_handle input, const optional_tensor *weight,
                                             const optional_tensor *running_mean,
                                             const optional_tensor *running_var,
                                             const optional_tensor *mean,
                                             const optional_tensor *rstd, bool training, double eps,
                                             mask3 mask) {
    (void)functor, (void)keys;
    const batch_gradient_arguments a = {.dy = grad_out,
                                        .input = input,
                                        .weight = optional_handle(weight),
                                        .running_mean = optional_handle(running_mean),
                                        .running_var = optional_handle(running_var),
                                        .mean = optional_handle(mean),
                                        .rstd = optional_handle(rstd),
                                        .training = training,
                                        .eps = eps,
                                        .mask = mask};
    const bool own = batch_statistics_are_own(a.mean, a.rstd);
    INSIDE call = call_enter(native_operation(HABIT_CPU, own), UNBOXED);
    return native(call, &a, HABIT_CPU, own);
}

void batch_norm_backward(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    native_backward(HABIT_CPU, stack);
}

void batch_norm_backward_cuda(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    native_backward(HABIT_CUDA, stack);
}

/* grad_out, input, weight, running_mean?, running_var?, save_mean?, save_var?, update, eps,
 * output_mask, reserve */
static void with_reserve_backward(batch_habit habit, stack_value *stack) {
    INSIDE call = call_enter(BATCH_NORM_BACKWARD, BOXED);
    OWNED_TENSOR grad_out = take_tensor(stack[0]);
    OWNED_TENSOR input = take_tensor(stack[1]);
    OWNED_TENSOR weight = take_tensor(stack[2]);
    OWNED_TENSOR running_mean = take_optional_tensor(stack[3]);
    OWNED_TENSOR running_var = take_optional_tensor(stack[4]);
    OWNED_TENSOR mean = take_optional_tensor(stack[5]);
    OWNED_TENSOR rstd = take_optional_tensor(stack[6]);
    OWNED_LIST mask_list = take_list(stack[9]);
    OWNED_TENSOR reserve = take_tensor(stack[10]);
    batch_gradient_arguments a = {.dy = grad_out,
                                  .input = input,
                                  .weight = weight,
                                  .running_mean = running_mean,
                                  .running_var = running_var,
                                  .mean = mean,
                                  .rstd = rstd,
                                  .reserve = reserve,
                                  .training = take_bool(stack[7]),
                                  .eps = take_double(stack[8])};
    read_mask(mask_list, a.mask.wanted, 3);
    returned_tensors made;
    if (!is_served(call, &a, habit, false, &made))
        made = torch_batch_norm_with_reserve_backward(batch_backend(habit), &a);
    give_returned(stack, &made, 3);
}

void batch_norm_reserve_backward(stack_value *stack, uint64_t argument_count,
                                 uint64_t return_count) {
    (void)argument_count, (void)return_count;
    with_reserve_backward(HABIT_CPU, stack);
}

void batch_norm_reserve_backward_cuda(stack_value *stack, uint64_t argument_count,
                                      uint64_t return_count) {
    (void)argument_count, (void)return_count;
    with_reserve_backward(HABIT_CUDA, stack);
}

/* input, grad_output, weight, running_mean?, running_var?, save_mean?, save_var?, epsilon,
 * reserveSpace. It has no mask: all gradients are made. */
void batch_norm_cudnn_backward(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    INSIDE call = call_enter(CUDNN_BATCH_NORM_BACKWARD, BOXED);
    OWNED_TENSOR input = take_tensor(stack[0]);
    OWNED_TENSOR grad_out = take_tensor(stack[1]);
    OWNED_TENSOR weight = take_tensor(stack[2]);
    OWNED_TENSOR running_mean = take_optional_tensor(stack[3]);
    OWNED_TENSOR running_var = take_optional_tensor(stack[4]);
    OWNED_TENSOR mean = take_optional_tensor(stack[5]);
    OWNED_TENSOR rstd = take_optional_tensor(stack[6]);
    OWNED_TENSOR reserve = take_tensor(stack[8]);
    const batch_gradient_arguments a = {.dy = grad_out,
                                        .input = input,
                                        .weight = weight,
                                        .running_mean = running_mean,
                                        .running_var = running_var,
                                        .mean = mean,
                                        .rstd = rstd,
                                        .reserve = reserve,
                                        .training = true,
                                        .eps = take_double(stack[7]),
                                        .mask = {{true, true, true}}};
    returned_tensors made;
    if (!is_served(call, &a, HABIT_CUDNN, false, &made))
        made = torch_cudnn_batch_norm_backward(&a);
    give_returned(stack, &made, 3);
}
