/*
 * aten::native_group_norm and native_group_norm_backward on planish.
 *
 * x (N, C, ...) is seen as (N, groups, C / groups, ...): splitting an axis needs no copy, whatever
 * the strides. Shapes, dtypes and strides of the results are torch's: y and dx channels last where
 * x is (on the CPU), statistics of (N, groups) in x's dtype, or f32 for half x with float
 * parameters, undefined tensors for gradients not asked for. What torch refuses, and what planish
 * does not run, goes to torch's kernel.
 */
#include "calls.h"
#include "fallback.h"
#include "group_faster.h"
#include "group_views.h"
#include "habits.h"
#include "kernels.h"
#include "own_call.h"
#include "run.h"
#include "stack.h"
#include "tensor.h"

static uint32_t group_of(backend whose) {
    return whose == BACKEND_CUDA ? PLANISH_TORCH_CUDA_GROUP_NORM : PLANISH_TORCH_GROUP_NORM;
}

static planish_status run_group(const group *g, const planish_norm *op, planish_pass pass,
                                const planish_tensors *tensors) {
    return g->own ? own_call_run(op, pass, tensors)
                  : run_norm_if_faster(op, pass, tensors, (message){0});
}

/* On the CPU, where torch's kernel may be faster: but with its own statistics alone. */
static bool may_be_torchs(const group *g) {
    return g->whose == BACKEND_CPU && !g->own;
}

/* As wide as the sums; torch's are in x's dtype, or f32 for half x with float parameters. */
static int32_t statistics_dtype(const group *g) {
    const bool wide = g->own && !view_is_double(&g->x);
    return g->mixed || wide ? torch.f32 : view_dtype(&g->x);
}

static reason forward_on_planish(group *g, double eps, returned_tensors *made) {
    int64_t strides[PLANISH_MAX_NDIM], statistic[2] = {g->sizes.batch, g->sizes.groups};
    int64_t statistic_strides[2];
    split_view x, y, weight, bias;
    DLTensor whole_y, mean, rstd;
    if (may_be_torchs(g) && torch_is_faster(g, NULL))
        return TORCH_IS_FASTER;
    if (!group_is_laid_out(g, &g->x) && !habits.group_norm_takes_strides)
        return NOT_DENSE;
    reason why = group_split(g, &g->x, &x);
    if (why != SUPPORTED)
        return why;
    const int32_t dtype = statistics_dtype(g);
    NEW_TENSOR out = group_new_like_x(g, habits.group_norm_keeps_strides, strides, &whole_y);
    const bool saves = saves_statistics(g->own);
    NEW_TENSOR mean_out = {NULL}, rstd_out = {NULL};
    if (saves) {
        mean_out = new_statistic(&g->x, 2, statistic, dtype, g->own, statistic_strides, &mean);
        rstd_out = new_statistic(&g->x, 2, statistic, dtype, g->own, statistic_strides, &rstd);
    }
    why = group_split(g, &whole_y, &y);
    if (why != SUPPORTED)
        return why;

    planish_norm op = planish_group_norm_op(x.view.ndim, eps);
    planish_tensors tensors = {
        .struct_size = sizeof tensors,
        .x = &x.view,
        .weight = g->weight ? group_split_parameter(g, &g->w, &weight) : NULL,
        .bias = g->bias ? group_split_parameter(g, &g->b, &bias) : NULL,
        .y = &y.view,
        .mean = saves ? &mean : NULL,
        .rstd = saves ? &rstd : NULL,
    };
    planish_status status = run_group(g, &op, PLANISH_FORWARD, &tensors);
    NEW_TENSOR dense_x = {NULL};
    if (status == PLANISH_ERROR_NO_FAST_KERNEL && !group_is_laid_out(g, &g->x)) {
        /* What torch does: a copy, then the kernel of dense tensors. */
        int64_t dense_strides[PLANISH_MAX_NDIM];
        DLTensor whole_x;
        dense_x = group_new_copy(g, g->input, dense_strides, &whole_x);
        group_split(g, &whole_x, &x);
        status = run_group(g, &op, PLANISH_FORWARD, &tensors);
    }
    if (status != PLANISH_OK)
        return refusal(status);
    *made = give_tensors(&out, &mean_out, &rstd_out);
    return SUPPORTED;
}

