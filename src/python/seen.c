/*
 * What of torch's sees a call, and what calls have in common: asked at every one, so in C. Nothing
 * is decided here.
 */
#include <string.h>

#include "interpreter.h"

interpreter python;
object *known[OBJECT_COUNT];

object *answer(known_object of) {
    python.keep(known[of]);
    return known[of];
}

/* Of a new reference, which is dropped. */
static bool is(object *found, object *wanted) {
    if (!found) {
        python.forget_error();
        return false;
    }
    python.drop(found);
    return found == wanted;
}

bool attribute_is(object *of, known_object name, object *wanted) {
    return is(python.get_attribute(of, known[name]), wanted);
}

bool method_is(object *of, known_object name, object *wanted) {
    return is(python.call_method(known[name], &of, 1, NULL), wanted);
}

bool result_is(known_object function, object *wanted) {
    return is(python.call(known[function], NULL, 0, NULL), wanted);
}

bool result_of_is(known_object function, object *argument, object *wanted) {
    return is(python.call(known[function], &argument, 1, NULL), wanted);
}

bool is_quiet(void) {
    return result_is(CALL_DISPATCH_MODES, known[OBJECT_ZERO]) &&
           result_is(CALL_FUNCTION_MODES, known[OBJECT_ZERO]) &&
           result_is(CALL_INTERPRETER, known[OBJECT_NONE]) &&
           result_is(CALL_TRACING_STATE, known[OBJECT_NONE]) &&
           attribute_is(known[MODULE_FORWARD_AD], NAME_LEVEL, known[OBJECT_MINUS_ONE]);
}

bool is_of_torchs(object *tensor) {
    object *type = python.type_of(tensor);
    python.drop(type);
    return type == known[TYPE_TENSOR] || type == known[TYPE_PARAMETER];
}

/* No lazy negation, no tensor of zeros without memory: what the kernels can read. */
static bool has_memory(object *tensor) {
    return is_of_torchs(tensor) && attribute_is(tensor, NAME_LAYOUT, known[LAYOUT_STRIDED]) &&
           attribute_is(tensor, NAME_IS_NESTED, known[OBJECT_FALSE]) &&
           method_is(tensor, NAME_IS_NEG, known[OBJECT_FALSE]) &&
           method_is(tensor, NAME_IS_ZERO, known[OBJECT_FALSE]);
}

object *python_is_quiet(object *self, object *const *arguments, ptrdiff_t count) {
    (void)self, (void)arguments, (void)count;
    return answer(is_quiet() ? OBJECT_TRUE : OBJECT_FALSE);
}

object *python_is_plain(object *self, object *const *arguments, ptrdiff_t count) {
    (void)self;
    bool plain = is_quiet();
    for (ptrdiff_t i = 0; i < count && plain; ++i)
        plain = arguments[i] == known[OBJECT_NONE] || has_memory(arguments[i]);
    return answer(plain ? OBJECT_TRUE : OBJECT_FALSE);
}

/* Sets what a tensor is known by; false: it raised. */
static bool put_parts(object *key, ptrdiff_t at, object *tensor) {
    static const known_object parts[] = {NAME_DTYPE, NAME_SHAPE, NAME_DEVICE};
    for (int i = 0; i < 3; ++i) {
        object *part = python.get_attribute(tensor, known[parts[i]]);
        if (!part || python.set_item(key, at + i, part) != 0) {
            python.forget_error();
            return false;
        }
    }
    return true;
}

object *key_of(object *options, object *tensors, object *dense) {
    if (!is_quiet())
        return answer(OBJECT_NONE);
    const ptrdiff_t number = python.tuple_size(tensors), others = python.tuple_size(dense);
    if (number < 0 || others < 0)
        return NULL;
    for (ptrdiff_t i = 0; i < others; ++i) {
        object *tensor = python.get_item(dense, i);
        if (tensor != known[OBJECT_NONE] &&
            !(is_of_torchs(tensor) && method_is(tensor, NAME_IS_CONTIGUOUS, known[OBJECT_TRUE])))
            return answer(OBJECT_NONE);
    }
    object *key = python.new_tuple(1 + 3 * number);
    if (!key)
        return NULL;
    python.keep(options);
    bool whole = python.set_item(key, 0, options) == 0;
    for (ptrdiff_t i = 0; i < number && whole; ++i) {
        object *tensor = python.get_item(tensors, i);
        if (tensor == known[OBJECT_NONE]) {
            for (int part = 0; part < 3; ++part)
                whole = python.set_item(key, 1 + 3 * i + part, answer(OBJECT_NONE)) == 0 && whole;
        } else {
            whole = has_memory(tensor) && put_parts(key, 1 + 3 * i, tensor);
        }
    }
    if (whole)
        return key;
    python.drop(key);
    return answer(OBJECT_NONE);
}

/* (options, tensors, dense): the last two tuples of tensors or None. */
object *python_key_of(object *self, object *const *arguments, ptrdiff_t count) {
    (void)self;
    return count == 3 ? key_of(arguments[0], arguments[1], arguments[2]) : answer(OBJECT_NONE);
}

void *planish_python_functions(void *const *functions, size_t count, void *objects) {
    static const method methods[] = {
        {"is_quiet", python_is_quiet, METHOD_FAST, NULL},
        {"is_plain", python_is_plain, METHOD_FAST, NULL},
        {"key_of", python_key_of, METHOD_FAST, NULL},
        {"known", python_known, METHOD_FAST, NULL},
        {"runs_torchs", python_runs_torchs, METHOD_FAST, NULL},
        {"norm", python_norm, METHOD_FAST, NULL},
    };
    enum { METHODS = sizeof methods / sizeof *methods };
    if (count * sizeof *functions != sizeof python)
        return NULL;
    memcpy(&python, functions, sizeof python);
    if (python.tuple_size(objects) != OBJECT_COUNT)
        return NULL;
    for (int i = 0; i < OBJECT_COUNT; ++i)
        known[i] = python.get_item(objects, i);
    object *made = python.new_tuple(METHODS);
    for (int i = 0; made && i < METHODS; ++i) {
        object *function = python.new_function(&methods[i], NULL, NULL);
        if (!function || python.set_item(made, i, function) != 0)
            return NULL;
    }
    return made;
}
