#include "cuda/arguments.h"

#include <string.h>

#include "cuda/families.h"
#include "cuda/stages/sum_step.h"
#include "stages.h"

/* Whether a run writes nothing: of no rows only a backward's sums have elements. */
static bool is_empty(const cuda_plan *plan) {
    static const role sums[] = {ROLE_DWEIGHT, ROLE_DBIAS,         ROLE_AMAX,
                                ROLE_DSCALE,  ROLE_DCOLUMN_SCALE, ROLE_DSHIFT};
    bool any = false;
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++)
        any |= plan->main.type[sums[i]] != DTYPE_NONE;
    return plan->rows == 0 && !any;
}

/* The buffers of the norm's step, but for what it shares with the step beside it. */
static void buffers_of_norm(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                            void *of_norm[ROLE_COUNT]) {
    memcpy(of_norm, (const void *)buffers, ROLE_COUNT * sizeof *of_norm);
    for (role r = ROLE_WEIGHT; plan->is_modulated && r < NORM_ROLES; r++)
        of_norm[r] = buffers[stages_role_of_modulation(r)];
}

int cuda_launch_specs(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                      cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    const cuda_sum *sum = &plan->sum;
    const bool first = sum->problem && !sum->is_last;
    void *of_norm[ROLE_COUNT], *shared = NULL;
    if (is_empty(plan))
        return 0;
    buffers_of_norm(plan, buffers, of_norm);
    if (sum->problem)
        shared = sum_step_share(plan, buffers, NULL, of_norm);
    const int count = cuda_family_of(plan)->launch_specs(plan, of_norm, launches + first);
    if (!sum->problem)
        return count;
    launches[first ? 0 : count].spec = sum_step_spec(plan, buffers, shared);
    return count + 1;
}

void cuda_launch_arguments(const cuda_plan *plan, void *const buffers[ROLE_COUNT], void *workspace,
                           int resident, cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    const cuda_sum *sum = &plan->sum;
    const bool first = sum->problem && !sum->is_last;
    void *of_norm[ROLE_COUNT], *rest = workspace;
    if (is_empty(plan))
        return;
    buffers_of_norm(plan, buffers, of_norm);
    if (sum->problem) {
        void *const shared = sum_step_share(plan, buffers, workspace, of_norm);
        cuda_launch *own = launches;
        while (own->spec.kernel != CUDA_STAGES_SUM)
            own++;
        sum_step_arguments(plan, buffers, shared, own);
        rest = workspace ? (char *)workspace + sum->room : NULL;
    }
    cuda_family_of(plan)->launch_arguments(plan, of_norm, rest, resident, launches + first);
}
