/* NVIDIA's GPUs as a backend. */
#include "backends.h"
#include "cuda/backend.h"
#include "sized.h"

_Static_assert(sizeof(cuda_plan) <= MOST_PLAN_BYTES, "MOST_PLAN_BYTES is too little");

static planish_status plan_steps(void *plan, steps *s, const problem *p, problem *norm,
                                 size_t *workspace_bytes, message error) {
    cuda_limits limits;
    const planish_status status = cuda_device_limits(p->device.device_id, &limits, error);
    if (status)
        return status;
    const char *unknown;
    cuda_plan_make(plan, s, p, norm, &limits);
    if (!cuda_plan_knows(plan, p, &unknown))
        return fail(error, PLANISH_ERROR_NO_FAST_KERNEL,
                    "%s is given; wanted NULL: no kernels for GPUs take it with such axes and "
                    "strides",
                    unknown);
    *workspace_bytes = ((const cuda_plan *)plan)->workspace_bytes;
    return PLANISH_OK;
}

static void rebind(void *plan, const steps *s) {
    cuda_plan_rebind(plan, s);
}

static planish_status run(const void *plan, const steps *s, void *const buffers[ROLE_COUNT],
                          const planish_exec *exec) {
    (void)s;
    return cuda_plan_run(plan, buffers, exec->stream, exec->workspace, message_of(exec));
}

static planish_status load(const void *plan, void *const buffers[ROLE_COUNT],
                           const planish_exec *exec) {
    return cuda_plan_load(plan, buffers, message_of(exec));
}

static planish_status run_pair(const void *const plans[2], void *const *const buffers[2],
                               void *const workspace[2], const planish_exec *exec) {
    const cuda_plan *const both[2] = {plans[0], plans[1]};
    return cuda_plan_run_pair(both, buffers, exec->stream, workspace, message_of(exec));
}

static bool is_general(const void *plan) {
    return cuda_plan_is_general(plan);
}

static void why_general(const void *plan, const problem *p, text *to) {
    cuda_why_general(p, &((const cuda_plan *)plan)->limits, to);
}

static int describe(const void *plan, const problem *p, char *to, size_t bytes) {
    (void)p;
    return cuda_plan_describe(plan, to, bytes);
}

const backend cuda_backend = {
    .plan_bytes = sizeof(cuda_plan),
    .workspace_alignment = 256,
    .plan = plan_steps,
    .rebind = rebind,
    .run = run,
    .load = load,
    .run_pair = run_pair,
    .merge = cuda_merge,
    .is_general = is_general,
    .why_general = why_general,
    .describe = describe,
};
