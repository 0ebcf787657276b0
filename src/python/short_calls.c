/*
 * The short way of a bare norm: torch's operator, which planish is under, called as planish's own
 * (src/torch/own_call.h). What is asked first is what the long way asks, but only of the plainest
 * calls; all others are told to go that way, errors included.
 */
#include "short_calls.h"
#include "../torch/calls.h"
#include "../torch/own_call.h"
#include "../torch/planish_torch.h"
#include "../torch/tensor.h"
#include "tensors.h"

/* torch's operators, as quick.py numbers them. */
typedef enum { OF_LAYERS, OF_GROUPS, OF_RMS, OF_BATCHES, OPERATORS } torchs;

static const uint32_t groups[OPERATORS][2] = {
    {PLANISH_TORCH_LAYER_NORM, PLANISH_TORCH_CUDA_LAYER_NORM},
    {PLANISH_TORCH_GROUP_NORM, PLANISH_TORCH_CUDA_GROUP_NORM},
    {PLANISH_TORCH_RMS_NORM, PLANISH_TORCH_CUDA_RMS_NORM},
    {PLANISH_TORCH_BATCH_NORM, PLANISH_TORCH_CUDA_BATCH_NORM},
};

/* Whether these kernels stand under torch's operator for x. A call of planish's own that autocast
 * would see is not theirs. */
static bool is_under(torchs op, tensor_handle x, uint32_t *group) {
    *group = groups[op][!tensor_is_on_cpu(x)];
    if (group_is_active(*group))
        return true;
    return atomic_load(&staying_groups) & *group && result_is(CALL_AUTOCAST, known[OBJECT_FALSE]);
}

bool saves_well(tensor_handle x) {
    return !tensor_is_inference(x) &&
           result_of_is(CALL_SAVED_HOOKS, known[OBJECT_TRUE], known[OBJECT_NONE]);
}

bool is_of_kernels(int32_t dtype) {
    return dtype == torch.f32 || dtype == torch.bf16 || dtype == torch.f16 || dtype == torch.f64;
}

static bool fits(torchs op, int32_t dtype, object *parameter) {
    tensor_handle tensor;
    int32_t its = 0;
    if (parameter == known[OBJECT_NONE])
        return true;
    if (!tensor_of(parameter, &tensor) || torch.get_dtype(tensor, &its) != 0)
        return false;
    return its == dtype ||
           (op == OF_BATCHES && its == torch.f32 && (dtype == torch.f16 || dtype == torch.bf16));
}

/* What there is to know of a call that is planish's. */
typedef struct {
    tensor_handle x;
    uint32_t group;
    bool recorded; /* by autograd */
} short_call;

static bool runs(torchs op, object *x, object *const *parameters, ptrdiff_t count,
                 short_call *call) {
    int32_t dtype = 0;
    object *type = python.type_of(x);
    python.drop(type);
    if (type != known[TYPE_TENSOR] || !tensor_of(x, &call->x) || !is_quiet() ||
        !is_under(op, call->x, &call->group))
        return false;
    if (op == OF_BATCHES ? !group_is_active(call->group) : !tensor_is_contiguous(call->x))
        return false;
    if (torch.get_dtype(call->x, &dtype) != 0 || !is_of_kernels(dtype))
        return false;
    for (ptrdiff_t i = 0; i < count; ++i) {
        if (!fits(op, dtype, parameters[i]))
            return false;
    }
    call->recorded = is_recorded(&x, 1) || is_recorded(parameters, (int)count);
    return !call->recorded || saves_well(call->x);
}

static bool operator_of(object *number, torchs *op) {
    const long value = python.to_long(number);
    if (value < 0)
        python.forget_error();
    *op = (torchs)value;
    return value >= 0 && value < OPERATORS;
}

/* (operator, x, parameter...): whether a call of torch's operator is planish's to run, with nothing
 * to decide. */
