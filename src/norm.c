/* The public entry points: check the arguments, make the problem, make the plan, run it. */
#include "buffers.h"
#include "entries.h"
#include "plan.h"
#include "problem.h"
#include "sized.h"
#include "text.h"

#include <stdlib.h>
#include <string.h>

int planish_version(void) {
    return PLANISH_VERSION;
}

/* ---- Check, plan, run ------------------------------------------------------------------------ */

static planish_status make_plan(planish_plan *plan, const planish_norm *op, planish_pass pass,
                                const planish_tensors *tensors, message error) {
    const planish_status status = problem_make(&plan->problem, op, pass, tensors, error);
    return status ? status : plan_make(plan, error);
}

static planish_status run_plan(const planish_plan *plan, void *const buffers[ROLE_COUNT],
                               const planish_exec *exec) {
    const message error = message_of(exec);
    planish_status status = buffers_check(&plan->problem, buffers, exec->apart, error);
    if (status)
        return status;
    if (!exec->load_only)
        status = plan_check_workspace(plan->workspace_bytes, plan->backend, exec);
    return status ? status : plan_run(plan, buffers, exec);
}

/* What a caller gave, as this library's structs. */
typedef struct given {
    planish_norm op;
    planish_tensors tensors;
    planish_exec exec;
} given;

/* All but g->exec. */
static planish_status read_operator(given *g, const planish_norm *op,
                                    const planish_tensors *tensors, message error) {
    const planish_status status = read_norm(&g->op, op, error);
    return status ? status : read_tensors(&g->tensors, tensors, error);
}

static planish_status read_given(given *g, const planish_norm *op, const planish_tensors *tensors,
                                 const planish_exec *exec) {
    const planish_status status = read_exec(&g->exec, exec);
    return status ? status : read_operator(g, op, tensors, message_of(&g->exec));
}

planish_status planish_norm_run(const planish_norm *op, planish_pass pass,
                                const planish_tensors *tensors, const planish_exec *exec) {
    given g;
    planish_plan plan;
    planish_status status = read_given(&g, op, tensors, exec);
    if (!status)
        status = make_plan(&plan, &g.op, pass, &g.tensors, message_of(&g.exec));
    if (status)
        return status;
    void *buffers[ROLE_COUNT];
    buffers_of(&g.tensors, buffers);
    return run_plan(&plan, buffers, &g.exec);
}

planish_status planish_norm_workspace_bytes(const planish_norm *op, planish_pass pass,
                                            const planish_tensors *tensors, size_t *bytes,
                                            const planish_exec *exec) {
    given g;
    planish_plan plan;
    planish_status status = read_given(&g, op, tensors, exec);
    if (status)
        return status;
    if (!bytes)
        return fail(message_of(&g.exec), PLANISH_ERROR_NULL_POINTER,
                    "bytes is NULL; wanted where to write the size");
    status = make_plan(&plan, &g.op, pass, &g.tensors, message_of(&g.exec));
    if (!status)
        *bytes = plan.workspace_bytes;
    return status;
}

/* ---- Named entries --------------------------------------------------------------------------- */

planish_status planish_norm_forward(const planish_norm *op, const DLTensor *x,
                                    const DLTensor *weight, const DLTensor *bias, const DLTensor *y,
                                    const DLTensor *mean, const DLTensor *rstd,
                                    const planish_exec *exec) {
    const planish_tensors tensors = tensors_of_forward(x, weight, bias, y, mean, rstd);
    return planish_norm_run(op, PLANISH_FORWARD, &tensors, exec);
}

planish_status planish_norm_backward(const planish_norm *op, const DLTensor *dy, const DLTensor *x,
                                     const DLTensor *mean, const DLTensor *rstd,
                                     const DLTensor *weight, const DLTensor *dx,
                                     const DLTensor *dweight, const DLTensor *dbias,
                                     const planish_exec *exec) {
    const planish_tensors tensors =
        tensors_of_backward(dy, x, mean, rstd, weight, NULL, dx, dweight, dbias);
    return planish_norm_run(op, PLANISH_BACKWARD, &tensors, exec);
}

