/*
 * The Python that has loaded the library: the functions of its stable interface that are called
 * here, and the objects of torch's that a call is looked at with. python/planish/library/quick.py
 * hands over both, in the order that they have here. No header of Python's is used and nothing is
 * linked: one libplanish.so serves every Python.
 *
 * All of it is used under the interpreter's lock, or on free-threaded builds by functions that need
 * none: what is handed over is written once, before the first call.
 */
#ifndef PLANISH_PYTHON_INTERPRETER_H
#define PLANISH_PYTHON_INTERPRETER_H

#include <stdbool.h>
#include <stddef.h>

#include "planish.h"

/* A PyObject, which only the interpreter looks into. */
typedef struct object object;

/* A function that Python calls with METH_FASTCALL: arguments are borrowed, the result is new, and
 * NULL stands for an exception. */
typedef object *(*fast_function)(object *self, object *const *arguments, ptrdiff_t count);

/* PyMethodDef. */
typedef struct {
    const char *name;
    fast_function function;
    int flags;
    const char *documentation;
} method;

enum { METHOD_FAST = 0x80 };

typedef struct {
    object *(*get_attribute)(object *of, object *name);
    object *(*call)(object *function, object *const *arguments, size_t count, object *names);
    object *(*call_method)(object *name, object *const *arguments, size_t count, object *names);
    object *(*type_of)(object *of);
    object *(*new_tuple)(ptrdiff_t size);
    int (*set_item)(object *tuple, ptrdiff_t index, object *item); /* takes the item */
    object *(*get_item)(object *tuple, ptrdiff_t index);           /* borrowed */
    ptrdiff_t (*tuple_size)(object *tuple);
    object *(*find)(object *dictionary, object *key); /* borrowed; NULL without an error: absent */
    int (*is_true)(object *of);
    long (*to_long)(object *number);
    double (*to_double)(object *number);
    object *(*from_long)(long number);
    object *(*new_bytes)(const char *bytes, ptrdiff_t count);
    object *(*new_function)(const method *definition, object *self, object *module);
    void (*keep)(object *of);
    void (*drop)(object *of);
    object *(*raised)(void); /* borrowed; NULL: there is no exception */
    void (*forget_error)(void);
    void *(*unlock)(void); /* gives the interpreter's lock back, */
    void (*lock)(void *unlocked);
} interpreter;

/* What is there for a call to be compared with. */
typedef enum {
    OBJECT_NONE,
    OBJECT_TRUE,
    OBJECT_FALSE,
    OBJECT_ZERO,
    OBJECT_MINUS_ONE,
    OBJECT_NOT_IMPLEMENTED,
    TYPE_TENSOR,
    TYPE_PARAMETER,
    LAYOUT_STRIDED,
    /* torch's functions */
    CALL_DISPATCH_MODES,
    CALL_FUNCTION_MODES,
    CALL_INTERPRETER,
    CALL_TRACING_STATE,
    CALL_SAVED_HOOKS,
    CALL_AUTOCAST,
    CALL_LAYER_NORM,
    CALL_GROUP_NORM,
    CALL_RMS_NORM,
    CALL_FUSED_RMS_NORM,
    CALL_FUSED_RMS_NORM_CPU,
    CALL_NATIVE_BATCH_NORM,
    MODULE_FORWARD_AD,
    /* names */
    NAME_LEVEL,
    NAME_LAYOUT,
    NAME_IS_NESTED,
    NAME_IS_NEG,
    NAME_IS_ZERO,
    NAME_SIZE,
    OBJECT_COUNT
} known_object;

extern interpreter python;
extern object *known[OBJECT_COUNT];

/*
 * Takes both; a tuple of the functions of this folder comes back: is_quiet, is_plain,
 * is_recorded, key_of, known, runs_torchs, norm, batch_norm, know_tensors, and planish's operators
 * by their names (own_calls.c). The tuple of objects has to live as long as the process. NULL:
 * there is an exception, or the functions, `count` of them, or the objects are not as many as here.
 */
PLANISH_API void *planish_python_functions(void *const *functions, size_t count, void *objects);

/* Whether no mode, transform or tracing of torch's sees calls. A graph that is compiled is looked
 * for in Python, where the compiler sees the question. */
bool is_quiet(void);

/* Whether a tensor is one of torch's own classes. */
bool is_of_torchs(object *tensor);

/* Whether an attribute, or what a method or function returns, is this object itself. What raises is
 * not. */
bool attribute_is(object *of, known_object name, object *wanted);
bool method_is(object *of, known_object name, object *wanted);
bool result_is(known_object function, object *wanted);
bool result_of_is(known_object function, object *argument, object *wanted);

/* The results of a call of planish's operator of this number by its kernel, new. NULL, without an
 * exception: another way has to be gone. */
object *own_call(int op, object *const *arguments);
enum { MOST_OWN_CALLS = 24 };
int own_calls_count(void);
/* Once for each, before the first call. */
const char *own_call_name(int index, char *name, size_t room);

/* A new reference to None, True or False. */
object *answer(known_object of);

object *python_is_quiet(object *self, object *const *arguments, ptrdiff_t count);
object *python_is_plain(object *self, object *const *arguments, ptrdiff_t count);
object *python_is_recorded(object *self, object *const *arguments, ptrdiff_t count);
object *python_key_of(object *self, object *const *arguments, ptrdiff_t count);
object *python_known(object *self, object *const *arguments, ptrdiff_t count);
object *python_runs_torchs(object *self, object *const *arguments, ptrdiff_t count);
object *python_norm(object *self, object *const *arguments, ptrdiff_t count);
object *python_batch_norm(object *self, object *const *arguments, ptrdiff_t count);
object *python_own_call(object *self, object *const *arguments, ptrdiff_t count);

#endif