object *python_runs_torchs(object *self, object *const *arguments, ptrdiff_t count) {
    (void)self;
    torchs op;
    short_call call;
    if (count < 2 || !operator_of(arguments[0], &op))
        return answer(OBJECT_FALSE);
    return answer(runs(op, arguments[1], arguments + 2, count - 2, &call) ? OBJECT_TRUE
                                                                          : OBJECT_FALSE);
}

/* (x.size(-1),), new. */
static object *last_size(object *x) {
    object *given[] = {x, known[OBJECT_MINUS_ONE]};
    object *size = python.call_method(known[NAME_SIZE], given, 2, NULL);
    object *sizes = size ? python.new_tuple(1) : NULL;
    if (sizes && python.set_item(sizes, 0, size) == 0)
        return sizes;
    python.forget_error();
    return NULL;
}

/* Calls torch's operator, as planish's own unless what is enabled decides as it does for torch. */
static object *call_torchs(torchs op, uint32_t group, object *x, object *size,
                           object *const *rest) {
    const bool enabled = group_is_active(group);
    object *const weight = rest[0], *const bias = rest[1], *const eps = rest[2];
    if (op == OF_RMS) {
        object *given[] = {x, size, weight, eps};
        if (enabled)
            return python.call(known[CALL_RMS_NORM], given, 4, NULL);
        planish_torch_own_begin();
        const bool cpu = group == PLANISH_TORCH_RMS_NORM;
        object *both =
            python.call(known[cpu ? CALL_FUSED_RMS_NORM_CPU : CALL_FUSED_RMS_NORM], given, 4, NULL);
        planish_torch_own_end();
        if (!both)
            return NULL;
        object *y = python.get_item(both, 0);
        python.keep(y);
        python.drop(both);
        return y;
    }
    object *given[] = {x, size, weight, bias, eps};
    if (op == OF_GROUPS && enabled)
        return python.call(known[CALL_GROUP_NORM], given, 5, NULL);
    /* Layer norm also while it is enabled: right to every order, which torch's derivative is not */
    planish_torch_own_begin();
    object *y =
        python.call(known[op == OF_GROUPS ? CALL_GROUP_NORM : CALL_LAYER_NORM], given, 5, NULL);
    planish_torch_own_end();
    return y;
}

/* ---- Without the dispatcher --------------------------------------------------------------- */

/* A norm that autograd does not record. */
typedef struct {
    torchs op;
    backend whose;
    bool own;
    tensor_handle x;
    DLTensor view; /* of x, without strides */
    int64_t sizes[PLANISH_MAX_NDIM];
    int64_t count; /* of sizes, or of groups */
    optional_tensor weight, bias;
    optional_double eps;
    returned_tensors made;
} kernel_call;

static void run_kernel(int64_t begin, int64_t end, void *context) {
    kernel_call *c = context;
    const int_array_ref shape = {c->sizes, (size_t)c->count};
    (void)begin, (void)end;
    own_call_begin_unrecorded();
    if (c->op == OF_LAYERS) {
        c->made =
            layer_norm_at_once(c->whose, c->own, c->x, shape, &c->weight, &c->bias, c->eps.value);
    } else if (c->op == OF_RMS) {
        c->made = rms_norm_at_once(c->whose, c->x, shape, &c->weight, c->eps);
    } else {
        const int64_t batch = c->view.shape[0], channels = c->view.shape[1];
        const int64_t pixels = view_elements(&c->view) / (batch * channels);
        c->made = group_norm_at_once(c->whose, c->own, c->x, &c->weight, &c->bias, batch, channels,
                                     pixels, c->count, c->eps.value);
    }
}

/* Of a parameter beside x, or None; of a group norm it has to be a vector of x's channels. */
static bool take_parameter(const kernel_call *c, object *given, optional_tensor *to) {
    tensor_handle tensor;
    DLTensor view;
    *to = (optional_tensor){NULL, false};
    if (given == known[OBJECT_NONE])
        return true;
    if (!tensor_of(given, &tensor) || !view_description(tensor, &view) ||
        !same_device(&c->view, &view))
        return false;
    *to = (optional_tensor){*(void **)tensor, true};
    return c->op != OF_GROUPS ||
           (view.ndim == 1 && view.shape[0] == c->view.shape[1] && tensor_is_contiguous(tensor));
}

