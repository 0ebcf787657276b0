/*
 * A plan: a problem with what its device runs it by, of the CPU (cpu/plan.h) or of a GPU
 * (cuda/backend.h). Only the device is chosen here.
 */
#ifndef PLANISH_PLAN_H
#define PLANISH_PLAN_H

#include "cpu/plan.h"
#include "cuda/backend.h"
#include "problem.h"

static inline bool is_gpu(DLDevice device) {
    return device.device_type == kDLCUDA || device.device_type == kDLCUDAManaged;
}

struct planish_plan {
    problem problem; /* its device says which of the two below there is */
    size_t workspace_bytes;
    union {
        cpu_plan cpu;
        cuda_plan cuda;
    };
};

/* Decides how to run plan->problem, which is made already, on its device. */
planish_status plan_make(planish_plan *plan, message error);

/* Whether exec's workspace on this device has so many bytes and is aligned; WORKSPACE if not. */
planish_status plan_check_workspace(size_t bytes, DLDevice device, const planish_exec *exec);

#endif
