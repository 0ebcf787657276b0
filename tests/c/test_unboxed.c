/*
 * Calls without the boxed stack, on a libtorch made up here: whatever is not as torch 2.10 to 2.14
 * have it keeps them boxed, and nothing is written then.
 */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "torch/aoti.h"
#include "torch/unboxed.h"

/* What a case changes about the libtorch made up. */
typedef enum change {
    AS_IT_IS,
    OLDER,
    NEWER,
    NO_UPDATE,
    NO_FREE_KEY,
    KEY_IS_TAKEN,
    SLOTS_SWAPPED,
    NOT_TORCHS,
    OTHER_FUNCTOR,
    ALREADY_UNBOXED,
    TABLE_STAYS,
    EPS_LOST,
    CHANGE_COUNT
} change;

static const char *const change_names[CHANGE_COUNT] = {
    "as torch has it",
    "torch 2.9",
    "torch 2.15",
    "a function is missing",
    "no key is free",
    "the free key is taken",
    "the two pointers change places",
    "a pointer that is no function of libtorch",
    "a functor without the kernel",
    "a kernel that has such a function",
    "the table is not updated",
    "an argument arrives as another",
};

static change current;

typedef struct record {
    void *const *functor;
    void *boxed, *unboxed, *symbolic;
} record;

enum { CPU_KEY = 3, FREE_KEY = 5 };

static record plain, symbolic, ours, table;
static void *functor[4];
static boxed_kernel registered;
static int living; /* tensors and handles */

typedef struct made_up_tensor {
    float data[8];
} made_up_tensor;

static made_up_tensor undefined;

static void some_function(void) {}

static void *address(void (*function)(void)) {
    void *pointer;
    memcpy(&pointer, (const void *)&function, sizeof pointer);
    return pointer;
}

static uint64_t version(void) {
    const uint64_t minor = current == OLDER ? 9 : current == NEWER ? 15 : 12;
    return (uint64_t)2 << 56 | minor << 48;
}

static void *dispatcher(void) {
    return &table;
}

static operator_handle find_operator(void *self, const char *name, const char *overload) {
    expect(self == &table && !*overload, "another dispatcher or overload");
    const void *entry = !strcmp(name, "aten::relu")          ? &plain
                        : !strcmp(name, "aten::narrow_copy") ? &symbolic
                                                             : &ours;
    return (operator_handle){.entry = entry};
}

static bool has_kernel(const void *entry, dispatch_key key) {
    if (entry == &ours)
        return registered || current == KEY_IS_TAKEN;
    return key == CPU_KEY;
}

static void *kernel_at(const void *entry, dispatch_key key) {
    (void)key;
    return (void *)(uintptr_t)entry;
}

static void update_table(const void *entry, void *self, dispatch_key key) {
    expect(entry == &ours && self == &table && key == FREE_KEY, "another record is updated");
    if (current != TABLE_STAYS)
        table = ours;
}

static const char *key_name(dispatch_key key) {
    if (key == FREE_KEY && current != NO_FREE_KEY)
        return "PrivateUse3";
    return key == CPU_KEY ? "CPU" : "another";
}

static uint64_t key_set(dispatch_key key) {
    return (uint64_t)1 << key;
}

static torch_error init_impl(const char *ns, const char *key, const char *file, uint32_t line,
                             library_handle *library) {
    (void)file, (void)line;
    expect(!strcmp(ns, "aten") && !strcmp(key, "PrivateUse3"), "a library for %s", key);
    *library = (library_handle)&ours;
    return 0;
}

static torch_error implement(library_handle library, const char *name, boxed_kernel kernel,
                             uint64_t built_for) {
    (void)library, (void)name, (void)built_for;
    registered = kernel;
    functor[2] = current == OTHER_FUNCTOR ? NULL : address((void (*)(void))kernel);
    ours = (record){.functor = functor, .boxed = address(some_function)};
    if (current == ALREADY_UNBOXED)
        ours.unboxed = address(some_function);
    table = ours;
    return 0;
}

static torch_error delete_library(library_handle library) {
    (void)library;
    registered = NULL;
    return 0;
}

static returned_tensors empty_cpu(int_array_ref sizes, int8_t dtype, bool pinned,
                                  optional_layout layout) {
    (void)sizes, (void)dtype, (void)pinned, (void)layout;
    living++;
    return (returned_tensors){{calloc(1, sizeof(made_up_tensor))}};
}

