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
#include "kernels.h"
#include "run.h"
#include "stack.h"
#include "tensor.h"

/*
 * Where torch's own forward of channels-last tensors is faster (docs/bench.md): of more elements
 * than these, where it sums many pixels in vectors whatever the groups, or a group's channels fill
 * a good part of a vector.
 */
enum { CHANNELS_LAST_ELEMENTS = 32768, MANY_PIXELS = 1024, FEW_BYTES = 16 };

/* A tensor seen with its channels split into groups. */
typedef struct split_view {
    DLTensor view;
    int64_t shape[PLANISH_MAX_NDIM], strides[PLANISH_MAX_NDIM];
} split_view;

typedef struct group {
    tensor_handle input, weight, bias; /* weight and bias may be NULL */
    group_sizes sizes;
    backend whose; /* the key the call came in by */
    DLTensor x, w, b;
    int64_t *dense; /* room for the strides of x's layout in torch's results, if channels last */
    bool flat;  /* x, y, dy, dx are dense and seen as (N, C, pixels), their own shape set aside */
    bool mixed; /* half x with float parameters */
    bool channels_last; /* how torch lays out y and dx */
} group;

static bool is_active(backend whose) {
    return group_is_active(whose == BACKEND_CUDA ? PLANISH_TORCH_CUDA_GROUP_NORM
                                                 : PLANISH_TORCH_GROUP_NORM);
}

/* Whether a parameter is one that torch takes with this x. */
static reason check_parameter(group *g, const DLTensor *parameter) {
    if (!same_device(&g->x, parameter))
        return OTHER_DEVICE;
    if (parameter->ndim != 1 || parameter->shape[0] != g->sizes.channels)
        return WRONG_SHAPE;
    if (same_dtype(&g->x, parameter))
        return SUPPORTED;
    g->mixed = true;
    return view_is_half(&g->x) && view_dtype(parameter) == torch.f32 ? SUPPORTED : MIXED_DTYPES;
}

/* Whether x's own axes are those the call tells of: (N, C, ...). */
static bool fits(const group *g) {
    if (g->x.ndim < 2 || g->x.shape[0] != g->sizes.batch || g->x.shape[1] != g->sizes.channels)
        return false;
    int64_t pixels = 1;
    for (int32_t i = 2; i < g->x.ndim; i++)
        pixels *= g->x.shape[i];
    return pixels == g->sizes.pixels;
}

/* Fills the views; anything but SUPPORTED is for torch. */
static reason examine(group *g) {
    const group_sizes *s = &g->sizes;
    g->x = view_input(g->input);
    if (g->x.ndim >= PLANISH_MAX_NDIM)
        return TOO_MANY_AXES;
    if (g->x.device.device_type != device_type_of(g->whose))
        return OTHER_DEVICE;
    if (view_dtype(&g->x) < 0)
        return OTHER_DTYPE;
    if (s->groups <= 0 || s->channels % s->groups || s->batch < 0 || s->channels < 0)
        return WRONG_SHAPE;
    reason why = SUPPORTED;
    if (g->weight) {
        g->w = view_input(g->weight);
        why = check_parameter(g, &g->w);
    }
    if (why == SUPPORTED && g->bias) {
        g->b = view_input(g->bias);
        why = check_parameter(g, &g->b);
        if (why == SUPPORTED && g->weight && !same_dtype(&g->w, &g->b))
            return MIXED_DTYPES;
    }
    if (why != SUPPORTED)
        return why;
    if (view_elements(&g->x) == 0)
        return NO_ELEMENTS;
    g->flat = !fits(g);
    g->channels_last = g->whose == BACKEND_CPU && channels_last_strides(&g->x, g->dense);
    return SUPPORTED;
}

static bool same_steps(const DLTensor *view, const int64_t *strides) {
    for (int32_t i = 0; i < view->ndim; i++)
        if (view->shape[i] != 1 && view->strides[i] != strides[i])
            return false;
    return true;
}

/* Whether x is dense as torch's forward wants it. */
static bool is_dense(const group *g) {
    return g->channels_last ? same_steps(&g->x, g->dense) : view_is_contiguous(&g->x);
}

/* Sees x, y, dy or dx with its channels split. */
static reason split(const group *g, const DLTensor *whole, split_view *s) {
    const group_sizes *sizes = &g->sizes;
    const int64_t width = sizes->channels / sizes->groups;
    int64_t step = sizes->pixels, sample = sizes->channels * sizes->pixels;
    int32_t ndim = 3;
    if (g->flat) {
        if (!view_is_contiguous(whole) || view_elements(whole) != sizes->batch * sample)
            return WRONG_SHAPE;
        s->shape[3] = sizes->pixels;
        s->strides[3] = 1;
        ndim = 4;
    } else {
        sample = whole->strides[0];
        step = whole->strides[1];
        for (int32_t i = 2; i < whole->ndim; i++, ndim++) {
            s->shape[ndim] = whole->shape[i];
            s->strides[ndim] = whole->strides[i];
        }
    }
    s->shape[0] = sizes->batch;
    s->shape[1] = sizes->groups;
    s->shape[2] = width;
    s->strides[0] = sample;
    s->strides[1] = width * step;
    s->strides[2] = step;
    s->view = *whole;
    s->view.ndim = ndim;
    s->view.shape = s->shape;
    s->view.strides = s->strides;
    return SUPPORTED;
}

