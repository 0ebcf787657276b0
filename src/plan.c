#include "plan.h"

#include <stdio.h>

planish_status plan_make(planish_plan *plan, message error) {
    const DLDevice device = plan->problem.device;
    if (is_gpu(device)) {
        cuda_limits limits;
        const planish_status status = cuda_device_limits(device.device_id, &limits, error);
        if (status)
            return status;
        cuda_plan_make(&plan->cuda, &plan->problem, &limits);
        plan->workspace_bytes = plan->cuda.workspace_bytes;
        return PLANISH_OK;
    }
    const cpu_limits limits = cpu_limits_here();
    cpu_plan_make(&plan->cpu, &plan->problem, &limits);
    plan->workspace_bytes = plan->cpu.workspace_bytes;
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
