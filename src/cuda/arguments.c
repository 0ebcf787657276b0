#include "cuda/arguments.h"

#include "cuda/families.h"

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
    return is_empty(plan) ? 0 : cuda_family_of(plan)->launch_specs(plan, buffers, launches);
}

void cuda_launch_arguments(const cuda_plan *plan, void *const buffers[ROLE_COUNT], void *workspace,
                           int resident, cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    if (!is_empty(plan))
        cuda_family_of(plan)->launch_arguments(plan, buffers, workspace, resident, launches);
}
