/*
 * planish under PyTorch: the few functions that python/planish calls through ctypes.
 *
 * They find the libtorch that is already loaded in this process, by its stable C ABI, and register
 * planish's kernels under torch's own operators. No torch header is used and nothing is linked:
 * one libplanish.so serves several torches. docs/guide/pytorch-details.md tells the whole story.
 *
 * Threads: enable, disable and library calls must not run at the same time as each other (the
 * Python package holds a lock); kernels may run on any thread meanwhile.
 *
 * Every function that can fail returns a planish_status and writes one sentence to `message`, if
 * there is room, when it fails. No exception of C++ leaves any of them, whatever mode, transform or
 * tracing they are called in (guard.h).
 */
#ifndef PLANISH_TORCH_H
#define PLANISH_TORCH_H

#include <stdbool.h>

#include "planish.h"

/*
 * The torch versions that this library serves, as planish_torch_version has them: older ones lack
 * what it needs; on newer ones it works as far as what it looks for is there and passes its checks,
 * and calls stay boxed (unboxed.h). docs/guide/pytorch-details.md has the table of what was tried
 * (.ci/torch-versions).
 */
enum { PLANISH_TORCH_OLDEST = 210, PLANISH_TORCH_NEWEST = 214 };

/* Groups of torch operators, as a bit mask. */
enum {
    PLANISH_TORCH_LAYER_NORM = 1,      /* native_layer_norm and its backward, on the CPU */
    PLANISH_TORCH_RMS_NORM = 2,        /* rms_norm, _fused_rms_norm and its backward, on the CPU */
    PLANISH_TORCH_CUDA_LAYER_NORM = 4, /* the same on CUDA */
    PLANISH_TORCH_CUDA_RMS_NORM = 8,
    /* No operator: lets layer and group norm on CUDA take half input with float parameters, which
     * torch's own refuse. Set while autocast leaves their input as it is. */
    PLANISH_TORCH_CUDA_MIXED = 16,
    PLANISH_TORCH_GROUP_NORM = 32, /* native_group_norm and its backward, on the CPU */
    PLANISH_TORCH_CUDA_GROUP_NORM = 64,
    /* native_batch_norm, its kin and their backwards, and SyncBatchNorm's operators, on the CPU */
    PLANISH_TORCH_BATCH_NORM = 128,
    PLANISH_TORCH_CUDA_BATCH_NORM = 256, /* the same on CUDA, and cuDNN's operators */
    PLANISH_TORCH_WEIGHT_NORM = 512      /* _weight_norm_interface and its backward, on the CPU */
};

/*
 * Puts planish under the operators of `ops`, in addition to those it is under already.
 * _fused_rms_norm_backward, for which torch has no CPU kernel, stays registered for the CPU for the
 * rest of the process once RMS norm was enabled: a graph recorded while enabled must find its
 * backward later. No GPU is touched; CUDA groups need a torch that has CUDA.
 * Errors: ARGUMENT (an unknown bit), UNAVAILABLE (no libtorch is loaded, it lacks a function that
 * is needed, or its own kernels cannot be reached for falling back), DRIVER (torch refused).
 */
PLANISH_API planish_status planish_torch_enable(uint32_t ops, char *message, size_t message_bytes);

/* OK if this torch has CUDA and what planish needs of it; UNAVAILABLE tells what is missing. */
PLANISH_API planish_status planish_torch_has_cuda(char *message, size_t message_bytes);

/*
 * From the moment this is called every call that reaches planish is handed to torch's own kernel;
 * once no call is in flight the registrations are removed and torch's dispatch table is as it was.
 * Waits for that at most `wait_microseconds`. *removed says whether it came to that; if not, call
 * again (the registrations that are left only pass calls through).
 */
PLANISH_API planish_status planish_torch_disable(int64_t wait_microseconds, bool *removed,
                                                 char *message, size_t message_bytes);

/*
 * Puts planish's kernels under the operators of `ops` that planish's own functions call: layer and
 * group norms, native_batch_norm on the CPU, and _fused_rms_norm, with their backwards. They stay
 * for the rest of the process and pass calls on to torch's kernels, but those that are planish's
 * own, and all while the group is enabled. Errors: as planish_torch_enable; other bits are
 * ARGUMENT.
 */
PLANISH_API planish_status planish_torch_stay(uint32_t ops, char *message, size_t message_bytes);

/*
 * `recorded` is called in the backward of a layer or batch norm that is planish's own where
 * autograd records that, before it ends, on its thread: torch's formula of the second derivative
 * has no third one. It gets the gradient of y, an AtenTensorHandle that is its own.
 */
PLANISH_API void planish_torch_when_recorded(void (*recorded)(void *dy));

/*
 * Between begin and end the next call of such an operator on this thread is planish's own: planish
 * runs it, and its derivative, whether it is enabled or not.
 */
PLANISH_API void planish_torch_own_begin(void);
PLANISH_API void planish_torch_own_end(void);

/* Between quiet true and quiet false torch's warning about overriding a kernel is not given and
 * does not count as given. For the caller's own registrations; enable does it for its own. */
PLANISH_API void planish_torch_quiet(bool quiet);

/* The groups that planish is under now. */
PLANISH_API uint32_t planish_torch_enabled(void);

/*
 * Defines the operators of planish's own namespace (planish::norm_forward, norm_backward and
 * norm_statistics; quantized_norm and norm_into; norm_pair and norm_pair_backward, for two norms at
 * once; batch_norm; norm_part_statistics, norm_part_message, norm_apply, norm_backward_statistics,
 * norm_backward_apply, norm_part_apply and norm_part_backward_apply, for statistics that are given,
 * or those of parts of rows) once per process; later calls do nothing. Errors: as
 * planish_torch_enable.
 */
PLANISH_API planish_status planish_torch_define(char *message, size_t message_bytes);

/*
 * The status with which an operator of planish's own threw last on this thread, which its exception
 * says in words alone, and forgets it. OK: none threw since. Whoever catches an operator's
 * exception asks at once.
 */
PLANISH_API planish_status planish_torch_take_thrown(void);

/*
 * Calls torch's own CUDA norms, which planish falls back to, on one row on GPU `device`, and
 * compares with the formula. It starts CUDA in this process and waits for the GPU, which is why
 * enable does not. Errors: UNAVAILABLE (no CUDA, or they differ), DRIVER (torch raised).
 */
PLANISH_API planish_status planish_torch_check_cuda(int device, char *message,
                                                    size_t message_bytes);

/*
 * Writes what happened so far as one JSON object, {"operator": {"planish": n, "torch": {"reason":
 * n}}}, closed by 0 and cut to `bytes`. Returns the length of the whole text, as snprintf does.
 */
PLANISH_API int planish_torch_stats(char *text, size_t bytes);

/* One function of libtorch that planish looks up. */
typedef struct planish_torch_symbol {
    const char *name;
    const char *use;
    bool required;
    bool found;
} planish_torch_symbol;

/* Fills *symbol with number `index` of them, after looking them up; false past the last. */
PLANISH_API bool planish_torch_symbol_get(int index, planish_torch_symbol *symbol);

/* The version of libtorch's C ABI found in this process, 100 * major + minor; 0: no libtorch. */
PLANISH_API int planish_torch_version(void);

#endif
