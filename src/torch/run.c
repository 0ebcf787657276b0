/*
 * Threads and workspace for one pass; see run.h.
 */

#include "run.h"
#include "stack.h"
#include "tensor.h"

/* What planish asks of a workspace. */
enum { WORKSPACE_ALIGNMENT = 256 };

typedef struct work {
    planish_task task;
    void *data;
} work;

static void run_range(int64_t begin, int64_t end, void *context) {
    const work *w = context;
    w->task(w->data, begin, end);
}

static void parallel_for(void *context, int64_t count, planish_task task, void *task_data) {
    (void)context;
    work w = {task, task_data};
    /* libtorch reports only what the body throws, and tasks do not throw. */
    torch_check(torch.parallel_for(0, count, 1, run_range, &w));
}

planish_status run_norm(const planish_norm *op, planish_pass pass, const planish_tensors *tensors,
                        message error) {
    planish_exec exec = {
        .struct_size = sizeof exec,
        .parallel_for = parallel_for,
        .message = error.text,
        .message_bytes = error.bytes,
    };
    /* Forward over dense rows, the case that counts, needs no workspace: ask only if told to. */
    planish_status status = planish_norm_run(op, pass, tensors, &exec);
    if (status != PLANISH_ERROR_WORKSPACE)
        return status;
    size_t bytes = 0;
    status = planish_norm_workspace_bytes(op, pass, tensors, &bytes, &exec);
    if (status != PLANISH_OK)
        return status;

    int64_t size = (int64_t)bytes + WORKSPACE_ALIGNMENT, stride = 1;
    DLTensor view;
    OWNED_TENSOR workspace =
        new_tensor(tensors->x ? tensors->x : tensors->y, 1, &size, &stride, torch.u8, &view);
    uintptr_t address = (uintptr_t)view.data;
    exec.workspace =
        (void *)((address + WORKSPACE_ALIGNMENT - 1) / WORKSPACE_ALIGNMENT * WORKSPACE_ALIGNMENT);
    exec.workspace_bytes = bytes;
    return planish_norm_run(op, pass, tensors, &exec);
}