static returned_tensors forward(operation_counts *call, backend whose, bool own,
                                tensor_handle input, tensor_handle weight, tensor_handle bias,
                                group_sizes sizes, double eps) {
    int64_t dense[PLANISH_MAX_NDIM];
    group g = {.input = input,
               .weight = weight,
               .bias = bias,
               .sizes = sizes,
               .whose = whose,
               .dense = dense,
               .own = own};
    returned_tensors made;
    reason why =
        own || group_is_active(group_of(whose)) ? group_examine(&g) : idle_reason(group_of(whose));
    if (why == SUPPORTED && whose == BACKEND_CUDA && g.mixed && !own &&
        !group_is_active(PLANISH_TORCH_CUDA_MIXED))
        why = MIXED_DTYPES;
    if (why == SUPPORTED)
        why = forward_on_planish(&g, eps, &made);
    if (why == SUPPORTED)
        return made;
    if (own && why == TOO_MANY_AXES) /* planish's functions have an error for that */
        torch_throw(reason_text(why));
    count_reason(call, why);
    return torch_group_norm(whose, input, weight, bias, &sizes, eps);
}

static void boxed_forward(backend whose, stack_value *stack) {
    const bool own = own_call_take();
    INSIDE call =
        call_enter(operation_of(own, group_of(whose), NATIVE_GROUP_NORM, NORM_FORWARD), BOXED);
    OWNED_TENSOR input = take_tensor(stack[0]);
    OWNED_TENSOR weight = take_optional_tensor(stack[1]);
    OWNED_TENSOR bias = take_optional_tensor(stack[2]);
    const group_sizes sizes = {(int64_t)stack[3], (int64_t)stack[4], (int64_t)stack[5],
                               (int64_t)stack[6]};
    double eps = take_double(stack[7]);
    returned_tensors made = forward(call, whose, own, input, weight, bias, sizes, eps);
    give_returned(stack, &made, 3);
}

void group_norm_forward(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    boxed_forward(BACKEND_CPU, stack);
}

void group_norm_forward_cuda(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    boxed_forward(BACKEND_CUDA, stack);
}

returned_tensors group_norm_at_once(backend whose, bool own, tensor_handle input,
                                    const optional_tensor *weight, const optional_tensor *bias,
                                    int64_t batch, int64_t channels, int64_t pixels, int64_t groups,
                                    double eps) {
    INSIDE call =
        call_enter(operation_of(own, group_of(whose), NATIVE_GROUP_NORM, NORM_FORWARD), UNBOXED);
    return forward(call, whose, own, input, optional_handle(weight), optional_handle(bias),
                   (group_sizes){batch, channels, pixels, groups}, eps);
}

returned_tensors group_norm_forward_unboxed(void *functor, uint64_t keys, tensor_handle input,
                                            const optional_tensor *weight,
                                            const optional_tensor *bias, int64_t batch,
                                            int64_t channels, int64_t pixels, int64_t groups,
                                            double eps) {
    (void)functor, (void)keys;
    return group_norm_at_once(BACKEND_CPU, own_call_take(), input, weight, bias, batch, channels,
                              pixels, groups, eps);
}

/* The saved mean and rstd, which torch reads as dense rows of any shape. Half x without weights has
 * them in f32 if it had a float bias. */
