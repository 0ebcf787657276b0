/*
 * The public entry points for two problems of one operator and pass, such as the norms of queries
 * and keys: checked and planned one by one, as by planish_norm_run, and run together. Which
 * launches both can share their backend knows (cuda/rows/rows_pair.h); the CPU runs them in turn.
 */
#include "buffers.h"
#include "plan.h"
#include "problem.h"
#include "sized.h"

#include <stdio.h>
#include <string.h>

/* The second's workspace lies behind the first's. */
enum { SECOND_ALIGNMENT = 256 };

static const char *const names[2] = {"first", "second"};

/* ---- Sentences ------------------------------------------------------------------------------- */

/* What one of the two has to say, until it is known which of them said it. */
typedef struct heard {
    char text[600];
} heard;

static message heard_message(heard *h) {
    h->text[0] = 0;
    return (message){h->text, sizeof h->text};
}

/* Passes a failure of one of the two on: a sentence about its tensors begins with its name, such as
 * "second.x", while those about op, pass and exec stay as they are. */
static planish_status say_which(int which, planish_status status, const heard *h, message error) {
    static const char *const common[] = {"op", "pass ", "exec", "GPU "};
    const char *text = h->text;
    if (!status)
        return status;
    for (size_t i = 0; i < sizeof common / sizeof *common; i++)
        if (!strncmp(text, common[i], strlen(common[i])))
            return fail(error, status, "%s", text);
    if (!strncmp(text, "tensors", strlen("tensors")))
        return fail(error, status, "%s%s", names[which], text + strlen("tensors"));
    if (!strncmp(text, "buffers", strlen("buffers")))
        return fail(error, status, "%s_buffers%s", names[which], text + strlen("buffers"));
    return fail(error, status, "%s.%s", names[which], text);
}

/* ---- Two plans ------------------------------------------------------------------------------- */

static size_t pair_workspace(const planish_plan *const plan[2], size_t *second_at) {
    const size_t first = plan[0]->workspace_bytes, second = plan[1]->workspace_bytes;
    *second_at = (first + SECOND_ALIGNMENT - 1) / SECOND_ALIGNMENT * SECOND_ALIGNMENT;
    return second ? *second_at + second : first;
}

static planish_status check_device(const planish_plan *const plan[2], message error) {
    const DLDevice a = plan[0]->problem.device, b = plan[1]->problem.device;
    if (plan[0]->backend == plan[1]->backend && a.device_id == b.device_id)
        return PLANISH_OK;
    return fail(error, PLANISH_ERROR_DEVICE,
                "second.x is on device %d:%d; wanted that of first.x, %d:%d", (int)b.device_type,
                b.device_id, (int)a.device_type, a.device_id);
}

/* Plans of one device. */
static planish_status run_plans(const planish_plan *const plan[2], void *const *const buffers[2],
                                const planish_exec *exec) {
    const message error = message_of(exec);
    const backend *backend = plan[0]->backend;
    heard h;
    for (int i = 0; i < 2; i++) {
        if (exec->load_only)
            return fail(error, PLANISH_ERROR_ARGUMENT,
                        "exec->load_only is not 0; wanted 0 for two norms at once");
        const planish_status status =
            buffers_check(&plan[i]->problem, buffers[i], exec->apart, heard_message(&h));
        if (status)
            return say_which(i, status, &h, error);
    }
    size_t second_at;
    const planish_status status =
        plan_check_workspace(pair_workspace(plan, &second_at), backend, exec);
    if (status)
        return status;
    void *const workspace[2] = {
        exec->workspace, plan[1]->workspace_bytes ? (char *)exec->workspace + second_at : NULL};
    if (backend->run_pair) {
        const void *const own[2] = {plan[0]->own, plan[1]->own};
        return backend->run_pair(own, buffers, workspace, exec);
    }
    planish_status done = PLANISH_OK;
    for (int i = 0; i < 2 && !done; i++) {
        planish_exec own = *exec;
        own.workspace = workspace[i];
        own.workspace_bytes = plan[i]->workspace_bytes;
        done = plan_run(plan[i], buffers[i], &own);
    }
    return done;
}

