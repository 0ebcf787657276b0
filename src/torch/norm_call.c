/*
 * The tensors of a norm, from torch's stack and back; see norm_call.h.
 */
#include "norm_call.h"

#include <string.h>

#include "run.h"
#include "thrown.h"

void norm_call_free(norm_call *c) {
    for (int r = 0; r < ROLE_COUNT; r++) {
        free_tensor(&c->given[r]);
        if (c->made[r].impl)
            free_new_tensor(&c->made[r]);
        if (c->copies[r].impl)
            free_new_tensor(&c->copies[r]);
    }
}

void norm_call_take(norm_call *c, stack_value *stack, const role roles[], int count, int required) {
    for (int i = 0; i < count; i++)
        c->given[roles[i]] = i < required ? take_tensor(stack[i]) : take_optional_tensor(stack[i]);
}

/* ---- Views -------------------------------------------------------------------------------- */

/* That of a tensor whose view has none, being of stages alone. */
static DLDataType stages_dtype(tensor_handle tensor) {
    int32_t dtype = 0;
    torch_check(torch.get_dtype(tensor, &dtype));
    switch (dtype) {
    case TORCH_I64:
        return (DLDataType){kDLInt, 64, 1};
    case TORCH_I8:
        return (DLDataType){kDLInt, 8, 1};
    case TORCH_E4M3:
        return (DLDataType){kDLFloat8_e4m3fn, 8, 1};
    case TORCH_E5M2:
        return (DLDataType){kDLFloat8_e5m2, 8, 1};
    default:
        return (DLDataType){kDLOpaqueHandle, 0, 1}; /* the library refuses it */
    }
}

/* Sees this axis of a view as two, in room that is the view's own from then on. */
static void split(DLTensor *view, int32_t axis, int64_t groups, layout *room) {
    if (axis >= view->ndim || view->ndim >= PLANISH_MAX_NDIM || view->shape[axis] % groups)
        torch_throw("planish: an axis cannot be seen as so many groups");
    layout seen;
    for (int32_t i = 0; i < view->ndim; i++) {
        const int32_t to = i + (i > axis);
        seen.sizes[to] = view->shape[i];
        seen.strides[to] = view->strides[i];
    }
    seen.sizes[axis + 1] = view->shape[axis] / groups;
    seen.strides[axis + 1] = view->strides[axis];
    seen.sizes[axis] = groups;
    seen.strides[axis] = seen.sizes[axis + 1] * view->strides[axis];
    *room = seen;
    view->shape = room->sizes;
    view->strides = room->strides;
    view->ndim++;
}

/* Both axes that x's axis was split into. */
static uint64_t split_axes(const norm_call *c) {
    return c->split_groups ? PLANISH_AXIS(c->split_axis) | PLANISH_AXIS(c->split_axis + 1) : 0;
}

static uint64_t axes_set(const norm_call *c, role r) {
    switch (axes_of(r)) {
    case AXES_AFFINE:
        return c->op.affine_axes;
    case AXES_COLUMN:
        return c->op.column_axes;
    case AXES_MODULATION:
        return c->op.modulation_axes;
    default:
        return 0;
    }
}

/* Where, among the axes of a set, the first of both stands. */
static int32_t place_in(uint64_t set, int32_t axis) {
    return __builtin_popcountll(set & (PLANISH_AXIS(axis) - 1));
}

/* Splits the view of a tensor of x's shape, or of a parameter that has the whole axis. */
static void see_split(norm_call *c, role r) {
    DLTensor *view = &c->view[r];
    if (axes_of(r) == AXES_FULL) {
        split(view, c->split_axis, c->split_groups, &c->rooms[r]);
        return;
    }
    const uint64_t set = axes_set(c, r), both = split_axes(c);
    if ((set & both) == both && view->ndim == __builtin_popcountll(set) - 1)
        split(view, place_in(set, c->split_axis), c->split_groups, &c->rooms[r]);
}

void norm_call_view(norm_call *c, int64_t groups) {
    for (int r = 0; r < ROLE_COUNT; r++) {
        if (!c->given[r])
            continue;
        c->view[r] = view_input(c->given[r]);
        if (c->view[r].dtype.bits == 0)
            c->view[r].dtype = stages_dtype(c->given[r]);
        c->list[r] = &c->view[r];
    }
    const DLTensor *x = &c->view[ROLE_X];
    if (x->ndim + (groups != 0) > PLANISH_MAX_NDIM)
        torch_throw("planish: x has more than 16 axes");
    if (x->device.device_type == kDLExtDev || view_dtype(x) < 0 || x->dtype.code == kDLInt)
        torch_throw("planish: x must be f16, bf16, f32 or f64, on the CPU or a CUDA GPU");
    if (groups) {
        c->split_axis = groups > 0 ? 1 : x->ndim - 1;
        c->split_groups = groups > 0 ? groups : -groups;
        for (int r = 0; r < ROLE_COUNT; r++)
            if (c->list[r])
                see_split(c, (role)r);
    }
    const uint64_t none = ~(PLANISH_AXIS(x->ndim) - 1);
    if ((c->op.reduce_axes | c->op.affine_axes | c->op.column_axes | c->op.modulation_axes) & none)
        torch_throw("planish: an axis is out of range");
}

