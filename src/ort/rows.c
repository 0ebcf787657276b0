/* Norms over the axes from one on, and the sum before them. */
#include "families.h"

/* What x and the residual make together; both are then seen so. */
static planish_status broadcast_sum(norm_run *run, int64_t *sizes, int *rank) {
    tensor_view *x = &run->views[IN_X], *residual = &run->views[IN_RESIDUAL];
    const bool has_residual = run->is_there[IN_RESIDUAL];
    const int x_rank = x->tensor.ndim, other = has_residual ? residual->tensor.ndim : 0;
    *rank = x_rank > other ? x_rank : other;
    for (int i = 0; i < *rank; i++) {
        const int at_x = i - (*rank - x_rank), at_other = i - (*rank - other);
        const int64_t size_x = at_x < 0 ? 1 : x->sizes[at_x];
        const int64_t size_other = at_other < 0 ? 1 : residual->sizes[at_other];
        sizes[i] = size_x == 1 ? size_other : size_x;
    }
    if (!view_broadcast(x, sizes, *rank) ||
        (has_residual && !view_broadcast(residual, sizes, *rank)))
        return fail(run->error, PLANISH_ERROR_SHAPE, "the two sides of the sum do not fit");
    return PLANISH_OK;
}

/* Weight or bias of any sizes that x's may be broadcast from: along the reduced axes, and along
 * others where it has one number for each of theirs. */
static planish_status see_weight(norm_run *run, slot s, const char *name, uint64_t *axes) {
    tensor_view *view = &run->views[s], *x = &run->views[IN_X];
    if (!run->is_there[s])
        return PLANISH_OK;
    const int rank = x->tensor.ndim, more = rank - view->tensor.ndim;
    for (int i = more < 0 ? 0 : more; i < rank; i++)
        if (view->sizes[i - more] != 1)
            *axes |= PLANISH_AXIS(i);
    if (!view_broadcast(view, x->sizes, rank))
        return fail(run->error, PLANISH_ERROR_SHAPE, "%s cannot be broadcast to x", name);
    return PLANISH_OK;
}

/* Axes along which neither weight nor bias varies have size 1 in both. */
static void drop_axes(norm_run *run, slot s, uint64_t axes) {
    tensor_view *view = &run->views[s];
    for (int i = 0; run->is_there[s] && i < view->tensor.ndim; i++)
        if (!(axes & PLANISH_AXIS(i)))
            view->sizes[i] = 1;
}

planish_status run_rows(norm_run *run) {
    const norm_facts *facts = &run->kernel->facts;
    int64_t sizes[PLANISH_MAX_NDIM], kept[PLANISH_MAX_NDIM];
    int rank = 0;
    planish_status status = broadcast_sum(run, sizes, &rank);
    if (status != PLANISH_OK)
        return status;
    const int64_t axis = facts->axis < 0 ? facts->axis + rank : facts->axis;
    if (axis < 0 || axis >= rank)
        return fail(run->error, PLANISH_ERROR_AXES, "axis is %lld, x has %d axes",
                    (long long)facts->axis, rank);
    planish_norm op = planish_last_axes_op(facts->kind, rank, (int32_t)(rank - axis), facts->eps);
    op.activation = facts->activation;
    status = see_weight(run, IN_WEIGHT, "weight", &op.affine_axes);
    if (status == PLANISH_OK)
        status = see_weight(run, IN_BIAS, "bias", &op.affine_axes);
    for (int i = 0; i < rank; i++)
        kept[i] = i < axis ? sizes[i] : 1;
    const slot full[] = {OUT_Y, OUT_SUM}, short_ones[] = {OUT_MEAN, OUT_RSTD};
    for (int i = 0; status == PLANISH_OK && i < 2; i++) {
        status = run_make_output(run, full[i], sizes, rank);
        if (status == PLANISH_OK)
            status = run_make_output(run, short_ones[i], kept, rank);
    }
    if (status != PLANISH_OK)
        return status;
    drop_axes(run, IN_WEIGHT, op.affine_axes);
    drop_axes(run, IN_BIAS, op.affine_axes);
    status = run_add_early_bias(run, &op, PLANISH_AXIS(rank - 1));
    if (status != PLANISH_OK)
        return status;
    const planish_tensors tensors = run_forward_tensors(run);
    return run_call(run, &op, PLANISH_FORWARD, &tensors);
}