/* Sees weight, bias, dweight or dbias as (groups, C / groups). */
static const DLTensor *split_parameter(const group *g, const DLTensor *whole, split_view *s) {
    s->shape[0] = g->sizes.groups;
    s->shape[1] = g->sizes.channels / g->sizes.groups;
    s->strides[0] = s->shape[1] * whole->strides[0];
    s->strides[1] = whole->strides[0];
    s->view = *whole;
    s->view.ndim = 2;
    s->view.shape = s->shape;
    s->view.strides = s->strides;
    return &s->view;
}

/* y or dx: x's shape, in torch's layout. */
static new_tensor new_like_x(const group *g, int64_t *strides, DLTensor *view) {
    if (!g->channels_last)
        return new_dense_tensor(&g->x, g->x.ndim, g->x.shape, view_dtype(&g->x), strides, view);
    return new_channels_last_tensor(&g->x, g->x.shape, view_dtype(&g->x), g->dense, view);
}

static bool torch_is_faster(const group *g) {
    if (!g->channels_last || view_elements(&g->x) <= CHANNELS_LAST_ELEMENTS)
        return false;
    const int64_t depth = g->sizes.channels / g->sizes.groups;
    return g->sizes.pixels >= MANY_PIXELS || depth * (g->x.dtype.bits / 8) > FEW_BYTES;
}

static reason forward_on_planish(group *g, double eps, returned_tensors *made) {
    int64_t strides[PLANISH_MAX_NDIM], statistic[2] = {g->sizes.batch, g->sizes.groups};
    int64_t statistic_strides[2];
    split_view x, y, weight, bias;
    DLTensor whole_y, mean, rstd;
    if (torch_is_faster(g))
        return refusal(PLANISH_ERROR_UNAVAILABLE);
    reason why = is_dense(g) ? split(g, &g->x, &x) : NOT_DENSE;
    if (why != SUPPORTED)
        return why;
    int32_t dtype = g->mixed ? torch.f32 : view_dtype(&g->x);
    NEW_TENSOR out = new_like_x(g, strides, &whole_y);
    NEW_TENSOR mean_out = new_dense_tensor(&g->x, 2, statistic, dtype, statistic_strides, &mean);
    NEW_TENSOR rstd_out = new_dense_tensor(&g->x, 2, statistic, dtype, statistic_strides, &rstd);
    why = split(g, &whole_y, &y);
    if (why != SUPPORTED)
        return why;

    planish_norm op = planish_group_norm_op(x.view.ndim, eps);
    planish_tensors tensors = {
        .struct_size = sizeof tensors,
        .x = &x.view,
        .weight = g->weight ? split_parameter(g, &g->w, &weight) : NULL,
        .bias = g->bias ? split_parameter(g, &g->b, &bias) : NULL,
        .y = &y.view,
        .mean = &mean,
        .rstd = &rstd,
    };
    planish_status status = run_norm_if_faster(&op, PLANISH_FORWARD, &tensors, (message){0});
    if (status != PLANISH_OK)
        return refusal(status);
    *made = give_tensors(&out, &mean_out, &rstd_out);
    return SUPPORTED;
}

static returned_tensors forward(operation_counts *call, backend whose, tensor_handle input,
                                tensor_handle weight, tensor_handle bias, group_sizes sizes,
                                double eps) {
    int64_t dense[PLANISH_MAX_NDIM];
    group g = {.input = input,
               .weight = weight,
               .bias = bias,
               .sizes = sizes,
               .whose = whose,
               .dense = dense};
    returned_tensors made;
    reason why = is_active(whose) ? examine(&g) : DISABLED;
    if (why == SUPPORTED && whose == BACKEND_CUDA && g.mixed &&
        !group_is_active(PLANISH_TORCH_CUDA_MIXED))
        why = MIXED_DTYPES;
    if (why == SUPPORTED)
        why = forward_on_planish(&g, eps, &made);
    if (why == SUPPORTED)
        return made;
    count_reason(call, why);
    return torch_group_norm(whose, input, weight, bias, &sizes, eps);
}

