#include "tensors.h"

#include "../views.h"

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

static void set_dense_strides(tensor_view *view) {
    int64_t stride = 1;
    for (int i = view->tensor.ndim - 1; i >= 0; i--) {
        view->strides[i] = stride;
        stride *= view->sizes[i];
    }
}

void view_dense(tensor_view *view, void *data, DLDataType dtype, const int64_t *sizes, int rank) {
    view->tensor = (DLTensor){
        .data = data,
        .device = {kDLCPU, 0},
        .ndim = rank,
        .dtype = dtype,
        .shape = view->sizes,
        .strides = view->strides,
    };
    for (int i = 0; i < rank; i++)
        view->sizes[i] = sizes[i];
    set_dense_strides(view);
}

bool view_broadcast(tensor_view *view, const int64_t *sizes, int rank) {
    const int more = rank - view->tensor.ndim;
    if (more < 0)
        return false;
    for (int i = rank - 1; i >= 0; i--) {
        const int64_t own = i < more ? 1 : view->sizes[i - more];
        if (own != sizes[i] && own != 1)
            return false;
        view->strides[i] = own == 1 ? 0 : view->strides[i - more];
        view->sizes[i] = sizes[i];
    }
    view->tensor.ndim = rank;
    return true;
}

void view_split(tensor_view *view, int64_t groups, bool channels_last) {
    const int rank = view->tensor.ndim, channels = channels_last ? rank - 1 : 1;
    const int64_t each = view->sizes[channels] / groups, stride = view->strides[channels];
    for (int i = rank - 1; i > 0; i--) {
        /* The other axes, in their order, stand behind the two that are made. */
        const int from = channels_last ? i - 1 : i;
        if (i == 1)
            break;
        view->sizes[i + 1] = view->sizes[from];
        view->strides[i + 1] = view->strides[from];
    }
    view->sizes[1] = groups;
    view->strides[1] = stride * each;
    view->sizes[2] = each;
    view->strides[2] = stride;
    view->tensor.ndim = rank + 1;
}

bool view_along(tensor_view *view, const tensor_view *x, uint64_t axes) {
    int64_t wanted = 1;
    const int rank = x->tensor.ndim;
    for (int i = 0; i < rank; i++)
        wanted *= axes & PLANISH_AXIS(i) ? x->sizes[i] : 1;
    if (view_elements(&view->tensor) != wanted)
        return false;
    for (int i = 0; i < rank; i++)
        view->sizes[i] = axes & PLANISH_AXIS(i) ? x->sizes[i] : 1;
    view->tensor.ndim = rank;
    set_dense_strides(view);
    return true;
}

/* The runtime's error as planish's. */
static planish_status told(norm_run *run, ort_status *status, const char *what) {
    return graph_ok(run->kernel->api, status)
               ? PLANISH_OK
               : fail(run->error, PLANISH_ERROR_ARGUMENT, "the runtime gives no %s", what);
}

static planish_status read_input(norm_run *run, slot s) {
    const ort_api *api = run->kernel->api;
    const ort_value *value = NULL;
    planish_status status =
        told(run, api->input(run->context, (size_t)run->kernel->at[s], &value), "input");
    if (status != PLANISH_OK || !value)
        return status;
    int32_t type = 0;
    const int64_t *sizes = NULL;
    size_t rank = 0;
    void *data = NULL;
    status = told(run, api->type_and_sizes(value, &type, &sizes, &rank), "sizes of an input");
    /* The runtime has one function for data that is written and read. */
    if (status == PLANISH_OK)
        status = told(run, api->tensor_data((ort_value *)value, &data), "data of an input");
    if (status != PLANISH_OK)
        return status;
    if (rank > PLANISH_MAX_NDIM - 1)
        return fail(run->error, PLANISH_ERROR_SHAPE, "an input has %zu axes, at most %d are taken",
                    rank, PLANISH_MAX_NDIM - 1);
    view_dense(&run->views[s], data, element_of(type), sizes, (int)rank);
    run->is_there[s] = true;
    return PLANISH_OK;
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
    const ort_api *api = run->kernel->api;
    if (run->kernel->at[s] < 0)
        return PLANISH_OK;
    ort_value *value = NULL;
    int32_t type = 0;
    const int64_t *known = NULL;
    size_t known_rank = 0;
    void *data = NULL;
    planish_status status = told(
        run, api->output(run->context, (size_t)run->kernel->at[s], sizes, (size_t)rank, &value),
        "output");
    if (status != PLANISH_OK || !value)
        return status;
    status =
        told(run, api->type_and_sizes(value, &type, &known, &known_rank), "sizes of an output");
    if (status == PLANISH_OK)
        status = told(run, api->tensor_data(value, &data), "data of an output");
    if (status == PLANISH_OK) {
        view_dense(&run->views[s], data, element_of(type), sizes, rank);
        run->is_there[s] = true;
    }
    return status;
}
