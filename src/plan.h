/*
 * A plan: a problem with what its device runs it by, of the CPU (cpu/plan.h) or of a GPU
 * (cuda/backend.h). Only the device is chosen here.
 */
#ifndef PLANISH_PLAN_H
#define PLANISH_PLAN_H

#include "cpu/plan.h"
#include "cuda/backend.h"
#include "problem.h"
#include "steps.h"

static inline bool is_gpu(DLDevice device) {
    return device.device_type == kDLCUDA || device.device_type == kDLCUDAManaged;
}

struct planish_plan {
    size_t workspace_bytes;
    union { /* the problem's device says which of the two there is */
        cpu_plan cpu;
        cuda_plan cuda;
    };
    steps steps;
    problem problem; /* its end, which is not in use, is left out of a plan that is kept */
    problem norm;    /* a step's, where it is another: there it follows what is in use */
};

/* A plan that is kept takes at most 4 KB where all the tensors that a pass may have come down to
 * four axes. */
_Static_assert(offsetof(struct planish_plan, problem.strides) +
                       (3 + 4) * MOST_PLACES * sizeof(int64_t) <=
                   4096,
               "a plan has grown");

/* A plan on the heap, equal to one anywhere; NULL: no memory. */
planish_plan *plan_kept(const planish_plan *plan);

/* Decides how to run plan->problem, which is made already, on its device. */
planish_status plan_make(planish_plan *plan, message error);

/* Whether exec's workspace on this device has so many bytes and is aligned; WORKSPACE if not. */
planish_status plan_check_workspace(size_t bytes, DLDevice device, const planish_exec *exec);

#endif