static torch_error data_of(tensor_handle tensor, void **data) {
    *data = *(void **)tensor;
    return 0;
}

static torch_error new_undefined(tensor_handle *tensor) {
    void **handle = malloc(sizeof *handle);
    *handle = &undefined;
    *tensor = (tensor_handle)handle;
    living++;
    return 0;
}

static torch_error delete_tensor(tensor_handle tensor) {
    void *inside = *(void **)tensor;
    free(tensor);
    living--;
    if (inside != &undefined) {
        free(inside);
        living--;
    }
    return 0;
}

/* As the dispatcher calls: unboxed where the table has such a function. A boxed call returns
 * undefined tensors. */
static returned_tensors redispatch(uint64_t keys, tensor_handle input, int_array_ref shape,
                                   const optional_tensor *weight, const optional_tensor *bias,
                                   double eps) {
    typedef returned_tensors function(void *, uint64_t, tensor_handle, int_array_ref,
                                      const optional_tensor *, const optional_tensor *, double);
    expect(keys == key_set(FREE_KEY), "another key is called");
    if (!table.unboxed)
        return (returned_tensors){{&undefined, &undefined, &undefined}};
    function *call;
    memcpy((void *)&call, (const void *)&table.unboxed, sizeof call);
    return call(NULL, keys, input, shape, weight, bias, current == EPS_LOST ? 0 : eps);
}

static void make_up(change c) {
    current = c;
    void *const inside = address(some_function);
    void *const outside = c == NOT_TORCHS ? address((void (*)(void))abort) : inside;
    plain = (record){functor, inside, outside, NULL};
    symbolic = (record){functor, inside, NULL, inside};
    if (c == SLOTS_SWAPPED) {
        plain = (record){functor, inside, NULL, inside};
        symbolic = (record){functor, inside, inside, NULL};
    }
    torch = (torch_functions){
        .abi_version = version,
        .dispatcher = dispatcher,
        .find_operator = find_operator,
        .has_kernel = has_kernel,
        .kernel_at = kernel_at,
        .update_table = c == NO_UPDATE ? NULL : update_table,
        .key_name = key_name,
        .key_set = key_set,
        .redispatch_layer_norm = redispatch,
        .library_init_impl = init_impl,
        .library_implement = implement,
        .library_delete = delete_library,
        .empty_cpu = empty_cpu,
        .get_mutable_data_ptr = data_of,
        .new_undefined = new_undefined,
        .delete_tensor = delete_tensor,
        .undefined = &undefined,
    };
}

static void test_change(change c) {
    test_case("%s", change_names[c]);
    make_up(c);
    ours = (record){0};
    const bool wanted = c == AS_IT_IS, proven = unboxed_prove();
    expect(proven == wanted, "proven is %d", proven);
    expect(!registered, "the probe stays registered");
    expect(living == 0, "%d tensors are left", living);
    if (c != AS_IT_IS && c != TABLE_STAYS && c != EPS_LOST)
        expect(!ours.unboxed || ours.unboxed == address(some_function), "a record was written to");
}

static void any_kernel(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)stack, (void)argument_count, (void)return_count;
}

/* After a proof that holds: only the record of the kernel that is named gets the function. */
static void test_put(void) {
    test_case("a kernel of ours gets its function");
    make_up(AS_IT_IS);
    library_handle library = NULL;
    init_impl("aten", "PrivateUse3", "", 0, &library);
    unboxed_put("native_layer_norm", "PrivateUse3", any_kernel, some_function); /* proves */
    implement(library, "native_layer_norm", any_kernel, 0);
    expect(unboxed_put("native_layer_norm", "PrivateUse3", any_kernel, some_function), "refused");
    expect(table.unboxed == address(some_function), "calls do not find it");

    test_case("a kernel of somebody else is left alone");
    implement(library, "native_layer_norm", (boxed_kernel)some_function, 0);
    expect(!unboxed_put("native_layer_norm", "PrivateUse3", any_kernel, some_function), "accepted");
    expect(!ours.unboxed && !table.unboxed, "its record was written to");
}

int main(void) {
    for (change c = AS_IT_IS; c < CHANGE_COUNT; c++)
        test_change(c);
    test_put();
    return test_finish("unboxed");
}
