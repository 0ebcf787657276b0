/*
 * A door into the GPU backend for tests and benches: makes row problems from plain numbers, lets a
 * bench change a plan's constants, and compiles a plan's kernels for any architecture without a
 * GPU. Not part of the library.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../src/cuda/arguments.h"
#include "../../src/cuda/backend.h"
#include "../../src/cuda/common/integers.h"
#include "../../src/cuda/common/merge.h"
#include "../../src/cuda/families.h"
#include "../../src/cuda/geometry.h"
#include "../../src/cuda/jit.h"
#include "../../src/cuda/rows/rows_pair.h"
#include "../../src/cuda/rows/rows_shape.h"
#include "../../src/problem_axes.h"

#define EXPORT __attribute__((visibility("default")))

/* Limits of architectures whose plans can be made without a device. */
static cuda_limits limits_of(int arch) {
    cuda_limits l = {.arch = arch, .multiprocessors = 132, .max_cluster = 1, .cooperative = 1};
    l.shared_per_block = arch == 80 ? 166912 : arch == 90 || arch == 100 ? 232448 : 101376;
    if (arch >= 90)
        l.max_cluster = arch == 90 || arch == 100 ? 16 : 8;
    return l;
}

/* A plan is there as long as its problem is. */
typedef struct plan_and_problem {
    cuda_plan plan; /* first: what frees it frees all */
    steps steps;
    problem problem, norm;
} plan_and_problem;

/* `arch` 0: the limits of `device`. */
static int plan_of(cuda_plan **out, const problem *p, int arch, message error) {
    cuda_limits limits;
    planish_status status = PLANISH_OK;
    if (arch)
        limits = limits_of(arch);
    else
        status = cuda_device_limits(p->device.device_id, &limits, error);
    if (status)
        return status;
    plan_and_problem *const made = malloc(sizeof *made);
    if (!made)
        return PLANISH_ERROR_OUT_OF_MEMORY;
    problem_copy(&made->problem, p);
    cuda_plan_make(&made->plan, &made->steps, &made->problem, &made->norm, &limits);
    *out = &made->plan;
    return PLANISH_OK;
}

/* Rows one stride apart. `strides` and `dtypes` have NORM_ROLES values. */
EXPORT int shim_plan(cuda_plan **out, int pass, int kind, int64_t rows, int64_t cols,
                     const int64_t *strides, const int *dtypes, int weight_offset, double eps,
                     int device, int arch, char *text, size_t bytes) {
    const bool l2 = kind == PLANISH_L2;
    problem p = {.pass = (planish_pass)pass,
                 .kind = l2 ? PLANISH_RMS : (planish_kind)kind,
                 .weight_offset = weight_offset,
                 .rule = l2 ? (norm_rule){1, 1, 0, eps, 1 / eps}
                            : (norm_rule){(double)cols, 1.0 / (double)cols, eps, -INFINITY, NAN},
                 .device = {kDLCUDA, device},
                 .rows = rows,
                 .cols = cols,
                 .affine = cols};
    for (role r = 0; r < ROLE_COUNT; r++) {
        p.dtypes[r] = r < NORM_ROLES ? (uint8_t)dtypes[r] : DTYPE_NONE;
        p.present |= p.dtypes[r] == DTYPE_NONE ? 0 : ROLE_BIT(r);
    }
    axes_begin(&p);
    p.kept_count = p.reduced_count = 1;
    p.kept[0] = (axis){.size = rows, .at = p.places};
    p.reduced[0] = (axis){.size = cols, .at = 2 * p.places, .affine = true};
    p.stride_count = 3 * p.places;
    for (role r = 0; r < NORM_ROLES; r++) {
        if (!has(&p, r))
            continue;
        p.strides[p.kept[0].at + p.place[r]] = strides[r];
        p.strides[p.reduced[0].at + p.place[r]] = axes_of(r) != AXES_KEPT;
    }
    return plan_of(out, &p, arch, (message){text, bytes});
}

