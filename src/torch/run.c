/*
 * Threads and workspace for one pass; see run.h.
 */

#include "run.h"

#include <stdio.h>
#include <string.h>

#include "../kept_plans.h"
#include "../roles.h"
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

typedef struct room {
    _Alignas(WORKSPACE_ALIGNMENT) char on_stack[STACK_WORKSPACE];
    new_tensor made;
} room;

static void free_room(room *r) {
    free_new_tensor(&r->made);
}

#define ROOM __attribute__((cleanup(free_room))) room

/* Hands exec so many bytes on the device of `like`, which are there as long as the room is. */
static void give_workspace(room *r, const DLTensor *like, size_t bytes, planish_exec *exec) {
    r->made.impl = NULL;
    if (bytes > (like->device.device_type == kDLCUDA ? 0 : sizeof r->on_stack)) {
        r->made = new_workspace(like, bytes, exec);
    } else {
        exec->workspace = r->on_stack;
        exec->workspace_bytes = sizeof r->on_stack;
    }
}

static planish_status run_plan(const planish_plan *plan, const planish_tensors *t,
                               planish_exec *exec) {
    ROOM r;
    r.made.impl = NULL;
    give_workspace(&r, t->x, planish_plan_workspace_bytes(plan), exec);
    const planish_buffers buffers = buffers_of_views(t);
    torch_error failed = 0;
    exec->parallel_context = &failed;
    const planish_status status = planish_plan_run(plan, &buffers, exec);
    torch_check(failed);
    return status;
}

static planish_status run_plans(const planish_plan *const plans[2],
                                const planish_tensors *const tensors[2], planish_exec *exec) {
    ROOM r;
    r.made.impl = NULL;
    give_workspace(&r, tensors[0]->x, planish_plan_pair_workspace_bytes(plans[0], plans[1]), exec);
    const planish_buffers first = buffers_of_views(tensors[0]);
    const planish_buffers second = buffers_of_views(tensors[1]);
    torch_error failed = 0;
    exec->parallel_context = &failed;
    const planish_status status = planish_plan_pair_run(plans[0], plans[1], &first, &second, exec);
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

/* A plan that is kept, or one that is made for this call alone, and then is *made, too. */
static planish_status find_plan(const planish_norm *op, planish_pass pass,
                                const planish_tensors *tensors, const planish_plan **plan,
                                planish_plan **made, message error) {
    *plan = kept_plan_for(op, pass, tensors);
    if (*plan)
        return PLANISH_OK;
    const planish_status status =
        planish_plan_create(op, pass, tensors, made, error.text, error.bytes);
    *plan = *made;
    return status;
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

#define MADE_PLAN __attribute__((cleanup(free_plan))) planish_plan *

static planish_status run(const planish_norm *op, planish_pass pass, const planish_tensors *tensors,
                          leave which, bool apart, message error) {
    planish_exec exec = exec_on(tensors->x->device, apart, error);
    MADE_PLAN made = NULL;
    const planish_plan *plan;
    const planish_status status = find_plan(op, pass, tensors, &plan, &made, error);
    if (status != PLANISH_OK)
        return status;
    if (is_left(plan, tensors->x, which))
        return fail(error, PLANISH_ERROR_NO_FAST_KERNEL, "no fast kernel for this layout");
    return run_plan(plan, tensors, &exec);
}

planish_status run_norm_pair(const planish_norm *const ops[2], planish_pass pass,
                             const planish_tensors *const tensors[2], bool fast, message error) {
    planish_exec exec = exec_on(tensors[0]->x->device, true, error);
    MADE_PLAN first = NULL;
    MADE_PLAN second = NULL;
    const planish_plan *plans[2];
    planish_status status = find_plan(ops[0], pass, tensors[0], &plans[0], &first, error);
    if (status == PLANISH_OK)
        status = find_plan(ops[1], pass, tensors[1], &plans[1], &second, error);
    if (status != PLANISH_OK)
        return status;
    for (int i = 0; i < 2; i++)
        if (is_left(plans[i], tensors[i]->x, fast ? LEAVE_GPU : LEAVE_NONE))
            return fail(error, PLANISH_ERROR_NO_FAST_KERNEL, "no fast kernel for this layout");
    return run_plans(plans, tensors, &exec);
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
