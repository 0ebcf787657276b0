/* A norm of a sum that stages make: what is left once the sum is there; see stages.h. */
#include "problem_axes.h"
#include "stages.h"

#include <stdlib.h>

bool stages_make_sum_alone(const problem *p) {
    const role_set before = ROLE_BIT(ROLE_RESIDUAL) | ROLE_BIT(ROLE_SUM) |
                            ROLE_BIT(ROLE_ROW_SCALE) | ROLE_BIT(ROLE_COLUMN_SCALE) |
                            ROLE_BIT(ROLE_RNG) | ROLE_BIT(ROLE_MASK);
    return p->pass == PLANISH_FORWARD && p->stages.sum != DTYPE_NONE && !p->stages.rounding &&
           !(p->present & STAGE_ROLES & ~before);
}

sum_place stages_sum_place(const problem *p) {
    return has(p, ROLE_SUM)                     ? SUM_IN_SUM
           : p->dtypes[ROLE_Y] == p->stages.sum ? SUM_IN_Y
                                                : SUM_IN_WORKSPACE;
}

/* Strides of dense memory in the order of a tensor's. */
static void dense_as(const problem *p, role like, int64_t kept[], int64_t reduced[]) {
    unsigned left = (1u << (p->kept_count + p->reduced_count)) - 1;
    for (int64_t dense = 1; left;) {
        const axis *least = NULL;
        int at = 0;
        for (unsigned rest = left; rest; rest &= rest - 1) {
            const int k = __builtin_ctz(rest);
            const axis *a = k < p->kept_count ? &p->kept[k] : &p->reduced[k - p->kept_count];
            if (least && llabs(axis_stride(p, a, like)) >= llabs(axis_stride(p, least, like)))
                continue;
            least = a;
            at = k;
        }
        *(at < p->kept_count ? &kept[at] : &reduced[at - p->kept_count]) = dense;
        dense *= least->size;
        left &= ~(1u << at);
    }
}

void stages_sum_strides(const problem *p, int64_t kept[PLANISH_MAX_NDIM],
                        int64_t reduced[PLANISH_MAX_NDIM]) {
    const sum_place place = stages_sum_place(p);
    const role like = place == SUM_IN_SUM ? ROLE_SUM : ROLE_Y;
    for (int k = 0; k < p->kept_count; k++)
        kept[k] = kept_stride(p, k, like);
    for (int k = 0; k < p->reduced_count; k++)
        reduced[k] = reduced_stride(p, k, like);
    if (place == SUM_IN_WORKSPACE)
        dense_as(p, ROLE_Y, kept, reduced);
}

/* Where a tensor of the norm is, which is there. */
static void put(problem *norm, role r, dtype type, const int64_t kept[], const int64_t reduced[]) {
    norm->dtypes[r] = type;
    for (int k = 0; k < norm->kept_count; k++)
        norm->strides[norm->kept[k].at + norm->place[r]] = kept[k];
    for (int k = 0; k < norm->reduced_count; k++)
        norm->strides[norm->reduced[k].at + norm->place[r]] = reduced[k];
    problem_drop_stages(norm);
}

void stages_norm_of_sum(const problem *p, problem *norm) {
    int64_t kept[PLANISH_MAX_NDIM], reduced[PLANISH_MAX_NDIM];
    stages_sum_strides(p, kept, reduced);
    problem_copy(norm, p);
    put(norm, ROLE_X, p->stages.sum, kept, reduced);
}

bool stages_join_dsum_alone(const problem *p) {
    return p->pass == PLANISH_BACKWARD && has(p, ROLE_DX) &&
           (p->present & STAGE_ROLES) == ROLE_BIT(ROLE_DSUM) && !problem_masks_by_y(p);
}

void stages_dx_strides(const problem *p, int64_t kept[PLANISH_MAX_NDIM],
                       int64_t reduced[PLANISH_MAX_NDIM]) {
    dense_as(p, ROLE_DX, kept, reduced);
}

void stages_norm_before_dsum(const problem *p, problem *norm) {
    int64_t kept[PLANISH_MAX_NDIM], reduced[PLANISH_MAX_NDIM];
    stages_dx_strides(p, kept, reduced);
    problem_copy(norm, p);
    put(norm, ROLE_DX, problem_is_double(p) ? DTYPE_F64 : DTYPE_F32, kept, reduced);
    norm->stages.sum = p->dtypes[ROLE_DX];
}

void stages_norm_lying_as(const problem *p, role like, problem *norm) {
    int64_t kept[PLANISH_MAX_NDIM], reduced[PLANISH_MAX_NDIM];
    for (int k = 0; k < p->kept_count; k++)
        kept[k] = kept_stride(p, k, like);
    for (int k = 0; k < p->reduced_count; k++)
        reduced[k] = reduced_stride(p, k, like);
    problem_copy(norm, p);
    put(norm, ROLE_DX, p->dtypes[like], kept, reduced);
}
