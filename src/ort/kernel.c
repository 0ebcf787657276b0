#include "kernel.h"

#include <math.h>
#include <stdlib.h>

#include "../bound_call.h"
#include "pool.h"
#include "tensors.h"

enum { MESSAGE_BYTES = 512 };

static planish_exec exec_of(norm_run *run, ort_pool *pool) {
    return (planish_exec){
        .struct_size = sizeof(planish_exec),
        .parallel_for = ort_pool_parallel_for,
        .parallel_context = pool,
        .message = run->error.text,
        .message_bytes = run->error.bytes,
        /* The runtime gives each value memory of its own. */
        .apart = 1,
    };
}

/* Finds the plan, gives it a workspace, runs it. */
static planish_status run_call(norm_run *run, const planish_norm *op, planish_pass pass,
                               const planish_tensors *tensors) {
    ort_pool pool = {run->kernel->api, run->context};
    planish_exec exec = exec_of(run, &pool);
    bound_call call;
    bound_stack stack;
    void *on_heap = NULL;
    planish_status status = bound_call_find(&call, op, pass, tensors, run->error);
    if (status == PLANISH_OK) {
        const size_t bytes = bound_call_bytes(&call, NULL);
        if (!bound_call_on_stack(&call, bytes, &stack, &exec)) {
            on_heap = malloc(bytes + BOUND_ALIGNMENT);
            if (on_heap)
                bound_call_use(on_heap, bytes, &exec);
            else
                status = fail(run->error, PLANISH_ERROR_OUT_OF_MEMORY,
                              "no memory for a workspace of %zu bytes", bytes);
        }
    }
    if (status == PLANISH_OK)
        status = bound_call_run(&call, NULL, &exec);
    free(on_heap);
    bound_call_free(&call);
    return status;
}

static const DLTensor *tensor_of(const norm_run *run, slot s) {
    return run->is_there[s] ? &run->views[s].tensor : NULL;
}

/* The tensors of a forward pass. */
static planish_tensors forward_tensors(const norm_run *run) {
    return (planish_tensors){
        .struct_size = sizeof(planish_tensors),
        .x = tensor_of(run, IN_X),
        .weight = tensor_of(run, IN_WEIGHT),
        .bias = tensor_of(run, IN_BIAS),
        .residual = tensor_of(run, IN_RESIDUAL),
        .y = tensor_of(run, OUT_Y),
        .sum = tensor_of(run, OUT_SUM),
        .mean = tensor_of(run, OUT_MEAN),
        .rstd = tensor_of(run, OUT_RSTD),
    };
}

/* ---- Rows -------------------------------------------------------------------------------------
 */

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

static planish_status run_rows(norm_run *run) {
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
    const planish_tensors tensors = forward_tensors(run);
    return run_call(run, &op, PLANISH_FORWARD, &tensors);
}

/* ---- Channels ---------------------------------------------------------------------------------
 */

static planish_status see_channels(norm_run *run, slot s, const char *name, uint64_t axes) {
    if (run->is_there[s] && !view_along(&run->views[s], &run->views[IN_X], axes))
        return fail(run->error, PLANISH_ERROR_SHAPE, "%s has not one number for each channel",
                    name);
    return PLANISH_OK;
}

static planish_status see_affine(norm_run *run, uint64_t axes) {
    const planish_status status = see_channels(run, IN_WEIGHT, "scale", axes);
    return status == PLANISH_OK ? see_channels(run, IN_BIAS, "bias", axes) : status;
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

static planish_status run_groups(norm_run *run) {
    const norm_facts *facts = &run->kernel->facts;
    tensor_view *x = &run->views[IN_X];
    const int rank = x->tensor.ndim;
    if (rank < 3)
        return fail(run->error, PLANISH_ERROR_SHAPE, "x has %d axes, wanted at least 3", rank);
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
    status = see_affine(run, op.affine_axes);
    const planish_tensors tensors = forward_tensors(run);
    return status == PLANISH_OK ? run_call(run, &op, PLANISH_FORWARD, &tensors) : status;
}

static planish_status run_instance(norm_run *run) {
    const norm_facts *facts = &run->kernel->facts;
    const tensor_view *x = &run->views[IN_X];
    if (x->tensor.ndim < 3)
        return fail(run->error, PLANISH_ERROR_SHAPE, "x has %d axes, wanted at least 3",
                    x->tensor.ndim);
    planish_norm op = planish_instance_norm_op(x->tensor.ndim, facts->eps);
    op.activation = facts->activation;
    planish_status status = see_affine(run, op.affine_axes);
    if (status == PLANISH_OK)
        status = run_make_output(run, OUT_Y, x->sizes, x->tensor.ndim);
    const planish_tensors tensors = forward_tensors(run);
    return status == PLANISH_OK ? run_call(run, &op, PLANISH_FORWARD, &tensors) : status;
}

/* ---- Batches ----------------------------------------------------------------------------------
 */

static planish_status apply_running(norm_run *run, const planish_norm *op) {
    planish_tensors tensors = forward_tensors(run);
    tensors.running_mean = tensor_of(run, IN_MEAN);
    tensors.running_var = tensor_of(run, IN_VAR);
    return run_call(run, op, PLANISH_APPLY, &tensors);
}

static planish_status run_batch(norm_run *run) {
    const norm_facts *facts = &run->kernel->facts;
    const tensor_view *x = &run->views[IN_X];
    const int rank = x->tensor.ndim;
    if (rank < 2)
        return fail(run->error, PLANISH_ERROR_SHAPE, "x has %d axes, wanted at least 2", rank);
    planish_norm op = planish_batch_norm_op(rank, facts->eps, 0);
    op.activation = facts->activation;
    planish_status status = see_affine(run, op.affine_axes);
    if (status == PLANISH_OK)
        status = see_channels(run, IN_MEAN, "input_mean", op.affine_axes);
    if (status == PLANISH_OK)
        status = see_channels(run, IN_VAR, "input_var", op.affine_axes);
    if (status == PLANISH_OK)
        status = run_make_output(run, OUT_Y, x->sizes, rank);
    if (status != PLANISH_OK)
        return status;
    return apply_running(run, &op);
}

ort_status *norm_kernel_run(const norm_kernel *kernel, ort_kernel_context *context) {
    char text[MESSAGE_BYTES] = "";
    norm_run run = {.kernel = kernel, .context = context, .error = {text, sizeof text}};
    planish_status status = run_read_inputs(&run);
    if (status == PLANISH_OK) {
        switch (kernel->facts.family) {
        case FAMILY_ROWS:
            status = run_rows(&run);
            break;
        case FAMILY_GROUPS:
            status = run_groups(&run);
            break;
        case FAMILY_INSTANCE:
            status = run_instance(&run);
            break;
        case FAMILY_BATCH:
            status = run_batch(&run);
            break;
        }
    }
    if (status == PLANISH_OK)
        return NULL;
    const int32_t code = status == PLANISH_ERROR_OUT_OF_MEMORY ? ORT_FAIL : ORT_INVALID_ARGUMENT;
    return kernel->api->create_status(code, text);
}
