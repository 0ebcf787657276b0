/*
 * The library's two entries that cases.c calls, on the small GPU of device.h: a plan's launches are
 * specialisations of the kernels' text, each compiled to a library of its own.
 */
#include "emulated.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../c/check.h"
#include "cuda/arguments.h"
#include "cuda/geometry.h"
#include "cuda/groups.h"
#include "problem.h"

/* ---- The device and how it runs ---------------------------------------------------------------
 */

cuda_limits limits;
const char *write_folder, *unit_folder;
schedule order;
unsigned char fill;
int units_written, launches_run;
bool without_clusters;
sharing sharing_of_rows;

void set_device(int arch, int multiprocessors) {
    limits = (cuda_limits){.arch = arch,
                           .multiprocessors = multiprocessors,
                           .shared_per_block = arch >= 90 ? 232448 : 166912,
                           .max_cluster = arch >= 90 ? 16 : 1};
}

/* ---- Specialisations as libraries -------------------------------------------------------------
 */

static unsigned long long hash_of(const char *text) {
    unsigned long long hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    return hash;
}

/* C++ of a specialisation; its name is a hash of that. */
static void unit_of(const cuda_spec *spec, char *text, size_t bytes, char *name, size_t room) {
    /* The folder of kernels/ names the file, and this the function in it. */
    static const char *const files[CUDA_KERNEL_COUNT] = {
        [CUDA_FORWARD] = "forward",        [CUDA_BACKWARD] = "backward",
        [CUDA_SUMS] = "backward_long",     [CUDA_APPLY] = "backward_long",
        [CUDA_FINISH] = "finish",          [CUDA_CHANNELS] = "channels",
        [CUDA_GROUPS] = "groups",          [CUDA_STRIPS] = "strips",
        [CUDA_GENERAL_ROWS] = "general",   [CUDA_GENERAL_COLUMNS] = "general",
        [CUDA_GENERAL_FINISH] = "general",
    };
    size_t n = cuda_spec_prelude(spec, text, bytes);
    snprintf(text + n, bytes - n,
             "#include \"words.hpp\"\n#include \"vocabulary.inc\"\n#include \"instructions.hpp\"\n"
             "#include \"%s.inc\"\n#include \"unit.hpp\"\nUNIT(%s)\n",
             files[spec->kernel], cuda_kernel_entry((cuda_kernel)spec->kernel));
    snprintf(name, room, "%s_%016llx", cuda_kernel_entry((cuda_kernel)spec->kernel) + 8,
             hash_of(text));
}

static bool write_unit(const cuda_spec *spec) {
    char text[6000], name[80], path[600];
    unit_of(spec, text, sizeof text, name, sizeof name);
    snprintf(path, sizeof path, "%s/%s.cpp", write_folder, name);
    FILE *f = fopen(path, "wx");
    if (!f)
        return true; /* it is there already */
    units_written++;
    bool good = fputs(text, f) >= 0;
    return fclose(f) == 0 && good;
}

typedef struct unit {
    char name[80];
    void (*entry)(const void *args);
    size_t args_bytes;
    struct unit *next;
} unit;

static const unit *find_unit(const cuda_spec *spec, message error) {
    static unit *units;
    char text[6000], name[80], path[600];
    unit_of(spec, text, sizeof text, name, sizeof name);
    for (unit *u = units; u; u = u->next)
        if (!strcmp(u->name, name))
            return u;
    snprintf(path, sizeof path, "%s/%s.so", unit_folder, name);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const size_t *bytes = library ? dlsym(library, "unit_args_bytes") : NULL;
    unit *u = calloc(1, sizeof *u);
    if (u && bytes) {
        memcpy(u->name, name, sizeof name);
        *(void **)&u->entry = dlsym(library, "unit_run");
        u->args_bytes = *bytes;
    }
    if (!u || !bytes || !u->entry) {
        fail(error, PLANISH_ERROR_UNAVAILABLE, "%s", dlerror());
        free(u);
        return NULL;
    }
    u->next = units;
    return units = u;
}