/* Any problem: every tensor has x's rank, its strides at strides[role * ndim]; an axis that a
 * tensor has not is one of size 1 there. */
EXPORT int shim_problem(cuda_plan **out, int pass, int kind, int activation, int ndim,
                        const int64_t *shape, uint64_t reduce_axes, uint64_t affine_axes,
                        const int64_t *strides, const int *dtypes, int weight_offset, double eps,
                        int device, int arch, char *text, size_t bytes) {
    static const DLDataType types[] = {
        {kDLFloat, 32, 1}, {kDLFloat, 16, 1}, {kDLBfloat, 16, 1}, {kDLFloat, 64, 1}};
    DLTensor tensor[NORM_ROLES];
    const DLTensor *t[ROLE_COUNT] = {NULL};
    int64_t sizes[NORM_ROLES][PLANISH_MAX_NDIM], steps[NORM_ROLES][PLANISH_MAX_NDIM];
    for (int r = 0; r < NORM_ROLES; r++) {
        t[r] = dtypes[r] == DTYPE_NONE ? NULL : &tensor[r];
        if (!t[r])
            continue;
        uint64_t axes = ROLE_BIT(r) & FULL_ROLES     ? ~(uint64_t)0
                        : ROLE_BIT(r) & AFFINE_ROLES ? affine_axes
                                                     : ~reduce_axes;
        for (int i = 0; i < ndim; i++) {
            sizes[r][i] = axes >> i & 1 ? shape[i] : 1;
            steps[r][i] = strides[r * ndim + i];
        }
        tensor[r] = (DLTensor){.device = {kDLCUDA, device},
                               .ndim = ndim,
                               .dtype = types[dtypes[r]],
                               .shape = sizes[r],
                               .strides = steps[r]};
    }
    const planish_norm op = {.struct_size = sizeof op,
                             .kind = (planish_kind)kind,
                             .weight_offset = weight_offset,
                             .reduce_axes = reduce_axes,
                             .affine_axes = affine_axes,
                             .eps = eps,
                             .activation = (planish_activation)activation};
    const planish_tensors tensors = tensors_of_roles(t);
    problem p;
    planish_status status =
        problem_make(&p, &op, (planish_pass)pass, &tensors, (message){text, bytes});
    return status ? (int)status : plan_of(out, &p, arch, (message){text, bytes});
}

