/*
 * Calls into torch's batch norms by the Itanium C++ ABI; see batch_fallback.h.
 */
#include "batch_fallback.h"

#include <math.h>

#include "stack.h"
#include "tensor.h"

/* A TensorImpl pointer borrowed from its owner, as const std::optional<at::Tensor>&. */
static optional_tensor borrow(tensor_handle tensor) {
    return tensor ? (optional_tensor){*(void **)tensor, true} : (optional_tensor){NULL, false};
}

/* torch's kernels read these, below the checks of at::batch_norm, whose words they are. */
static void check_running(bool training, tensor_handle mean, tensor_handle var) {
    torch.check(training || mean, __func__, __FILE__, __LINE__,
                "running_mean must be defined in evaluation mode");
    torch.check(training || var, __func__, __FILE__, __LINE__,
                "running_var must be defined in evaluation mode");
}

returned_tensors torch_batch_norm(backend whose, const batch_arguments *a) {
    check_running(a->training, a->running_mean, a->running_var);
    const optional_tensor w = borrow(a->weight), b = borrow(a->bias),
                          mean = borrow(a->running_mean), var = borrow(a->running_var);
    batch_norm_function *run = whose == BACKEND_CUDA ? torch.cuda_batch_norm : torch.batch_norm;
    return run(a->input, &w, &b, &mean, &var, a->training, a->momentum, a->eps);
}

returned_tensors torch_batch_norm_backward(backend whose, const batch_gradient_arguments *a) {
    check_running(a->training || whose == BACKEND_CUDA, a->running_mean, a->running_var);
    const optional_tensor w = borrow(a->weight), running_mean = borrow(a->running_mean),
                          running_var = borrow(a->running_var), mean = borrow(a->mean),
                          rstd = borrow(a->rstd);
    batch_norm_backward_function *run =
        whose == BACKEND_CUDA ? torch.cuda_batch_norm_backward : torch.batch_norm_backward;
    return run(a->dy, a->input, &w, &running_mean, &running_var, &mean, &rstd, a->training, a->eps,
               a->mask);
}

/* On the CPU torch's function of this name is native_batch_norm and an empty reserve. */
returned_four torch_batch_norm_with_update(backend whose, const batch_arguments *a) {
    if (whose == BACKEND_CUDA) {
        const optional_tensor w = borrow(a->weight), b = borrow(a->bias);
        return torch.cuda_batch_norm_with_update(a->input, &w, &b, a->running_mean, a->running_var,
                                                 a->momentum, a->eps);
    }
    const returned_tensors made = torch_batch_norm(whose, a);
    /* Owned while the reserve is made, which may throw. */
    NEW_TENSOR y = {made.impl[2]};
    NEW_TENSOR mean = {made.impl[1]};
    NEW_TENSOR rstd = {made.impl[0]};
    DLTensor like = {.device = {kDLCPU, 0}}, view;
    int64_t none = 0, stride;
    NEW_TENSOR reserve = new_dense_tensor(&like, 1, &none, torch.u8, &stride, &view);
    return (returned_four){
        {give_tensor(&reserve), give_tensor(&rstd), give_tensor(&mean), give_tensor(&y)}};
}

returned_tensors torch_batch_norm_with_reserve_backward(backend whose,
                                                        const batch_gradient_arguments *a) {
    if (whose == BACKEND_CPU)
        return torch_batch_norm_backward(whose, a);
    const optional_tensor running_mean = borrow(a->running_mean),
                          running_var = borrow(a->running_var), mean = borrow(a->mean),
                          rstd = borrow(a->rstd);
    return torch.cuda_batch_norm_with_reserve_backward(a->dy, a->input, a->weight, &running_mean,
                                                       &running_var, &mean, &rstd, a->training,
                                                       a->eps, a->mask, a->reserve);
}

returned_four torch_cudnn_batch_norm(const batch_arguments *a) {
    const optional_tensor b = borrow(a->bias), mean = borrow(a->running_mean),
                          var = borrow(a->running_var);
    return torch.cudnn_batch_norm(a->input, a->weight, &b, &mean, &var, a->training, a->momentum,
                                  a->eps);
}

returned_tensors torch_cudnn_batch_norm_backward(const batch_gradient_arguments *a) {
    const optional_tensor running_mean = borrow(a->running_mean),
                          running_var = borrow(a->running_var), mean = borrow(a->mean),
                          rstd = borrow(a->rstd);
    return torch.cudnn_batch_norm_backward(a->input, a->dy, a->weight, &running_mean, &running_var,
                                           &mean, &rstd, a->eps, a->reserve);
}

