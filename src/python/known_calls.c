/*
 * Calls of planish's norm_forward that are known from before (python/planish/operators/kept.py),
 * made at once where autograd records nothing of them.
 */
#include <string.h>

#include "../torch/norm_operators.h"
#include "../torch/tensor.h"
#include "tensors.h"

/* norm_forward takes its tensors, and a tuple of so many numbers, of which the last is the
 * probability of dropout. Of three tensors these are x, weight and bias. */
enum { TENSORS = FORWARD_INPUTS, NUMBERS = 5, ALONE = 3, DROPOUT_P = 4 };

/* planish's operator of that name by its number, which is the first; which element of what is kept
 * has the numbers of a call without a graph. */
enum { NORM_FORWARD_OPERATOR = 0, NUMBERS_AT = 1 };

/* ---- What a call is kept under ------------------------------------------------------------ */

/* What a tensor is known by: all of it is in bytes without gaps. */
typedef struct {
    int16_t dtype, device, index, ndim;
} head;

enum { MOST_TENSORS = 12, KEY_ROOM = MOST_TENSORS * (sizeof(head) + 16 * sizeof(int64_t)) };

typedef struct {
    size_t length;
    char bytes[KEY_ROOM];
} description;

static void add(description *d, const void *bytes, size_t count) {
    memcpy(d->bytes + d->length, bytes, count);
    d->length += count;
}

/* False: it is not plain, has more axes than planish takes, or is not dense where it has to be. */
static bool describe(description *d, object *given, bool dense) {
    static const head none = {-1, -1, -1, -1};
    tensor_handle tensor;
    DLTensor view;
    int32_t dtype;
    if (given == known[OBJECT_NONE]) {
        add(d, &none, sizeof none);
        return true;
    }
    if (!tensor_of(given, &tensor) || torch.get_dtype(tensor, &dtype) != 0 ||
        !view_description(tensor, &view) || view.ndim > PLANISH_MAX_NDIM ||
        (dense && (torch.get_strides(tensor, &view.strides) != 0 || !view_is_contiguous(&view))))
        return false;
    const head about = {(int16_t)dtype, (int16_t)view.device.device_type,
                        (int16_t)view.device.device_id, (int16_t)view.ndim};
    add(d, &about, sizeof about);
    add(d, view.shape, (size_t)view.ndim * sizeof *view.shape);
    return true;
}

/* (options, what the tensors are), new; NULL: the description is NULL, or there is an exception. */
static object *new_key(object *options, const description *d) {
    object *bytes = python.new_bytes(d->bytes, (ptrdiff_t)d->length);
    object *key = bytes ? python.new_tuple(2) : NULL;
    if (!key)
        return NULL;
    python.keep(options);
    if (python.set_item(key, 0, options) != 0 || python.set_item(key, 1, bytes) != 0)
        return NULL;
    return key;
}

static bool has(object *tuple, object *wanted) {
    const ptrdiff_t count = python.tuple_size(tuple);
    for (ptrdiff_t i = 0; i < count; ++i)
        if (python.get_item(tuple, i) == wanted)
            return true;
    return false;
}

/* (options, tensors, dense): what a call of these is kept under, or None. The last two are tuples
 * of tensors or None. */
object *python_key_of(object *self, object *const *arguments, ptrdiff_t count) {
    (void)self;
    if (count != 3 || !is_quiet())
        return answer(OBJECT_NONE);
    object *const tensors = arguments[1], *const dense = arguments[2];
    const ptrdiff_t number = python.tuple_size(tensors);
    if (number < 0 || number > MOST_TENSORS || python.tuple_size(dense) < 0)
        return answer(OBJECT_NONE);
    description d = {.length = 0};
    for (ptrdiff_t i = 0; i < number; ++i) {
        object *tensor = python.get_item(tensors, i);
        if (!describe(&d, tensor, has(dense, tensor)))
            return answer(OBJECT_NONE);
    }
    return new_key(arguments[0], &d);
}

/* ---- Calls that are known ----------------------------------------------------------------- */

/* Fills in norm_forward's tensors; false: no such call. */
static bool spread(object *tensors, object **arguments) {
    static const role alone[ALONE] = {ROLE_X, ROLE_WEIGHT, ROLE_BIAS};
    const ptrdiff_t count = python.tuple_size(tensors);
    if (count != TENSORS && count != ALONE)
        return false;
    for (int i = 0, next = 0; i < TENSORS; ++i) {
        if (count == TENSORS)
            arguments[i] = python.get_item(tensors, i);
        else if (next < ALONE && forward_inputs[i] == alone[next])
            arguments[i] = python.get_item(tensors, next++);
        else
            arguments[i] = known[OBJECT_NONE];
    }
    return true;
}

/* Whether it has to be dense: others are copied on the long way where no kernel takes them. */
static bool is_dense(role r) {
    return r == ROLE_X || r == ROLE_RESIDUAL || r == ROLE_GATE;
}

/* The operator's results, new; NULL where the call is another, or raises: the long way has the
 * words for that. */
static object *run(object *numbers, object **arguments) {
    if (python.tuple_size(numbers) != NUMBERS ||
        python.is_true(python.get_item(numbers, DROPOUT_P)) != 0 || is_recorded(arguments, TENSORS))
        return NULL;
    for (int i = 0; i < NUMBERS; ++i)
        arguments[TENSORS + i] = python.get_item(numbers, i);
    return own_call(NORM_FORWARD_OPERATOR, arguments);
}

static object *three(object *first, object *second, object *third) {
    object *const found[] = {first, second, third};
    object *all = python.new_tuple(3);
    for (int i = 0; all && i < 3; ++i)
        if (python.set_item(all, i, found[i] ? found[i] : answer(OBJECT_NONE)) != 0)
            return NULL;
    return all;
}

/*
 * (calls, type, options, tensors): (results of norm_forward or None, key or None, what `calls` has
 * by that key or None). The call is made if that is of this type. x, the residual and the gate have
 * to be dense.
 */
object *python_known(object *self, object *const *arguments, ptrdiff_t count) {
    (void)self;
    object *given[TENSORS + NUMBERS];
    description d = {.length = 0};
    if (count != 4 || !is_quiet() || !spread(arguments[3], given))
        return three(NULL, NULL, NULL);
    for (int i = 0; i < TENSORS; ++i)
        if (!describe(&d, given[i], is_dense(forward_inputs[i])))
            return three(NULL, NULL, NULL);
    object *key = new_key(arguments[2], &d);
    if (!key)
        return NULL;
    object *results = NULL, *prepared = python.find(arguments[0], key);
    if (prepared) {
        python.keep(prepared);
        object *type = python.type_of(prepared);
        if (type == arguments[1])
            results = run(python.get_item(prepared, NUMBERS_AT), given);
        python.drop(type);
    } else {
        python.forget_error(); /* an option that has no hash */
    }
    return three(results, key, prepared);
}
