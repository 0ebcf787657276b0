/* Which path a problem goes, by its dtypes, layout and stages. */
#include "cpu/path.h"

#include "stages.h"

/* Whether the group kernels have these dtypes: one for x, y, dy and dx; weights of any. */
static bool group_dtypes(const problem *p) {
    const dtype element = p->dtypes[has(p, ROLE_X) ? ROLE_X : ROLE_Y];
    for (role_set rest = p->present & FULL_ROLES; rest; rest &= rest - 1)
        if (p->dtypes[first_role(rest)] != element)
            return false;
    return problem_is_double(p) == (element == DTYPE_F64);
}

/* Whether the row kernels have these dtypes: one for x, y, dy and dx; weights the same or f32. */
static bool kernel_dtypes(const problem *p) {
    const dtype element = p->dtypes[has(p, ROLE_X) ? ROLE_X : ROLE_Y];
    static const role elements[] = {ROLE_X, ROLE_Y, ROLE_DY, ROLE_DX};
    for (int i = 0; i < 4; i++)
        if (has(p, elements[i]) && p->dtypes[elements[i]] != element)
            return false;
    const role weight = has(p, ROLE_WEIGHT) ? ROLE_WEIGHT : ROLE_BIAS;
    if (has(p, ROLE_BIAS) && p->dtypes[ROLE_BIAS] != p->dtypes[weight])
        return false;
    if (has(p, weight) && p->dtypes[weight] != element &&
        !(p->dtypes[weight] == DTYPE_F32 && element != DTYPE_F64))
        return false;
    /* A double gradient of float rows is summed in double all the way. */
    return problem_is_double(p) == (element == DTYPE_F64);
}

bool cpu_rows_by_sample(const problem *p) {
    /* Each sample has sums of its own: it has so many rows, or all have so few elements. */
    enum { FEWEST_ROWS = 64, SUM_ELEMENTS = 1 << 20 };
    const bool sums = has(p, ROLE_DWEIGHT) || has(p, ROLE_DBIAS);
    problem alike; /* with the weights of one sample */
    problem_copy(&alike, p);
    for (int k = 0; k < p->kept_count; k++) {
        if (alike.kept[k].affine && (k > 0 || p->kept_count < 2))
            return false;
        alike.kept[k].affine = false;
    }
    const int64_t samples = p->kept[0].affine ? p->kept[0].size : 1;
    if (sums && p->rows / samples < FEWEST_ROWS && samples * p->cols > SUM_ELEMENTS)
        return false;
    return problem_is_rows(&alike) && kernel_dtypes(&alike);
}

/* Whether a residual and its sum, or backward a gradient that joins dx, or xhat's rounding, are all
 * that stands around the norm, of x's dtype and dense: the row kernels add and round as they go
 * (cpu/common/prologue.h, cpu/rows/rows_backward.h, cpu/rows/rows_normalizer.h). */
static bool stages_in_rows(const problem *p) {
    const bool back = problem_is_backward(p), rounds = p->stages.rounding;
    const role_set stages = p->present & STAGE_ROLES;
    const role_set added =
        back ? ROLE_BIT(ROLE_DSUM) : ROLE_BIT(ROLE_RESIDUAL) | ROLE_BIT(ROLE_SUM);
    if ((stages != added && !(rounds && !stages)) || (back && !has(p, ROLE_DX)) ||
        ((back || rounds) && p->activation != PLANISH_IDENTITY))
        return false;
    for (role_set rest = stages; rest; rest &= rest - 1) {
        const role r = first_role(rest);
        if (p->dtypes[r] != p->dtypes[ROLE_X] || (reduced_stride(p, 0, r) != 1 && p->cols != 1))
            return false;
    }
    return problem_is_rows(p) && kernel_dtypes(p);
}

/* Whether the kernels of batch norms take it: channels that lie apart, of one dtype, and stages
 * they know. What an activation was made of is found by a mean that has all digits alone. */
