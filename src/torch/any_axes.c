/*
 * planish::norm_forward, norm_backward and norm_statistics: the general operator, any axes, as
 * operators of planish's own namespace. python/planish/_ops.py gives them their fake
 * implementations and their autograd formulas and is the only caller; it checks what a user may get
 * wrong.
 *
 *     norm_forward(x, weight?, bias?, int[] reduce, int[] affine, float eps, bool rms, bool keep,
 *                  int activation=0)
 *         -> (y, mean, rstd)                               (RMS: mean has no elements)
 *     norm_backward(dy, x, mean, rstd, weight?, int[] reduce, int[] affine, bool rms,
 *                   bool[3] wanted, bias?=None, int activation=0)
 *         -> (dx, dweight, dbias)                          (undefined where not wanted)
 *     norm_statistics(x, int[] reduce)
 *         -> (mean, m2)                  the mean, and the sum of squares of what is left beside it
 *
 * dx, and y with `keep`, are laid out as torch.empty_like(x); every other result is dense. y and dx
 * have x's dtype, the statistics f32 (f64 where x is, or an activation follows, whose backward
 * wants the mean with all its digits), dweight and dbias the dtype of weight, or of x without one.
 */
#include <string.h>

#include "calls.h"
#include "kernels.h"
#include "run.h"
#include "stack.h"
#include "tensor.h"
#include "thrown.h"

typedef struct axes {
    planish_norm op;
    int64_t statistics_sizes[PLANISH_MAX_NDIM], statistics_strides[PLANISH_MAX_NDIM];
    int64_t affine_sizes[PLANISH_MAX_NDIM], affine_strides[PLANISH_MAX_NDIM];
    int64_t layout[PLANISH_MAX_NDIM]; /* strides of y or dx */
    int32_t affine_ndim, statistics_dtype;
} axes;

/* planish refuses what is none; only what an int would cut off is refused here. */
static planish_activation take_activation(stack_value value) {
    if (value > INT32_MAX)
        torch_throw("planish: activation is no planish_activation");
    return (planish_activation)value;
}

/* No list of affine axes: none. */
static void describe(axes *a, const DLTensor *x, list_handle reduce, list_handle affine, double eps,
                     bool rms, planish_activation activation) {
    if (x->ndim > PLANISH_MAX_NDIM)
        torch_throw("planish: x has more than 16 axes");
    if (x->device.device_type == kDLExtDev || view_dtype(x) < 0)
        torch_throw("planish: x must be f16, bf16, f32 or f64, on the CPU or a CUDA GPU");
    a->op = (planish_norm){
        .struct_size = sizeof a->op,
        .kind = rms ? PLANISH_RMS : PLANISH_LAYER,
        .reduce_axes = read_axes(reduce, x->ndim),
        .affine_axes = affine ? read_axes(affine, x->ndim) : 0,
        .eps = eps,
        .activation = activation,
    };
    a->affine_ndim = 0;
    a->statistics_dtype = view_is_double(x) || activation ? torch.f64 : torch.f32;
    for (int32_t i = 0; i < x->ndim; i++) {
        a->statistics_sizes[i] = a->op.reduce_axes & PLANISH_AXIS(i) ? 1 : x->shape[i];
        if (a->op.affine_axes & PLANISH_AXIS(i))
            a->affine_sizes[a->affine_ndim++] = x->shape[i];
    }
}

/* Replaces the view of `tensor`, where it is not dense, by that of a copy. */
static void make_dense(tensor_handle tensor, DLTensor *view, new_tensor *copy) {
    if (view_is_contiguous(view))
        return;
    *copy = new_dense_copy(tensor);
    *view = view_input(handle_of(copy));
}

