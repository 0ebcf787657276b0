/* Norms of groups of channels, and of each channel. */
#include "families.h"

planish_status run_see_channels(norm_run *run, slot s, const char *name, uint64_t axes) {
    if (run->is_there[s] && !view_along(&run->views[s], &run->views[IN_X], axes))
        return fail(run->error, PLANISH_ERROR_SHAPE, "%s has not one number for each channel",
                    name);
    return PLANISH_OK;
}

planish_status run_see_affine(norm_run *run, uint64_t axes) {
    const planish_status status = run_see_channels(run, IN_WEIGHT, "scale", axes);
    return status == PLANISH_OK ? run_see_channels(run, IN_BIAS, "bias", axes) : status;
}

/* A residual of SkipGroupNorm may be one for each channel: (N, C) or (N, 1, 1, C). */
static planish_status see_residual(norm_run *run) {
    tensor_view *view = &run->views[IN_RESIDUAL];
    const tensor_view *x = &run->views[IN_X];
    const int rank = x->tensor.ndim;
    if (!run->is_there[IN_RESIDUAL])
        return PLANISH_OK;
    if (view->tensor.ndim == 2) {
        int64_t wide[PLANISH_MAX_NDIM] = {view->sizes[0]};
        for (int i = 1; i < rank; i++)
            wide[i] = 1;
        wide[run->kernel->facts.channels_last ? rank - 1 : 1] = view->sizes[1];
        view_dense(view, view->tensor.data, view->tensor.dtype, wide, rank);
    }
    if (!view_broadcast(view, x->sizes, rank))
        return fail(run->error, PLANISH_ERROR_SHAPE, "skip cannot be broadcast to x");
    return PLANISH_OK;
}

planish_status run_groups(norm_run *run) {
    const norm_facts *facts = &run->kernel->facts;
    tensor_view *x = &run->views[IN_X];
    const int rank = x->tensor.ndim;
    if (rank < 3 || rank == PLANISH_MAX_NDIM)
        return fail(run->error, PLANISH_ERROR_SHAPE, "x has %d axes, wanted 3 to %d", rank,
                    PLANISH_MAX_NDIM - 1);
    const int64_t channels = x->sizes[facts->channels_last ? rank - 1 : 1];
    if (channels % facts->groups != 0)
        return fail(run->error, PLANISH_ERROR_SHAPE, "%lld channels do not divide into %lld groups",
                    (long long)channels, (long long)facts->groups);
    planish_status status = see_residual(run);
    const slot full[] = {OUT_Y, OUT_SUM};
    for (int i = 0; status == PLANISH_OK && i < 2; i++)
        status = run_make_output(run, full[i], x->sizes, rank);
    if (status != PLANISH_OK)
        return status;
    const slot split[] = {IN_X, IN_RESIDUAL, OUT_Y, OUT_SUM};
    for (int i = 0; i < 4; i++)
        if (run->is_there[split[i]])
            view_split(&run->views[split[i]], facts->groups, facts->channels_last);
    planish_norm op = planish_group_norm_op(rank + 1, facts->eps);
    op.activation = facts->activation;
    if (facts->weight_of_group)
        op.affine_axes = PLANISH_AXIS(1);
    status = run_see_affine(run, op.affine_axes);
    if (status == PLANISH_OK)
        status = run_add_early_bias(run, &op, PLANISH_AXIS(1) | PLANISH_AXIS(2));
    const planish_tensors tensors = run_forward_tensors(run);
    return status == PLANISH_OK ? run_call(run, &op, PLANISH_FORWARD, &tensors) : status;
}

planish_status run_instance(norm_run *run) {
    const norm_facts *facts = &run->kernel->facts;
    const tensor_view *x = &run->views[IN_X];
    if (x->tensor.ndim < 3)
        return fail(run->error, PLANISH_ERROR_SHAPE, "x has %d axes, wanted at least 3",
                    x->tensor.ndim);
    planish_norm op = planish_instance_norm_op(x->tensor.ndim, facts->eps);
    op.activation = facts->activation;
    planish_status status = run_see_affine(run, op.affine_axes);
    if (status == PLANISH_OK)
        status = run_make_output(run, OUT_Y, x->sizes, x->tensor.ndim);
    const planish_tensors tensors = run_forward_tensors(run);
    return status == PLANISH_OK ? run_call(run, &op, PLANISH_FORWARD, &tensors) : status;
}