/* ---- The library's two entries that cases.c calls, on the emulated device ---------------------
 */

static void share_without_clusters(cuda_plan *plan) {
    int32_t *c = plan->wide.constant;
    if (plan->main.constant[C_CLUSTER] == 1)
        return;
    plan->wide = plan->main;
    c[C_GROUP] = c[C_CLUSTER];
    c[C_CLUSTER] = 1;
    groups_plan_size(plan);
}

static void share_rows(cuda_plan *plan) {
    const sharing *s = &sharing_of_rows;
    int32_t *c = plan->wide.constant;
    plan->wide = plan->main;
    plan->wide.kernel = plan->main.kernel == CUDA_FORWARD ? CUDA_FORWARD : CUDA_BACKWARD;
    c[C_GROUP] = s->group;
    c[C_LANES] = s->lanes;
    c[C_WARPS] = s->lanes / 32;
    c[C_VECS] = s->vecs;
    c[C_STAGES] = s->stages;
    c[C_DELAY] = s->delay;
    c[C_ROWS] = c[C_CLUSTER] = c[C_TEAMS] = c[C_HOLD] = c[C_EARLY] = c[C_MIN_BLOCKS] = 1;
    plan->workspace_bytes = cuda_plan_workspace(plan);
}

static planish_status make_plan(cuda_plan *plan, problem *p, const planish_norm *op,
                                planish_pass pass, const planish_tensors *tensors, message error) {
    planish_status status = problem_make(p, op, pass, tensors, error);
    if (!status)
        cuda_plan_make(plan, p, &limits);
    if (!status && without_clusters && plan->main.kernel == CUDA_STRIPS)
        share_without_clusters(plan);
    if (!status && sharing_of_rows.group)
        share_rows(plan);
    return status;
}

static size_t args_bytes(int kernel) {
    static const size_t bytes[CUDA_KERNEL_COUNT] = {
        [CUDA_FORWARD] = sizeof(cuda_forward_args),
        [CUDA_BACKWARD] = sizeof(cuda_backward_args),
        [CUDA_SUMS] = sizeof(cuda_long_args),
        [CUDA_APPLY] = sizeof(cuda_long_args),
        [CUDA_FINISH] = sizeof(cuda_finish_args),
        [CUDA_CHANNELS] = sizeof(cuda_channels_args),
        [CUDA_GROUPS] = sizeof(cuda_groups_args),
        [CUDA_STRIPS] = sizeof(cuda_groups_args),
        [CUDA_GENERAL_ROWS] = sizeof(cuda_general_args),
        [CUDA_GENERAL_COLUMNS] = sizeof(cuda_general_args),
        [CUDA_GENERAL_FINISH] = sizeof(cuda_general_args),
    };
    return bytes[kernel];
}