/* The same by that of a copy that lies as x does, where a copy of x would lie so, too. */
static bool lay_as(const DLTensor *x, tensor_handle tensor, DLTensor *view, new_tensor *copy) {
    int64_t strides[PLANISH_MAX_NDIM];
    strides_like(x, strides);
    if (memcmp(strides, x->strides, (size_t)x->ndim * sizeof *strides))
        return false;
    DLTensor laid;
    *copy = new_strided_tensor(x, x->ndim, x->shape, strides, view_dtype(view), &laid);
    torch_check(torch.copy(handle_of(copy), tensor, 0));
    *view = view_input(handle_of(copy));
    return true;
}

/*
 * Runs the pass over the views of `input` and `grad` (or NULL) that are in `tensors`. On a GPU,
 * what only the general kernel would take as it is is copied first: grad to lie as x does, which is
 * how dx lies; if that is not enough, both to dense memory.
 */
static void run(const axes *a, planish_pass pass, const planish_tensors *tensors,
                tensor_handle input, DLTensor *x, tensor_handle grad, DLTensor *dy) {
    char text[512] = "";
    const message error = {text, sizeof text};
    NEW_TENSOR dense_x = {NULL};
    NEW_TENSOR dense_dy = {NULL};
    NEW_TENSOR laid_dy = {NULL};
    planish_status status = run_norm_if_fast(&a->op, pass, tensors, error);
    if (status == PLANISH_ERROR_NO_FAST_KERNEL && grad && !view_is_contiguous(x) &&
        lay_as(x, grad, dy, &laid_dy))
        status = run_norm_if_fast(&a->op, pass, tensors, error);
    if (status == PLANISH_ERROR_NO_FAST_KERNEL) {
        make_dense(input, x, &dense_x);
        if (grad)
            make_dense(grad, dy, &dense_dy);
        status = run_norm(&a->op, pass, tensors, error);
    }
    throw_status(status, text);
}

static new_tensor new_statistic(axes *a, const DLTensor *x, DLTensor *view) {
    return new_dense_tensor(x, x->ndim, a->statistics_sizes, a->statistics_dtype,
                            a->statistics_strides, view);
}

/* y or dx, laid out as torch.empty_like(x), or dense. */
static new_tensor new_full(axes *a, const DLTensor *x, bool like_x, DLTensor *view) {
    contiguous_strides(x->ndim, x->shape, a->layout);
    if (!like_x || !memcmp(a->layout, x->strides, (size_t)x->ndim * sizeof *a->layout))
        return new_dense_tensor(x, x->ndim, x->shape, view_dtype(x), a->layout, view);
    strides_like(x, a->layout);
    return new_strided_tensor(x, x->ndim, x->shape, a->layout, view_dtype(x), view);
}

void norm_forward(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    INSIDE call = call_enter(NORM_FORWARD, BOXED);
    OWNED_TENSOR input = take_tensor(stack[0]);
    OWNED_TENSOR weight = take_optional_tensor(stack[1]);
    OWNED_TENSOR bias = take_optional_tensor(stack[2]);
    OWNED_LIST reduce = take_list(stack[3]);
    OWNED_LIST affine = take_list(stack[4]);
    double eps = take_double(stack[5]);
    bool rms = take_bool(stack[6]), keep = take_bool(stack[7]);
    planish_activation activation = take_activation(stack[8]);

    DLTensor x = view_input(input), w, b, y, mean, rstd;
    axes a;
    describe(&a, &x, reduce, affine, eps, rms, activation);
    if (weight)
        w = view_input(weight);
    if (bias)
        b = view_input(bias);
    int64_t no_elements = 0, stride = 1;
    NEW_TENSOR y_out = new_full(&a, &x, keep, &y);
    NEW_TENSOR mean_out =
        rms ? new_dense_tensor(&x, 1, &no_elements, a.statistics_dtype, &stride, &mean)
            : new_statistic(&a, &x, &mean);
    NEW_TENSOR rstd_out = new_statistic(&a, &x, &rstd);
    planish_tensors tensors = {
        .struct_size = sizeof tensors,
        .x = &x,
        .weight = weight ? &w : NULL,
        .bias = bias ? &b : NULL,
        .y = &y,
        .mean = rms ? NULL : &mean,
        .rstd = &rstd,
    };
    run(&a, PLANISH_FORWARD, &tensors, input, &x, NULL, NULL);
    returned_tensors made = give_tensors(&y_out, &mean_out, &rstd_out);
    give_returned(stack, &made, 3);
}