bool norm_call_is_double(const norm_call *c) {
    for (int r = 0; r < ROLE_COUNT; r++)
        if (c->given[r] && types_of((role)r) == TYPES_REAL && view_is_double(&c->view[r]))
            return true;
    return false;
}

/* ---- Results ------------------------------------------------------------------------------ */

static void made_is(norm_call *c, role r, new_tensor tensor) {
    c->made[r] = tensor;
    if (c->view[r].dtype.bits == 0)
        c->view[r].dtype = stages_dtype(handle_of(&c->made[r]));
    c->list[r] = &c->view[r];
    if (c->split_groups)
        see_split(c, r);
}

/* x's view with the axis that was split as one again. */
static DLTensor whole_x(const norm_call *c, layout *room) {
    DLTensor x = c->view[ROLE_X];
    if (!c->split_groups)
        return x;
    const int32_t axis = c->split_axis;
    x.ndim--;
    for (int32_t i = 0; i < x.ndim; i++) {
        const int32_t from = i + (i > axis);
        room->sizes[i] = x.shape[from];
        room->strides[i] = x.strides[from];
    }
    room->sizes[axis] = x.shape[axis] * x.shape[axis + 1];
    room->strides[axis] = x.strides[axis + 1];
    x.shape = room->sizes;
    x.strides = room->strides;
    return x;
}

void norm_call_make_full(norm_call *c, role r, int32_t dtype, bool dense) {
    layout whole;
    const DLTensor x = whole_x(c, &whole);
    layout *made = &c->rooms[r];
    for (int32_t i = 0; i < x.ndim; i++)
        made->sizes[i] = x.shape[i];
    made_is(c, r,
            dense ? new_dense_tensor(&x, x.ndim, made->sizes, dtype, made->strides, &c->view[r])
                  : new_tensor_like(&x, made->sizes, dtype, made->strides, &c->view[r]));
}

void norm_call_make_dense(norm_call *c, role r, uint64_t axes, bool whole, int32_t dtype) {
    const DLTensor *x = &c->view[ROLE_X];
    const uint64_t both = split_axes(c);
    const bool joins = both && !whole && (axes & both) == both;
    layout *made = &c->rooms[r];
    int32_t ndim = 0;
    for (int32_t i = 0; i < x->ndim; i++)
        if (joins && i == c->split_axis + 1)
            made->sizes[ndim - 1] *= x->shape[i];
        else if (axes & PLANISH_AXIS(i))
            made->sizes[ndim++] = x->shape[i];
        else if (whole)
            made->sizes[ndim++] = 1;
    made_is(c, r, new_dense_tensor(x, ndim, made->sizes, dtype, made->strides, &c->view[r]));
}

void norm_call_make_statistic(norm_call *c, role r) {
    if (!kind_lacks(c->op.kind, r))
        norm_call_make_dense(c, r, norm_call_kept_axes(c), true, torch.f64);
}

int64_t norm_call_rows(const norm_call *c) {
    const DLTensor *x = &c->view[ROLE_X];
    int64_t rows = 1;
    for (int32_t i = 0; i < x->ndim; i++)
        if (norm_call_kept_axes(c) & PLANISH_AXIS(i))
            rows *= x->shape[i];
    return rows;
}

double *norm_call_place(norm_call *c, const role roles[], int count, double *data) {
    const DLTensor *x = &c->view[ROLE_X];
    for (int k = 0; k < count; k++) {
        layout *placed = &c->rooms[roles[k]];
        for (int32_t i = 0; i < x->ndim; i++)
            placed->sizes[i] = norm_call_kept_axes(c) & PLANISH_AXIS(i) ? x->shape[i] : 1;
        contiguous_strides(x->ndim, placed->sizes, placed->strides);
        c->view[roles[k]] = (DLTensor){.data = data,
                                       .device = x->device,
                                       .ndim = x->ndim,
                                       .dtype = {kDLFloat, 64, 1},
                                       .shape = placed->sizes,
                                       .strides = placed->strides};
        c->list[roles[k]] = &c->view[roles[k]];
        data += norm_call_rows(c);
    }
    return data;
}

/* ---- Running ------------------------------------------------------------------------------ */

/* Puts a copy in the place of a tensor that was given. */
static void see_copy(norm_call *c, role r, new_tensor copy) {
    c->copies[r] = copy;
    c->view[r] = view_input(handle_of(&c->copies[r]));
    if (c->split_groups)
        see_split(c, r);
}

