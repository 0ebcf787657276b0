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

returned_tensors torch_layer_norm(backend whose, tensor_handle input,
                                  int_array_ref normalized_shape, tensor_handle weight,
                                  tensor_handle bias, double eps) {
    optional_tensor w = borrow(weight), b = borrow(bias);
    layer_norm_function *run = whose == BACKEND_CUDA ? torch.cuda_layer_norm : torch.layer_norm;
    return run(input, normalized_shape, &w, &b, eps);
}

returned_tensors torch_layer_norm_backward(backend whose, tensor_handle dy, tensor_handle input,
                                           int_array_ref normalized_shape, tensor_handle mean,
                                           tensor_handle rstd, tensor_handle weight,
                                           tensor_handle bias, mask3 mask) {
    optional_tensor w = borrow(weight), b = borrow(bias);
    layer_norm_backward_function *run =
        whose == BACKEND_CUDA ? torch.cuda_layer_norm_backward : torch.layer_norm_backward;
    return run(dy, input, normalized_shape, mean, rstd, &w, &b, mask);
}

/* torch's kernels divide by these, below the checks of torch.nn.functional. */
static void check_groups(const group_sizes *sizes) {
    torch.check(sizes->groups != 0, __func__, __FILE__, __LINE__,
                "Expected num groups to be greater than 0, got 0");
}

returned_tensors torch_group_norm(backend whose, tensor_handle input, tensor_handle weight,
                                  tensor_handle bias, const group_sizes *sizes, double eps) {
    check_groups(sizes);
    optional_tensor w = borrow(weight), b = borrow(bias);
    group_norm_function *run = whose == BACKEND_CUDA ? torch.cuda_group_norm : torch.group_norm;
    return run(input, &w, &b, sizes->batch, sizes->channels, sizes->pixels, sizes->groups, eps);
}

returned_tensors torch_group_norm_backward(backend whose, tensor_handle dy, tensor_handle input,
                                           tensor_handle mean, tensor_handle rstd,
                                           tensor_handle weight, const group_sizes *sizes,
                                           mask3 mask) {
    check_groups(sizes);
    optional_tensor w = borrow(weight);
    group_norm_backward_function *run =
        whose == BACKEND_CUDA ? torch.cuda_group_norm_backward : torch.group_norm_backward;
    return run(dy, input, mean, rstd, &w, sizes->batch, sizes->channels, sizes->pixels,
               sizes->groups, mask);
}

void torch_rms_norm_backward(stack_value *stack, tensor_handle dy, tensor_handle input,
                             int_array_ref normalized_shape, tensor_handle rstd,
                             tensor_handle weight, mask2 mask) {
    optional_tensor w = borrow(weight);
    returned_tensors made =
        torch.cuda_fused_rms_norm_backward(dy, input, normalized_shape, rstd, &w, mask);
    give_returned(stack, &made, 2);
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
        arguments[2] = give_optional(give_handle(&w));
    }
    if (eps.engaged)
        arguments[3] = give_optional(give_double(eps.value));
    arguments[0] = give_handle(&x);
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
    case FUSED_CUDA:
        made = torch.cuda_fused_rms_norm(input, normalized_shape, &w, eps);
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

/* Whether an f32 result of torch's is what is expected; NULL: undefined. */
static bool holds(stack_value result, const double *expected, int count) {
    bool defined = false;
    torch.is_defined(take_tensor(result), &defined);
    if (!expected)
        return !defined;
    if (!defined)
        return false;
    DLTensor found = view_input(take_tensor(result)), view, like = {.device = {kDLCPU, 0}};
    if (found.dtype.bits != 32 || view_elements(&found) != count)
        return false;
    NEW_TENSOR here =
        new_strided_tensor(&like, found.ndim, found.shape, found.strides, torch.f32, &view);
    torch_check(torch.copy(handle_of(&here), take_tensor(result), 0));
    for (int i = 0; i < count; i++)
        if (!(fabs((double)((float *)view.data)[i] - expected[i]) < 1e-4))
            return false;
    return true;
}

