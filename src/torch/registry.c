/*
 * Puts the kernels under torch's operators and takes them away again. See planish_torch.h for what
 * each function promises.
 *
 * Removing a kernel while a thread is inside it would free torch's record of it under that thread,
 * so planish first only switches itself off (kernels then hand every call to torch) and removes its
 * registrations when nobody is, or has just been, inside.
 */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "batch_fallback.h"
#include "calls.h"
#include "cpu/openmp.h"
#include "fallback.h"
#include "guard.h"
#include "habits.h"
#include "kernels.h"
#include "quiet.h"
#include "registry.h"
#include "sync_fallback.h"
#include "unboxed.h"

typedef struct registration {
    uint32_t group;
    const char *key, *name;
    boxed_kernel kernel;
    /* The same for calls without the boxed stack, or NULL: torch's autograd calls the backward of
     * group norm boxed, and RMS norms return fewer tensors than C can return as C++ does. */
    void (*unboxed)(void);
} registration;

/* Groups of which planish's own functions call operators (planish_torch_stay): layer and group
 * norms, native_batch_norm, and _fused_rms_norm. Of that torch has no kernel on the CPU: with
 * planish's under the key of the CPU torch's rms_norm would be differentiated by it, so for
 * planish's own calls it is under a key that no tensor has, which they name
 * (python/planish/library/quick.py). */
static const uint32_t called_groups =
    PLANISH_TORCH_LAYER_NORM | PLANISH_TORCH_GROUP_NORM | PLANISH_TORCH_RMS_NORM |
    PLANISH_TORCH_BATCH_NORM | PLANISH_TORCH_CUDA_LAYER_NORM | PLANISH_TORCH_CUDA_GROUP_NORM |
    PLANISH_TORCH_CUDA_RMS_NORM | PLANISH_TORCH_CUDA_BATCH_NORM;

/* A group of its own: SyncBatchNorm's operators on CUDA, which come with those of batch norm where
 * torch's kernels can be reached. */
enum { CUDA_SYNCHRONISED = 1 << 30 };

#define UNBOXED_FUNCTION(function) ((void (*)(void))(function))