planish_status cuda_batch_norms_are_there(message error) {
    const bool there = torch.cuda_batch_norm && torch.cuda_batch_norm_backward &&
                       torch.cuda_batch_norm_with_update &&
                       torch.cuda_batch_norm_with_reserve_backward && torch.cudnn_batch_norm &&
                       torch.cudnn_batch_norm_backward;
    return there ? PLANISH_OK
                 : fail(error, PLANISH_ERROR_UNAVAILABLE,
                        "torch %d.%d does not export its CUDA batch norms, to which planish would "
                        "hand over what it does not run",
                        torch_version() / 100, torch_version() % 100);
}

/* ---- The self-test: one channel, by the formula, against torch's kernels -------------------- */

enum { SELF_TEST_SIZE = 5 };

static const double self_test_eps = 0.5;

static void free_results(stack_value (*results)[3]) {
    for (int i = 0; i < 3; i++)
        if ((*results)[i])
            torch.delete_tensor(take_tensor((*results)[i]));
}

/* Whether an f32 result of torch's is what is expected. */
static bool holds(stack_value result, const double *expected, int count) {
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

/* dy is x itself. */
static bool one_channel_holds(backend whose, tensor_handle x, const double *values) {
    double mean = 0, var = 0, y[SELF_TEST_SIZE], dx[SELF_TEST_SIZE], dweight = 0;
    for (int i = 0; i < SELF_TEST_SIZE; i++)
        mean += values[i] / SELF_TEST_SIZE;
    for (int i = 0; i < SELF_TEST_SIZE; i++)
        var += (values[i] - mean) * (values[i] - mean) / SELF_TEST_SIZE;
    const double rstd = 1 / sqrt(var + self_test_eps);
    for (int i = 0; i < SELF_TEST_SIZE; i++) {
        y[i] = (values[i] - mean) * rstd;
        dweight += values[i] * y[i];
    }
    for (int i = 0; i < SELF_TEST_SIZE; i++)
        dx[i] = rstd * (values[i] - mean - y[i] * dweight / SELF_TEST_SIZE);

    __attribute__((cleanup(free_results))) stack_value forward[3] = {0};
    __attribute__((cleanup(free_results))) stack_value backward[3] = {0};
    const batch_arguments a = {
        .input = x, .training = true, .momentum = 0.25, .eps = self_test_eps};
    returned_tensors made = torch_batch_norm(whose, &a);
    give_returned(forward, &made, 3);
    if (!holds(forward[0], y, SELF_TEST_SIZE) || !holds(forward[1], &mean, 1) ||
        !holds(forward[2], &rstd, 1))
        return false;
    const batch_gradient_arguments b = {.dy = x,
                                        .input = x,
                                        .mean = take_tensor(forward[1]),
                                        .rstd = take_tensor(forward[2]),
                                        .training = true,
                                        .eps = self_test_eps,
                                        .mask = {{true}}};
    made = torch_batch_norm_backward(whose, &b);
    give_returned(backward, &made, 3);
    return holds(backward[0], dx, SELF_TEST_SIZE);
}

planish_status batch_fallback_self_test(backend whose, int device, message error) {
    int64_t sizes[2] = {SELF_TEST_SIZE, 1}, strides[2];
    double values[SELF_TEST_SIZE];
    DLTensor cpu = {.device = {kDLCPU, 0}}, gpu = {.device = {kDLCUDA, device}}, view;
    NEW_TENSOR column = new_dense_tensor(&cpu, 2, sizes, torch.f32, strides, &view);
    for (int i = 0; i < SELF_TEST_SIZE; i++) {
        values[i] = i * i - 2.5;
        ((float *)view.data)[i] = (float)values[i];
    }
    NEW_TENSOR there = {NULL};
    if (whose == BACKEND_CUDA) {
        there = new_dense_tensor(&gpu, 2, sizes, torch.f32, strides, &view);
        torch_check(torch.copy(handle_of(&there), handle_of(&column), 0));
    }
    if (one_channel_holds(whose, handle_of(there.impl ? &there : &column), values))
        return PLANISH_OK;
    return fail(error, PLANISH_ERROR_UNAVAILABLE,
                "torch %d.%d: torch's own %s batch norm, called by its C++ name, did not return "
                "what it should; planish could not hand over input that it does not run, so it "
                "stays away",
                torch_version() / 100, torch_version() % 100,
                whose == BACKEND_CUDA ? "CUDA" : "CPU");
}
