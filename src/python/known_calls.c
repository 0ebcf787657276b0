/*
 * Calls of planish's norm_forward that are known from before (python/planish/operators/kept.py),
 * made at once where autograd records nothing of them.
 */
#include "interpreter.h"

/* norm_forward takes the dispatch keys, so many tensors, and a tuple of so many numbers, of which
 * the last is the probability of dropout. Of three tensors these are x, weight and bias. */
enum { TENSORS = 10, NUMBERS = 5, ALONE = 3, WEIGHT = 5, BIAS = 6, DROPOUT_P = 4 };

/* Which element of what is kept has the numbers of a call without a graph. */
enum { NUMBERS_AT = 1 };

/* False, too, where that cannot be asked. */
static bool needs_no_graph(object *const *tensors) {
    if (result_is(CALL_GRAD_MODE, known[OBJECT_FALSE]))
        return true;
    for (int i = 0; i < TENSORS; ++i) {
        if (tensors[i] != known[OBJECT_NONE] &&
            !attribute_is(tensors[i], NAME_REQUIRES_GRAD, known[OBJECT_FALSE]))
            return false;
    }
    return true;
}

/* Fills in the keys and the tensors; false: no such call. */
static bool spread(object *tensors, object **arguments) {
    const ptrdiff_t count = python.tuple_size(tensors);
    if (count != TENSORS && count != ALONE)
        return false;
    for (int i = 1; i <= TENSORS; ++i)
        arguments[i] = count == TENSORS ? python.get_item(tensors, i - 1) : known[OBJECT_NONE];
    if (count == ALONE) {
        arguments[1] = python.get_item(tensors, 0);
        arguments[1 + WEIGHT] = python.get_item(tensors, 1);
        arguments[1 + BIAS] = python.get_item(tensors, 2);
    }
    if (attribute_is(arguments[1], NAME_IS_CPU, known[OBJECT_TRUE]))
        arguments[0] = known[KEYS_CPU];
    else if (attribute_is(arguments[1], NAME_IS_CUDA, known[OBJECT_TRUE]))
        arguments[0] = known[KEYS_CUDA];
    else
        return false;
    return true;
}

/* The operator's results, new; None where the call is another, or raises: the long way has the
 * words for that. */
static object *run(object *numbers, object *tensors) {
    object *arguments[1 + TENSORS + NUMBERS];
    if (python.tuple_size(numbers) != NUMBERS ||
        python.is_true(python.get_item(numbers, DROPOUT_P)) != 0 || !spread(tensors, arguments) ||
        !needs_no_graph(arguments + 1) ||
        !attribute_is(known[MODULE_PROFILER], NAME_IS_PROFILED, known[OBJECT_FALSE]))
        return answer(OBJECT_NONE);
    for (int i = 0; i < NUMBERS; ++i)
        arguments[1 + TENSORS + i] = python.get_item(numbers, i);
    object *results = python.call(known[CALL_NORM_FORWARD], arguments, 1 + TENSORS + NUMBERS, NULL);
    if (results)
        return results;
    python.forget_error();
    return answer(OBJECT_NONE);
}

/*
 * (calls, type, options, tensors, dense): (results of norm_forward or None, key or None, what
 * `calls` has by that key or None). The call is made if that is of this type.
 */
object *python_known(object *self, object *const *arguments, ptrdiff_t count) {
    (void)self;
    if (count != 5)
        return answer(OBJECT_NONE);
    object *key = key_of(arguments[2], arguments[3], arguments[4]);
    if (!key)
        return NULL;
    object *results = NULL;
    object *prepared = key == known[OBJECT_NONE] ? NULL : python.find(arguments[0], key);
    if (prepared) {
        python.keep(prepared);
        object *type = python.type_of(prepared);
        if (type == arguments[1])
            results = run(python.get_item(prepared, NUMBERS_AT), arguments[3]);
        python.drop(type);
    } else {
        python.forget_error(); /* an option that has no hash */
    }
    object *const found[] = {results ? results : answer(OBJECT_NONE), key,
                             prepared ? prepared : answer(OBJECT_NONE)};
    object *all = python.new_tuple(3);
    for (int i = 0; all && i < 3; ++i) {
        if (python.set_item(all, i, found[i]) != 0)
            return NULL;
    }
    return all;
}