planish_status planish_layer_norm_forward(int32_t normalized_ndim, double eps, const DLTensor *x,
                                          const DLTensor *weight, const DLTensor *bias,
                                          const DLTensor *y, const DLTensor *mean,
                                          const DLTensor *rstd, const planish_exec *exec) {
    const planish_norm op = planish_layer_norm_op(x ? x->ndim : 0, normalized_ndim, eps);
    return planish_norm_forward(&op, x, weight, bias, y, mean, rstd, exec);
}

planish_status planish_layer_norm_backward(int32_t normalized_ndim, const DLTensor *dy,
                                           const DLTensor *x, const DLTensor *mean,
                                           const DLTensor *rstd, const DLTensor *weight,
                                           const DLTensor *dx, const DLTensor *dweight,
                                           const DLTensor *dbias, const planish_exec *exec) {
    const planish_norm op = planish_layer_norm_op(x ? x->ndim : 0, normalized_ndim, 0);
    return planish_norm_backward(&op, dy, x, mean, rstd, weight, dx, dweight, dbias, exec);
}

planish_status planish_rms_norm_forward(int32_t normalized_ndim, double eps, const DLTensor *x,
                                        const DLTensor *weight, const DLTensor *y,
                                        const DLTensor *rstd, const planish_exec *exec) {
    const planish_norm op = planish_rms_norm_op(x ? x->ndim : 0, normalized_ndim, eps);
    return planish_norm_forward(&op, x, weight, NULL, y, NULL, rstd, exec);
}

planish_status planish_rms_norm_backward(int32_t normalized_ndim, const DLTensor *dy,
                                         const DLTensor *x, const DLTensor *rstd,
                                         const DLTensor *weight, const DLTensor *dx,
                                         const DLTensor *dweight, const planish_exec *exec) {
    const planish_norm op = planish_rms_norm_op(x ? x->ndim : 0, normalized_ndim, 0);
    return planish_norm_backward(&op, dy, x, NULL, rstd, weight, dx, dweight, NULL, exec);
}

/* ---- Plans ----------------------------------------------------------------------------------- */

planish_status planish_plan_create(const planish_norm *op, planish_pass pass,
                                   const planish_tensors *tensors, planish_plan **plan, char *text,
                                   size_t text_bytes) {
    const message error = {text, text_bytes};
    if (!plan)
        return fail(error, PLANISH_ERROR_NULL_POINTER, "plan is NULL; wanted where to write it");
    given g;
    planish_plan made;
    planish_status status = read_operator(&g, op, tensors, error);
    if (!status)
        status = make_plan(&made, &g.op, pass, &g.tensors, error);
    if (status)
        return status;
    const size_t bytes = plan_kept_bytes(&made);
    planish_plan *const kept = malloc(bytes);
    if (!kept)
        return fail(error, PLANISH_ERROR_OUT_OF_MEMORY, "no memory for a plan of %zu bytes", bytes);
    plan_keep(kept, &made);
    *plan = kept;
    return PLANISH_OK;
}

planish_status planish_norm_supports(const planish_norm *op, planish_pass pass,
                                     const planish_tensors *tensors, char *to, size_t bytes) {
    const message error = {to, bytes};
    given g;
    planish_plan plan;
    planish_status status = read_operator(&g, op, tensors, error);
    if (!status)
        status = make_plan(&plan, &g.op, pass, &g.tensors, error);
    if (status || !plan.backend->is_general(plan.own))
        return status;
    text why = {to, to ? bytes : 0, 0};
    plan.backend->why_general(plan.own, &plan.problem, &why);
    return PLANISH_ERROR_NO_FAST_KERNEL;
}

size_t planish_plan_workspace_bytes(const planish_plan *plan) {
    return plan ? plan->workspace_bytes : 0;
}

planish_status planish_plan_run(const planish_plan *plan, const planish_buffers *buffers,
                                const planish_exec *exec) {
    planish_exec own;
    planish_buffers b;
    planish_status status = read_exec(&own, exec);
    if (status)
        return status;
    const message error = message_of(&own);
    if (!plan)
        return fail(error, PLANISH_ERROR_NULL_POINTER, "plan is NULL; wanted a planish_plan");
    status = read_buffers(&b, buffers, error);
    if (status)
        return status;
    void *by_role[ROLE_COUNT];
    buffers_by_role(&b, by_role);
    return run_plan(plan, by_role, &own);
}

void planish_plan_destroy(planish_plan *plan) {
    free(plan);
}
