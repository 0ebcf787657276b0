/*
 * The short way of a bare batch norm: torch's operator, called as planish's own
 * (src/torch/own_call.h), or its kernel where nothing records the call. Only the plainest calls go
 * it, those of which torch would refuse nothing; all others are told to go the long way.
 */
#include "../torch/batch_views.h"
#include "../torch/calls.h"
#include "../torch/own_call.h"
#include "../torch/planish_torch.h"
#include "../torch/tensor.h"
#include "short_calls.h"
#include "tensors.h"

typedef enum { WEIGHT, BIAS, RUNNING_MEAN, RUNNING_VAR, VECTORS } vector;

/* The arguments, in the order of Python's. */
enum { AT_X, AT_VECTORS, AT_TRAINING = AT_VECTORS + VECTORS, AT_MOMENTUM, AT_EPS, ALL };

typedef struct {
    batch_arguments a;
    batch_habit habit;
    DLTensor x;
    int32_t dtype, vectors_dtype; /* the latter -1: there are none */
    returned_tensors made;
} batch_call;

/* A vector of x's channels, or None; all are of one dtype, which torch takes with x's. */
static bool take_vector(batch_call *c, object *given, tensor_handle *to) {
    DLTensor view;
    int32_t dtype = 0;
    *to = NULL;
    if (given == known[OBJECT_NONE])
        return true;
    if (!tensor_of(given, to) || !view_description(*to, &view) || !same_device(&c->x, &view) ||
        view.ndim != 1 || view.shape[0] != c->x.shape[1] || torch.get_dtype(*to, &dtype) != 0)
        return false;
    const bool mixed = view_is_half(&c->x) && dtype == torch.f32;
    const bool alike = c->vectors_dtype < 0 || c->vectors_dtype == dtype;
    c->vectors_dtype = dtype;
    return alike && (dtype == c->dtype || mixed);
}

/* A bias without a weight is of x's dtype: the backward does not see it, and would go by the
 * running statistics. */
static bool take_vectors(batch_call *c, object *const *given) {
    batch_arguments *a = &c->a;
    c->vectors_dtype = -1;
    if (!take_vector(c, given[WEIGHT], &a->weight) || !take_vector(c, given[BIAS], &a->bias) ||
        !take_vector(c, given[RUNNING_MEAN], &a->running_mean) ||
        !take_vector(c, given[RUNNING_VAR], &a->running_var))
        return false;
    if (a->bias && !a->weight && c->vectors_dtype != c->dtype)
        return false;
    if (!a->running_mean || !a->running_var)
        return !a->running_mean && !a->running_var;
    return !torch.requires_grad(*(void **)a->running_mean) &&
           !torch.requires_grad(*(void **)a->running_var);
}

/* Whether torch refuses nothing. */
static bool take_numbers(batch_call *c, object *const *arguments) {
    batch_arguments *a = &c->a;
    object *const training = arguments[AT_TRAINING];
    a->training = training == known[OBJECT_TRUE];
    a->momentum = python.to_double(arguments[AT_MOMENTUM]);
    a->eps = python.to_double(arguments[AT_EPS]);
    if (python.raised()) {
        python.forget_error();
        return false;
    }
    const int64_t elements = view_elements(&c->x);
    if (a->training)
        return elements > c->x.shape[1] && a->eps > 0;
    return training == known[OBJECT_FALSE] && elements > 0 && a->eps >= 0 && a->running_mean;
}

/* On a GPU kernels of batches take two orders of memory; of others the long way makes copies. */
static bool lies_well(batch_call *c) {
    int64_t dense[PLANISH_MAX_NDIM];
    if (c->habit == HABIT_CPU)
        return true;
    if (torch.get_strides(c->a.input, &c->x.strides) != 0)
        return false;
    return channels_last_strides(&c->x, dense) ? view_has_strides(&c->x, dense)
                                               : view_is_contiguous(&c->x);
}

static bool take(batch_call *c, object *const *arguments) {
    object *const x = arguments[AT_X];
    object *type = python.type_of(x);
    python.drop(type);
    if (type != known[TYPE_TENSOR] || !tensor_of(x, &c->a.input) || !is_quiet())
        return false;
    c->habit = tensor_is_on_cpu(c->a.input) ? HABIT_CPU : HABIT_CUDA;
    if (!(atomic_load(&staying_groups) & batch_group(c->habit)))
        return false;
    return view_description(c->a.input, &c->x) && c->x.ndim >= 2 && c->x.ndim <= PLANISH_MAX_NDIM &&
           lies_well(c) && torch.get_dtype(c->a.input, &c->dtype) == 0 && is_of_kernels(c->dtype) &&
           take_vectors(c, arguments + AT_VECTORS) && take_numbers(c, arguments);
}

static void run_kernel(int64_t begin, int64_t end, void *context) {
    batch_call *c = context;
    (void)begin, (void)end;
    own_call_begin_unrecorded();
    c->made = batch_norm_at_once(batch_backend(c->habit), true, &c->a);
}

/* The kernel that torch would call; NULL where another way has to be gone. */
static object *call_kernel(batch_call *c) {
    if (torch.has_callbacks())
        return NULL;
    const bool ran = run_caught(c->a.input, run_kernel, c);
    own_call_end_unrecorded();
    if (!ran)
        return NULL;
    NEW_TENSOR y = {c->made.impl[2]}, mean = {c->made.impl[1]}, rstd = {c->made.impl[0]};
    (void)mean, (void)rstd;
    return torch.python_tensor(handle_of(&y));
}

/* The first result of torch's operator; NULL where it raises, or where planish is not under it any
 * more: what another library's kernel made of such a call is nobody's. */
static object *call_torchs(const batch_call *c, object *const *arguments) {
    object *const *vectors = arguments + AT_VECTORS;
    const bool beside = c->a.training;
    object *const none = known[OBJECT_NONE];
    object *given[] = {arguments[AT_X],
                       vectors[WEIGHT],
                       vectors[BIAS],
                       beside ? none : vectors[RUNNING_MEAN],
                       beside ? none : vectors[RUNNING_VAR],
                       arguments[AT_TRAINING],
                       arguments[AT_MOMENTUM],
                       arguments[AT_EPS]};
    running_pair running = {NULL, NULL};
    if (beside)
        running = (running_pair){c->a.running_mean, c->a.running_var};
    own_call_begin(running);
    object *all =
        python.call(known[CALL_NATIVE_BATCH_NORM], given, sizeof given / sizeof *given, NULL);
    const bool passed = own_call_take_running(&running);
    object *y = all && !passed ? python.get_item(all, 0) : NULL;
    if (y)
        python.keep(y);
    if (all)
        python.drop(all);
    else
        python.forget_error();
    return y;
}

/*
 * (x, weight, bias, running_mean, running_var, training, momentum, eps): the batch norm, or None:
 * the call has to go the long way.
 */
object *python_batch_norm(object *self, object *const *arguments, ptrdiff_t count) {
    (void)self;
    batch_call c;
    if (count != ALL || !take(&c, arguments))
        return answer(OBJECT_NONE);
    object *const differentiated[] = {arguments[AT_X], arguments[AT_VECTORS + WEIGHT],
                                      arguments[AT_VECTORS + BIAS]};
    const bool recorded = is_recorded(differentiated, 3);
    if (recorded && !saves_well(c.a.input))
        return answer(OBJECT_NONE);
    object *y = recorded ? NULL : call_kernel(&c);
    if (!y)
        y = call_torchs(&c, arguments);
    return y ? y : answer(OBJECT_NONE);
}