/* What was emulated of what a specialisation can be. */
static struct variant {
    int kernel, constant, least, most; /* of the constant's value */
    bool seen;
} variants[] = {
    {CUDA_FORWARD, C_HOLD, 0, 0, 0},
    {CUDA_FORWARD, C_HOLD, 1, 1, 0},
    {CUDA_FORWARD, C_HOLD, 2, 2, 0},
    {CUDA_FORWARD, C_STAGES, 0, 0, 0},
    {CUDA_FORWARD, C_STAGES, 1, 9, 0},
    {CUDA_FORWARD, C_EARLY, 0, 0, 0},
    {CUDA_FORWARD, C_EARLY, 1, 1, 0},
    {CUDA_FORWARD, C_CLUSTER, 2, 16, 0},
    {CUDA_FORWARD, C_ROWS, 2, 9, 0},
    {CUDA_FORWARD, C_REAL_DOUBLE, 1, 1, 0},
    {CUDA_FORWARD, C_TILE, 1, 1, 0},
    {CUDA_FORWARD, C_TILE, 2, 2, 0},
    {CUDA_BACKWARD, C_TILE, 1, 1, 0},
    {CUDA_BACKWARD, C_TILE, 2, 2, 0},
    {CUDA_FORWARD, C_X_ACCESS, 2, 2, 0},
    {CUDA_FORWARD, C_X_ACCESS, 4, 4, 0},
    {CUDA_FORWARD, C_X_ACCESS, 8, 8, 0},
    {CUDA_FORWARD, C_X_ACCESS, 16, 16, 0},
    {CUDA_BACKWARD, C_STAGES, 0, 0, 0},
    {CUDA_BACKWARD, C_STAGES, 1, 1, 0},
    {CUDA_BACKWARD, C_STAGES, 2, 9, 0},
    {CUDA_BACKWARD, C_TEAMS, 2, 32, 0},
    {CUDA_BACKWARD, C_HOLD, 1, 1, 0},
    {CUDA_BACKWARD, C_CLUSTER, 3, 3, 0},
    {CUDA_BACKWARD, C_CORRECT, 0, 0, 0},
    {CUDA_BACKWARD, C_CORRECT, 1, 1, 0},
    {CUDA_BACKWARD, C_CLUSTER, 2, 16, 0},
    {CUDA_BACKWARD, C_ROWS, 2, 9, 0},
    {CUDA_BACKWARD, C_G_ACCESS, 2, 2, 0},
    {CUDA_BACKWARD, C_REAL_DOUBLE, 1, 1, 0},
    {CUDA_FORWARD, C_GROUP, 2, 32, 0},
    {CUDA_FORWARD, C_GROUP, 33, 999, 0},
    {CUDA_BACKWARD, C_GROUP, 2, 32, 0},
    {CUDA_BACKWARD, C_GROUP, 33, 999, 0},
    {CUDA_SUMS, C_WARPS, 1, 32, 0},
    {CUDA_APPLY, C_WARPS, 1, 32, 0},
    {CUDA_FINISH, C_SLICES, 1, 8, 0},
    {CUDA_FINISH, C_SLICES, 16, 32, 0},
    {CUDA_FINISH, C_LANES, 32, 32, 0},
    {CUDA_FINISH, C_LANES, 64, 256, 0},
    {CUDA_FORWARD, C_GROUPS, 2, 999, 0},
    {CUDA_FORWARD, C_ACTIVATION, PLANISH_SILU, PLANISH_SILU, 0},
    {CUDA_FORWARD, C_ACTIVATION, PLANISH_RELU, PLANISH_RELU, 0},
    {CUDA_BACKWARD, C_ACTIVATION, PLANISH_SILU, PLANISH_SILU, 0},
    {CUDA_BACKWARD, C_ACTIVATION, PLANISH_RELU, PLANISH_RELU, 0},
    {CUDA_CHANNELS, C_ACTIVATION, PLANISH_SILU, PLANISH_SILU, 0},
    {CUDA_CHANNELS, C_ACTIVATION, PLANISH_RELU, PLANISH_RELU, 0},
    {CUDA_GROUPS, C_ACTIVATION, PLANISH_SILU, PLANISH_SILU, 0},
    {CUDA_GROUPS, C_ACTIVATION, PLANISH_RELU, PLANISH_RELU, 0},
    {CUDA_STRIPS, C_ACTIVATION, PLANISH_SILU, PLANISH_SILU, 0},
    {CUDA_STRIPS, C_ACTIVATION, PLANISH_RELU, PLANISH_RELU, 0},
    {CUDA_GENERAL_ROWS, C_ACTIVATION, PLANISH_SILU, PLANISH_SILU, 0},
    {CUDA_GENERAL_COLUMNS, C_ACTIVATION, PLANISH_SILU, PLANISH_SILU, 0},
    {CUDA_CHANNELS, C_PASS, PLANISH_FORWARD, PLANISH_FORWARD, 0},
    {CUDA_CHANNELS, C_PASS, PLANISH_BACKWARD, PLANISH_BACKWARD, 0},
    {CUDA_CHANNELS, C_CLUSTER, 1, 1, 0},
    {CUDA_CHANNELS, C_CLUSTER, 2, 2, 0},
    {CUDA_CHANNELS, C_CLUSTER, 3, 3, 0},
    {CUDA_CHANNELS, C_CLUSTER, 4, 4, 0},
    {CUDA_CHANNELS, C_CLUSTER, 6, 6, 0},
    {CUDA_CHANNELS, C_CLUSTER, 8, 8, 0},
    {CUDA_CHANNELS, C_CLUSTER, 16, 16, 0},
    {CUDA_CHANNELS, C_ROWS, 1, 1, 0},
    {CUDA_CHANNELS, C_ROWS, 2, 2, 0},
    {CUDA_CHANNELS, C_ROWS, 4, 4, 0},
    {CUDA_CHANNELS, C_STAGES, 2, 2, 0},
    {CUDA_CHANNELS, C_LAST, 1, 1, 0},
    {CUDA_CHANNELS, C_HOLD, 1, 1, 0},
    {CUDA_CHANNELS, C_CORRECT, 1, 1, 0},
    {CUDA_CHANNELS, C_X_ACCESS, 2, 2, 0},
    {CUDA_CHANNELS, C_X_ACCESS, 16, 16, 0},
    {CUDA_CHANNELS, C_WIDTH, 1, 1, 0},
    {CUDA_CHANNELS, C_WIDTH, 4, 4, 0},
    {CUDA_GROUPS, C_STAGE, 0, 0, 0},
    {CUDA_GROUPS, C_STAGE, 1, 1, 0},
    {CUDA_GROUPS, C_STAGE, 2, 2, 0},
    {CUDA_GROUPS, C_STAGE, 3, 3, 0},
    {CUDA_GROUPS, C_STAGE, 4, 4, 0},
    {CUDA_GROUPS, C_LAST, 0, 0, 0},
    {CUDA_GROUPS, C_LAST, 1, 1, 0},
    {CUDA_GROUPS, C_CLUSTER, 1, 1, 0},
    {CUDA_GROUPS, C_CLUSTER, 5, 5, 0},
    {CUDA_GROUPS, C_CORRECT, 1, 1, 0},
    {CUDA_GROUPS, C_X_ACCESS, 2, 2, 0},
    {CUDA_STRIPS, C_PASS, 0, 0, 0},
    {CUDA_STRIPS, C_PASS, 1, 1, 0},
    {CUDA_STRIPS, C_CLUSTER, 1, 1, 0},
    {CUDA_STRIPS, C_CLUSTER, 2, 2, 0},
    {CUDA_STRIPS, C_CLUSTER, 4, 16, 0},
    {CUDA_STRIPS, C_GROUP, 2, 16, 0},
    {CUDA_STRIPS, C_DELAY, 1, 1, 0},
    {CUDA_STRIPS, C_CORRECT, 1, 1, 0},
    {CUDA_STRIPS, C_DEPTH, 1, 1, 0},
    {CUDA_GENERAL_ROWS, C_PASS, PLANISH_FORWARD, PLANISH_FORWARD, 0},
    {CUDA_GENERAL_ROWS, C_PASS, PLANISH_BACKWARD, PLANISH_BACKWARD, 0},
    {CUDA_GENERAL_ROWS, C_PASS, PLANISH_BACKWARD_FROM_Y, PLANISH_BACKWARD_FROM_Y, 0},
    {CUDA_GENERAL_ROWS, C_PASS, PLANISH_STATISTICS, PLANISH_STATISTICS, 0},
    {CUDA_GENERAL_ROWS, C_PASS, PLANISH_APPLY, PLANISH_APPLY, 0},
    {CUDA_GENERAL_ROWS, C_LANES, 1, 1, 0},
    {CUDA_GENERAL_ROWS, C_LANES, 32, 32, 0},
    {CUDA_GENERAL_COLUMNS, C_LANES, 1, 1, 0},
    {CUDA_GENERAL_COLUMNS, C_LANES, 32, 32, 0},
    {CUDA_GENERAL_FINISH, C_WARPS, 1, 32, 0},
};

