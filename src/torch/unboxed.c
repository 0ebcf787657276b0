/*
 * The second pointer of a kernel's record; see unboxed.h.
 */
#include "unboxed.h"

#include <dlfcn.h>
#include <string.h>

#include "planish_torch.h"
#include "stack.h"
#include "tensor.h"

/* The head of a c10::KernelFunction. */
typedef struct kernel_record {
    void *const *functor; /* NULL, or an object whose members the boxed function knows */
    void *boxed;
    void *unboxed;          /* symbolic sizes are checked and passed as int64_t */
    void *unboxed_symbolic; /* these are passed as they are */
} kernel_record;

typedef void (*any_function)(void);

/* A key of the dispatcher that is kept free for users' own backends. */
static const char free_key[] = "PrivateUse3";

static void *address_of(any_function function) {
    void *address;
    memcpy(&address, (const void *)&function, sizeof address);
    return address;
}

static bool find_key(const char *name, dispatch_key *key) {
    enum { MORE_THAN_THERE_ARE = 1024 };
    for (int k = 0; k < MORE_THAN_THERE_ARE; k++)
        if (!strcmp(torch.key_name((dispatch_key)k), name)) {
            *key = (dispatch_key)k;
            return true;
        }
    return false;
}

static const void *find_entry(const char *name) {
    char full[64] = "aten::";
    if (strlen(name) >= sizeof full - strlen(full))
        return NULL;
    strcat(full, name);
    return torch.find_operator(torch.dispatcher(), full, "").entry;
}

static kernel_record *find_record(const char *name, const char *key_name) {
    dispatch_key key;
    if (!find_key(key_name, &key))
        return NULL;
    const void *entry = find_entry(name);
    return entry && torch.has_kernel(entry, key) ? torch.kernel_at(entry, key) : NULL;
}

/* Whether this is a function of libtorch_cpu. */
static bool is_torchs(const void *address) {
    Dl_info found, torchs;
    any_function known = (any_function)torch.dispatcher;
    return address && dladdr(address, &found) && dladdr(address_of(known), &torchs) &&
           found.dli_fbase == torchs.dli_fbase;
}

/* relu has no sizes; those of narrow_copy are symbolic. planish replaces neither. */
static bool torchs_own_records_hold(void) {
    const kernel_record *plain = find_record("relu", "CPU");
    const kernel_record *symbolic = find_record("narrow_copy", "CPU");
    return plain && symbolic && plain->functor && symbolic->functor && is_torchs(plain->boxed) &&
           is_torchs(plain->unboxed) && !plain->unboxed_symbolic && is_torchs(symbolic->boxed) &&
           !symbolic->unboxed && is_torchs(symbolic->unboxed_symbolic);
}

/* Whether the record is the one of this kernel: its functor, after the virtual table and counts,
 * holds the pointer. */
static bool is_record_of(const kernel_record *record, boxed_kernel kernel) {
    enum { FIRST = 1, LAST = 3 };
    if (!record->functor || !is_torchs(record->boxed) || record->unboxed ||
        record->unboxed_symbolic)
        return false;
    for (int i = FIRST; i <= LAST; i++)
        if (record->functor[i] == address_of((any_function)kernel))
            return true;
    return false;
}

static bool put(const char *name, const char *key_name, boxed_kernel boxed, any_function function) {
    dispatch_key key;
    const void *entry = find_entry(name);
    if (!entry || !find_key(key_name, &key) || !torch.has_kernel(entry, key))
        return false;
    kernel_record *record = torch.kernel_at(entry, key);
    if (!is_record_of(record, boxed))
        return false;
    record->unboxed = address_of(function);
    /* Calls find a copy of the record. */
    torch.update_table(entry, torch.dispatcher(), key);
    return true;
}

/* ---- One call at a key that nobody uses ------------------------------------------------------ */

static const double probe_eps = 0.375;

static struct {
    void *input, *weight;
    int64_t size;
    int came; /* 1: as it was sent */
} probe;

