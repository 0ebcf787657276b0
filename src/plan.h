/* A plan: a problem with the steps that it is run as, and what its backend runs them by. */
#ifndef PLANISH_PLAN_H
#define PLANISH_PLAN_H

#include "backends.h"

/* A plan that is kept (plan_keep) has what is in use of its parts, one behind the other, and no
 * room. */
struct planish_plan {
    const backend *backend;
    void *own; /* the backend's plan */
    size_t workspace_bytes;
    steps steps;
    problem problem;
    problem norm; /* a step's, where that is another */
    _Alignas(16) char room[MOST_PLAN_BYTES];
};

/* It takes at most 4 KB where all the tensors that a pass may have come down to three axes. */
_Static_assert(offsetof(struct planish_plan, problem.strides) +
                       (3 + 3) * MOST_PLACES * sizeof(int64_t) + MOST_PLAN_BYTES <=
                   4096,
               "a plan has grown");

/* Decides how to run plan->problem, which is made already, on its device. */
planish_status plan_make(planish_plan *plan, message error);

/* What a plan takes that is kept; makes one there equal to another anywhere. */
size_t plan_kept_bytes(const planish_plan *plan);
void plan_keep(planish_plan *kept, const planish_plan *plan);

/* Runs it, all but exec's workspace being checked. */
planish_status plan_run(const planish_plan *plan, void *const buffers[ROLE_COUNT],
                        const planish_exec *exec);

/* Whether exec's workspace for this backend has so many bytes and is aligned; WORKSPACE if not. */
planish_status plan_check_workspace(size_t bytes, const backend *backend, const planish_exec *exec);

#endif
