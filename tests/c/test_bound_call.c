/*
 * A binding as docs/internals/add-a-binding.md says one is written: threads and memory of its own,
 * DLTensors, and the steps of a bound call (bound_call.h). Its results are those of
 * planish_norm_run.
 */
#include <stdlib.h>
#include <string.h>

#include "check.h"

#include "bound_call.h"

enum { ROWS = 64, COLS = 192, ELEMENTS = ROWS * COLS };

static float x[ELEMENTS], y[2][ELEMENTS], dy[ELEMENTS], dx[2][ELEMENTS], mean[ROWS], rstd[ROWS],
    weight[COLS], dweight[2][COLS];
static int64_t full[] = {ROWS, COLS}, rows_apart[] = {COLS, 1}, row[] = {ROWS, 1}, ones[] = {1, 1},
               column[] = {COLS}, one[] = {1};
static int tasks, made;

static DLTensor tensor(float *data, int ndim, int64_t *shape, int64_t *strides) {
    return (DLTensor){.data = data,
                      .device = {kDLCPU, 0},
                      .ndim = ndim,
                      .dtype = {kDLFloat, 32, 1},
                      .shape = shape,
                      .strides = strides};
}

static bool same(const void *a, const void *b, size_t bytes) {
    return !memcmp(a, b, bytes);
}

/* The binding's threads: there is one. */
static void in_turn(void *context, int64_t count, planish_task task, void *data) {
    (void)context;
    tasks++;
    task(data, 0, count);
}

/* The binding: finds or makes the plan, gives a workspace, runs. */
static planish_status run(const planish_norm *op, planish_pass pass, const planish_tensors *tensors,
                          general_use allowed, message error) {
    planish_exec exec = {.struct_size = sizeof exec,
                         .parallel_for = in_turn,
                         .message = error.text,
                         .message_bytes = error.bytes};
    bound_call call;
    bound_stack stack;
    void *memory = NULL;
    planish_status status = bound_call_find(&call, op, pass, tensors, error);
    if (!status)
        status = bound_call_check(&call, allowed, error);
    if (!status) {
        const size_t bytes = bound_call_bytes(&call, NULL);
        if (!bound_call_on_stack(&call, bytes, &stack, &exec)) {
            memory = malloc(bytes + BOUND_ALIGNMENT);
            made++;
            bound_call_use(memory, bytes, &exec);
        }
        status = bound_call_run(&call, NULL, &exec);
    }
    free(memory);
    bound_call_free(&call);
    return status;
}

/* The library's own way to the same tensors. */
static planish_status run_whole(const planish_norm *op, planish_pass pass,
                                const planish_tensors *tensors, message error) {
    planish_exec exec = {
        .struct_size = sizeof exec, .message = error.text, .message_bytes = error.bytes};
    size_t bytes = 0;
    planish_status status = planish_norm_workspace_bytes(op, pass, tensors, &bytes, &exec);
    exec.workspace =
        aligned_alloc(BOUND_ALIGNMENT, (bytes / BOUND_ALIGNMENT + 1) * BOUND_ALIGNMENT);
    exec.workspace_bytes = bytes;
    if (!status)
        status = planish_norm_run(op, pass, tensors, &exec);
    free(exec.workspace);
    return status;
}