static void note_variant(const cuda_spec *spec) {
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        struct variant *v = &variants[i];
        const int32_t value = spec->constant[v->constant];
        v->seen |= v->kernel == spec->kernel && v->least <= value && value <= v->most;
    }
}

static planish_status run_launch(const cuda_launch *l, message error) {
    const unit *u = find_unit(&l->spec, error);
    if (!u)
        return PLANISH_ERROR_UNAVAILABLE;
    if (u->args_bytes != args_bytes(l->spec.kernel))
        return fail(error, PLANISH_ERROR_DRIVER, "arguments of %zu bytes: the kernel has %zu",
                    args_bytes(l->spec.kernel), u->args_bytes);
    const emulated_launch launch = {.entry = u->entry,
                                    .args = &l->args,
                                    .blocks_x = l->blocks_x,
                                    .blocks_y = l->blocks_y,
                                    .cluster = cuda_spec_cluster(&l->spec),
                                    .threads = cuda_spec_threads(&l->spec),
                                    .shared_bytes = cuda_spec_shared_bytes(&l->spec),
                                    .shared_limit = (size_t)limits.shared_per_block,
                                    .resident = cuda_spec_is_wide(&l->spec),
                                    .schedule = order,
                                    .seed = 7 + (uint64_t)launches_run,
                                    .shared_fill = fill};
    note_variant(&l->spec);
    launches_run++;
    const char *wrong = emulate(&launch);
    return wrong ? fail(error, PLANISH_ERROR_DRIVER, "%s: %s",
                        cuda_kernel_entry((cuda_kernel)l->spec.kernel), wrong)
                 : PLANISH_OK;
}

