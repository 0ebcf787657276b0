/*
 * A door into the GPU backend for tests and benches: makes row problems from plain numbers, lets a
 * bench change a plan's constants, and compiles a plan's kernels for any architecture without a
 * GPU. Not part of the library.
 */
#include <stdlib.h>
#include <string.h>

#include "../../src/cuda/backend.h"
#include "../../src/cuda/geometry.h"
#include "../../src/cuda/jit.h"

#define EXPORT __attribute__((visibility("default")))

/* Limits of architectures whose plans can be made without a device. */
static cuda_limits limits_of(int arch) {
    cuda_limits l = {.arch = arch, .multiprocessors = 132, .max_cluster = 1};
    l.shared_per_block = arch == 80 ? 166912 : arch == 90 || arch == 100 ? 232448 : 101376;
    if (arch >= 90)
        l.max_cluster = arch == 90 || arch == 100 ? 16 : 8;
    return l;
}

/* `arch` 0: the limits of `device`. `strides` and `dtypes` have ROLE_COUNT values. */
EXPORT int shim_plan(cuda_plan **out, int pass, int kind, int64_t rows, int64_t cols,
                     const int64_t *strides, const int *dtypes, int weight_offset, double eps,
                     int device, int arch, char *text, size_t bytes) {
    message error = {text, bytes};
    problem p = {.pass = (planish_pass)pass,
                 .kind = (planish_kind)kind,
                 .weight_offset = weight_offset,
                 .eps = eps,
                 .device = {kDLCUDA, device},
                 .kept_count = 1,
                 .reduced_count = 1,
                 .rows = rows,
                 .cols = cols,
                 .affine = cols};
    p.kept[0].size = rows;
    p.reduced[0].size = cols;
    p.reduced[0].affine = true;
    for (int r = 0; r < ROLE_COUNT; r++) {
        p.dtypes[r] = (dtype)dtypes[r];
        p.kept[0].stride[r] = strides[r];
        p.reduced[0].stride[r] = r == ROLE_MEAN || r == ROLE_RSTD || r == ROLE_M2 ? 0 : 1;
    }
    cuda_limits limits;
    planish_status status = PLANISH_OK;
    if (arch)
        limits = limits_of(arch);
    else
        status = cuda_device_limits(device, &limits, error);
    if (status)
        return status;
    *out = malloc(sizeof **out);
    if (!*out)
        return PLANISH_ERROR_OUT_OF_MEMORY;
    status = cuda_plan_make(*out, &p, &limits, error);
    if (status) {
        free(*out);
        *out = NULL;
    }
    return status;
}

EXPORT void shim_free(cuda_plan *plan) {
    free(plan);
}
EXPORT size_t shim_workspace(const cuda_plan *plan) {
    return plan->workspace_bytes;
}
EXPORT int shim_describe(const cuda_plan *plan, char *text, size_t bytes) {
    return cuda_plan_describe(plan, text, bytes);
}
EXPORT int shim_get(const cuda_plan *plan, int constant) {
    return plan->main.constant[constant];
}

/* Changes a constant of the main kernel; a bench's way to try variants. */
EXPORT void shim_set(cuda_plan *plan, int constant, int value) {
    if (constant < 0) {
        plan->turns = value;
        return;
    }
    plan->main.constant[constant] = value;
    const int32_t *c = plan->main.constant;
    if (plan->main.kernel == CUDA_BACKWARD) {
        int64_t partials = plan->limits.multiprocessors * c[C_MIN_BLOCKS] / c[C_CLUSTER];
        if (plan->workspace_bytes)
            plan->workspace_bytes =
                plan->workspace_bytes / (size_t)plan->partials * (size_t)partials;
        plan->partials = partials;
    }
}

EXPORT int shim_run(const cuda_plan *plan, void *const *buffers, void *stream, void *workspace,
                    char *text, size_t bytes) {
    return cuda_plan_run(plan, buffers, stream, workspace, (message){text, bytes});
}

/* Compiles to disk what a run with these addresses needs. */
EXPORT int shim_prepare(const cuda_plan *plan, void *const *buffers, char *text, size_t bytes) {
    return cuda_plan_prepare(plan, buffers, (message){text, bytes});
}

/* Compiles the main kernel (`last` 1: the finishing one, 2: the
 * first of two) with accesses of `access` bytes; the
 * compiler's report goes to `log`. Returns a status; 100 where the plan has no such kernel. */
EXPORT int shim_compile(const cuda_plan *plan, int last, int arch, int access, char *log,
                        size_t log_bytes, char *text, size_t bytes) {
    cuda_spec spec = last == 1 ? plan->finish : plan->main;
    if (last == 2)
        spec.kernel = spec.kernel == CUDA_APPLY ? CUDA_SUMS : -1;
    if (spec.kernel < 0)
        return 100;
    for (int c = C_X_ACCESS; c <= C_B_ACCESS; c++)
        spec.constant[c] = access;
    if (spec.kernel == CUDA_BACKWARD &&
        (access < 4 || spec.constant[C_WIDTH] * dtype_bytes((dtype)spec.constant[C_X_TYPE]) < 4 ||
         spec.constant[C_WIDTH] * dtype_bytes((dtype)spec.constant[C_G_TYPE]) < 4))
        spec.constant[C_STAGES] = 0;
    if (spec.kernel == CUDA_FORWARD && access < 4) {
        spec.constant[C_STAGES] = 0;
        if (spec.constant[C_HOLD] == 1)
            spec.constant[C_HOLD] = 2;
    }
    void *code = NULL;
    char *report = NULL;
    size_t code_bytes = 0;
    planish_status status =
        jit_compile(&spec, arch, 1, &code, &code_bytes, &report, (message){text, bytes});
    if (!status && report && log_bytes) {
        strncpy(log, report, log_bytes - 1);
        log[log_bytes - 1] = 0;
    }
    if (!status) {
        free(code);
        free(report);
    }
    return status;
}
