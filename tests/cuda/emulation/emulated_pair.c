/*
 * The library's entries for two problems at once on the small GPU of device.h: what both can share
 * as one launch, else one after the other.
 */
#include <string.h>

#include "cuda/arguments.h"
#include "cuda/rows/rows_pair.h"
#include "emulated.h"

enum { ALIGNMENT = 256 };

typedef struct two {
    emulated_problem problem[2];
    cuda_plan plan[2];
    size_t second_at; /* in the workspace */
} two;

static planish_status plan_both(two *t, const planish_norm *op, planish_pass pass,
                                const planish_tensors *const tensors[2], message error) {
    planish_status status = PLANISH_OK;
    for (int i = 0; i < 2 && !status; i++)
        status = emulated_plan(&t->plan[i], &t->problem[i], op, pass, tensors[i], error);
    if (!status)
        t->second_at = (t->plan[0].workspace_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return status;
}

planish_status planish_norm_pair_run(const planish_norm *op, planish_pass pass,
                                     const planish_tensors *first, const planish_tensors *second,
                                     const planish_exec *exec) {
    static two t;
    const message error = {exec->message, exec->message_bytes};
    const planish_tensors *const tensors[2] = {first, second};
    planish_status status = plan_both(&t, op, pass, tensors, error);
    if (status)
        return status;
    void *by_role[2][ROLE_COUNT];
    emulated_buffers(first, by_role[0]);
    emulated_buffers(second, by_role[1]);
    const cuda_pair pair = {{&t.plan[0], &t.plan[1]}, {by_role[0], by_role[1]}};
    char *const whole = exec->workspace;
    void *const workspace[2] = {whole, whole ? whole + t.second_at : NULL};
    cuda_launch launches[CUDA_MOST_LAUNCHES];
    const int count = rows_pair_specs(&pair, launches);
    for (int i = 0; i < 2 && !count && !status; i++) {
        planish_exec own = *exec;
        own.workspace = workspace[i];
        own.workspace_bytes = t.plan[i].workspace_bytes;
        status = planish_norm_run(op, pass, tensors[i], &own);
    }
    if (!count)
        return status;
    if (whole)
        memset(whole, fill, exec->workspace_bytes);
    rows_pair_arguments(&pair, workspace, launches);
    for (int i = 0; i < count && !status; i++)
        status = emulated_queue(&launches[i], error);
    return status;
}

planish_status planish_norm_pair_workspace_bytes(const planish_norm *op, planish_pass pass,
                                                 const planish_tensors *first,
                                                 const planish_tensors *second, size_t *bytes,
                                                 const planish_exec *exec) {
    static two t;
    const planish_tensors *const tensors[2] = {first, second};
    const planish_status status =
        plan_both(&t, op, pass, tensors, (message){exec->message, exec->message_bytes});
    *bytes = status ? 0 : t.second_at + t.plan[1].workspace_bytes;
    return status;
}