static void probe_boxed(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    OWNED_TENSOR input = take_tensor(stack[0]);
    OWNED_LIST shape = take_list(stack[1]);
    OWNED_TENSOR weight = take_optional_tensor(stack[2]);
    OWNED_TENSOR bias = take_optional_tensor(stack[3]);
    (void)input, (void)shape, (void)weight, (void)bias;
    const returned_tensors nothing = {{torch.undefined, torch.undefined, torch.undefined}};
    give_returned(stack, &nothing, 3);
}

/* Returns a new tensor of one number and two undefined ones. */
static returned_tensors probe_unboxed(void *functor, uint64_t keys, tensor_handle input,
                                      int_array_ref shape, const optional_tensor *weight,
                                      const optional_tensor *bias, double eps) {
    returned_tensors nothing = {{torch.undefined, torch.undefined, torch.undefined}};
    (void)functor, (void)keys;
    bool as_sent = *(void **)input == probe.input && shape.size == 1 &&
                   shape.data[0] == probe.size && weight->engaged && weight->impl == probe.weight &&
                   !bias->engaged && eps == probe_eps;
    if (!as_sent)
        return nothing;
    probe.came++;
    int64_t size = 1, stride;
    DLTensor like = {.device = {kDLCPU, 0}}, view;
    NEW_TENSOR made = new_dense_tensor(&like, 1, &size, torch.f32, &stride, &view);
    *(float *)view.data = (float)probe_eps;
    nothing.impl[2] = give_tensor(&made); /* the first */
    return nothing;
}

static bool call_arrives(void) {
    dispatch_key key;
    if (!find_key(free_key, &key))
        return false;
    int64_t size = 5, stride;
    DLTensor like = {.device = {kDLCPU, 0}}, view;
    NEW_TENSOR input = new_dense_tensor(&like, 1, &size, torch.f32, &stride, &view);
    NEW_TENSOR weight = new_dense_tensor(&like, 1, &size, torch.f32, &stride, &view);
    const optional_tensor w = {weight.impl, true}, none = {NULL, false};
    probe.input = input.impl;
    probe.weight = weight.impl;
    probe.size = size;
    probe.came = 0;
    returned_tensors made = torch.redispatch_layer_norm(
        torch.key_set(key), handle_of(&input), (int_array_ref){&size, 1}, &w, &none, probe_eps);
    NEW_TENSOR first = {made.impl[2] == torch.undefined ? NULL : made.impl[2]};
    void *data = NULL;
    return probe.came == 1 && first.impl && made.impl[0] == torch.undefined &&
           made.impl[1] == torch.undefined &&
           torch.get_mutable_data_ptr(handle_of(&first), &data) == 0 &&
           *(float *)data == (float)probe_eps;
}

static void delete_library(library_handle *library) {
    if (*library)
        torch.library_delete(*library);
}

static bool probe_succeeds(void) {
    static const char name[] = "native_layer_norm";
    if (find_record(name, free_key))
        return false; /* somebody's backend */
    __attribute__((cleanup(delete_library))) library_handle library = NULL;
    return torch.library_init_impl("aten", free_key, "planish", 0, &library) == 0 &&
           torch.library_implement(library, name, probe_boxed, TORCH_BUILD_VERSION) == 0 &&
           put(name, free_key, probe_boxed, (any_function)probe_unboxed) && call_arrives();
}

bool unboxed_prove(void) {
    const int version = torch_version();
    bool found = torch.dispatcher && torch.find_operator && torch.has_kernel && torch.kernel_at &&
                 torch.update_table && torch.key_name && torch.key_set &&
                 torch.redispatch_layer_norm;
    return found && version >= PLANISH_TORCH_OLDEST && version <= PLANISH_TORCH_NEWEST &&
           torchs_own_records_hold() && probe_succeeds();
}

bool unboxed_put(const char *name, const char *key, boxed_kernel boxed, void (*function)(void)) {
    static enum { UNKNOWN, NO, YES } known = UNKNOWN;
    if (known == UNKNOWN)
        known = unboxed_prove() ? YES : NO;
    return known == YES && put(name, key, boxed, function);
}