static const registration registrations[] = {
    {PLANISH_TORCH_LAYER_NORM, "CPU", "native_layer_norm", layer_norm_forward,
     UNBOXED_FUNCTION(layer_norm_forward_unboxed)},
    {PLANISH_TORCH_LAYER_NORM, "CPU", "native_layer_norm_backward", layer_norm_backward,
     UNBOXED_FUNCTION(layer_norm_backward_unboxed)},
    {PLANISH_TORCH_GROUP_NORM, "CPU", "native_group_norm", group_norm_forward,
     UNBOXED_FUNCTION(group_norm_forward_unboxed)},
    {PLANISH_TORCH_GROUP_NORM, "CPU", "native_group_norm_backward", group_norm_backward, NULL},
    {PLANISH_TORCH_RMS_NORM, "CPU", "_fused_rms_norm", fused_rms_norm_forward, NULL},
    {PLANISH_TORCH_RMS_NORM, "CPU", "rms_norm", rms_norm_inference, NULL},
    {PLANISH_TORCH_RMS_NORM, "AutogradCPU", "rms_norm", rms_norm_autograd, NULL},
    {PLANISH_TORCH_CUDA_LAYER_NORM, "CUDA", "native_layer_norm", layer_norm_forward_cuda, NULL},
    {PLANISH_TORCH_CUDA_LAYER_NORM, "CUDA", "native_layer_norm_backward", layer_norm_backward_cuda,
     NULL},
    {PLANISH_TORCH_CUDA_GROUP_NORM, "CUDA", "native_group_norm", group_norm_forward_cuda, NULL},
    {PLANISH_TORCH_CUDA_GROUP_NORM, "CUDA", "native_group_norm_backward", group_norm_backward_cuda,
     NULL},
    {PLANISH_TORCH_CUDA_RMS_NORM, "CUDA", "_fused_rms_norm", fused_rms_norm_forward_cuda, NULL},
    {PLANISH_TORCH_CUDA_RMS_NORM, "CUDA", "_fused_rms_norm_backward", fused_rms_norm_backward_cuda,
     NULL},
    {PLANISH_TORCH_CUDA_RMS_NORM, "CUDA", "rms_norm", rms_norm_inference_cuda, NULL},
    {PLANISH_TORCH_CUDA_RMS_NORM, "AutogradCUDA", "rms_norm", rms_norm_autograd_cuda, NULL},
    {PLANISH_TORCH_BATCH_NORM, "CPU", "native_batch_norm", batch_norm_forward,
     UNBOXED_FUNCTION(batch_norm_forward_unboxed)},
    {PLANISH_TORCH_BATCH_NORM, "CPU", "native_batch_norm_backward", batch_norm_backward,
     UNBOXED_FUNCTION(batch_norm_backward_unboxed)},
    {PLANISH_TORCH_BATCH_NORM, "CPU", "_native_batch_norm_legit", batch_norm_legit, NULL},
    {PLANISH_TORCH_BATCH_NORM, "CPU", "_native_batch_norm_legit.no_stats", batch_norm_no_stats,
     NULL},
    {PLANISH_TORCH_BATCH_NORM, "CPU", "_batch_norm_with_update", batch_norm_with_update, NULL},
    {PLANISH_TORCH_BATCH_NORM, "CPU", "batch_norm_backward", batch_norm_reserve_backward, NULL},
    {PLANISH_TORCH_CUDA_BATCH_NORM, "CUDA", "native_batch_norm", batch_norm_forward_cuda, NULL},
    {PLANISH_TORCH_CUDA_BATCH_NORM, "CUDA", "native_batch_norm_backward", batch_norm_backward_cuda,
     NULL},
    {PLANISH_TORCH_CUDA_BATCH_NORM, "CUDA", "_native_batch_norm_legit", batch_norm_legit_cuda,
     NULL},
    {PLANISH_TORCH_CUDA_BATCH_NORM, "CUDA", "_native_batch_norm_legit.no_stats",
     batch_norm_no_stats_cuda, NULL},
    {PLANISH_TORCH_CUDA_BATCH_NORM, "CUDA", "_batch_norm_with_update", batch_norm_with_update_cuda,
     NULL},
    {PLANISH_TORCH_CUDA_BATCH_NORM, "CUDA", "batch_norm_backward", batch_norm_reserve_backward_cuda,
     NULL},
    {PLANISH_TORCH_CUDA_BATCH_NORM, "CUDA", "cudnn_batch_norm", batch_norm_cudnn, NULL},
    {PLANISH_TORCH_BATCH_NORM, "CPU", "batch_norm_stats", batch_norm_stats, NULL},
    {PLANISH_TORCH_BATCH_NORM, "CPU", "batch_norm_elemt", batch_norm_elemt, NULL},
    {PLANISH_TORCH_BATCH_NORM, "CPU", "batch_norm_elemt.out", batch_norm_elemt_out, NULL},
    {PLANISH_TORCH_BATCH_NORM, "CPU", "batch_norm_backward_reduce", batch_norm_backward_reduce,
     NULL},
    {PLANISH_TORCH_BATCH_NORM, "CPU", "batch_norm_backward_elemt", batch_norm_backward_elemt, NULL},
    {CUDA_SYNCHRONISED, "CUDA", "batch_norm_stats", batch_norm_stats_cuda, NULL},
    {CUDA_SYNCHRONISED, "CUDA", "batch_norm_elemt", batch_norm_elemt_cuda, NULL},
    {CUDA_SYNCHRONISED, "CUDA", "batch_norm_elemt.out", batch_norm_elemt_out_cuda, NULL},
    {CUDA_SYNCHRONISED, "CUDA", "batch_norm_backward_reduce", batch_norm_backward_reduce_cuda,
     NULL},
    {CUDA_SYNCHRONISED, "CUDA", "batch_norm_backward_elemt", batch_norm_backward_elemt_cuda, NULL},
    {PLANISH_TORCH_WEIGHT_NORM, "CPU", "_weight_norm_interface", weight_norm_forward, NULL},
    {PLANISH_TORCH_WEIGHT_NORM, "CPU", "_weight_norm_interface_backward", weight_norm_backward,
     NULL},
};

/* Those that stay for the rest of the process: what planish's forward saved torch has no backward
 * for, and the forward of planish's own RMS norms on the CPU. */
static const registration backwards[] = {
    {PLANISH_TORCH_RMS_NORM, "CPU", "_fused_rms_norm_backward", fused_rms_norm_backward, NULL},
    {PLANISH_TORCH_RMS_NORM, "Lazy", "_fused_rms_norm", fused_rms_norm_forward, NULL},
    {PLANISH_TORCH_CUDA_BATCH_NORM, "CUDA", "cudnn_batch_norm_backward", batch_norm_cudnn_backward,
     NULL},
};

enum {
    REGISTRATION_COUNT = sizeof registrations / sizeof *registrations,
    BACKWARD_COUNT = sizeof backwards / sizeof *backwards,
};

/* torch's record of each; its deletion is the removal. One that stays is registered once more by
 * enable(), which comes above what other libraries have registered since. */
static library_handle libraries[REGISTRATION_COUNT], staying_libraries[REGISTRATION_COUNT];
static library_handle backward_libraries[BACKWARD_COUNT];

static const uint32_t cuda_groups = PLANISH_TORCH_CUDA_LAYER_NORM | PLANISH_TORCH_CUDA_GROUP_NORM |
                                    PLANISH_TORCH_CUDA_RMS_NORM | PLANISH_TORCH_CUDA_BATCH_NORM |
                                    PLANISH_TORCH_CUDA_MIXED;