static reason examine_statistics(const group *g, DLTensor *statistic, int64_t *sizes,
                                 int64_t *strides) {
    if (!same_device(&g->x, statistic))
        return OTHER_DEVICE;
    const bool wide = view_dtype(statistic) == torch.f32, same = same_dtype(&g->x, statistic);
    const bool torchs =
        g->weight ? (g->mixed ? wide : same) : same || (wide && view_is_half(&g->x));
    if (g->own ? view_dtype(statistic) != statistics_dtype(g) : !torchs)
        return MIXED_DTYPES;
    if (!view_is_contiguous(statistic) || view_elements(statistic) != sizes[0] * sizes[1])
        return WRONG_SHAPE;
    statistic->ndim = 2;
    statistic->shape = sizes;
    statistic->strides = strides;
    return SUPPORTED;
}

static reason examine_gradient(group *g, const DLTensor *dy, const mask3 *mask) {
    if (!same_device(&g->x, dy))
        return OTHER_DEVICE;
    if (!same_dtype(&g->x, dy))
        return MIXED_DTYPES;
    g->flat = g->flat || !same_shape(&g->x, dy);
    return (mask->wanted[1] || mask->wanted[2]) && !g->weight ? ODD_GRADIENT : SUPPORTED;
}

/* Copies of x and dy, or NULL, and the strides of their views. */
typedef struct copies {
    new_tensor x, dy;
    int64_t x_strides[PLANISH_MAX_NDIM], dy_strides[PLANISH_MAX_NDIM];
} copies;

static void free_copies(copies *c) {
    free_new_tensor(&c->x);
    free_new_tensor(&c->dy);
}

#define COPIES __attribute__((cleanup(free_copies))) copies

/* Sees copies of those of x and dy that are not in torch's layout; false: both are. */
static bool see_copies(group *g, tensor_handle grad_out, const DLTensor *whole_dy, split_view *x,
                       split_view *dy, copies *made) {
    const bool x_is_dense = group_is_laid_out(g, &g->x),
               dy_is_dense = group_is_laid_out(g, whole_dy);
    DLTensor whole;
    if (!x_is_dense) {
        made->x = group_new_copy(g, g->input, made->x_strides, &whole);
        group_split(g, &whole, x);
    }
    if (!dy_is_dense) {
        made->dy = group_new_copy(g, grad_out, made->dy_strides, &whole);
        group_split(g, &whole, dy);
    }
    return !x_is_dense || !dy_is_dense;
}

static reason backward_on_planish(group *g, tensor_handle grad_out, const DLTensor *whole_dy,
                                  DLTensor *mean, DLTensor *rstd, const mask3 *mask,
                                  returned_tensors *made) {
    int64_t statistic[2] = {g->sizes.batch, g->sizes.groups}, channels = g->sizes.channels;
    int64_t statistic_strides[2] = {g->sizes.groups, 1}, strides[PLANISH_MAX_NDIM], step;
    split_view x, dy, dx, weight, dweight, dbias;
    DLTensor whole;
    reason why = examine_statistics(g, mean, statistic, statistic_strides);
    if (why == SUPPORTED)
        why = examine_statistics(g, rstd, statistic, statistic_strides);
    if (why == SUPPORTED && !same_dtype(mean, rstd))
        why = MIXED_DTYPES;
    if (why == SUPPORTED && may_be_torchs(g) && torch_is_faster(g, whole_dy))
        why = TORCH_IS_FASTER;
    if (why == SUPPORTED)
        why = group_split(g, &g->x, &x);
    if (why == SUPPORTED)
        why = group_split(g, whole_dy, &dy);
    if (why != SUPPORTED)
        return why;

    planish_norm op = planish_group_norm_op(x.view.ndim, 0);
    planish_tensors tensors = {
        .struct_size = sizeof tensors,
        .x = &x.view,
        .weight = g->weight ? group_split_parameter(g, &g->w, &weight) : NULL,
        .mean = mean,
        .rstd = rstd,
        .dy = &dy.view,
    };
    NEW_TENSOR dx_out = {NULL};
    NEW_TENSOR dweight_out = {NULL};
    NEW_TENSOR dbias_out = {NULL};
    if (mask->wanted[0]) {
        dx_out = group_new_like_x(g, habits.group_norm_backward_keeps_strides, strides, &whole);
        why = group_split(g, &whole, &dx);
        if (why != SUPPORTED)
            return why;
        tensors.dx = &dx.view;
    }
    if (mask->wanted[1]) {
        dweight_out = new_dense_tensor(&g->x, 1, &channels, view_dtype(&g->w), &step, &whole);
        tensors.dweight = group_split_parameter(g, &whole, &dweight);
    }
    if (mask->wanted[2]) {
        dbias_out = new_dense_tensor(&g->x, 1, &channels, view_dtype(&g->w), &step, &whole);
        tensors.dbias = group_split_parameter(g, &whole, &dbias);
    }
    if (dx_out.impl || dweight_out.impl || dbias_out.impl) {
        planish_status status = run_group(g, &op, PLANISH_BACKWARD, &tensors);
        COPIES copied = {.x = {NULL}};
        if (status == PLANISH_ERROR_NO_FAST_KERNEL && !g->flat &&
            see_copies(g, grad_out, whole_dy, &x, &dy, &copied))
            status = run_group(g, &op, PLANISH_BACKWARD, &tensors);
        if (status != PLANISH_OK)
            return refusal(status);
    }
    *made = give_tensors(&dx_out, &dweight_out, &dbias_out);
    return SUPPORTED;
}

