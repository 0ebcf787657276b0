/*
 * Calls into torch's C++ kernels by the Itanium C++ ABI; see fallback.h.
 */
#include "fallback.h"

#include <math.h>

#include "stack.h"
#include "tensor.h"

/* A TensorImpl pointer borrowed from its owner, as const std::optional<at::Tensor>&. */
static optional_tensor borrow(tensor_handle tensor) {
    return tensor ? (optional_tensor){*(void **)tensor, true} : (optional_tensor){NULL, false};
}

/* Moves `count` results, the first of which is the last field, to the stack. */
static void give_returned(stack_value *stack, const returned_tensors *returned, int count) {
    for (int i = 0; i < count; i++) {
        tensor_handle tensor = NULL;
        torch_check(torch.new_undefined(&tensor));
        *(void **)tensor = returned->impl[count - 1 - i];
        stack[i] = (stack_value)(uintptr_t)tensor;
    }
}

void torch_layer_norm(stack_value *stack, tensor_handle input, int_array_ref normalized_shape,
                      tensor_handle weight, tensor_handle bias, double eps) {
    optional_tensor w = borrow(weight), b = borrow(bias);
    returned_tensors made = torch.layer_norm(input, normalized_shape, &w, &b, eps);
    give_returned(stack, &made, 3);
}

void torch_layer_norm_backward(stack_value *stack, tensor_handle dy, tensor_handle input,
                               int_array_ref normalized_shape, tensor_handle mean,
                               tensor_handle rstd, tensor_handle weight, tensor_handle bias,
                               mask3 mask) {
    optional_tensor w = borrow(weight), b = borrow(bias);
    returned_tensors made =
        torch.layer_norm_backward(dy, input, normalized_shape, mean, rstd, &w, &b, mask);
    give_returned(stack, &made, 3);
}

/* _fused_rms_norm through the dispatcher where at::_ops' entry has another name: boxed. */
static void dispatch_boxed(stack_value *stack, tensor_handle input, int_array_ref normalized_shape,
                           tensor_handle weight, optional_double eps) {
    /* The dispatcher owns what is on the stack, so it gets references of its own. */
    stack_value arguments[4] = {0};
    OWNED_TENSOR x = NULL;
    OWNED_LIST shape = NULL;
    torch_check(torch.new_handle(input, &x));
    torch_check(torch.list_new(normalized_shape.size, &shape));
    for (size_t i = 0; i < normalized_shape.size; i++)
        torch_check(torch.list_push(shape, (stack_value)normalized_shape.data[i]));
    if (weight) {
        OWNED_TENSOR w = NULL;
        torch_check(torch.new_handle(weight, &w));
        arguments[2] = give_optional(give_tensor(&w));
    }
    if (eps.engaged)
        arguments[3] = give_optional(give_double(eps.value));
    arguments[0] = give_tensor(&x);
    arguments[1] = (stack_value)(uintptr_t)shape;
    shape = NULL;
    torch_check(torch.call_dispatcher("aten::_fused_rms_norm", "", arguments, TORCH_BUILD_VERSION));
    stack[0] = arguments[0];
    stack[1] = arguments[1];
}

void torch_rms_norm(rms_norm_variant variant, stack_value *stack, tensor_handle input,
                    int_array_ref normalized_shape, tensor_handle weight, optional_double eps) {
    optional_tensor w = borrow(weight);
    returned_tensors made;
    switch (variant) {
    case FUSED_COMPOSITE:
        made = torch.fused_rms_norm_composite(input, normalized_shape, &w, eps);
        give_returned(stack, &made, 2);
        return;
    case FUSED_DISPATCHED:
        if (!torch.fused_rms_norm) {
            dispatch_boxed(stack, input, normalized_shape, weight, eps);
            return;
        }
        made = torch.fused_rms_norm(input, normalized_shape, &w, eps);
        give_returned(stack, &made, 2);
        return;
    case NORM_COMPOSITE:
        made = torch.rms_norm_composite(input, normalized_shape, &w, eps);
        give_returned(stack, &made, 1);
        return;
    }
}

/* ---- The self-test: one row, by the formula, against torch's kernels ------------------------- */

enum { SELF_TEST_SIZE = 5 };

static void free_results(stack_value (*results)[3]) {
    for (int i = 0; i < 3; i++)
        if ((*results)[i])
            torch.delete_tensor(take_tensor((*results)[i]));
}

static bool holds(stack_value result, const double *expected, int count) {
    bool defined = false;
    torch.is_defined(take_tensor(result), &defined);
    if (!expected)
        return !defined;
    if (!defined)
        return false;
    DLTensor view = view_input(take_tensor(result));
    if (view.dtype.bits != 32 || view_elements(&view) != count)
        return false;
    for (int i = 0; i < count; i++)
        if (!(fabs((double)((float *)view.data)[i] - expected[i]) < 1e-4))
            return false;
    return true;
}

planish_status fallback_self_test(message error) {
    const double n = SELF_TEST_SIZE, eps = 0.5;
    double values[SELF_TEST_SIZE], y[SELF_TEST_SIZE], rms[SELF_TEST_SIZE], dx[SELF_TEST_SIZE];
    double mean = 0, square = 0, c1 = 0, c2 = 0;
    int64_t sizes[2] = {1, SELF_TEST_SIZE}, strides[2];
    DLTensor like = {.device = {kDLCPU, 0}}, view;
    OWNED_TENSOR x = new_dense_tensor(&like, 2, sizes, torch.f32, strides, &view);
    for (int i = 0; i < SELF_TEST_SIZE; i++) {
        values[i] = i * i - 2.5;
        ((float *)view.data)[i] = (float)values[i];
        mean += values[i] / n;
        square += values[i] * values[i] / n;
    }
    double rstd = 1 / sqrt(square - mean * mean + eps);
    for (int i = 0; i < SELF_TEST_SIZE; i++) {
        y[i] = (values[i] - mean) * rstd;
        rms[i] = values[i] / sqrt(square + eps);
        c1 += values[i] / n; /* dy is x itself */
        c2 += values[i] * y[i] / n;
    }
    for (int i = 0; i < SELF_TEST_SIZE; i++)
        dx[i] = rstd * (values[i] - c1 - y[i] * c2);

    int_array_ref shape = {sizes + 1, 1};
    __attribute__((cleanup(free_results))) stack_value forward[3] = {0};
    __attribute__((cleanup(free_results))) stack_value backward[3] = {0};
    __attribute__((cleanup(free_results))) stack_value root[3] = {0};
    torch_layer_norm(forward, x, shape, NULL, NULL, eps);
    if (holds(forward[0], y, SELF_TEST_SIZE) && holds(forward[1], &mean, 1) &&
        holds(forward[2], &rstd, 1)) {
        torch_layer_norm_backward(backward, x, x, shape, take_tensor(forward[1]),
                                  take_tensor(forward[2]), NULL, NULL, (mask3){{true}});
        torch_rms_norm(FUSED_COMPOSITE, root, x, shape, NULL, (optional_double){eps, true});
        if (holds(backward[0], dx, SELF_TEST_SIZE) && holds(backward[1], NULL, 0) &&
            holds(backward[2], NULL, 0) && holds(root[0], rms, SELF_TEST_SIZE))
            return PLANISH_OK;
    }
    return fail(
        error, PLANISH_ERROR_UNAVAILABLE,
        "torch %d.%d: torch's own norms, called by their C++ names, did not return what they "
        "should; planish could not hand over input that it does not run, so it stays away",
        torch_version() / 100, torch_version() % 100);
}