static const uint32_t all_groups = PLANISH_TORCH_LAYER_NORM | PLANISH_TORCH_GROUP_NORM |
                                   PLANISH_TORCH_RMS_NORM | PLANISH_TORCH_BATCH_NORM |
                                   PLANISH_TORCH_WEIGHT_NORM | cuda_groups;

/* How long nobody must have come in before the registrations are removed. */
static const int64_t quiet_microseconds = 500;

static planish_status implement(const char *ns, const char *key, const char *name,
                                boxed_kernel kernel, library_handle *library, message error) {
    library_handle made = NULL;
    if (torch.library_init_impl(ns, key, "planish", 0, &made) != 0)
        return fail(error, PLANISH_ERROR_DRIVER, "torch would not open %s for key %s: %s", ns, key,
                    torch_last_words());
    if (torch.library_implement(made, name, kernel, TORCH_BUILD_VERSION) != 0) {
        fail(error, PLANISH_ERROR_DRIVER, "torch would not register %s::%s for key %s: %s", ns,
             name, key, torch_last_words());
        torch.library_delete(made);
        return PLANISH_ERROR_DRIVER;
    }
    *library = made;
    return PLANISH_OK;
}

/* Whether planish's own functions call it. */
static bool is_called(const registration *r) {
    static const char batches[] = "native_batch_norm";
    if (r->group & (PLANISH_TORCH_BATCH_NORM | PLANISH_TORCH_CUDA_BATCH_NORM))
        return strncmp(r->name, batches, strlen(batches)) == 0;
    return r->group & called_groups & ~PLANISH_TORCH_RMS_NORM && strcmp(r->name, "rms_norm") != 0;
}

static void remove_all(void) {
    for (int i = 0; i < REGISTRATION_COUNT; i++)
        if (libraries[i]) {
            torch.library_delete(libraries[i]);
            libraries[i] = NULL;
        }
}

typedef struct preparation {
    planish_status status;
    message error;
} preparation;

static void ask_torch(void *data, int64_t begin, int64_t end) {
    preparation *p = data;
    (void)begin, (void)end;
    p->status = fallback_self_test(BACKEND_CPU, 0, p->error);
    if (p->status == PLANISH_OK)
        p->status = batch_fallback_self_test(BACKEND_CPU, 0, p->error);
    if (p->status == PLANISH_OK)
        ask_habits();
}

/* Torch's kernels are called without its threads: importing planish must leave a process that may
 * be forked. */
planish_status registry_prepare(message error) {
    static bool prepared;
    planish_status status = PLANISH_OK;
    if (!prepared) {
        preparation p = {PLANISH_OK, error};
        openmp_alone(ask_torch, &p);
        status = p.status;
        if (status == PLANISH_OK && pthread_atfork(NULL, NULL, calls_reset_in_flight) != 0)
            status = fail(error, PLANISH_ERROR_OUT_OF_MEMORY, "pthread_atfork has no room");
        prepared = status == PLANISH_OK;
    }
    return status;
}

static planish_status register_one(int index, library_handle *library, message error) {
    const registration *r = &registrations[index];
    planish_status status = implement("aten", r->key, r->name, r->kernel, library, error);
    if (status == PLANISH_OK && r->unboxed)
        unboxed_put(r->name, r->key, r->kernel, r->unboxed); /* else its calls stay boxed */
    return status;
}

static planish_status register_backwards(uint32_t groups, message error) {
    planish_status status = PLANISH_OK;
    for (int i = 0; i < BACKWARD_COUNT && status == PLANISH_OK; i++)
        if (backwards[i].group & groups && !backward_libraries[i])
            status = implement("aten", backwards[i].key, backwards[i].name, backwards[i].kernel,
                               &backward_libraries[i], error);
    return status;
}

/* Whether torch's kernels can be reached, to which batch norms on CUDA are handed on. */
static planish_status ask_batches(uint32_t groups, message error) {
    return groups & PLANISH_TORCH_CUDA_BATCH_NORM ? cuda_batch_norms_are_there(error) : PLANISH_OK;
}

static planish_status register_staying(uint32_t groups, message error) {
    planish_status status = ask_batches(groups, error);
    if (status == PLANISH_OK)
        status = register_backwards(groups, error);
    for (int i = 0; i < REGISTRATION_COUNT && status == PLANISH_OK; i++)
        if (registrations[i].group & groups && !staying_libraries[i] &&
            is_called(&registrations[i]))
            status = register_one(i, &staying_libraries[i], error);
    return status;
}