static bool is_batch(const problem *p) {
    const role_set known = ROLE_BIT(ROLE_ADDEND) | ROLE_BIT(ROLE_DADDEND) | STATISTIC_ROLES;
    const dtype element = p->dtypes[ROLE_X];
    if (!has(p, ROLE_X) || (p->present & STAGE_ROLES & ~known) || p->stages.rounding ||
        p->pass == PLANISH_BACKWARD_STATISTICS || problem_is_double(p) != (element == DTYPE_F64))
        return false;
    for (role_set rest = p->present & every_full_role; rest; rest &= rest - 1)
        if (p->dtypes[first_role(rest)] != element)
            return false;
    if (p->pass == PLANISH_BACKWARD && p->activation != PLANISH_IDENTITY &&
        !problem_masks_by_y(p) && !problem_is_given(p) &&
        !(p->dtypes[ROLE_MEAN] == DTYPE_F64 && element != DTYPE_F64))
        return false;
    return problem_batch_layout(p) != BATCH_NEITHER;
}

/* The path of a norm that stands alone. */
static cpu_path path_alone(const problem *p) {
    /* What is groups too, having no weights, goes as groups do where an activation follows. */
    const bool alone = p->activation == PLANISH_IDENTITY || !problem_is_groups(p);
    if (!p->rows || !p->cols)
        return PATH_EMPTY;
    if (p->pass == PLANISH_BACKWARD_FROM_Y)
        return PATH_STRIDED;
    if (p->first_reduced && is_batch(p))
        return PATH_BATCH;
    if (alone && problem_is_rows(p) && kernel_dtypes(p))
        return PATH_ROWS;
    if (alone && problem_is_channels(p) && !problem_half(p))
        return PATH_CHANNELS;
    if (!problem_is_groups(p) || problem_half(p))
        return PATH_STRIDED;
    if (!group_dtypes(p))
        return PATH_PLANES;
    return problem_has_dense_groups(p)  ? PATH_GROUP_ROWS
           : problem_groups_by_pixel(p) ? PATH_PIXELS
                                        : PATH_PLANES;
}

/* The same where a gradient that joins dx is all that stands around it: paths whose kernels add it,
 * as it lies where dx does; planes else. PATH_STAGES: none. */
static cpu_path path_with_dsum(const problem *p) {
    bool alike = p->dtypes[ROLE_DSUM] == p->dtypes[ROLE_DX];
    for (int k = 0; k < p->kept_count; k++)
        alike &= kept_stride(p, k, ROLE_DSUM) == kept_stride(p, k, ROLE_DX);
    for (int k = 0; k < p->reduced_count; k++)
        alike &= reduced_stride(p, k, ROLE_DSUM) == reduced_stride(p, k, ROLE_DX);
    if (!stages_join_dsum_alone(p))
        return PATH_STAGES;
    const cpu_path path = path_alone(p);
    if (path_is_groups(path))
        return alike ? path : PATH_PLANES;
    return path == PATH_CHANNELS && alike ? path : PATH_STAGES;
}

cpu_path cpu_path_of(const problem *p) {
    if (!p->rows || !p->cols || !problem_has_stages(p))
        return path_alone(p);
    if (is_batch(p))
        return PATH_BATCH;
    return stages_in_rows(p) ? PATH_ROWS : path_with_dsum(p);
}

/* What goes through scratch with its stages, but has a path of its own once s is there, takes that.
 */
void cpu_steps_make(steps *s, const problem *p, problem *norm) {
    const bool staged = problem_has_stages(p) && cpu_path_of(p) == PATH_STAGES;
    if (staged && stages_make_sum_alone(p)) {
        steps_of_sum(s, p, norm);
        const cpu_path path = cpu_path_of(norm);
        if (path == PATH_CHANNELS || path_is_groups(path))
            return;
    }
    if (staged && stages_modulate_alone(p)) {
        steps_of_modulation(s, p, norm);
        if (cpu_rows_by_sample(norm))
            return;
    }
    steps_of_whole(s, p);
}