static void *data_of(const DLTensor *t) {
    return t && t->data ? (char *)t->data + t->byte_offset : NULL;
}

planish_status planish_norm_run(const planish_norm *op, planish_pass pass,
                                const planish_tensors *tensors, const planish_exec *exec) {
    const planish_tensors *t = tensors;
    const message error = {exec->message, exec->message_bytes};
    const DLTensor *list[ROLE_COUNT];
    void *buffers[ROLE_COUNT];
    tensors_by_role(t, list);
    for (int r = 0; r < ROLE_COUNT; r++)
        buffers[r] = data_of(list[r]);
    problem p;
    cuda_plan plan;
    planish_status status = make_plan(&plan, &p, op, pass, tensors, error);
    if (status)
        return status;
    cuda_launch launches[CUDA_MOST_LAUNCHES];
    int count = cuda_launch_specs(&plan, buffers, launches);
    /* As the driver answers for clusters, with multiprocessors in groups of 16 or so. */
    int cluster = cuda_spec_cluster(&launches[0].spec);
    int held = limits.multiprocessors / cluster;
    if (cuda_spec_is_wide(&launches[0].spec))
        held = limits.multiprocessors * launches[0].spec.constant[C_MIN_BLOCKS] /
               launches[0].spec.constant[C_GROUP];
    if (exec->workspace)
        memset(exec->workspace, fill, exec->workspace_bytes);
    cuda_launch_arguments(&plan, buffers, exec->workspace, held > 1 ? held - held / 8 : 1,
                          launches);
    for (int i = 0; i < count && !status; i++)
        if (write_folder)
            status = write_unit(&launches[i].spec) ? PLANISH_OK : PLANISH_ERROR_DRIVER;
        else if (launches[i].blocks_x)
            status = run_launch(&launches[i], error);
    return status;
}

planish_status planish_norm_workspace_bytes(const planish_norm *op, planish_pass pass,
                                            const planish_tensors *tensors, size_t *bytes,
                                            const planish_exec *exec) {
    problem p;
    cuda_plan plan;
    planish_status status =
        make_plan(&plan, &p, op, pass, tensors, (message){exec->message, exec->message_bytes});
    *bytes = status ? 0 : plan.workspace_bytes;
    return status;
}

void name_missing_variants(void) {
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        const struct variant *v = &variants[i];
        if (!v->seen)
            printf("not launched: %s with constant %d from %d to %d\n",
                   cuda_kernel_entry((cuda_kernel)v->kernel), v->constant, v->least, v->most);
    }
}