/* As planish_plan_create, for a GPU of which `arch` says enough. */
EXPORT int shim_make(cuda_plan **out, const planish_norm *op, int pass,
                     const planish_tensors *tensors, int arch, char *text, size_t bytes) {
    problem p;
    const message error = {text, bytes};
    planish_status status = problem_make(&p, op, (planish_pass)pass, tensors, error);
    return status ? (int)status : plan_of(out, &p, arch, error);
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

/* Why only the general kernels run it, as planish_norm_supports says; nothing where others do. */
EXPORT void shim_why_general(const cuda_plan *plan, char *to, size_t bytes) {
    text why = {to, bytes, 0};
    to[0] = 0;
    if (cuda_plan_is_general(plan))
        cuda_why_general(plan->problem, &plan->limits, &why);
}

/* One line for each kernel of a run with these addresses, in the order of launch, on a device that
 * holds as many blocks at once as planned: its entry, blocks, threads, shared memory and cluster.
 * Returns the whole length. */
EXPORT int shim_launches(const cuda_plan *plan, void *const *buffers, char *text, size_t bytes) {
    cuda_launch launches[CUDA_MOST_LAUNCHES];
    const int count = cuda_launch_specs(plan, buffers, launches);
    const cuda_spec *first =
        &launches[plan->sum.problem && !plan->sum.is_last].spec; /* of the norm */
    if (bytes)
        text[0] = 0;
    if (!count)
        return 0;
    const int together =
        cuda_spec_is_cooperative(first) ? first->cooperating_blocks : cuda_spec_cluster(first);
    const int held = plan->limits.multiprocessors * most(1, first->min_blocks) / most(1, together);
    cuda_launch_arguments(plan, buffers, NULL, most(1, held), launches);
    int length = 0;
    for (int i = 0; i < count; i++) {
        const cuda_launch *l = &launches[i];
        const size_t at = (size_t)length < bytes ? (size_t)length : bytes;
        length += snprintf(text + at, bytes - at,
                           "%s %lld x %u blocks of %u threads, %zu bytes, cluster %d\n",
                           cuda_kernel_of(&l->spec)->entry, (long long)l->blocks_x,
                           l->blocks_x ? l->blocks_y : 0, cuda_spec_threads(&l->spec),
                           cuda_spec_shared_bytes(&l->spec), cuda_spec_cluster(&l->spec));
    }
    return length;
}

/* The kernel that runs where the device holds it. */
static cuda_spec *spec_of(cuda_plan *plan) {
    return plan->cooperative.kernel >= 0 ? &plan->cooperative : &plan->main;
}
/* A constant by its name in the kernel's text; -1: it has none. */
EXPORT int shim_get(cuda_plan *plan, const char *name) {
    int32_t value;
    return cuda_spec_get(spec_of(plan), name, &value) ? value : -1;
}

/* COOPERATING_BLOCKS 1 takes the cooperative way away; more makes one where the plan has none. */
static void set_group(cuda_plan *plan, int group) {
    if (group > 1 && plan->cooperative.kernel < 0) {
        plan->cooperative = plan->main;
        rows_constants *c = &plan->cooperative.rows;
        plan->cooperative.cluster = 1;
        if (plan->main.kernel != CUDA_STRIPS)
            c->rows = c->teams = c->hold = c->early = 1;
    }
    if (group > 1)
        plan->cooperative.cooperating_blocks = group;
    else
        plan->cooperative.kernel = -1;
}

/* Changes a constant of the kernel that runs (COOPERATING_BLOCKS first), TURNS of the plan or
 * SLICES of what adds up partial sums; a bench's way to try variants. 0: the kernel has no such
 * constant. */
EXPORT int shim_set(cuda_plan *plan, const char *name, int value) {
    if (!strcmp(name, "TURNS"))
        plan->turns = value;
    else if (!strcmp(name, "SLICES"))
        plan->finish.finish.slices = value;
    else if (!strcmp(name, "COOPERATING_BLOCKS"))
        set_group(plan, value);
    else if (!cuda_spec_set(spec_of(plan), name, value))
        return 0;
    cuda_family_of(plan)->plan_size(plan);
    return 1;
}

EXPORT int shim_run(const cuda_plan *plan, void *const *buffers, void *stream, void *workspace,
                    char *text, size_t bytes) {
    return cuda_plan_run(plan, buffers, stream, workspace, (message){text, bytes});
}

/* Compiles to disk what a run with these addresses needs. */
EXPORT int shim_prepare(const cuda_plan *plan, void *const *buffers, char *text, size_t bytes) {
    return cuda_plan_prepare(plan, buffers, (message){text, bytes});
}

/* The code of the kernel of this number, from wherever a run takes it, cut to `room`; 100 where the
 * plan has no such kernel. */
EXPORT int shim_code(const cuda_plan *plan, void *const *buffers, int number, void *to, size_t room,
                     size_t *code_bytes, char *text, size_t bytes) {
    cuda_launch launches[CUDA_MOST_LAUNCHES];
    if (number >= cuda_launch_specs(plan, buffers, launches))
        return 100;
    void *code = NULL;
    planish_status status = jit_code(&launches[number].spec, plan->limits.arch, &code, code_bytes,
                                     (message){text, bytes});
    if (!status)
        memcpy(to, code, *code_bytes < room ? *code_bytes : room);
    free(code);
    return status;
}

/* A specialisation; the compiler's report goes to `log`. */
static int compiled(const cuda_spec *spec, int arch, char *log, size_t log_bytes, char *text,
                    size_t bytes) {
    void *code = NULL;
    char *report = NULL;
    size_t code_bytes = 0;
    planish_status status =
        jit_compile(spec, arch, 1, &code, &code_bytes, &report, (message){text, bytes});
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

/* Compiles the plan's kernel of this number in the order of launch, with accesses of `access`
 * bytes; the compiler's report goes to `log`. Returns a status; 100 where the plan has no such
 * kernel. */
EXPORT int shim_compile(const cuda_plan *plan, int number, int arch, int access, char *log,
                        size_t log_bytes, char *text, size_t bytes) {
    static void *const nowhere[ROLE_COUNT] = {NULL};
    cuda_launch launches[CUDA_MOST_LAUNCHES];
    cuda_plan plain = *plan;
    plain.cooperative.kernel = -1;
    const int cooperative = plan->cooperative.kernel >= 0 && number == 0;
    const cuda_plan *which = cooperative ? plan : &plain;
    number -= plan->cooperative.kernel >= 0 &&
              !cooperative; /* what runs in the cooperative kernel's place follows it */
    if (number >= cuda_launch_specs(which, nowhere, launches))
        return 100;
    cuda_spec spec = launches[number].spec;
    if (!cooperative && (spec.kernel == CUDA_FORWARD || spec.kernel == CUDA_BACKWARD))
        spec = plan->main;
    for (role r = 0; r < ROLE_COUNT; r++)
        spec.access[r] = (uint8_t)access;
    rows_constants *rows = &spec.rows; /* of forward and backward */
    const int tiled = rows_are_tiled(&spec);
    if (spec.kernel == CUDA_BACKWARD && !cooperative && rows->hold == HOLD_IN_THREAD && !tiled &&
        (access < 4 || rows->width * role_bytes(&spec, ROLE_X) < 4 ||
         rows->width * role_bytes(&spec, ROLE_DY) < 4))
        rows->ring_slots = 0;
    if (tiled) {
        rows->dense = access >= 4 ? 7 : 0;
        if (access < 4 && spec.kernel == CUDA_FORWARD)
            spec.min_blocks = most(1, spec.min_blocks * 3 / 4);
    }
    if (spec.kernel == CUDA_FORWARD && !cooperative && access < 4) {
        rows->ring_slots = 0;
        if (rows->hold == HOLD_IN_SHARED)
            rows->hold = READ_AGAIN;
    }
    return compiled(&spec, arch, log, log_bytes, text, bytes);
}

/* Whether two runs of the plan at once are one launch. */
EXPORT int shim_pairs(const cuda_plan *plan) {
    static void *const nowhere[ROLE_COUNT] = {NULL};
    cuda_launch launches[CUDA_MOST_LAUNCHES];
    const cuda_pair pair = {{plan, plan}, {nowhere, nowhere}};
    return rows_pair_specs(&pair, launches) > 0;
}

/* The same of the kernel that two runs of the plan at once are planned with, of buffers at aligned
 * addresses; 100 too where there is none. */
EXPORT int shim_compile_pair(const cuda_plan *plan, int number, int arch, char *log,
                             size_t log_bytes, char *text, size_t bytes) {
    static void *const nowhere[ROLE_COUNT] = {NULL};
    cuda_launch launches[CUDA_MOST_LAUNCHES];
    const cuda_pair pair = {{plan, plan}, {nowhere, nowhere}};
    if (number >= rows_pair_specs(&pair, launches))
        return 100;
    return compiled(&launches[number].spec, arch, log, log_bytes, text, bytes);
}

/* The kernel that puts together what parts of rows sent, which belongs to no plan. */
EXPORT int shim_compile_merge(int arch, char *log, size_t log_bytes, char *text, size_t bytes) {
    const cuda_spec spec = cuda_merge_spec();
    return compiled(&spec, arch, log, log_bytes, text, bytes);
}
