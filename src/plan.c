#include "plan.h"

#include <stdio.h>
#include <stdlib.h>

#include "sized.h"

planish_status plan_make(planish_plan *plan, message error) {
    const DLDevice device = plan->problem.device;
    if (is_gpu(device)) {
        cuda_limits limits;
        const planish_status status = cuda_device_limits(device.device_id, &limits, error);
        if (status)
            return status;
        steps_of_whole(&plan->steps, &plan->problem);
        cuda_plan_make(&plan->cuda, &plan->problem, &limits);
        plan->workspace_bytes = plan->cuda.workspace_bytes;
        return PLANISH_OK;
    }
    const cpu_limits limits = cpu_limits_here();
    cpu_steps_make(&plan->steps, &plan->problem, &plan->norm);
    cpu_plan_make(&plan->cpu, &plan->steps, &limits);
    plan->workspace_bytes = plan->cpu.workspace_bytes;
    return PLANISH_OK;
}

planish_plan *plan_kept(const planish_plan *plan) {
    const bool norm = steps_norm(&plan->steps)->problem == &plan->norm;
    const size_t bytes = offsetof(planish_plan, problem) + problem_bytes(&plan->problem);
    planish_plan *const kept = malloc(bytes + (norm ? problem_bytes(&plan->norm) : 0));
    if (!kept)
        return NULL;
    problem *const kept_norm = (problem *)(void *)((char *)kept + bytes);
    memcpy((void *)kept, (const void *)plan, bytes);
    if (norm)
        problem_copy(kept_norm, &plan->norm);
    for (int i = 0; i < plan->steps.count; i++)
        kept->steps.step[i].problem =
            plan->steps.step[i].problem == &plan->norm ? kept_norm : &kept->problem;
    if (is_gpu(plan->problem.device))
        kept->cuda.problem = &kept->problem;
    return kept;
}

planish_status plan_check_workspace(size_t bytes, DLDevice device, const planish_exec *exec) {
    const message error = message_of(exec);
    const size_t given = exec->workspace ? exec->workspace_bytes : 0;
    const unsigned alignment = is_gpu(device) ? 256 : 64;
    if (!bytes)
        return PLANISH_OK;
    if (given < bytes)
        return fail(error, PLANISH_ERROR_WORKSPACE,
                    "exec->workspace has %zu bytes; wanted %zu or more", given, bytes);
    if ((uintptr_t)exec->workspace % alignment)
        return fail(error, PLANISH_ERROR_WORKSPACE,
                    "exec->workspace is at an address that is not a multiple of %u; wanted one "
                    "that is",
                    alignment);
    return PLANISH_OK;
}

int planish_plan_is_general(const planish_plan *plan) {
    if (!plan)
        return 0;
    return is_gpu(plan->problem.device) ? cuda_plan_is_general(&plan->cuda)
                                        : cpu_plan_is_general(&plan->cpu);
}

int planish_plan_describe(const planish_plan *plan, char *text, size_t bytes) {
    if (!plan)
        return snprintf(text, bytes, "no plan");
    return is_gpu(plan->problem.device)
               ? cuda_plan_describe(&plan->cuda, text, bytes)
               : cpu_plan_describe(&plan->cpu, &plan->problem, text, bytes);
}
