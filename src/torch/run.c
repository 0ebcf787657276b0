/*
 * A bound call (bound_call.h) with torch's threads, streams and memory; see run.h.
 */

#include "run.h"

#include <string.h>

#include "../backends.h"
#include "../bound_call.h"
#include "stack.h"
#include "tensor.h"
#include "thrown.h"

typedef struct work {
    planish_task task;
    void *data;
} work;

static void run_range(int64_t begin, int64_t end, void *context) {
    const work *w = context;
    w->task(w->data, begin, end);
}

/* Tasks do not throw, but torch may fail to start its threads. That is kept until planish, whose
 * frames no exception may go through, has returned. `context` is where. */
static void parallel_for(void *context, int64_t count, planish_task task, void *task_data) {
    torch_error *failed = context;
    work w = {task, task_data};
    const torch_error error = torch.parallel_for(0, count, 1, run_range, &w);
    if (error)
        *failed = error;
}

/*
 * On a GPU it is queued on torch's current stream of the tensors' device, which need not be the
 * current one: libplanish enters its context by itself. Memory comes from torch's allocator for
 * that stream, so it may be freed here while the work is still queued. `apart`: torch has just made
 * the outputs.
 */
static planish_exec exec_on(DLDevice device, bool apart, message error) {
    planish_exec exec = {
        .struct_size = sizeof exec,
        .parallel_for = parallel_for,
        .message = error.text,
        .message_bytes = error.bytes,
        .apart = apart,
    };
    if (device.device_type == kDLCUDA)
        torch_check(torch.get_current_cuda_stream(device.device_id, &exec.stream));
    return exec;
}

/* A workspace on the device of `like`: the tensor that owns it. */
static new_tensor new_workspace(const DLTensor *like, size_t bytes, planish_exec *exec) {
    int64_t size = (int64_t)bytes + BOUND_ALIGNMENT, stride;
    DLTensor view;
    new_tensor workspace = new_dense_tensor(like, 1, &size, torch.u8, &stride, &view);
    bound_call_use(view.data, bytes, exec);
    return workspace;
}

static planish_status run_bound(const bound_call *call, const bound_call *second,
                                planish_exec *exec) {
    const size_t bytes = bound_call_bytes(call, second);
    bound_stack stack;
    NEW_TENSOR made = {NULL};
    if (!bound_call_on_stack(call, bytes, &stack, exec))
        made = new_workspace(call->tensors->x, bytes, exec);
    torch_error failed = 0;
    exec->parallel_context = &failed;
    const planish_status status = bound_call_run(call, second, exec);
    torch_check(failed);
    return status;
}

#define BOUND_CALL __attribute__((cleanup(bound_call_free))) bound_call

static planish_status run(const planish_norm *op, planish_pass pass, const planish_tensors *tensors,
                          general_use allowed, bool apart, message error) {
    planish_exec exec = exec_on(tensors->x->device, apart, error);
    BOUND_CALL call = {NULL};
    planish_status status = bound_call_find(&call, op, pass, tensors, error);
    if (status == PLANISH_OK)
        status = bound_call_check(&call, allowed, error);
    return status == PLANISH_OK ? run_bound(&call, NULL, &exec) : status;
}

planish_status run_norm_pair(const planish_norm *const ops[2], planish_pass pass,
                             const planish_tensors *const tensors[2], bool fast, message error) {
    const general_use allowed = fast ? GENERAL_ON_CPU : GENERAL_ANYWHERE;
    planish_exec exec = exec_on(tensors[0]->x->device, true, error);
    BOUND_CALL first = {NULL};
    BOUND_CALL second = {NULL};
    planish_status status = bound_call_find(&first, ops[0], pass, tensors[0], error);
    if (status == PLANISH_OK)
        status = bound_call_find(&second, ops[1], pass, tensors[1], error);
    if (status == PLANISH_OK)
        status = bound_call_check(&first, allowed, error);
    if (status == PLANISH_OK)
        status = bound_call_check(&second, allowed, error);
    return status == PLANISH_OK ? run_bound(&first, &second, &exec) : status;
}

planish_status run_norm_if_fast(const planish_norm *op, planish_pass pass,
                                const planish_tensors *tensors, message error) {
    return run(op, pass, tensors, GENERAL_ON_CPU, true, error);
}

planish_status run_norm_if_faster(const planish_norm *op, planish_pass pass,
                                  const planish_tensors *tensors, message error) {
    return run(op, pass, tensors, GENERAL_IF_SMALL, true, error);
}

planish_status run_norm(const planish_norm *op, planish_pass pass, const planish_tensors *tensors,
                        message error) {
    return run(op, pass, tensors, GENERAL_ANYWHERE, true, error);
}

planish_status run_norm_into(const planish_norm *op, planish_pass pass,
                             const planish_tensors *tensors, message error) {
    return run(op, pass, tensors, GENERAL_ANYWHERE, false, error);
}

void run_merge(const merge_args *m, DLDevice device) {
    char text[512] = "";
    void *stream = NULL;
    if (device.device_type == kDLCUDA)
        torch_check(torch.get_current_cuda_stream(device.device_id, &stream));
    throw_status(
        backend_of(device)->merge(m, device.device_id, stream, (message){text, sizeof text}), text);
}
