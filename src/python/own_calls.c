/*
 * planish's operators called by their kernels at once: neither the dispatcher nor the table of a
 * schema is asked. For tensors that only eager autograd sees and calls that it does not record.
 * What else sees a call has the long way, and so has what a kernel throws: torch has the words for
 * that.
 */
#include <string.h>

#include "../torch/own_operators.h"
#include "../torch/stack.h"
#include "tensors.h"

enum { MOST_ARGUMENTS = 24 };

typedef enum { TENSOR, OPTIONAL_TENSOR, WHOLE_NUMBER, NUMBER } kind;

/* What an operator takes and returns, out of its schema. */
typedef struct {
    boxed_kernel kernel;
    int arguments, results;
    kind kinds[MOST_ARGUMENTS];
} signature;

static signature signatures[MOST_OWN_CALLS];

static kind kind_of(const char *type, size_t length) {
    if (!strncmp(type, "Tensor", strlen("Tensor")))
        return type[length - 1] == '?' ? OPTIONAL_TENSOR : TENSOR;
    return *type == 'i' ? WHOLE_NUMBER : NUMBER;
}

static signature signature_of(const own_operator *op) {
    signature made = {.kernel = op->kernel};
    const char *results = strstr(op->schema, "->");
    for (const char *at = strchr(op->schema, '(') + 1; at < results;) {
        const size_t length = strcspn(at, " ");
        made.kinds[made.arguments++] = kind_of(at, length);
        at += length;
        at += strcspn(at, ",)") + 1;
        at += strspn(at, " ");
    }
    while ((results = strstr(results + 1, "Tensor")))
        made.results++;
    return made;
}

int own_calls_count(void) {
    int count = 0;
    while (count < MOST_OWN_CALLS && own_operator_at(count))
        count++;
    return count;
}

const char *own_call_name(int index, char *name, size_t room) {
    signatures[index] = signature_of(own_operator_at(index));
    const char *schema = own_operator_at(index)->schema;
    const size_t length = strcspn(schema, "(");
    if (length >= room)
        return NULL;
    memcpy(name, schema, length);
    name[length] = 0;
    return name;
}

/* ---- The stack ---------------------------------------------------------------------------- */

static bool put_tensor(object *given, kind as, stack_value *to) {
    tensor_handle tensor, owned = NULL;
    if (given == known[OBJECT_NONE]) {
        *to = 0;
        return as == OPTIONAL_TENSOR;
    }
    if (!tensor_of(given, &tensor) || torch.new_handle(tensor, &owned) != 0)
        return false;
    *to = (stack_value)(uintptr_t)owned;
    if (as == OPTIONAL_TENSOR)
        *to = give_optional(*to);
    return true;
}

static void take_back(kind as, stack_value value) {
    OWNED_TENSOR tensor = NULL;
    if (as == TENSOR)
        tensor = take_tensor(value);
    else if (as == OPTIONAL_TENSOR)
        tensor = take_optional_tensor(value);
}

static bool put_number(object *given, kind as, stack_value *to) {
    if (as == WHOLE_NUMBER)
        *to = (stack_value)python.to_long(given);
    else
        *to = give_double(python.to_double(given));
    if (!python.raised())
        return true;
    python.forget_error();
    return false;
}

/* False: nothing is left on it. */
static bool put(const signature *s, object *const *arguments, stack_value *stack) {
    for (int i = 0; i < s->arguments; i++) {
        const kind as = s->kinds[i];
        const bool done = as <= OPTIONAL_TENSOR ? put_tensor(arguments[i], as, &stack[i])
                                                : put_number(arguments[i], as, &stack[i]);
        if (done)
            continue;
        while (i--)
            take_back(s->kinds[i], stack[i]);
        return false;
    }
    return true;
}

/* ---- The call ----------------------------------------------------------------------------- */

typedef struct {
    const signature *of;
    stack_value *stack;
} work;

static void run_kernel(int64_t begin, int64_t end, void *context) {
    const work *w = context;
    (void)begin, (void)end;
    w->of->kernel(w->stack, (uint64_t)w->of->arguments, (uint64_t)w->of->results);
}

/* A tensor's object, new; the tensor goes. */
static object *object_of(stack_value value) {
    OWNED_TENSOR tensor = take_tensor(value);
    return torch.python_tensor(tensor);
}

static object *results_of(const signature *s, const stack_value *stack) {
    if (s->results == 0)
        return answer(OBJECT_NONE);
    if (s->results == 1)
        return object_of(stack[0]);
    object *all = python.new_tuple(s->results);
    for (int i = 0; i < s->results; i++) {
        object *one = object_of(stack[i]);
        if (all)
            python.set_item(all, i, one);
    }
    return all;
}

object *own_call(int op, object *const *arguments) {
    const signature *s = &signatures[op];
    stack_value stack[MOST_ARGUMENTS];
    tensor_handle x;
    if (!tensor_of(arguments[0], &x) || torch.has_callbacks() || !put(s, arguments, stack))
        return NULL;
    work w = {s, stack};
    return run_caught(x, run_kernel, &w) ? results_of(s, stack) : NULL;
}

object *python_own_call(object *self, object *const *arguments, ptrdiff_t count) {
    const int op = (int)python.to_long(self);
    object *results = count == signatures[op].arguments ? own_call(op, arguments) : NULL;
    return results ? results : answer(OBJECT_NOT_IMPLEMENTED);
}