/* The row of the self-test and what the norms make of it; dy is x itself. */
typedef struct expectation {
    double x[SELF_TEST_SIZE], y[SELF_TEST_SIZE], dx[SELF_TEST_SIZE];
    double mean, rstd;
    double rms_y[SELF_TEST_SIZE], rms_dx[SELF_TEST_SIZE], rms_rstd;
    double zeros[SELF_TEST_SIZE], length;
} expectation;

static const double self_test_eps = 0.5;

static void expect_one(const double *x, double mean, double rstd, double *y, double *dx) {
    double c1 = 0, c2 = 0;
    for (int i = 0; i < SELF_TEST_SIZE; i++) {
        y[i] = (x[i] - mean) * rstd;
        c1 += x[i] / SELF_TEST_SIZE;
        c2 += x[i] * y[i] / SELF_TEST_SIZE;
    }
    if (mean == 0)
        c1 = 0;
    for (int i = 0; i < SELF_TEST_SIZE; i++)
        dx[i] = rstd * (x[i] - c1 - y[i] * c2);
}

static expectation expect(void) {
    expectation e = {.mean = 0};
    double square = 0;
    for (int i = 0; i < SELF_TEST_SIZE; i++) {
        e.x[i] = i * i - 2.5;
        e.mean += e.x[i] / SELF_TEST_SIZE;
        square += e.x[i] * e.x[i] / SELF_TEST_SIZE;
    }
    e.rstd = 1 / sqrt(square - e.mean * e.mean + self_test_eps);
    e.rms_rstd = 1 / sqrt(square + self_test_eps);
    e.length = sqrt(square * SELF_TEST_SIZE);
    expect_one(e.x, e.mean, e.rstd, e.y, e.dx);
    expect_one(e.x, 0, e.rms_rstd, e.rms_y, e.rms_dx);
    return e;
}

static bool layer_norm_holds(backend whose, const expectation *e, tensor_handle x,
                             int_array_ref shape) {
    __attribute__((cleanup(free_results))) stack_value forward[3] = {0};
    __attribute__((cleanup(free_results))) stack_value backward[3] = {0};
    returned_tensors made = torch_layer_norm(whose, x, shape, NULL, NULL, self_test_eps);
    give_returned(forward, &made, 3);
    if (!holds(forward[0], e->y, SELF_TEST_SIZE) || !holds(forward[1], &e->mean, 1) ||
        !holds(forward[2], &e->rstd, 1))
        return false;
    made = torch_layer_norm_backward(whose, x, x, shape, take_tensor(forward[1]),
                                     take_tensor(forward[2]), NULL, NULL, (mask3){{true}});
    give_returned(backward, &made, 3);
    return holds(backward[0], e->dx, SELF_TEST_SIZE) && holds(backward[1], NULL, 0) &&
           holds(backward[2], NULL, 0);
}

/* The row as the channels of one sample, all in one group. */
static bool group_norm_holds(backend whose, const expectation *e, tensor_handle x) {
    __attribute__((cleanup(free_results))) stack_value forward[3] = {0};
    __attribute__((cleanup(free_results))) stack_value backward[3] = {0};
    const group_sizes sizes = {1, SELF_TEST_SIZE, 1, 1};
    returned_tensors made = torch_group_norm(whose, x, NULL, NULL, &sizes, self_test_eps);
    give_returned(forward, &made, 3);
    if (!holds(forward[0], e->y, SELF_TEST_SIZE) || !holds(forward[1], &e->mean, 1) ||
        !holds(forward[2], &e->rstd, 1))
        return false;
    made = torch_group_norm_backward(whose, x, x, take_tensor(forward[1]), take_tensor(forward[2]),
                                     NULL, &sizes, (mask3){{true}});
    give_returned(backward, &made, 3);
    return holds(backward[0], e->dx, SELF_TEST_SIZE) && holds(backward[1], NULL, 0) &&
           holds(backward[2], NULL, 0);
}

