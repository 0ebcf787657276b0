/*
 * Rows are numbered through their kept axes. An axis along which weight and bias vary, such as the
 * heads of queries with a weight for each, is no level: each of its steps is a slice of the rows,
 * which blocks share among themselves, so that a block has one row of weights, and of their sums.
 */
#include "cuda/rows/rows_levels.h"

#include "cuda/common/divisors.h"
#include "cuda/common/integers.h"
#include "cuda/rows/rows_shape.h"

enum { MOST_LEVELS = 3 };

/* ---- What the problem is --------------------------------------------------------------------- */

/* Whether every row is a dense run, with weights, if any, dense along it. */
static bool has_dense_rows(const problem *p) {
    if (p->reduced_count != 1 || p->cols < 2 || p->rows < 1)
        return false;
    for (role_set rest = p->present & (FULL_ROLES | AFFINE_ROLES); rest; rest &= rest - 1) {
        const role r = first_role(rest);
        if (reduced_stride(p, 0, r) != 1)
            return false;
        if ((ROLE_BIT(r) & AFFINE_ROLES) && !p->reduced[0].affine)
            return false;
    }
    return true;
}

/* The axis of the slices: that along which weights vary; -1: none does, -2: several do. */
static int slice_axis(const problem *p) {
    int found = -1;
    for (int k = 0; k < p->kept_count && (p->present & AFFINE_ROLES); k++)
        if (p->kept[k].affine)
            found = found == -1 ? k : -2;
    return found;
}

/* ---- Levels ---------------------------------------------------------------------------------- */

/* Whether a step along the outer axis is as one behind the last of the inner axis. */
static bool are_one(const problem *p, const axis *outer, const axis *inner) {
    for (role_set rest = p->present & ~AFFINE_ROLES; rest; rest &= rest - 1) {
        const role r = first_role(rest);
        if (axis_stride(p, outer, r) != inner->size * axis_stride(p, inner, r))
            return false;
    }
    return true;
}

/* The kept axes but that of the slices, neighbours as one where they can be; how many, or one more
 * than there may be. */
static int levels_of(const problem *p, int slices, axis level[MOST_LEVELS]) {
    int count = 0;
    for (int k = 0; k < p->kept_count; k++) {
        if (k == slices)
            continue;
        if (count && are_one(p, &level[count - 1], &p->kept[k])) {
            const int64_t size = level[count - 1].size * p->kept[k].size;
            level[count - 1] = p->kept[k];
            level[count - 1].size = size;
        } else if (count == MOST_LEVELS) {
            return MOST_LEVELS + 1;
        } else {
            level[count++] = p->kept[k];
        }
    }
    return count;
}

/* Whether the saved statistics of all rows have one stride. */
static bool has_plain_statistics(const problem *p, const axis *level, int count) {
    static const role saved[] = {ROLE_MEAN, ROLE_RSTD};
    for (int k = 0; k + 1 < count; k++)
        for (int i = 0; i < 2; i++)
            if (has(p, saved[i]) && axis_stride(p, &level[k], saved[i]) !=
                                        level[k + 1].size * axis_stride(p, &level[k + 1], saved[i]))
                return false;
    return true;
}

bool rows_levels_make(cuda_plan *plan, const problem *p, problem *known) {
    axis level[MOST_LEVELS] = {{0}};
    const int slices = slice_axis(p);
    if (!has_dense_rows(p) || slices == -2)
        return false;
    const int count = levels_of(p, slices, level);
    if (count > MOST_LEVELS || !has_plain_statistics(p, level, count))
        return false;
    problem_copy(known, p);
    cuda_row_places *at = &plan->places;
    at->levels = most(1, count);
    if (slices >= 0) {
        at->slices = p->kept[slices].size;
        known->rows /= at->slices;
        for (role r = 0; r < NORM_ROLES; r++)
            at->slice[r] = kept_stride(p, slices, r);
    }
    if (count > 1 && known->rows > INT32_MAX)
        return false;
    for (role r = 0; r < ROLE_COUNT; r++)
        plan->stride[r] = count ? axis_stride(p, &level[count - 1], r) : 0;
    int64_t passed = 1; /* rows of the axes behind this one */
    for (int k = count - 1; k > 0; k--) {
        const int nth = count - 1 - k;
        passed *= level[k].size;
        at->rows[nth] = passed;
        for (role r = 0; r < NORM_ROLES; r++)
            at->jump[nth][r] =
                axis_stride(p, &level[k - 1], r) - level[k].size * axis_stride(p, &level[k], r);
    }
    plan->rows = known->rows;
    known->kept_count = 1;
    known->kept[0] = count ? level[count - 1] : (axis){.size = 1};
    known->kept[0].size = known->rows;
    known->kept[0].affine = false;
    known->affine = p->affine / rows_slices(plan);
    return true;
}

bool rows_sums_follow(const cuda_plan *plan, const problem *p) {
    static const role sums[] = {ROLE_DWEIGHT, ROLE_DBIAS};
    for (int i = 0; plan->places.slices && i < 2; i++)
        if (has(p, sums[i]) && plan->places.slice[sums[i]] != p->cols)
            return false;
    return rows_slices(plan) <= (1 << 30) / p->cols;
}

/* ---- What kernels are told ------------------------------------------------------------------- */

int64_t rows_slices(const cuda_plan *plan) {
    return plan->places.slices ? plan->places.slices : 1;
}

row_levels rows_levels_arguments(const cuda_plan *plan) {
    row_levels levels = {{{0}}};
    for (int k = 0; k + 1 < plan->places.levels; k++)
        levels.rows[k] = divisor_of(plan->places.rows[k]);
    return levels;
}

void rows_level_jumps(const cuda_plan *plan, role r, int bytes, int64_t jump[2]) {
    for (int k = 0; k < 2; k++)
        jump[k] = plan->places.jump[k][r] * bytes;
}

int64_t rows_slice_bytes(const cuda_plan *plan, role r, int bytes) {
    return plan->places.slice[r] * bytes;
}

bool rows_have_jumps(const cuda_plan *plan, role r) {
    return plan->places.jump[0][r] || plan->places.jump[1][r];
}

uint64_t rows_stride_bits(const cuda_plan *plan, role r) {
    const cuda_row_places *at = &plan->places;
    return (uint64_t)(at->jump[0][r] | at->jump[1][r] | at->slice[r]);
}

int rows_that_follow(const cuda_plan *plan) {
    static const role forward[] = {ROLE_X, ROLE_Y}, backward[] = {ROLE_X, ROLE_DY, ROLE_DX};
    const bool is_forward = rows_are_forward(&plan->main);
    const role *roles = is_forward ? forward : backward;
    int follow = 0;
    for (int i = 0; i < (is_forward ? 2 : 3); i++)
        if (plan->rows < 2 ||
            (plan->stride[roles[i]] == plan->cols && !rows_have_jumps(plan, roles[i])))
            follow |= 1 << i;
    return follow;
}