/* Not the running statistics, which are written where they lie. */
static void make_dense(norm_call *c) {
    for (int r = 0; r < ROLE_COUNT; r++)
        if (c->given[r] && types_of((role)r) == TYPES_REAL && !view_is_contiguous(&c->view[r]) &&
            r != ROLE_RUNNING_MEAN && r != ROLE_RUNNING_VAR) {
            free_new_tensor(&c->copies[r]);
            c->copies[r].impl = NULL;
            see_copy(c, (role)r, new_dense_copy(c->given[r]));
        }
}

/* Has what is of x's shape lie as torch.empty_like(x), which is how results lie, where that is not
 * row-major; false where all of it does. */
static bool lay_alike(norm_call *c) {
    layout whole, laid;
    const DLTensor x = whole_x(c, &whole);
    bool is_new = false;
    if (view_is_contiguous(&x))
        return false;
    strides_like(&x, laid.strides);
    for (int r = 0; r < ROLE_COUNT; r++) {
        if (!c->given[r] || types_of((role)r) != TYPES_REAL || axes_of((role)r) != AXES_FULL)
            continue;
        const DLTensor given = view_input(c->given[r]);
        if (!memcmp(laid.strides, given.strides, (size_t)x.ndim * sizeof *laid.strides))
            continue;
        DLTensor view;
        NEW_TENSOR copy =
            new_strided_tensor(&x, x.ndim, x.shape, laid.strides, view_dtype(&given), &view);
        torch_check(torch.copy(handle_of(&copy), c->given[r], 0));
        see_copy(c, (role)r, (new_tensor){give_tensor(&copy)});
        is_new = true;
    }
    return is_new;
}

static const role full_results[] = {ROLE_Y, ROLE_DX, ROLE_DADDEND};
enum { FULL_RESULTS = sizeof full_results / sizeof *full_results };

/* Row-major results, which are copied to where the call's are. */
typedef struct results_apart {
    new_tensor made[FULL_RESULTS];
    int64_t strides[FULL_RESULTS][PLANISH_MAX_NDIM];
} results_apart;

static void free_results(results_apart *apart) {
    for (int i = 0; i < FULL_RESULTS; i++)
        free_new_tensor(&apart->made[i]);
}

/* Where results lie in no order that kernels of batches know, the only ones that take some norms.
 */
static planish_status run_apart(norm_call *c, planish_pass pass, const planish_tensors *tensors,
                                const message error) {
    __attribute__((cleanup(free_results))) results_apart apart = {{{NULL}}, {{0}}};
    for (int i = 0; i < FULL_RESULTS; i++) {
        const role r = full_results[i];
        const DLTensor there = c->view[r];
        if (!c->made[r].impl)
            continue;
        contiguous_strides(there.ndim, there.shape, apart.strides[i]);
        apart.made[i] = new_dense_tensor(&there, there.ndim, there.shape, view_dtype(&there),
                                         apart.strides[i], &c->view[r]);
    }
    const planish_status status = run_norm(&c->op, pass, tensors, error);
    for (int i = 0; i < FULL_RESULTS && !status; i++)
        if (apart.made[i].impl)
            torch_check(
                torch.copy(handle_of(&c->made[full_results[i]]), handle_of(&apart.made[i]), 0));
    return status;
}

void norm_call_run(norm_call *c, planish_pass pass, bool into) {
    char text[512] = "";
    const message error = {text, sizeof text};
    const planish_tensors tensors = tensors_of_roles(c->list);
    planish_status status = into ? run_norm_into(&c->op, pass, &tensors, error)
                                 : run_norm_if_fast(&c->op, pass, &tensors, error);
    if (status == PLANISH_ERROR_NO_FAST_KERNEL) {
        if (lay_alike(c))
            status = run_norm_if_fast(&c->op, pass, &tensors, error);
        if (status == PLANISH_ERROR_NO_FAST_KERNEL) {
            make_dense(c);
            status = run_norm(&c->op, pass, &tensors, error);
        }
        if (status == PLANISH_ERROR_NO_FAST_KERNEL && !into && !c->split_groups)
            status = run_apart(c, pass, &tensors, error);
    }
    throw_status(status, text);
}

void norm_call_run_pair(norm_call *first, norm_call *second, planish_pass pass) {
    char text[512] = "";
    const message error = {text, sizeof text};
    const planish_tensors tensors[2] = {tensors_of_roles(first->list),
                                        tensors_of_roles(second->list)};
    const planish_norm *const ops[2] = {&first->op, &second->op};
    const planish_tensors *const both[2] = {&tensors[0], &tensors[1]};
    planish_status status = run_norm_pair(ops, pass, both, true, error);
    if (status == PLANISH_ERROR_NO_FAST_KERNEL) {
        make_dense(first);
        make_dense(second);
        status = run_norm_pair(ops, pass, both, false, error);
    }
    throw_status(status, text);
}

void norm_call_give(norm_call *c, stack_value *stack, const role roles[], int count) {
    for (int i = 0; i < count; i++) {
        tensor_handle tensor = NULL;
        torch_check(torch.new_undefined(&tensor));
        *(void **)tensor = give_tensor(&c->made[roles[i]]);
        stack[i] = (stack_value)(uintptr_t)tensor;
    }
}