static returned_tensors backward(operation_counts *call, backend whose, bool own,
                                 tensor_handle grad_out, tensor_handle input, tensor_handle mean_in,
                                 tensor_handle rstd_in, tensor_handle weight, group_sizes sizes,
                                 mask3 mask) {
    int64_t dense[PLANISH_MAX_NDIM];
    group g = {.input = input,
               .weight = weight,
               .sizes = sizes,
               .whose = whose,
               .dense = dense,
               .own = own};
    DLTensor dy;
    returned_tensors made;
    reason why =
        own || group_is_active(group_of(whose)) ? group_examine(&g) : idle_reason(group_of(whose));
    if (why == SUPPORTED) {
        dy = view_input(grad_out);
        why = examine_gradient(&g, &dy, &mask);
    }
    if (why == SUPPORTED) {
        DLTensor mean = view_input(mean_in), rstd = view_input(rstd_in);
        why = backward_on_planish(&g, grad_out, &dy, &mean, &rstd, &mask, &made);
    }
    if (why == SUPPORTED)
        return made;
    count_reason(call, why);
    return torch_group_norm_backward(whose, grad_out, input, mean_in, rstd_in, weight, &sizes,
                                     mask);
}

static void boxed_backward(backend whose, stack_value *stack) {
    const bool own = is_own_statistic(take_tensor(stack[3]));
    INSIDE call = call_enter(
        operation_of(own, group_of(whose), NATIVE_GROUP_NORM_BACKWARD, NORM_BACKWARD), BOXED);
    OWNED_TENSOR grad_out = take_tensor(stack[0]);
    OWNED_TENSOR input = take_tensor(stack[1]);
    OWNED_TENSOR mean = take_tensor(stack[2]);
    OWNED_TENSOR rstd = take_tensor(stack[3]);
    OWNED_TENSOR weight = take_optional_tensor(stack[4]);
    const group_sizes sizes = {(int64_t)stack[5], (int64_t)stack[6], (int64_t)stack[7],
                               (int64_t)stack[8]};
    OWNED_LIST mask_list = take_list(stack[9]);
    mask3 mask;
    read_mask(mask_list, mask.wanted, 3);
    returned_tensors made =
        backward(call, whose, own, grad_out, input, mean, rstd, weight, sizes, mask);
    give_returned(stack, &made, 3);
}

void group_norm_backward(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    boxed_backward(BACKEND_CPU, stack);
}

void group_norm_backward_cuda(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    boxed_backward(BACKEND_CUDA, stack);
}
