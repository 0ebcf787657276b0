/*
 * Threads and workspace for one pass; see run.h.
 */

#include "run.h"

#include <string.h>

#include "../roles.h"
#include "exact_plans.h"
#include "plans.h"
#include "stack.h"
#include "tensor.h"

/* What planish asks of a workspace. */
enum { WORKSPACE_ALIGNMENT = 256 };

/* Up to this many bytes it lies on the stack, for the CPU. */
enum { STACK_WORKSPACE = 4096 };

/* With more elements than this the CPU's general kernel takes longer than all else of a call. */
enum { GENERAL_ELEMENTS = 32768 };

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

/* A workspace for `like`'s device: the tensor that owns it, and its aligned address. */
static new_tensor new_workspace(const DLTensor *like, size_t bytes, planish_exec *exec) {
    int64_t size = (int64_t)bytes + WORKSPACE_ALIGNMENT, stride;
    DLTensor view;
    new_tensor workspace = new_dense_tensor(like, 1, &size, torch.u8, &stride, &view);
    uintptr_t address = (uintptr_t)view.data + WORKSPACE_ALIGNMENT - 1;
    exec->workspace = (void *)(address - address % WORKSPACE_ALIGNMENT);
    exec->workspace_bytes = bytes;
    return workspace;
}

static void free_plan(planish_plan **plan) {
    planish_plan_destroy(*plan);
}

static planish_buffers buffers_of_views(const planish_tensors *views) {
    const DLTensor *list[ROLE_COUNT];
    void *data[ROLE_COUNT];
    tensors_by_role(views, list);
    for (int r = 0; r < ROLE_COUNT; r++)
        data[r] = list[r] ? list[r]->data : NULL;
    return buffers_of_roles(data);
}

static planish_status run_plan(const planish_plan *plan, const planish_tensors *t,
                               planish_exec *exec) {
    _Alignas(WORKSPACE_ALIGNMENT) char on_stack[STACK_WORKSPACE];
    NEW_TENSOR workspace = {NULL};
    size_t bytes = planish_plan_workspace_bytes(plan);
    if (bytes > (t->x->device.device_type == kDLCUDA ? 0 : sizeof on_stack)) {
        workspace = new_workspace(t->x, bytes, exec);
        (void)workspace; /* freed when the scope is left */
    } else {
        exec->workspace = on_stack;
        exec->workspace_bytes = sizeof on_stack;
    }
    const planish_buffers buffers = buffers_of_views(t);
    torch_error failed = 0;
    exec->parallel_context = &failed;
    const planish_status status = planish_plan_run(plan, &buffers, exec);
    torch_check(failed);
    return status;
}

/* Which plans of the general kernel are left to torch: its own way, a copy and then its kernel, is
 * faster. */
typedef enum leave {
    LEAVE_NONE,
    LEAVE_GPU,
    LEAVE_LARGE /* and on the CPU those of large tensors */
} leave;

static bool is_left(const planish_plan *plan, const DLTensor *x, leave which) {
    const bool gpu = x->device.device_type == kDLCUDA;
    return (gpu ? which != LEAVE_NONE
                : which == LEAVE_LARGE && view_elements(x) > GENERAL_ELEMENTS) &&
           planish_plan_is_general(plan);
}

/*
 * On a GPU it is queued on torch's current stream of the tensors' device, which need not be the
 * current one: libplanish enters its context by itself. Memory comes from torch's allocator for
 * that stream, so it may be freed here while the work is still queued. `apart`: torch has just made
 * the outputs.
 */
static planish_status run(const planish_norm *op, planish_pass pass, const planish_tensors *tensors,
                          leave which, bool apart, message error) {
    planish_exec exec = {
        .struct_size = sizeof exec,
        .parallel_for = parallel_for,
        .message = error.text,
        .message_bytes = error.bytes,
        .apart = apart,
    };
    if (tensors->x->device.device_type == kDLCUDA)
        torch_check(torch.get_current_cuda_stream(tensors->x->device.device_id, &exec.stream));
    __attribute__((cleanup(free_plan))) planish_plan *made = NULL;
    const planish_plan *plan = is_staged(op, tensors) ? NULL : plan_for(op, pass, tensors);
    if (!plan) /* with stages, or not dense */
        plan = exact_plan_for(op, pass, tensors);
    if (!plan) {
        planish_status status =
            planish_plan_create(op, pass, tensors, &made, error.text, error.bytes);
        if (status != PLANISH_OK)
            return status;
        plan = made;
    }
    if (is_left(plan, tensors->x, which))
        return fail(error, PLANISH_ERROR_UNAVAILABLE, "no fast kernel for this layout");
    return run_plan(plan, tensors, &exec);
}

planish_status run_norm_if_fast(const planish_norm *op, planish_pass pass,
                                const planish_tensors *tensors, message error) {
    return run(op, pass, tensors, LEAVE_GPU, true, error);
}

planish_status run_norm_if_faster(const planish_norm *op, planish_pass pass,
                                  const planish_tensors *tensors, message error) {
    return run(op, pass, tensors, LEAVE_LARGE, true, error);
}

planish_status run_norm(const planish_norm *op, planish_pass pass, const planish_tensors *tensors,
                        message error) {
    return run(op, pass, tensors, LEAVE_NONE, true, error);
}

planish_status run_norm_into(const planish_norm *op, planish_pass pass,
                             const planish_tensors *tensors, message error) {
    return run(op, pass, tensors, LEAVE_NONE, false, error);
}