static planish_status register_groups(uint32_t groups, message error) {
    planish_status status = ask_batches(groups, error);
    if (groups & PLANISH_TORCH_CUDA_BATCH_NORM && cuda_sync_batch_norms_are_there())
        groups |= CUDA_SYNCHRONISED;
    if (status == PLANISH_OK)
        status = register_backwards(groups, error);
    for (int i = 0; i < REGISTRATION_COUNT && status == PLANISH_OK; i++)
        if (registrations[i].group & groups && !libraries[i])
            status = register_one(i, &libraries[i], error);
    return status;
}

static void end_quiet(const bool *quiet) {
    (void)quiet;
    quiet_end();
}

typedef struct wish {
    uint32_t groups;
    planish_status (*fulfil)(uint32_t groups, message error);
} wish;

/* `context`: the wish. */
static planish_status enable(void *context, message error) {
    const wish *wanted = context;
    planish_status status = registry_prepare(error);
    if (status == PLANISH_OK && wanted->groups & cuda_groups)
        status = torch_has_cuda(error);
    if (status != PLANISH_OK)
        return status;
    __attribute__((cleanup(end_quiet))) const bool quiet = true;
    (void)quiet;
    quiet_begin();
    return wanted->fulfil(wanted->groups, error);
}

static planish_status disable(void *context, message error) {
    (void)context, (void)error;
    remove_all();
    return PLANISH_OK;
}

planish_status planish_torch_enable(uint32_t ops, char *text, size_t bytes) {
    message error = {text, bytes};
    if (!ops || ops & ~all_groups)
        return fail(error, PLANISH_ERROR_ARGUMENT, "ops is %u, wanted a mix of the bits %u", ops,
                    all_groups);
    wish wanted = {ops, register_groups};
    planish_status status = guarded(enable, &wanted, error);
    if (status == PLANISH_OK)
        atomic_fetch_or(&active_groups, ops);
    else if (!atomic_load(&active_groups))
        guarded(disable, NULL, (message){0});
    return status;
}

planish_status planish_torch_stay(uint32_t ops, char *text, size_t bytes) {
    message error = {text, bytes};
    if (!ops || ops & ~called_groups)
        return fail(error, PLANISH_ERROR_ARGUMENT, "ops is %u, wanted a mix of the bits %u", ops,
                    called_groups);
    const uint32_t before = atomic_fetch_or(&staying_groups, ops);
    wish wanted = {ops, register_staying};
    const planish_status status = guarded(enable, &wanted, error);
    if (status != PLANISH_OK)
        atomic_store(&staying_groups, before);
    return status;
}

planish_status planish_torch_has_cuda(char *text, size_t bytes) {
    message error = {text, bytes};
    planish_status status = torch_load(error);
    return status == PLANISH_OK ? torch_has_cuda(error) : status;
}

static int64_t now_microseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* Whether nobody was inside a kernel for a while, within the time given. */
static bool wait_for_quiet(int64_t wait_microseconds) {
    int64_t start = now_microseconds(), quiet_since = start;
    uint64_t entered = calls_entered();
    for (;;) {
        int64_t now = now_microseconds();
        uint64_t entered_now = calls_entered();
        if (calls_in_flight() || entered_now != entered) {
            entered = entered_now;
            quiet_since = now;
        } else if (now - quiet_since >= quiet_microseconds) {
            return true;
        }
        if (now - start > wait_microseconds + quiet_microseconds)
            return false;
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    }
}

planish_status planish_torch_disable(int64_t wait_microseconds, bool *removed, char *text,
                                     size_t bytes) {
    message error = {text, bytes};
    if (!removed)
        return fail(error, PLANISH_ERROR_NULL_POINTER, "removed is NULL");
    atomic_store(&active_groups, 0);
    bool registered = false;
    for (int i = 0; i < REGISTRATION_COUNT; i++)
        registered = registered || libraries[i];
    *removed = !registered || wait_for_quiet(wait_microseconds);
    return registered && *removed ? guarded(disable, NULL, error) : PLANISH_OK;
}

static planish_status set_quiet(void *context, message error) {
    (void)error;
    (*(const bool *)context ? quiet_begin : quiet_end)();
    return PLANISH_OK;
}

void planish_torch_quiet(bool quiet) {
    guarded(set_quiet, &quiet, (message){0});
}

uint32_t planish_torch_enabled(void) {
    return atomic_load(&active_groups);
}

static planish_status check_cuda(void *context, message error) {
    const int device = *(const int *)context;
    const planish_status status = fallback_self_test(BACKEND_CUDA, device, error);
    return status == PLANISH_OK && cuda_batch_norms_are_there((message){0}) == PLANISH_OK
               ? batch_fallback_self_test(BACKEND_CUDA, device, error)
               : status;
}

planish_status planish_torch_check_cuda(int device, char *text, size_t bytes) {
    message error = {text, bytes};
    planish_status status = planish_torch_has_cuda(text, bytes);
    return status == PLANISH_OK ? guarded(check_cuda, &device, error) : status;
}