static bool rms_norm_holds(backend whose, const expectation *e, tensor_handle x,
                           int_array_ref shape) {
    __attribute__((cleanup(free_results))) stack_value forward[3] = {0};
    __attribute__((cleanup(free_results))) stack_value backward[3] = {0};
    torch_rms_norm(whose == BACKEND_CUDA ? FUSED_CUDA : FUSED_COMPOSITE, forward, x, shape, NULL,
                   (optional_double){self_test_eps, true});
    if (!holds(forward[0], e->rms_y, SELF_TEST_SIZE) || !holds(forward[1], &e->rms_rstd, 1))
        return false;
    if (whose == BACKEND_CPU)
        return true;
    torch_rms_norm_backward(backward, x, x, shape, take_tensor(forward[1]), NULL, (mask2){{true}});
    return holds(backward[0], e->rms_dx, SELF_TEST_SIZE) && holds(backward[1], NULL, 0);
}

/* g is the length of the row, which therefore stays as it is; dw is the row. */
static bool weight_norm_holds(const expectation *e, tensor_handle x, tensor_handle length) {
    __attribute__((cleanup(free_results))) stack_value forward[3] = {0};
    __attribute__((cleanup(free_results))) stack_value backward[3] = {0};
    returned_tensors made = torch.weight_norm(x, length, 0);
    give_returned(forward, &made, 2);
    if (!holds(forward[0], e->x, SELF_TEST_SIZE) || !holds(forward[1], &e->length, 1))
        return false;
    made = torch.weight_norm_backward(x, x, length, take_tensor(forward[1]), 0);
    give_returned(backward, &made, 2);
    return holds(backward[0], e->zeros, SELF_TEST_SIZE) && holds(backward[1], &e->length, 1);
}

/* A row of these numbers in f32. */
static new_tensor new_row(DLDevice device, int64_t count, const double *numbers) {
    int64_t sizes[2] = {1, count}, strides[2];
    DLTensor cpu = {.device = {kDLCPU, 0}}, there = {.device = device}, view;
    NEW_TENSOR row = new_dense_tensor(&cpu, 2, sizes, torch.f32, strides, &view);
    for (int64_t i = 0; i < count; i++)
        ((float *)view.data)[i] = (float)numbers[i];
    if (device.device_type == kDLCPU)
        return (new_tensor){give_tensor(&row)};
    NEW_TENSOR copy = new_dense_tensor(&there, 2, sizes, torch.f32, strides, &view);
    torch_check(torch.copy(handle_of(&copy), handle_of(&row), 0));
    return (new_tensor){give_tensor(&copy)};
}

planish_status fallback_self_test(backend whose, int device, message error) {
    static const int64_t size = SELF_TEST_SIZE;
    const expectation e = expect();
    const DLDevice place = {device_type_of(whose), device};
    NEW_TENSOR row = new_row(place, SELF_TEST_SIZE, e.x);
    NEW_TENSOR length = new_row(place, 1, &e.length);
    tensor_handle x = handle_of(&row);
    int_array_ref shape = {&size, 1};
    if (layer_norm_holds(whose, &e, x, shape) && group_norm_holds(whose, &e, x) &&
        rms_norm_holds(whose, &e, x, shape) &&
        (whose == BACKEND_CUDA || weight_norm_holds(&e, x, handle_of(&length))))
        return PLANISH_OK;
    return fail(
        error, PLANISH_ERROR_UNAVAILABLE,
        "torch %d.%d: torch's own %s norms, called by their C++ names, did not return what they "
        "should; planish could not hand over input that it does not run, so it stays away",
        torch_version() / 100, torch_version() % 100, whose == BACKEND_CUDA ? "CUDA" : "CPU");
}
