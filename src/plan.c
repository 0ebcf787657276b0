#include "plan.h"

#include <stdio.h>

#include "sized.h"

planish_status plan_make(planish_plan *plan, message error) {
    plan->backend = backend_of(plan->problem.device);
    plan->own = plan->room;
    return plan->backend->plan(plan->own, &plan->steps, &plan->problem, &plan->norm,
                               &plan->workspace_bytes, error);
}

/* Where the parts of a plan that is kept begin. */
typedef struct parts {
    size_t norm, own, end;
} parts;

static bool has_norm(const planish_plan *plan) {
    return steps_norm(&plan->steps)->problem == &plan->norm;
}

static parts parts_of(const planish_plan *plan) {
    parts at = {.norm = offsetof(planish_plan, problem) + problem_bytes(&plan->problem)};
    at.own = at.norm + (has_norm(plan) ? problem_bytes(&plan->norm) : 0);
    at.own = (at.own + 15) / 16 * 16;
    at.end = at.own + plan->backend->plan_bytes;
    return at;
}

size_t plan_kept_bytes(const planish_plan *plan) {
    return parts_of(plan).end;
}

void plan_keep(planish_plan *kept, const planish_plan *plan) {
    const parts at = parts_of(plan);
    problem *const norm = (problem *)(void *)((char *)kept + at.norm);
    memcpy((void *)kept, (const void *)plan, at.norm);
    if (has_norm(plan))
        problem_copy(norm, &plan->norm);
    for (int i = 0; i < plan->steps.count; i++)
        kept->steps.step[i].problem =
            plan->steps.step[i].problem == &plan->norm ? norm : &kept->problem;
    kept->own = (char *)kept + at.own;
    memcpy(kept->own, plan->own, plan->backend->plan_bytes);
    if (plan->backend->rebind)
        plan->backend->rebind(kept->own, &kept->steps);
}

planish_status plan_run(const planish_plan *plan, void *const buffers[ROLE_COUNT],
                        const planish_exec *exec) {
    const backend *b = plan->backend;
    if (exec->load_only)
        return b->load ? b->load(plan->own, buffers, exec) : PLANISH_OK;
    return b->run(plan->own, &plan->steps, buffers, exec);
}

planish_status plan_check_workspace(size_t bytes, const backend *backend,
                                    const planish_exec *exec) {
    const message error = message_of(exec);
    const size_t given = exec->workspace ? exec->workspace_bytes : 0;
    if (!bytes)
        return PLANISH_OK;
    if (given < bytes)
        return fail(error, PLANISH_ERROR_WORKSPACE,
                    "exec->workspace has %zu bytes; wanted %zu or more", given, bytes);
    if ((uintptr_t)exec->workspace % backend->workspace_alignment)
        return fail(error, PLANISH_ERROR_WORKSPACE,
                    "exec->workspace is at an address that is not a multiple of %u; wanted one "
                    "that is",
                    backend->workspace_alignment);
    return PLANISH_OK;
}

int planish_plan_is_general(const planish_plan *plan) {
    return plan && plan->backend->is_general(plan->own);
}

int planish_plan_describe(const planish_plan *plan, char *text, size_t bytes) {
    return plan ? plan->backend->describe(plan->own, &plan->problem, text, bytes)
                : snprintf(text, bytes, "no plan");
}