static void is_as_whole(void) {
    test_case("forward and backward of a binding");
    char text[256] = "";
    const message error = {text, sizeof text};
    const planish_norm op = planish_last_axes_op(PLANISH_LAYER, 2, 1, 1e-5);
    DLTensor t_x = tensor(x, 2, full, rows_apart), t_dy = tensor(dy, 2, full, rows_apart),
             t_mean = tensor(mean, 2, row, ones), t_rstd = tensor(rstd, 2, row, ones),
             t_weight = tensor(weight, 1, column, one);
    for (int own = 0; own < 2; own++) {
        DLTensor t_y = tensor(y[own], 2, full, rows_apart),
                 t_dx = tensor(dx[own], 2, full, rows_apart),
                 t_dweight = tensor(dweight[own], 1, column, one);
        const planish_tensors forward = {.struct_size = sizeof forward,
                                         .x = &t_x,
                                         .weight = &t_weight,
                                         .y = &t_y,
                                         .mean = &t_mean,
                                         .rstd = &t_rstd};
        const planish_tensors backward = {.struct_size = sizeof backward,
                                          .x = &t_x,
                                          .weight = &t_weight,
                                          .mean = &t_mean,
                                          .rstd = &t_rstd,
                                          .dy = &t_dy,
                                          .dx = &t_dx,
                                          .dweight = &t_dweight};
        expect(!(own ? run(&op, PLANISH_FORWARD, &forward, GENERAL_ANYWHERE, error)
                     : run_whole(&op, PLANISH_FORWARD, &forward, error)),
               "forward: %s", text);
        expect(!(own ? run(&op, PLANISH_BACKWARD, &backward, GENERAL_ANYWHERE, error)
                     : run_whole(&op, PLANISH_BACKWARD, &backward, error)),
               "backward: %s", text);
    }
    expect(same(y[0], y[1], sizeof y[0]), "y has other bits");
    expect(same(dx[0], dx[1], sizeof dx[0]), "dx has other bits");
    expect(same(dweight[0], dweight[1], sizeof dweight[0]), "dweight has other bits");
    expect(made == 1, "%d workspaces were made; wanted one, for the backward's sums", made);
}

static void offsets_count(void) {
    test_case("a tensor that begins behind its data");
    char text[256] = "";
    const message error = {text, sizeof text};
    const planish_norm op = planish_last_axes_op(PLANISH_LAYER, 2, 1, 1e-5);
    int64_t half[] = {ROWS / 2, COLS};
    DLTensor t_x = tensor(x, 2, half, rows_apart), t_y = tensor(y[1], 2, half, rows_apart);
    const planish_tensors t = {.struct_size = sizeof t, .x = &t_x, .y = &t_y};
    memcpy(y[0], y[1], sizeof y[0]);
    memset(y[1], 0, sizeof y[1]);
    t_x.byte_offset = t_y.byte_offset = sizeof x / 2;
    expect(!run(&op, PLANISH_FORWARD, &t, GENERAL_ANYWHERE, error), "%s", text);
    expect(y[1][0] == 0 && y[1][ELEMENTS / 2] != 0, "y is not where its offset says");
}

static void general_kernels_are_refused(void) {
    test_case("where general kernels may run");
    char text[256] = "";
    const message error = {text, sizeof text};
    const planish_norm op = planish_last_axes_op(PLANISH_LAYER, 2, 1, 1e-5);
    static float large[256 * 512], result[256 * 256];
    int64_t sizes[] = {256, 256}, every_second[] = {512, 2}, dense[] = {256, 1};
    int64_t few[] = {16, 256};
    DLTensor t_x = tensor(large, 2, sizes, every_second), t_y = tensor(result, 2, sizes, dense);
    DLTensor few_x = tensor(large, 2, few, every_second), few_y = tensor(result, 2, few, dense);
    const planish_tensors t = {.struct_size = sizeof t, .x = &t_x, .y = &t_y};
    const planish_tensors small = {.struct_size = sizeof small, .x = &few_x, .y = &few_y};
    expect(run(&op, PLANISH_FORWARD, &t, GENERAL_IF_SMALL, error) == PLANISH_ERROR_NO_FAST_KERNEL,
           "a large one ran: %s", text);
    expect(!run(&op, PLANISH_FORWARD, &t, GENERAL_ON_CPU, error), "on the CPU: %s", text);
    expect(!run(&op, PLANISH_FORWARD, &small, GENERAL_IF_SMALL, error), "a small one: %s", text);
}

int main(void) {
    for (int i = 0; i < ELEMENTS; i++) {
        x[i] = (float)(i * 37 % 101) / 7 - 5;
        dy[i] = (float)(i * 53 % 89) / 11 - 4;
    }
    for (int i = 0; i < COLS; i++)
        weight[i] = 1 + (float)(i % 5) / 8;
    is_as_whole();
    offsets_count();
    general_kernels_are_refused();
    expect(tasks > 0, "the binding's threads were not asked");
    return test_finish("bound_call");
}
