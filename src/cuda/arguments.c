#include "cuda/arguments.h"

#include "cuda/families.h"
#include "cuda/stages/sum_step.h"

/* Whether a run writes nothing: of no rows only a backward's sums have elements. */
static bool is_empty(const cuda_plan *plan) {
    static const role sums[] = {ROLE_DWEIGHT, ROLE_DBIAS,         ROLE_AMAX,
                                ROLE_DSCALE,  ROLE_DCOLUMN_SCALE, ROLE_DSHIFT};
    bool any = false;
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++)
        any |= plan->main.type[sums[i]] != DTYPE_NONE;
    return plan->rows == 0 && !any;
}

int cuda_launch_specs(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                      cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    void *of_norm[ROLE_COUNT];
    if (is_empty(plan))
        return 0;
    if (plan->sum.spec.kernel < 0)
        return cuda_family_of(plan)->launch_specs(plan, buffers, launches);
    void *const shared = sum_step_buffers(plan, buffers, NULL, of_norm);
    const bool last = plan->sum.is_last;
    const int count = cuda_family_of(plan)->launch_specs(plan, of_norm, launches + !last);
    launches[last ? count : 0].spec = sum_step_spec(plan, buffers, shared);
    return count + 1;
}

void cuda_launch_arguments(const cuda_plan *plan, void *const buffers[ROLE_COUNT], void *workspace,
                           int resident, cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    void *of_norm[ROLE_COUNT], *rest = workspace;
    const cuda_sum *sum = &plan->sum;
    cuda_launch *own = launches;
    if (is_empty(plan))
        return;
    if (sum->spec.kernel < 0) {
        cuda_family_of(plan)->launch_arguments(plan, buffers, workspace, resident, launches);
        return;
    }
    void *const shared = sum_step_buffers(plan, buffers, workspace, of_norm);
    if (workspace)
        rest = (char *)workspace + sum->room;
    while (own->spec.kernel != CUDA_STAGES_SUM)
        own++;
    sum_step_arguments(plan, buffers, shared, own);
    cuda_family_of(plan)->launch_arguments(plan, of_norm, rest, resident, launches + !sum->is_last);
}