/* ---- From tensors ---------------------------------------------------------------------------- */

typedef struct pair {
    planish_tensors tensors[2];
    planish_plan plan[2];
    const planish_plan *plans[2];
} pair;

static planish_status make_one(pair *p, int which, const planish_norm *op, planish_pass pass,
                               const planish_tensors *given, message error) {
    planish_plan *plan = &p->plan[which];
    planish_status status = read_tensors(&p->tensors[which], given, error);
    if (!status)
        status = problem_make(&plan->problem, op, pass, &p->tensors[which], error);
    p->plans[which] = plan;
    return status ? status : plan_make(plan, error);
}

static planish_status make_pair(pair *p, const planish_norm *op, planish_pass pass,
                                const planish_tensors *first, const planish_tensors *second,
                                message error) {
    const planish_tensors *const given[2] = {first, second};
    planish_norm own_op;
    planish_status status = read_norm(&own_op, op, error);
    for (int i = 0; i < 2 && !status; i++) {
        heard h;
        status = make_one(p, i, &own_op, pass, given[i], heard_message(&h));
        say_which(i, status, &h, error);
    }
    return status ? status : check_device(p->plans, error);
}

planish_status planish_norm_pair_run(const planish_norm *op, planish_pass pass,
                                     const planish_tensors *first, const planish_tensors *second,
                                     const planish_exec *exec) {
    pair p;
    planish_exec own;
    planish_status status = read_exec(&own, exec);
    if (!status)
        status = make_pair(&p, op, pass, first, second, message_of(&own));
    if (status)
        return status;
    void *by_role[2][ROLE_COUNT];
    buffers_of(&p.tensors[0], by_role[0]);
    buffers_of(&p.tensors[1], by_role[1]);
    void *const *const buffers[2] = {by_role[0], by_role[1]};
    return run_plans(p.plans, buffers, &own);
}

planish_status planish_norm_pair_workspace_bytes(const planish_norm *op, planish_pass pass,
                                                 const planish_tensors *first,
                                                 const planish_tensors *second, size_t *bytes,
                                                 const planish_exec *exec) {
    pair p;
    planish_exec own;
    planish_status status = read_exec(&own, exec);
    if (status)
        return status;
    if (!bytes)
        return fail(message_of(&own), PLANISH_ERROR_NULL_POINTER,
                    "bytes is NULL; wanted where to write the size");
    status = make_pair(&p, op, pass, first, second, message_of(&own));
    size_t second_at;
    if (!status)
        *bytes = pair_workspace(p.plans, &second_at);
    return status;
}

/* ---- From plans ------------------------------------------------------------------------------ */

size_t planish_plan_pair_workspace_bytes(const planish_plan *first, const planish_plan *second) {
    const planish_plan *const plans[2] = {first, second};
    size_t second_at;
    return first && second ? pair_workspace(plans, &second_at) : 0;
}

planish_status planish_plan_pair_run(const planish_plan *first, const planish_plan *second,
                                     const planish_buffers *first_buffers,
                                     const planish_buffers *second_buffers,
                                     const planish_exec *exec) {
    const planish_plan *const plans[2] = {first, second};
    const planish_buffers *const given[2] = {first_buffers, second_buffers};
    void *by_role[2][ROLE_COUNT];
    planish_exec own;
    planish_status status = read_exec(&own, exec);
    if (status)
        return status;
    const message error = message_of(&own);
    for (int i = 0; i < 2; i++) {
        planish_buffers b;
        heard h;
        if (!plans[i])
            return fail(error, PLANISH_ERROR_NULL_POINTER, "%s is NULL; wanted a planish_plan",
                        names[i]);
        status = read_buffers(&b, given[i], heard_message(&h));
        if (status)
            return say_which(i, status, &h, error);
        buffers_by_role(&b, by_role[i]);
    }
    status = check_device(plans, error);
    void *const *const buffers[2] = {by_role[0], by_role[1]};
    return status ? status : run_plans(plans, buffers, &own);
}