void norm_backward(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    INSIDE call = call_enter(NORM_BACKWARD, BOXED);
    OWNED_TENSOR grad = take_tensor(stack[0]);
    OWNED_TENSOR input = take_tensor(stack[1]);
    OWNED_TENSOR mean_in = take_tensor(stack[2]);
    OWNED_TENSOR rstd_in = take_tensor(stack[3]);
    OWNED_TENSOR weight = take_optional_tensor(stack[4]);
    OWNED_LIST reduce = take_list(stack[5]);
    OWNED_LIST affine = take_list(stack[6]);
    bool rms = take_bool(stack[7]);
    OWNED_LIST mask = take_list(stack[8]);
    OWNED_TENSOR bias = take_optional_tensor(stack[9]);
    planish_activation activation = take_activation(stack[10]);
    bool wanted[3];
    read_mask(mask, wanted, 3);

    DLTensor x = view_input(input), dy = view_input(grad);
    DLTensor rstd = view_input(rstd_in);
    DLTensor mean = view_input(mean_in), w, b, dx, dweight, dbias;
    axes a;
    describe(&a, &x, reduce, affine, 0, rms, activation);
    if (weight)
        w = view_input(weight);
    if (bias)
        b = view_input(bias);
    int32_t parameter_dtype = view_dtype(weight ? &w : &x);
    NEW_TENSOR dx_out = {NULL};
    NEW_TENSOR dweight_out = {NULL};
    NEW_TENSOR dbias_out = {NULL};
    if (wanted[0])
        dx_out = new_full(&a, &x, true, &dx);
    if (wanted[1])
        dweight_out = new_dense_tensor(&x, a.affine_ndim, a.affine_sizes, parameter_dtype,
                                       a.affine_strides, &dweight);
    if (wanted[2])
        dbias_out = new_dense_tensor(&x, a.affine_ndim, a.affine_sizes, parameter_dtype,
                                     a.affine_strides, &dbias);
    planish_tensors tensors = {
        .struct_size = sizeof tensors,
        .x = &x,
        .weight = weight ? &w : NULL,
        .bias = bias ? &b : NULL,
        .mean = rms ? NULL : &mean,
        .rstd = &rstd,
        .dy = &dy,
        .dx = dx_out.impl ? &dx : NULL,
        .dweight = dweight_out.impl ? &dweight : NULL,
        .dbias = dbias_out.impl ? &dbias : NULL,
    };
    if (dx_out.impl || dweight_out.impl || dbias_out.impl)
        run(&a, PLANISH_BACKWARD, &tensors, input, &x, grad, &dy);
    returned_tensors made = give_tensors(&dx_out, &dweight_out, &dbias_out);
    give_returned(stack, &made, 3);
}

void norm_statistics(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    INSIDE call = call_enter(NORM_STATISTICS, BOXED);
    OWNED_TENSOR input = take_tensor(stack[0]);
    OWNED_LIST reduce = take_list(stack[1]);

    DLTensor x = view_input(input), mean, m2;
    axes a;
    describe(&a, &x, reduce, NULL, 0, false, PLANISH_IDENTITY);
    NEW_TENSOR mean_out = new_statistic(&a, &x, &mean);
    NEW_TENSOR m2_out = new_statistic(&a, &x, &m2);
    planish_tensors tensors = {
        .struct_size = sizeof tensors,
        .x = &x,
        .mean = &mean,
        .m2 = &m2,
    };
    run(&a, PLANISH_STATISTICS, &tensors, input, &x, NULL, NULL);
    returned_tensors made = {{give_tensor(&m2_out), give_tensor(&mean_out)}};
    give_returned(stack, &made, 2);
}