/* normalized_shape; without one, the last axis. */
static bool take_shape(object *size, kernel_call *c) {
    const DLTensor *x = &c->view;
    if (size == known[OBJECT_NONE]) {
        c->count = 1;
        c->sizes[0] = x->ndim ? x->shape[x->ndim - 1] : 0;
        return x->ndim > 0;
    }
    c->count = python.tuple_size(size);
    for (int64_t i = 0; i < c->count && c->count <= PLANISH_MAX_NDIM; ++i)
        c->sizes[i] = python.to_long(python.get_item(size, i));
    return c->count > 0 && c->count <= PLANISH_MAX_NDIM;
}

/* num_groups, where torch's function would refuse nothing. */
static bool take_groups(object *size, kernel_call *c) {
    c->count = python.to_long(size);
    return c->view.ndim >= 2 && view_elements(&c->view) > 0 && c->count > 0 &&
           c->view.shape[1] % c->count == 0;
}

static bool take_call(kernel_call *c, object *size, object *const *rest) {
    if (!view_description(c->x, &c->view) || c->view.ndim > PLANISH_MAX_NDIM)
        return false;
    const bool fits = c->op == OF_GROUPS ? take_groups(size, c) : take_shape(size, c);
    c->eps.engaged = c->op != OF_RMS || rest[2] != known[OBJECT_NONE];
    if (c->eps.engaged)
        c->eps.value = python.to_double(rest[2]);
    if (python.raised()) {
        python.forget_error();
        return false;
    }
    return fits && take_parameter(c, rest[0], &c->weight) && take_parameter(c, rest[1], &c->bias);
}

/* The kernel that torch would call, with what torch would give it; NULL: another way has to be
 * gone, which has the words where this one raised. */
static object *call_kernel(torchs op, const short_call *call, object *size, object *const *rest) {
    kernel_call c = {.op = op, .x = call->x};
    c.whose = tensor_is_on_cpu(call->x) ? BACKEND_CPU : BACKEND_CUDA;
    c.own = op == OF_LAYERS || !group_is_active(call->group);
    if (torch.has_callbacks() || !take_call(&c, size, rest))
        return NULL;
    const bool ran = run_caught(c.x, run_kernel, &c);
    own_call_end_unrecorded();
    if (!ran)
        return NULL;
    NEW_TENSOR y = {c.made.impl[2]}, mean = {c.made.impl[1]}, rstd = {c.made.impl[0]};
    (void)mean, (void)rstd;
    return torch.python_tensor(handle_of(&y));
}

/*
 * (operator, x, size, weight, bias, eps): y of layer_norm, group_norm or rms_norm, where
 * runs_torchs holds. `size` is normalized_shape or num_groups; None: the last axis. None comes back
 * for any other call, and for one that torch refuses: the long way has the words for it.
 */
object *python_norm(object *self, object *const *arguments, ptrdiff_t count) {
    (void)self;
    torchs op;
    short_call call;
    if (count != 6 || !operator_of(arguments[0], &op) || op == OF_BATCHES)
        return answer(OBJECT_NONE);
    object *const x = arguments[1], *const bias = arguments[4], *size = arguments[2];
    if ((op == OF_RMS && bias != known[OBJECT_NONE]) || !runs(op, x, arguments + 3, 2, &call))
        return answer(OBJECT_NONE);
    object *at_once = call.recorded ? NULL : call_kernel(op, &call, size, arguments + 3);
    if (at_once)
        return at_once;
    const bool last = size == known[OBJECT_NONE];
    if (last && !(size = last_size(x)))
        return answer(OBJECT_NONE);
    object *y = call_torchs(op, call.group, x, size, arguments + 3);
    if (last)
        python.drop(size);
    if (y)
        return y;
    python.forget_error();
    return answer(OBJECT_NONE);
}