static void boxed_forward(backend whose, stack_value *stack) {
    INSIDE call = call_enter(NATIVE_GROUP_NORM, BOXED);
    OWNED_TENSOR input = take_tensor(stack[0]);
    OWNED_TENSOR weight = take_optional_tensor(stack[1]);
    OWNED_TENSOR bias = take_optional_tensor(stack[2]);
    const group_sizes sizes = {(int64_t)stack[3], (int64_t)stack[4], (int64_t)stack[5],
                               (int64_t)stack[6]};
    double eps = take_double(stack[7]);
    returned_tensors made = forward(call, whose, input, weight, bias, sizes, eps);
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

returned_tensors group_norm_forward_unboxed(void *functor, uint64_t keys, tensor_handle input,
                                            const optional_tensor *weight,
                                            const optional_tensor *bias, int64_t batch,
                                            int64_t channels, int64_t pixels, int64_t groups,
                                            double eps) {
    (void)functor, (void)keys;
    INSIDE call = call_enter(NATIVE_GROUP_NORM, UNBOXED);
    return forward(call, BACKEND_CPU, input, optional_handle(weight), optional_handle(bias),
                   (group_sizes){batch, channels, pixels, groups}, eps);
}

/* The saved mean and rstd, which torch reads as dense rows of any shape. Half x without weights has
 * them in f32 if it had a float bias. */
static reason examine_statistics(const group *g, DLTensor *statistic, int64_t *sizes,
                                 int64_t *strides) {
    if (!same_device(&g->x, statistic))
        return OTHER_DEVICE;
    const bool wide = view_dtype(statistic) == torch.f32, same = same_dtype(&g->x, statistic);
    if (g->weight ? !(g->mixed ? wide : same) : !same && !(wide && view_is_half(&g->x)))
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

static reason backward_on_planish(group *g, const DLTensor *whole_dy, DLTensor *mean,
                                  DLTensor *rstd, const mask3 *mask, returned_tensors *made) {
    int64_t statistic[2] = {g->sizes.batch, g->sizes.groups}, channels = g->sizes.channels;
    int64_t statistic_strides[2] = {g->sizes.groups, 1}, strides[PLANISH_MAX_NDIM], step;
    split_view x, dy, dx, weight, dweight, dbias;
    DLTensor whole;
    reason why = examine_statistics(g, mean, statistic, statistic_strides);
    if (why == SUPPORTED)
        why = examine_statistics(g, rstd, statistic, statistic_strides);
    if (why == SUPPORTED && !same_dtype(mean, rstd))
        why = MIXED_DTYPES;
    if (why == SUPPORTED)
        why = split(g, &g->x, &x);
    if (why == SUPPORTED)
        why = split(g, whole_dy, &dy);
    if (why != SUPPORTED)
        return why;

    planish_norm op = planish_group_norm_op(x.view.ndim, 0);
    planish_tensors tensors = {
        .struct_size = sizeof tensors,
        .x = &x.view,
        .weight = g->weight ? split_parameter(g, &g->w, &weight) : NULL,
        .mean = mean,
        .rstd = rstd,
        .dy = &dy.view,
    };
    NEW_TENSOR dx_out = {NULL};
    NEW_TENSOR dweight_out = {NULL};
    NEW_TENSOR dbias_out = {NULL};
    if (mask->wanted[0]) {
        dx_out = new_like_x(g, strides, &whole);
        why = split(g, &whole, &dx);
        if (why != SUPPORTED)
            return why;
        tensors.dx = &dx.view;
    }
    if (mask->wanted[1]) {
        dweight_out = new_dense_tensor(&g->x, 1, &channels, view_dtype(&g->w), &step, &whole);
        tensors.dweight = split_parameter(g, &whole, &dweight);
    }
    if (mask->wanted[2]) {
        dbias_out = new_dense_tensor(&g->x, 1, &channels, view_dtype(&g->w), &step, &whole);
        tensors.dbias = split_parameter(g, &whole, &dbias);
    }
    if (dx_out.impl || dweight_out.impl || dbias_out.impl) {
        planish_status status = run_norm_if_faster(&op, PLANISH_BACKWARD, &tensors, (message){0});
        if (status != PLANISH_OK)
            return refusal(status);
    }
    *made = give_tensors(&dx_out, &dweight_out, &dbias_out);
    return SUPPORTED;
}

static returned_tensors backward(operation_counts *call, backend whose, tensor_handle grad_out,
                                 tensor_handle input, tensor_handle mean_in, tensor_handle rstd_in,
                                 tensor_handle weight, group_sizes sizes, mask3 mask) {
    int64_t dense[PLANISH_MAX_NDIM];
    group g = {.input = input, .weight = weight, .sizes = sizes, .whose = whose, .dense = dense};
    DLTensor dy;
    returned_tensors made;
    reason why = is_active(whose) ? examine(&g) : DISABLED;
    if (why == SUPPORTED) {
        dy = view_input(grad_out);
        why = examine_gradient(&g, &dy, &mask);
    }
    if (why == SUPPORTED) {
        DLTensor mean = view_input(mean_in), rstd = view_input(rstd_in);
        why = backward_on_planish(&g, &dy, &mean, &rstd, &mask, &made);
    }
    if (why == SUPPORTED)
        return made;
    count_reason(call, why);
    return torch_group_norm_backward(whose, grad_out, input, mean_in, rstd_in, weight, &sizes,
                                     mask);
}

static void boxed_backward(backend whose, stack_value *stack) {
    INSIDE call = call_enter(NATIVE_GROUP_NORM_BACKWARD, BOXED);
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
    returned_tensors made = backward(call, whose, grad_out, input, mean, rstd, weight, sizes, mask);
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
