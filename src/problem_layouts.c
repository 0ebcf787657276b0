/* What a problem is, of those that have kernels of their own: its dtypes and how it is laid out. */
#include "problem.h"

bool problem_is_double(const problem *p) {
    if (!memchr(p->dtypes, DTYPE_F64, sizeof p->dtypes))
        return false;
    for (int r = 0; r < ROLE_COUNT; r++) {
        const role_axes axes = axes_of(r);
        if (p->dtypes[r] == DTYPE_F64 && axes != AXES_KEPT && axes < AXES_BLOCKS)
            return true;
    }
    return false;
}

bool problem_hides_rounding(const problem *p) {
    static const role shown[] = {ROLE_X, ROLE_DX, ROLE_DWEIGHT};
    if (has(p, ROLE_MEAN) && dtype_bytes(p->dtypes[ROLE_MEAN]) < 4)
        return false;
    for (int i = 0; i < 3; i++)
        if (has(p, shown[i]) && dtype_bytes(p->dtypes[shown[i]]) > 2 &&
            !(shown[i] == ROLE_DX && dtype_bytes(p->stages.sum) == 2))
            return false;
    return true;
}

bool problem_is_rows(const problem *p) {
    if (p->reduced_count != 1)
        return false;
    for (int r = 0; r < ROLE_COUNT; r++) {
        if (!has(p, r) || !(ROLE_BIT(r) & (FULL_ROLES | AFFINE_ROLES)))
            continue;
        if (reduced_stride(p, 0, r) != 1 && p->cols != 1)
            return false;
        if (!(ROLE_BIT(r) & AFFINE_ROLES))
            continue;
        if (!p->reduced[0].affine && p->cols != 1)
            return false;
        for (int k = 0; k < p->kept_count; k++)
            if (p->kept[k].affine)
                return false;
    }
    return true;
}

bool problem_is_channels(const problem *p) {
    const axis *channel = &p->reduced[0], *pixel = &p->kept[p->kept_count - 1];
    bool neighbours = false;
    if (p->reduced_count != 1 || ((p->present & AFFINE_ROLES) && !channel->affine))
        return false;
    for (int k = 0; k < p->kept_count; k++)
        if (p->kept[k].affine)
            return false;
    for (role_set rest = p->present & FULL_ROLES; rest; rest &= rest - 1) {
        const role r = first_role(rest);
        neighbours |= axis_stride(p, pixel, r) == 1;
        if (axis_stride(p, pixel, r) != 1 && axis_stride(p, channel, r) != 1)
            return false;
    }
    return neighbours;
}

bool problem_is_groups(const problem *p) {
    const axis *span = &p->reduced[p->reduced_count - 1];
    if (p->reduced_count > 2 || span->affine || span->size < GROUP_SPAN)
        return false;
    return p->reduced_count == 1 || p->reduced[0].affine || !(p->present & AFFINE_ROLES);
}

bool problem_has_dense_groups(const problem *p) {
    const axis *span = &p->reduced[p->reduced_count - 1], *channel = &p->reduced[0];
    for (role_set rest = p->present & FULL_ROLES; rest; rest &= rest - 1) {
        const role r = first_role(rest);
        if (axis_stride(p, span, r) != 1 ||
            (p->reduced_count == 2 && axis_stride(p, channel, r) != span->size))
            return false;
    }
    return true;
}

int64_t problem_groups_by_pixel(const problem *p) {
    const axis *inner = &p->kept[p->kept_count - 1], *channel = &p->reduced[0];
    const bool alone = p->reduced_count == 1; /* a channel is a group */
    const int64_t depth = alone ? 1 : channel->size;
    bool neighbours = true, one_group = !alone;
    for (role_set rest = p->present & FULL_ROLES; rest; rest &= rest - 1) {
        const role r = first_role(rest);
        if (!alone && axis_stride(p, channel, r) != 1)
            return 0;
        neighbours &= axis_stride(p, inner, r) == depth;
    }
    const bool weighted = p->present & AFFINE_ROLES;
    if (neighbours && inner->size > 1 && (!weighted || inner->affine))
        one_group = false;
    else if (!one_group)
        return 0;
    for (int k = 0; weighted && k < p->kept_count - !one_group; k++)
        if (p->kept[k].affine)
            return 0;
    return one_group ? 1 : inner->size;
}

batch_layout problem_batch_layout(const problem *p) {
    enum { LEAST_SPAN = 8 };
    const axis *inner = &p->kept[p->kept_count - 1], *span = &p->reduced[p->reduced_count - 1];
    const bool weighted = p->present & AFFINE_ROLES,
               sums = has(p, ROLE_DWEIGHT) || has(p, ROLE_DBIAS);
    bool by_channel = p->reduced_count <= 2 && span->size >= LEAST_SPAN;
    /* What is of one image is to have the bits that it has among many. */
    bool by_pixel =
        p->first_reduced && p->kept_count == 1 && p->reduced_count == 1 && inner->size > 1;
    if (p->kind != PLANISH_LAYER)
        return BATCH_NEITHER;
    for (int k = 0; weighted && k < p->reduced_count; k++)
        if (p->reduced[k].affine)
            return BATCH_NEITHER;
    for (int k = 0; sums && k < p->kept_count; k++)
        if (!p->kept[k].affine && p->kept[k].size > 1)
            return BATCH_NEITHER;
    for (role_set rest = p->present & every_full_role; rest; rest &= rest - 1) {
        const role r = first_role(rest);
        by_channel &= axis_stride(p, span, r) == 1;
        by_pixel &= axis_stride(p, inner, r) == 1;
    }
    return by_channel ? BATCH_BY_CHANNEL : by_pixel ? BATCH_BY_PIXEL : BATCH_NEITHER;
}
