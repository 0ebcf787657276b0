/*
 * What of torch's sees a call, and what calls have in common: asked at every one, so in C. Nothing
 * is decided here.
 */
#include <string.h>

#include "tensors.h"

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

/* By libtorch's own functions, which Python's go to. */
static bool libtorch_is_quiet(void) {
    void *const *transforms = torch.transforms();
    return torch.dispatch_modes() == 0 && torch.function_modes() == 0 &&
           transforms[0] == transforms[1] && !*torch.tracing();
}

static bool python_says_quiet(void) {
    return result_is(CALL_DISPATCH_MODES, known[OBJECT_ZERO]) &&
           result_is(CALL_FUNCTION_MODES, known[OBJECT_ZERO]) &&
           result_is(CALL_INTERPRETER, known[OBJECT_NONE]) &&
           result_is(CALL_TRACING_STATE, known[OBJECT_NONE]);
}

bool is_quiet(void) {
    return (tensors_are_known() ? libtorch_is_quiet() : python_says_quiet()) &&
           attribute_is(known[MODULE_FORWARD_AD], NAME_LEVEL, known[OBJECT_MINUS_ONE]);
}

bool is_of_torchs(object *tensor) {
    object *type = python.type_of(tensor);
    python.drop(type);
    return type == known[TYPE_TENSOR] || type == known[TYPE_PARAMETER];
}

/* No lazy negation, no tensor of zeros without memory: what the kernels can read. */
static bool has_memory(object *tensor) {
    tensor_handle plain;
    if (tensor_of(tensor, &plain))
        return true;
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

enum { NAME_ROOM = 32 };

/* The function that calls planish's operator of this number. */
static const method *own_method(int index) {
    static char names[MOST_OWN_CALLS][NAME_ROOM];
    static method methods[MOST_OWN_CALLS];
    const char *name = own_call_name(index, names[index], NAME_ROOM);
    methods[index] = (method){name, python_own_call, METHOD_FAST, NULL};
    return &methods[index];
}

void *planish_python_functions(void *const *functions, size_t count, void *objects) {
    static const method methods[] = {
        {"is_quiet", python_is_quiet, METHOD_FAST, NULL},
        {"is_plain", python_is_plain, METHOD_FAST, NULL},
        {"is_recorded", python_is_recorded, METHOD_FAST, NULL},
        {"key_of", python_key_of, METHOD_FAST, NULL},
        {"known", python_known, METHOD_FAST, NULL},
        {"runs_torchs", python_runs_torchs, METHOD_FAST, NULL},
        {"norm", python_norm, METHOD_FAST, NULL},
        {"batch_norm", python_batch_norm, METHOD_FAST, NULL},
        {"know_tensors", python_know_tensors, METHOD_FAST, NULL},
    };
    enum { METHODS = sizeof methods / sizeof *methods };
    if (count * sizeof *functions != sizeof python)
        return NULL;
    memcpy(&python, functions, sizeof python);
    if (python.tuple_size(objects) != OBJECT_COUNT)
        return NULL;
    for (int i = 0; i < OBJECT_COUNT; ++i)
        known[i] = python.get_item(objects, i);
    const int own = own_calls_count();
    object *made = python.new_tuple(METHODS + own);
    for (int i = 0; made && i < METHODS + own; ++i) {
        object *number = python.from_long(i - METHODS);
        object *function =
            python.new_function(i < METHODS ? &methods[i] : own_method(i - METHODS), number, NULL);
        python.drop(number);
        if (!function || python.set_item(made, i, function) != 0)
            return NULL;
    }
    return made;
}
