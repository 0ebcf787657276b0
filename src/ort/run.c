#include "run.h"

#include <stdlib.h>

#include "../bound_call.h"
#include "../views.h"
#include "pool.h"

static DLDataType element_of(int32_t type) {
    switch (type) {
    case ORT_F16:
        return (DLDataType){kDLFloat, 16, 1};
    case ORT_BF16:
        return (DLDataType){kDLBfloat, 16, 1};
    case ORT_F64:
        return (DLDataType){kDLFloat, 64, 1};
    default:
        return (DLDataType){kDLFloat, 32, 1};
    }
}

/* The runtime's error as planish's. */
static planish_status told(norm_run *run, ort_status *status, const char *what) {
    return graph_ok(run->kernel->api, status)
               ? PLANISH_OK
               : fail(run->error, PLANISH_ERROR_ARGUMENT, "the runtime gives no %s", what);
}

/* A value of the runtime, if there is one, as the tensor of a slot. */
static planish_status see(norm_run *run, slot s, const ort_value *value) {
    const ort_api *api = run->kernel->api;
    int32_t type = 0;
    const int64_t *sizes = NULL;
    size_t rank = 0;
    void *data = NULL;
    if (!value)
        return PLANISH_OK;
    planish_status status =
        told(run, api->type_and_sizes(value, &type, &sizes, &rank), "sizes of a tensor");
    /* The runtime has one function for data that is written and read. */
    if (status == PLANISH_OK)
        status = told(run, api->tensor_data((ort_value *)value, &data), "data of a tensor");
    if (status != PLANISH_OK)
        return status;
    if (rank > PLANISH_MAX_NDIM)
        return fail(run->error, PLANISH_ERROR_SHAPE, "a tensor has %zu axes, at most %d are taken",
                    rank, PLANISH_MAX_NDIM);
    view_dense(&run->views[s], data, element_of(type), sizes, (int)rank);
    run->is_there[s] = true;
    return PLANISH_OK;
}

static planish_status read_input(norm_run *run, slot s) {
    const ort_value *value = NULL;
    const size_t at = (size_t)run->kernel->at[s];
    const planish_status status =
        told(run, run->kernel->api->input(run->context, at, &value), "input");
    return status == PLANISH_OK ? see(run, s, value) : status;
}

planish_status run_read_inputs(norm_run *run) {
    for (int s = IN_X; s < OUT_Y; s++) {
        const planish_status status =
            run->kernel->at[s] < 0 ? PLANISH_OK : read_input(run, (slot)s);
        if (status != PLANISH_OK)
            return status;
    }
    return PLANISH_OK;
}

planish_status run_make_output(norm_run *run, slot s, const int64_t *sizes, int rank) {
    ort_value *value = NULL;
    if (run->kernel->at[s] < 0)
        return PLANISH_OK;
    const size_t at = (size_t)run->kernel->at[s];
    const planish_status status = told(
        run, run->kernel->api->output(run->context, at, sizes, (size_t)rank, &value), "output");
    return status == PLANISH_OK ? see(run, s, value) : status;
}

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
planish_status run_call(norm_run *run, const planish_norm *op, planish_pass pass,
                        const planish_tensors *tensors) {
    ort_pool pool = {run->kernel->api, run->context};
    planish_exec exec = exec_of(run, &pool);
    return bound_call_whole(op, pass, tensors, &exec, run->error);
}

const DLTensor *run_tensor(const norm_run *run, slot s) {
    return run->is_there[s] ? &run->views[s].tensor : NULL;
}

/* The tensors of a forward pass. */
planish_tensors run_forward_tensors(const norm_run *run) {
    return (planish_tensors){
        .struct_size = sizeof(planish_tensors),
        .x = run_tensor(run, IN_X),
        .weight = run_tensor(run, IN_WEIGHT),
        .bias = run_tensor(run, IN_BIAS),
        .residual = run_tensor(run, IN_RESIDUAL),
        .y = run_tensor(run, OUT_Y),
        .sum = run_tensor(run, OUT_SUM),
        .mean = run_tensor(run, OUT_MEAN),
        .rstd = run_tensor(run, OUT_RSTD),
    };
}

/* Memory for the sum where the node has no output for it; dense, with x's sizes. */
static planish_status make_sum(norm_run *run) {
    const tensor_view *x = &run->views[IN_X];
    if (run->is_there[OUT_SUM])
        return PLANISH_OK;
    const int64_t elements = view_elements(&x->tensor);
    const size_t bytes = (size_t)elements * (x->tensor.dtype.bits / 8U);
    run->on_heap = malloc(bytes > 0 ? bytes : 1);
    if (!run->on_heap)
        return fail(run->error, PLANISH_ERROR_OUT_OF_MEMORY, "no memory for a sum of %zu bytes",
                    bytes);
    /* Laid out as y, which was made before. */
    view_copy(&run->views[OUT_SUM], &run->views[OUT_Y]);
    run->views[OUT_SUM].tensor.data = run->on_heap;
    return PLANISH_OK;
}

/*
 * A norm by given statistics adds what this needs: with rstd 1 and no mean it is
 * x + bias + addend.
 */
planish_status run_add_early_bias(norm_run *run, const planish_norm *op, uint64_t axes) {
    if (!run->is_there[IN_EARLY_BIAS])
        return PLANISH_OK;
    tensor_view *x = &run->views[IN_X], *bias = &run->views[IN_EARLY_BIAS];
    if (!view_along(bias, x, axes))
        return fail(run->error, PLANISH_ERROR_SHAPE, "bias has not one number for each channel");
    planish_status status = make_sum(run);
    if (status != PLANISH_OK)
        return status;
    double one = 1;
    tensor_view rstd;
    int64_t sizes[PLANISH_MAX_NDIM];
    for (int i = 0; i < x->tensor.ndim; i++)
        sizes[i] = 1;
    view_dense(&rstd, &one, (DLDataType){kDLFloat, 64, 1}, sizes, x->tensor.ndim);
    for (int i = 0; i < x->tensor.ndim; i++)
        sizes[i] = op->reduce_axes & PLANISH_AXIS(i) ? 1 : x->sizes[i];
    view_broadcast(&rstd, sizes, x->tensor.ndim);
    const planish_norm plain = planish_norm_op(PLANISH_RMS, op->reduce_axes, axes, 0);
    const planish_tensors tensors = {
        .struct_size = sizeof tensors,
        .x = &x->tensor,
        .bias = &bias->tensor,
        .rstd = &rstd.tensor,
        .addend = run_tensor(run, IN_RESIDUAL),
        .y = &run->views[OUT_SUM].tensor,
    };
    status = run_call(run, &plain, PLANISH_APPLY, &tensors);
    run->is_there[IN_RESIDUAL] = run->is_there[OUT_SUM] = false;
    view_copy(x, &run->views[OUT_SUM]);
    return status;
}
