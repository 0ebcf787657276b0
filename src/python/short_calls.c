/*
 * The short way of a bare norm: torch's operator, which planish is under, called as planish's own
 * (src/torch/own_call.h). What is asked first is what the long way asks, but only of the plainest
 * calls; all others are told to go that way, errors included.
 */
#include "../torch/calls.h"
#include "../torch/planish_torch.h"
#include "interpreter.h"

/* torch's operators, as quick.py numbers them. */
typedef enum { OF_LAYERS, OF_GROUPS, OF_RMS, OF_BATCHES, OPERATORS } torchs;

static const uint32_t groups[OPERATORS][2] = {
    {PLANISH_TORCH_LAYER_NORM, PLANISH_TORCH_CUDA_LAYER_NORM},
    {PLANISH_TORCH_GROUP_NORM, PLANISH_TORCH_CUDA_GROUP_NORM},
    {PLANISH_TORCH_RMS_NORM, PLANISH_TORCH_CUDA_RMS_NORM},
    {PLANISH_TORCH_BATCH_NORM, PLANISH_TORCH_CUDA_BATCH_NORM},
};

/* x's dtype, borrowed from what is known; NULL for another. */
static object *dtype_of(object *x) {
    object *dtype = python.get_attribute(x, known[NAME_DTYPE]);
    if (!dtype) {
        python.forget_error();
        return NULL;
    }
    python.drop(dtype);
    for (int i = DTYPE_F16; i <= DTYPE_F64; ++i) {
        if (dtype == known[i])
            return known[i];
    }
    return NULL;
}

/* Whether these kernels stand under torch's operator for x. A call of planish's own that autocast
 * would see is not theirs. */
static bool is_under(torchs op, object *x, uint32_t *group) {
    const bool cpu = attribute_is(x, NAME_IS_CPU, known[OBJECT_TRUE]);
    if (!cpu && !attribute_is(x, NAME_IS_CUDA, known[OBJECT_TRUE]))
        return false;
    *group = groups[op][!cpu];
    if (group_is_active(*group))
        return true;
    return atomic_load(&staying_groups) & *group && result_is(CALL_AUTOCAST, known[OBJECT_FALSE]);
}

/* What autograd saves for a derivative may be no tensor that was made in inference mode, and hooks
 * see it. */
static bool saves_well(object *x) {
    return result_is(CALL_GRAD_MODE, known[OBJECT_FALSE]) ||
           (result_of_is(CALL_SAVED_HOOKS, known[OBJECT_TRUE], known[OBJECT_NONE]) &&
            method_is(x, NAME_IS_INFERENCE, known[OBJECT_FALSE]));
}

static bool fits(torchs op, object *dtype, object *parameter) {
    if (parameter == known[OBJECT_NONE])
        return true;
    if (!is_of_torchs(parameter))
        return false;
    if (attribute_is(parameter, NAME_DTYPE, dtype))
        return true;
    return op == OF_BATCHES && (dtype == known[DTYPE_F16] || dtype == known[DTYPE_BF16]) &&
           attribute_is(parameter, NAME_DTYPE, known[DTYPE_F32]);
}

static bool runs(torchs op, object *x, object *const *parameters, ptrdiff_t count,
                 uint32_t *group) {
    object *type = python.type_of(x);
    python.drop(type);
    if (type != known[TYPE_TENSOR] || !is_quiet() || !is_under(op, x, group))
        return false;
    if (op == OF_BATCHES ? !group_is_active(*group)
                         : !method_is(x, NAME_IS_CONTIGUOUS, known[OBJECT_TRUE]))
        return false;
    object *dtype = dtype_of(x);
    if (!dtype || !saves_well(x))
        return false;
    for (ptrdiff_t i = 0; i < count; ++i) {
        if (!fits(op, dtype, parameters[i]))
            return false;
    }
    return true;
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
    uint32_t group;
    if (count < 2 || !operator_of(arguments[0], &op))
        return answer(OBJECT_FALSE);
    return answer(runs(op, arguments[1], arguments + 2, count - 2, &group) ? OBJECT_TRUE
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

/*
 * (operator, x, size, weight, bias, eps): y of layer_norm, group_norm or rms_norm, where
 * runs_torchs holds. `size` is normalized_shape or num_groups; None: the last axis. None comes back
 * for any other call, and for one that torch refuses: the long way has the words for it.
 */
object *python_norm(object *self, object *const *arguments, ptrdiff_t count) {
    (void)self;
    torchs op;
    uint32_t group;
    if (count != 6 || !operator_of(arguments[0], &op) || op == OF_BATCHES)
        return answer(OBJECT_NONE);
    object *const x = arguments[1], *const bias = arguments[4], *size = arguments[2];
    if ((op == OF_RMS && bias != known[OBJECT_NONE]) || !runs(op, x, arguments + 3, 2, &group))
        return answer(OBJECT_NONE);
    const bool last = size == known[OBJECT_NONE];
    if (last && !(size = last_size(x)))
        return answer(OBJECT_NONE);
    object *y = call_torchs(op, group, x, size, arguments + 3);
    if (last)
        python.drop(size);
    if (y)
        return y;
    python.forget_error();
    return answer(OBJECT_NONE);
}
