#include "bound_call.h"

#include <stdint.h>
#include <stdlib.h>

#include "devices.h"
#include "kept_plans.h"
#include "roles.h"

/* With more elements than this the CPU's general kernel takes longer than all else of a call. */
enum { GENERAL_ELEMENTS = 32768 };

planish_status bound_call_find(bound_call *call, const planish_norm *op, planish_pass pass,
                               const planish_tensors *tensors, message error) {
    *call = (bound_call){.tensors = tensors, .plan = kept_plan_for(op, pass, tensors)};
    if (call->plan)
        return PLANISH_OK;
    const planish_status status =
        planish_plan_create(op, pass, tensors, &call->made, error.text, error.bytes);
    call->plan = call->made;
    return status;
}

void bound_call_free(bound_call *call) {
    planish_plan_destroy(call->made);
}

static bool is_on_gpu(const bound_call *call) {
    return device_kind_of(call->tensors->x->device) != DEVICE_CPU;
}

static bool is_large(const DLTensor *x) {
    int64_t elements = 1;
    for (int i = 0; i < x->ndim; i++)
        elements *= x->shape[i];
    return elements > GENERAL_ELEMENTS;
}

planish_status bound_call_check(const bound_call *call, general_use allowed, message error) {
    const bool asked = is_on_gpu(call) ? allowed != GENERAL_ANYWHERE
                                       : allowed == GENERAL_IF_SMALL && is_large(call->tensors->x);
    if (asked && planish_plan_is_general(call->plan))
        return fail(error, PLANISH_ERROR_NO_FAST_KERNEL, "no fast kernel for this layout");
    return PLANISH_OK;
}

size_t bound_call_bytes(const bound_call *call, const bound_call *second) {
    return second ? planish_plan_pair_workspace_bytes(call->plan, second->plan)
                  : planish_plan_workspace_bytes(call->plan);
}

bool bound_call_on_stack(const bound_call *call, size_t bytes, bound_stack *stack,
                         planish_exec *exec) {
    if (bytes > (is_on_gpu(call) ? 0 : sizeof stack->bytes))
        return false;
    exec->workspace = stack->bytes;
    exec->workspace_bytes = sizeof stack->bytes;
    return true;
}

void bound_call_use(void *memory, size_t bytes, planish_exec *exec) {
    const uintptr_t address = (uintptr_t)memory + BOUND_ALIGNMENT - 1;
    exec->workspace = (void *)(address - address % BOUND_ALIGNMENT);
    exec->workspace_bytes = bytes;
}

static planish_buffers buffers_of_call(const bound_call *call) {
    const DLTensor *list[ROLE_COUNT];
    void *data[ROLE_COUNT];
    tensors_by_role(call->tensors, list);
    for (int r = 0; r < ROLE_COUNT; r++)
        data[r] = list[r] ? (char *)list[r]->data + list[r]->byte_offset : NULL;
    return buffers_of_roles(data);
}

planish_status bound_call_run(const bound_call *call, const bound_call *second,
                              const planish_exec *exec) {
    const planish_buffers buffers = buffers_of_call(call);
    if (!second)
        return planish_plan_run(call->plan, &buffers, exec);
    const planish_buffers others = buffers_of_call(second);
    return planish_plan_pair_run(call->plan, second->plan, &buffers, &others, exec);
}

planish_status bound_call_whole(const planish_norm *op, planish_pass pass,
                                const planish_tensors *tensors, planish_exec *exec, message error) {
    bound_call call;
    bound_stack stack;
    void *on_heap = NULL;
    planish_status status = bound_call_find(&call, op, pass, tensors, error);
    if (status == PLANISH_OK && !is_on_gpu(&call)) {
        const size_t bytes = bound_call_bytes(&call, NULL);
        if (!bound_call_on_stack(&call, bytes, &stack, exec)) {
            on_heap = malloc(bytes + BOUND_ALIGNMENT);
            if (on_heap)
                bound_call_use(on_heap, bytes, exec);
            else
                status = fail(error, PLANISH_ERROR_OUT_OF_MEMORY,
                              "no memory for a workspace of %zu bytes", bytes);
        }
    }
    if (status == PLANISH_OK)
        status = bound_call_run(&call, NULL, exec);
    free(on_heap);
    bound_call_free(&call);
    return status;
}
