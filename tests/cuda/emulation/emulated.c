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
#include "cuda/families.h"
#include "cuda/geometry.h"
#include "problem.h"

/* ---- The device and how it runs -------------------------------------------------------------- */

cuda_limits limits;
const char *write_folder, *unit_folder;
schedule order;
unsigned char fill;
int units_written, launches_run;
bool without_clusters, summed_ahead;
sharing sharing_of_rows;

void set_device(int arch, int multiprocessors) {
    limits = (cuda_limits){.arch = arch,
                           .multiprocessors = multiprocessors,
                           .shared_per_block = arch >= 90 ? 232448 : 166912,
                           .max_cluster = arch >= 90 ? 16 : 1};
}

void set_cooperative(int cooperative) {
    limits.cooperative = cooperative;
}

/* ---- Specialisations as libraries ------------------------------------------------------------ */

static unsigned long long hash_of(const char *text) {
    unsigned long long hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    return hash;
}

/* C++ of a specialisation; its name is a hash of that. */
static void unit_of(const cuda_spec *spec, char *text, size_t bytes, char *name, size_t room) {
    const cuda_kernel_row *kernel = cuda_kernel_of(spec);
    size_t n = cuda_spec_prelude(spec, text, bytes);
    snprintf(text + n, bytes - n,
             "#include \"words.hpp\"\n#include \"vocabulary.inc\"\n#include \"instructions.hpp\"\n"
             "#include \"%s.inc\"\n#include \"unit.hpp\"\nUNIT(%s)\n",
             kernel->file, kernel->entry);
    snprintf(name, room, "%s_%016llx", kernel->entry + strlen("planish_"), hash_of(text));
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
    unit *u = calloc(1, sizeof *u);
    if (u && library) {
        memcpy(u->name, name, sizeof name);
        *(void **)&u->entry = dlsym(library, "unit_run");
    }
    if (!u || !u->entry) {
        fail(error, PLANISH_ERROR_UNAVAILABLE, "%s", dlerror());
        free(u);
        return NULL;
    }
    u->next = units;
    return units = u;
}

/* ---- The library's two entries that cases.c calls, on the emulated device -------------------- */

static void share_without_clusters(cuda_plan *plan) {
    if (plan->main.cluster == 1)
        return;
    plan->cooperative = plan->main;
    plan->cooperative.cooperating_blocks = plan->main.cluster;
    plan->cooperative.cluster = 1;
    cuda_family_of(plan)->plan_size(plan);
}

static void share_rows(cuda_plan *plan) {
    const sharing *s = &sharing_of_rows;
    rows_constants *c = &plan->cooperative.rows;
    plan->cooperative = plan->main;
    plan->cooperative.kernel = plan->main.kernel == CUDA_FORWARD ? CUDA_FORWARD : CUDA_BACKWARD;
    plan->cooperative.cooperating_blocks = s->group;
    plan->cooperative.cluster = plan->cooperative.min_blocks = 1;
    c->threads_per_row = s->lanes;
    c->warps = s->lanes / 32;
    c->chunks_per_thread = s->vecs;
    c->ring_slots = s->stages;
    c->delay = s->delay;
    c->rows = c->teams = c->hold = c->early = 1;
    cuda_family_of(plan)->plan_size(plan);
}

planish_status emulated_plan(cuda_plan *plan, emulated_problem *p, const planish_norm *op,
                             planish_pass pass, const planish_tensors *tensors, message error) {
    planish_status status = problem_make(&p->problem, op, pass, tensors, error);
    if (!status)
        cuda_plan_make(plan, &p->steps, &p->problem, &p->norm, &limits);
    if (!status && without_clusters && plan->main.kernel == CUDA_STRIPS)
        share_without_clusters(plan);
    if (!status && summed_ahead && plan->cooperative.kernel == CUDA_STRIPS)
        plan->cooperative.groups.ahead = 1;
    if (!status && sharing_of_rows.group)
        share_rows(plan);
    return status;
}

static planish_status run_launch(const cuda_launch *l, message error) {
    const unit *u = find_unit(&l->spec, error);
    if (!u)
        return PLANISH_ERROR_UNAVAILABLE;
    const cuda_kernel_row *kernel = cuda_kernel_of(&l->spec);
    const emulated_launch launch = {.entry = u->entry,
                                    .args = &l->args,
                                    .blocks_x = l->blocks_x,
                                    .blocks_y = l->blocks_y,
                                    .cluster = cuda_spec_cluster(&l->spec),
                                    .threads = cuda_spec_threads(&l->spec),
                                    .shared_bytes = cuda_spec_shared_bytes(&l->spec),
                                    .shared_limit = (size_t)limits.shared_per_block,
                                    .resident = cuda_spec_is_cooperative(&l->spec),
                                    .schedule = order,
                                    .seed = 7 + (uint64_t)launches_run,
                                    .shared_fill = fill};
    note_variant(&l->spec);
    launches_run++;
    const char *wrong = emulate(&launch);
    return wrong ? fail(error, PLANISH_ERROR_DRIVER, "%s: %s", kernel->entry, wrong) : PLANISH_OK;
}

planish_status emulated_queue(const cuda_launch *l, message error) {
    if (write_folder)
        return write_unit(&l->spec) ? PLANISH_OK : PLANISH_ERROR_DRIVER;
    return l->blocks_x ? run_launch(l, error) : PLANISH_OK;
}

static void *data_of(const DLTensor *t) {
    return t && t->data ? (char *)t->data + t->byte_offset : NULL;
}

void emulated_buffers(const planish_tensors *tensors, void *buffers[ROLE_COUNT]) {
    const DLTensor *list[ROLE_COUNT];
    tensors_by_role(tensors, list);
    for (int r = 0; r < ROLE_COUNT; r++)
        buffers[r] = data_of(list[r]);
}

planish_status planish_norm_run(const planish_norm *op, planish_pass pass,
                                const planish_tensors *tensors, const planish_exec *exec) {
    const message error = {exec->message, exec->message_bytes};
    void *buffers[ROLE_COUNT];
    emulated_buffers(tensors, buffers);
    emulated_problem p;
    cuda_plan plan;
    planish_status status = emulated_plan(&plan, &p, op, pass, tensors, error);
    if (status)
        return status;
    cuda_launch launches[CUDA_MOST_LAUNCHES];
    int count = cuda_launch_specs(&plan, buffers, launches);
    if (!count)
        return PLANISH_OK;
    /* As the driver answers for clusters, with multiprocessors in groups of 16 or so. */
    const cuda_spec *first =
        &launches[plan.sum.problem && !plan.sum.is_last].spec; /* of the norm */
    int cluster = cuda_spec_cluster(first);
    int held = limits.multiprocessors / cluster;
    if (cuda_spec_is_cooperative(first))
        held = limits.multiprocessors * first->min_blocks / first->cooperating_blocks;
    if (exec->workspace)
        memset(exec->workspace, fill, exec->workspace_bytes);
    cuda_launch_arguments(&plan, buffers, exec->workspace, held > 1 ? held - held / 8 : 1,
                          launches);
    for (int i = 0; i < count && !status; i++)
        status = emulated_queue(&launches[i], error);
    return status;
}

planish_status planish_norm_workspace_bytes(const planish_norm *op, planish_pass pass,
                                            const planish_tensors *tensors, size_t *bytes,
                                            const planish_exec *exec) {
    emulated_problem p;
    cuda_plan plan;
    planish_status status =
        emulated_plan(&plan, &p, op, pass, tensors, (message){exec->message, exec->message_bytes});
    *bytes = status ? 0 : plan.workspace_bytes;
    return status;
}
