/* The CPU as a backend. */
#include "backends.h"
#include "cpu/plan.h"
#include "cpu/run.h"
#include "text.h"

_Static_assert(sizeof(cpu_plan) <= MOST_PLAN_BYTES, "MOST_PLAN_BYTES is too little");

static planish_status plan_steps(void *plan, steps *s, const problem *p, problem *norm,
                                 size_t *workspace_bytes, message error) {
    const cpu_limits limits = cpu_limits_here();
    (void)error;
    cpu_steps_make(s, p, norm);
    cpu_plan_make(plan, s, &limits);
    *workspace_bytes = ((const cpu_plan *)plan)->workspace_bytes;
    return PLANISH_OK;
}

static planish_status run(const void *plan, const steps *s, void *const buffers[ROLE_COUNT],
                          const planish_exec *exec) {
    cpu_run(s, plan, buffers, exec);
    return PLANISH_OK;
}

static bool is_general(const void *plan) {
    return cpu_plan_is_general(plan);
}

static void why_general(const void *plan, const problem *p, text *to) {
    append(to, "%s", cpu_plan_why_general(plan, p));
}

static int describe(const void *plan, const problem *p, char *to, size_t bytes) {
    return cpu_plan_describe(plan, p, to, bytes);
}

const backend cpu_backend = {
    .plan_bytes = sizeof(cpu_plan),
    .workspace_alignment = 64,
    .plan = plan_steps,
    .run = run,
    .merge = cpu_merge,
    .is_general = is_general,
    .why_general = why_general,
    .describe = describe,
};
