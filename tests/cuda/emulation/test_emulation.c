/*
 * The GPU kernels without a GPU: their own text, compiled for the host, run over the small GPU of
 * device.h and held against the reference with the bounds of docs/numerics.md.
 *
 *     test_emulation --write=FOLDER    writes the specialisations that the cases need, as C++
 *     test_emulation --units=FOLDER    runs the cases with what was compiled of them
 *     ... [--share=K] [--table=NAME]
 *
 * Every case runs with its threads and blocks in order and in a random order, which must give the
 * same bits, and so must a slice of its rows. run.py does all of it.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../c/cases.h"
#include "../../c/check.h"
#include "cuda/arguments.h"
#include "cuda/geometry.h"
#include "cuda/groups.h"
#include "device.h"
#include "problem.h"

/* ---- The device and how it runs ---------------------------------------------------------------
 */

static cuda_limits limits;
static const char *write_folder, *unit_folder;
static schedule order;
static unsigned char fill; /* of what nobody has written yet */
static int units_written, launches_run;

/* Few multiprocessors give each block several rows; 132 of them give most one or none. */
static void set_device(int arch, int multiprocessors) {
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

/* Strips of clusters are shared by as many blocks anywhere on the device instead. */
static bool without_clusters;

static void share_without_clusters(cuda_plan *plan) {
    int32_t *c = plan->wide.constant;
    if (plan->main.constant[C_CLUSTER] == 1)
        return;
    plan->wide = plan->main;
    c[C_GROUP] = c[C_CLUSTER];
    c[C_CLUSTER] = 1;
    groups_plan_size(plan);
}

static planish_status make_plan(cuda_plan *plan, problem *p, const planish_norm *op,
                                planish_pass pass, const planish_tensors *tensors, message error) {
    planish_status status = problem_make(p, op, pass, tensors, error);
    if (!status)
        cuda_plan_make(plan, p, &limits);
    if (!status && without_clusters && plan->main.kernel == CUDA_STRIPS)
        share_without_clusters(plan);
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
    {CUDA_SUMS, C_WARPS, 1, 32, 0},
    {CUDA_APPLY, C_WARPS, 1, 32, 0},
    {CUDA_FINISH, C_SLICES, 1, 8, 0},
    {CUDA_FINISH, C_SLICES, 16, 32, 0},
    {CUDA_FORWARD, C_GROUPS, 2, 999, 0},
    {CUDA_FORWARD, C_ACTIVATION, PLANISH_SILU, PLANISH_SILU, 0},
    {CUDA_FORWARD, C_ACTIVATION, PLANISH_RELU, PLANISH_RELU, 0},
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
    void *const buffers[ROLE_COUNT] = {data_of(t->x),       data_of(t->weight), data_of(t->bias),
                                       data_of(t->y),       data_of(t->mean),   data_of(t->rstd),
                                       data_of(t->m2),      data_of(t->dy),     data_of(t->dx),
                                       data_of(t->dweight), data_of(t->dbias)};
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

/* ---- One case ---------------------------------------------------------------------------------
 */

static bool is_output(const bundle *b, part p) {
    return *tensors_field((planish_tensors *)&b->tensors, p) && part_is_output(b->test.pass, p);
}

/* The outputs' memory, guards and gaps included. */
static void keep(const bundle *b, unsigned char *kept[PARTS]) {
    for (part p = 0; p < PARTS; p++) {
        kept[p] = NULL;
        if (is_output(b, p)) {
            kept[p] = malloc(b->tensor[p].memory.bytes + 1);
            memcpy(kept[p], b->tensor[p].memory.data, b->tensor[p].memory.bytes);
        }
    }
}

static void clear_outputs(bundle *b) {
    for (part p = 0; p < PARTS; p++)
        if (is_output(b, p))
            tensor_clear(&b->tensor[p]);
}

static bool run(bundle *b, schedule how) {
    char text[700] = "";
    order = how;
    fill = how == IN_ORDER ? 0xff : 0x41; /* NaN in every type; an ordinary number */
    planish_status status = bundle_run(b, NULL, text, sizeof text);
    return expect(status == PLANISH_OK, "%s: %s", planish_status_name(status), text);
}

/* Runs rows [first, first + count) of the first axis alone, and expects the bits they had. */
static void check_slice(bundle *b, unsigned char *const *kept, int64_t first, int64_t count) {
    DLTensor part_of[PARTS];
    int64_t shapes[PARTS][PLANISH_MAX_NDIM];
    const planish_tensors whole = b->tensors;
    for (part p = 0; p < PARTS; p++) {
        const DLTensor **field = tensors_field(&b->tensors, p);
        if (!*field || p == WEIGHT || p == BIAS || p == DWEIGHT || p == DBIAS)
            continue;
        part_of[p] = **field;
        memcpy(shapes[p], part_of[p].shape, sizeof *shapes);
        shapes[p][0] = count;
        int64_t dense = 1;
        for (int i = 1; i < part_of[p].ndim; i++)
            dense *= shapes[p][i];
        const int64_t step = part_of[p].strides ? part_of[p].strides[0] : dense;
        part_of[p].shape = shapes[p];
        part_of[p].byte_offset += (uint64_t)(first * step * element_bytes(b->tensor[p].type));
        *field = &part_of[p];
    }
    clear_outputs(b);
    if (run(b, SHUFFLED) && !write_folder)
        for (part p = 0; p < PARTS; p++) {
            if (!kept[p] || p == DWEIGHT || p == DBIAS)
                continue;
            unsigned char *now = b->tensor[p].memory.data;
            /* What the slice left untouched was untouched by tensor_clear(), too. */
            const int bytes = element_bytes(b->tensor[p].type);
            cursor c = cursor_begin(&part_of[p]);
            bool same = true;
            for (int64_t i = 0, n = element_count(&part_of[p]); i < n; i++, cursor_next(&c))
                same &= !memcmp(c.at, kept[p] + (c.at - now), (size_t)bytes);
            expect(same, "%s: other bits in a slice of the rows", part_name(p));
        }
    b->tensors = whole;
}

/* The output that may be the input itself; PARTS: none. */
static part in_place(const bundle *b, part *input) {
    const norm_case *c = &b->test;
    const bool backward = c->pass == PLANISH_BACKWARD || c->pass == PLANISH_BACKWARD_FROM_Y;
    const part output = backward ? DX : Y;
    *input = backward ? DY : X;
    return !b->tensors.m2 && is_output(b, output) && c->x == c->y && c->in == c->out ? output
                                                                                     : PARTS;
}

/* Runs with the result in the place of x or dy, and expects the same bits. Ends the bundle's use.
 */
static void check_in_place(bundle *b, unsigned char *const *kept) {
    part input, output = in_place(b, &input);
    if (output == PARTS)
        return;
    *tensors_field(&b->tensors, output) = &b->tensor[input].dl;
    if (!run(b, SHUFFLED) || write_folder)
        return;
    tensor *was = &b->tensor[output];
    memcpy(was->memory.data, kept[output], was->memory.bytes);
    expect(tensor_same_bits(&was->dl, &b->tensor[input].dl), "%s: other bits in place of %s",
           part_name(output), part_name(input));
    for (part p = DWEIGHT; p <= DBIAS; p++)
        if (kept[p])
            expect(!memcmp(kept[p], b->tensor[p].memory.data, b->tensor[p].memory.bytes),
                   "%s: other bits with dx in place of dy", part_name(p));
}

static int64_t share = 1, made;

static void emulate_case(norm_case c) {
    char text[512];
    if (made++ % share)
        return;
    c.seed = (uint64_t)made;
    /* An unmapped page before the buffers of one case, after those of the next. */
    guard_side = made % 2 ? GUARD_END : GUARD_START;
    test_case("sm_%d x %d: %s", limits.arch, limits.multiprocessors,
              case_text(&c, text, sizeof text));
    bundle b;
    unsigned char *kept[PARTS];
    bundle_make(&b, &c);
    bool good = run(&b, IN_ORDER);
    if (good && !write_folder)
        bundle_check(&b);
    keep(&b, kept);
    if (good && !write_folder && run(&b, SHUFFLED))
        for (part p = 0; p < PARTS; p++)
            if (kept[p])
                expect(!memcmp(kept[p], b.tensor[p].memory.data, b.tensor[p].memory.bytes),
                       "%s: other bits with the threads in another order", part_name(p));
    if (good && c.shape[0] > 3 && !((c.reduce_axes | b.op.affine_axes) & 1))
        check_slice(&b, kept, c.shape[0] / 3, c.shape[0] / 2);
    if (good)
        check_in_place(&b, kept);
    for (part p = 0; p < PARTS; p++)
        free(kept[p]);
    bundle_free(&b);
}

/* ---- Tables -----------------------------------------------------------------------------------
 */

static void set_types(norm_case *c, element all) {
    c->x = c->y = c->weight = c->grad = all;
    c->stats = all == F64 ? F64 : F32;
}

static norm_case rows_of(planish_pass pass, planish_kind kind, int64_t rows, int64_t cols,
                         element type) {
    norm_case c = rows_case(pass, kind, rows, cols);
    set_types(&c, type);
    return c;
}

static const planish_pass both[] = {PLANISH_FORWARD, PLANISH_BACKWARD};
static const element types[] = {F16, BF16, F32, F64};

/* Rows of 16 bits that go through shared memory in one piece: by a lane for each, or two to 32. */
static void tiled(void) {
    static const int64_t cols[] = {6, 24, 33, 65, 100, 267, 385, 769};
    static const numbers of[] = {NORMAL, SCALE_MIXED, MEAN_1E4, SCALE_BIG, OUTLIER, CONSTANT};
    set_device(90, 2);
    for (int i = 0; i < 16; i++) {
        const int64_t n = cols[i % 8], rows = n < 30 ? 1203 : n < 70 ? 407 : 37;
        norm_case c = rows_of(PLANISH_FORWARD, i % 3 == 2 ? PLANISH_RMS : PLANISH_LAYER, rows, n,
                              i < 8 ? BF16 : F16);
        c.numbers = of[i % 6];
        c.in = i % 5 == 3 ? PADDED : i % 5 == 4 ? MISALIGNED : DENSE;
        emulate_case(c);
        c.pass = PLANISH_BACKWARD;
        if (n == 6 || n == 33 || n == 65)
            emulate_case(c);
    }
}

/* Rows of 16 bits whose lanes take runs of words: odd lengths, of which every second row begins
 * inside a word, and an even one; rows that end in the first element of a run, and in the last. */
static void runs(void) {
    static const int64_t cols[] = {385, 769, 513, 1001, 500, 147, 387, 1023, 703, 1537};
    static const numbers of[] = {NORMAL, SCALE_MIXED, MEAN_1E4, SCALE_BIG, OUTLIER, CONSTANT};
    set_device(90, 1);
    for (int i = 0; i < 20; i++) {
        norm_case c = rows_of(PLANISH_FORWARD, i % 3 == 2 ? PLANISH_RMS : PLANISH_LAYER, 43,
                              cols[i % 10], i < 10 ? BF16 : F16);
        if (i % 4 == 1)
            c.shape[0] = 150;
        c.numbers = of[i % 6];
        c.in = i % 5 == 3 ? PADDED : i % 5 == 4 ? MISALIGNED : DENSE;
        if (i % 7 == 4)
            c.weight = c.grad = F32;
        emulate_case(c);
        c.pass = PLANISH_BACKWARD;
        emulate_case(c);
    }
}

/* Lengths that make every way to share a row: within a warp, in a block, ragged or not. */
static void lengths(void) {
    static const int64_t cols[] = {1, 3, 24, 40, 100, 267, 512, 769, 1536, 4096};
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < sizeof cols / sizeof *cols; i++) {
            const int64_t rows = cols[i] < 100 ? 301 : cols[i] < 1000 ? 43 : 11;
            const planish_kind kind = i % 3 == 2 ? PLANISH_RMS : PLANISH_LAYER;
            /* rstd of f64 rows of 2 to 8 elements is off by up to 8 ULP (docs/gpu.md). */
            const element other = cols[i] == 3 ? F32 : types[(i + 2) % 4];
            set_device(90, 2);
            emulate_case(rows_of(both[pass], kind, rows, cols[i], types[i % 3]));
            if (i % 2)
                emulate_case(rows_of(both[pass], PLANISH_LAYER, rows, cols[i], other));
        }
}

/* Rows that fill a cluster, or pass through shared memory, or are read twice. */
static void long_rows(void) {
    set_device(90, 16);
    emulate_case(rows_of(PLANISH_FORWARD, PLANISH_LAYER, 5, 32768, F32));
    emulate_case(rows_of(PLANISH_FORWARD, PLANISH_LAYER, 5, 40008, F16));
    emulate_case(rows_of(PLANISH_BACKWARD, PLANISH_LAYER, 9, 8200, BF16));
    emulate_case(rows_of(PLANISH_BACKWARD, PLANISH_LAYER, 24, 5632, F16));   /* clusters of three */
    emulate_case(rows_of(PLANISH_BACKWARD, PLANISH_LAYER, 12, 18440, BF16)); /* read twice */
    emulate_case(rows_of(PLANISH_BACKWARD, PLANISH_RMS, 10, 28680, F16));
    norm_case misaligned = rows_of(PLANISH_BACKWARD, PLANISH_LAYER, 5, 18440, F16);
    misaligned.in = MISALIGNED;
    emulate_case(misaligned);
    emulate_case(rows_of(PLANISH_BACKWARD, PLANISH_RMS, 7, 8192, F32));
    emulate_case(rows_of(PLANISH_BACKWARD, PLANISH_LAYER, 5, 8193, F64));
    set_device(80, 2); /* no clusters */
    emulate_case(rows_of(PLANISH_FORWARD, PLANISH_LAYER, 5, 40960, F16));
    emulate_case(rows_of(PLANISH_FORWARD, PLANISH_RMS, 4, 90000, F32));
    emulate_case(rows_of(PLANISH_BACKWARD, PLANISH_LAYER, 5, 20000, F16));
    emulate_case(rows_of(PLANISH_BACKWARD, PLANISH_RMS, 4, 8195, F32));
}

/* An outlier in a row's first chunk, in rows of every way to share them. */
static void outliers(void) {
    static const int64_t cols[] = {64, 100, 264, 512, 768, 1096, 2048, 4096, 8192, 16384};
    set_device(90, 2);
    for (size_t i = 0; i < sizeof cols / sizeof *cols; i++) {
        norm_case c = rows_of(PLANISH_FORWARD, PLANISH_LAYER, 5, cols[i], types[i % 2]);
        c.numbers = OUTLIER;
        emulate_case(c);
    }
}

/* Few rows on a large device, which load weight and bias early; and many on a small one. */
static void row_counts(void) {
    for (int pass = 0; pass < 2; pass++) {
        set_device(90, 132);
        emulate_case(rows_of(both[pass], PLANISH_LAYER, 1, 1024, F16));
        emulate_case(rows_of(both[pass], PLANISH_LAYER, 5, 40, F32));
        set_device(90, 1);
        emulate_case(rows_of(both[pass], PLANISH_LAYER, 64, 2048, BF16));
        emulate_case(rows_of(both[pass], PLANISH_LAYER, 2000, 24, F16));
        emulate_case(rows_of(both[pass], PLANISH_LAYER, 0, 24, F16));
    }
    /* More rows than blocks: a ring of rows to come. */
    set_device(90, 1);
    emulate_case(rows_of(PLANISH_FORWARD, PLANISH_LAYER, 300, 512, F16));
    emulate_case(rows_of(PLANISH_FORWARD, PLANISH_LAYER, 13, 8192, F32));
    emulate_case(rows_of(PLANISH_FORWARD, PLANISH_RMS, 9, 16400, F16));
    set_device(80, 1);
    emulate_case(rows_of(PLANISH_FORWARD, PLANISH_LAYER, 12, 4096, F32));
}

/* Rows of 16 bits within warps, so many that a lane takes several, and a rest. */
static void centred(void) {
    static const int64_t cols[] = {24, 72, 100, 200, 511, 512};
    static const numbers of[] = {NORMAL, MEAN_1E4, OUTLIER, CONSTANT, MEAN_100, SCALE_BIG};
    set_device(90, 1);
    for (int i = 0; i < 12; i++) {
        const int64_t n = cols[i % 6], rows = n < 50 ? 1003 : n < 101 ? 403 : 107;
        norm_case c = rows_of(PLANISH_FORWARD, i % 4 == 2 ? PLANISH_RMS : PLANISH_LAYER, rows, n,
                              i < 6 ? F16 : BF16);
        c.numbers = i < 6 ? of[i] : SCALE_MIXED;
        c.in = i % 5 == 3 ? PADDED : i % 5 == 4 ? MISALIGNED : DENSE;
        if (i == 8)
            c.y = F32;
        emulate_case(c);
    }
}

static void outputs_and_dtypes(void) {
    set_device(90, 2);
    for (int pass = 0; pass < 2; pass++) {
        const unsigned all = rows_case(both[pass], PLANISH_LAYER, 1, 1).has;
        static const unsigned drop[] = {HAS(WEIGHT) | HAS(BIAS) | HAS(MEAN) | HAS(RSTD), HAS(BIAS),
                                        HAS(WEIGHT) | HAS(DBIAS), HAS(DX),
                                        HAS(DWEIGHT) | HAS(DBIAS)};
        for (size_t i = 0; i < sizeof drop / sizeof *drop; i++) {
            norm_case c = rows_of(both[pass], PLANISH_LAYER, 29, 96, F16);
            c.has = all & ~drop[i];
            if (both[pass] == PLANISH_FORWARD && i > 2)
                continue;
            emulate_case(c);
        }
        norm_case c = rows_of(both[pass], PLANISH_LAYER, 29, 200, BF16);
        c.weight = c.grad = F32;
        c.weight_offset = 1;
        emulate_case(c);
        c = rows_of(both[pass], PLANISH_LAYER, 13, 1024, F16);
        c.y = F32;
        c.stats = F64;
        emulate_case(c);
        c = rows_of(both[pass], PLANISH_RMS, 13, 768, F32);
        c.y = BF16;
        c.stats = BF16;
        c.weight = F64;
        emulate_case(c);
    }
}

/* Alignments of 2 to 16 bytes, and gaps between rows. */
static void layouts(void) {
    static const layout in[] = {MISALIGNED, PADDED, BROADCAST_FIRST};
    set_device(90, 2);
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < 3; i++)
            for (int t = 0; t < 2; t++) {
                norm_case c = rows_of(both[pass], PLANISH_LAYER, 17, i ? 520 : 1032, types[2 * t]);
                c.in = in[i];
                c.out = in[(i + 1) % 2];
                c.params = i == 2 ? MISALIGNED : DENSE;
                emulate_case(c);
            }
}

static void all_numbers(void) {
    set_device(90, 2);
    for (numbers n = MEAN_100; n < NUMBERS_COUNT; n++)
        for (int t = 0; t < 3; t++) {
            norm_case c = rows_of(n % 2 ? PLANISH_FORWARD : PLANISH_BACKWARD, PLANISH_LAYER, 9,
                                  t == 1 ? 96 : 1024, types[t]);
            c.numbers = n;
            c.eps =
                n == SCALE_TINY ? 0 : 1e-5; /* rstd of subnormal rows is no float (docs/gpu.md) */
            emulate_case(c);
            if (n == SCALE_BIG || n == SCALE_TINY || n == MEAN_1E4) {
                c.pass = PLANISH_FORWARD;
                emulate_case(c);
            }
        }
}

/* ---- The general kernels ----------------------------------------------------------------------
 */

/* The passes that have no other kernels, over rows. */
static void other_passes(void) {
    static const int64_t shapes[][2] = {{37, 100}, {5, 1030}, {67, 5}};
    set_device(90, 2);
    for (planish_pass pass = PLANISH_BACKWARD_FROM_Y; pass <= PLANISH_APPLY; pass++)
        for (int i = 0; i < 6; i++) {
            norm_case c = rows_of(pass, i % 2 ? PLANISH_RMS : PLANISH_LAYER, shapes[i % 3][0],
                                  shapes[i % 3][1], types[i % 4]);
            if (pass >= PLANISH_STATISTICS)
                c.stats = F64;
            c.weight_offset = i == 4;
            emulate_case(c);
        }
}

static void any_layout(void) {
    static const layout in[] = {INNER_STRIDE_2, PERMUTED,      REVERSED,
                                BROADCAST_LAST, BROADCAST_ALL, CHANNELS_LAST};
    set_device(90, 2);
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < 6; i++) {
            norm_case c = rows_of(both[pass], PLANISH_LAYER, 12, 70, types[i % 3]);
            c.ndim = 3;
            c.shape[2] = 9;
            c.reduce_axes = c.affine_axes = i % 2 ? 6 : 4;
            c.in = in[i];
            c.out = in[i % 3];
            c.params = i == 2 ? REVERSED : DENSE;
            emulate_case(c);
        }
}

/* Channels, groups, instances, weights; affine axes inside the row, outside, both and none. */
static void any_axes(void) {
    static const struct {
        int ndim;
        int64_t shape[5];
        uint64_t reduce, affine;
    } problems[] = {
        {4, {4, 24, 5, 6}, 2, 2}, {5, {4, 3, 8, 5, 6}, 28, 6}, {4, {4, 6, 9, 11}, 12, 2},
        {3, {33, 7, 40}, 5, 7},   {4, {5, 6, 7, 8}, 10, 5},    {2, {40, 300}, 1, 2},
        {3, {4, 50, 60}, 4, 0},   {3, {6, 1, 41}, 6, 4},       {2, {5, 0}, 2, 2},
        {2, {5, 0}, 2, 1},        {3, {0, 4, 8}, 4, 2},        {5, {4, 2, 3, 40, 2}, 24, 14},
    };
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
        for (planish_pass pass = PLANISH_FORWARD; pass <= PLANISH_BACKWARD_FROM_Y; pass++) {
            norm_case c = rows_of(pass, i % 4 == 3 ? PLANISH_RMS : PLANISH_LAYER, 1, 1,
                                  types[(i + pass) % 4]);
            c.ndim = problems[i].ndim;
            memcpy(c.shape, problems[i].shape, sizeof problems[i].shape);
            c.reduce_axes = problems[i].reduce;
            c.affine_axes = problems[i].affine;
            c.in = c.out = i % 3 == 1 ? CHANNELS_LAST : DENSE;
            c.full_rank = i % 2;
            if (i == 3 || i == 5) {
                c.weight = F32;
                c.grad = F64;
                c.y = F32;
            }
            set_device(90, i == 3 ? 20 : 2);
            emulate_case(c);
        }
}

/* ---- Channels and groups ------------------------------------------------------------------------
 */

static norm_case channels_of(planish_pass pass, planish_kind kind, int64_t images, int64_t channels,
                             int64_t pixels, element type) {
    norm_case c = rows_of(pass, kind, 1, 1, type);
    c.ndim = 3;
    c.shape[0] = images;
    c.shape[1] = channels;
    c.shape[2] = pixels;
    c.reduce_axes = c.affine_axes = 2;
    return c;
}

/* Images taken whole by a block or a cluster, and by tiles; odd numbers of everything. */
static void channels(void) {
    static const int64_t shapes[][3] = {
        {5, 24, 64}, {3, 17, 49},   {2, 96, 320}, {2, 33, 1025}, {6, 40, 7},  {1, 320, 256},
        {9, 8, 3},   {2, 520, 196}, {4, 3, 4096}, {3, 1000, 49}, {5, 2, 100}, {2, 130, 272},
    };
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            norm_case c = channels_of(both[pass], i % 4 == 3 ? PLANISH_RMS : PLANISH_LAYER,
                                      shapes[i][0], shapes[i][1], shapes[i][2], types[i % 3]);
            set_device(i % 5 == 4 ? 80 : 90, 2);
            c.weight_offset = i == 6;
            if (i % 2)
                c.weight = c.grad = F32;
            emulate_case(c);
            if (pass == 0) {
                c.out = CHANNELS_LAST;
                emulate_case(c);
            }
        }
}

/* Images over clusters: lines of four channels and of two, blocks that have less than the others,
 * tiles that a cluster shares, with a ring and without. */
static void channels_in_clusters(void) {
    static const struct {
        int64_t images, channels, pixels;
        element type;
    } shapes[] = {
        {3, 1024, 49, F16},   {2, 1200, 196, F16}, {1, 1216, 196, F32}, {1, 2056, 196, F32},
        {1, 1056, 272, BF16}, {2, 700, 196, F16},  {3, 640, 198, BF16}, {1, 1056, 272, F32},
    };
    set_device(90, 2);
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            norm_case c =
                channels_of(both[pass], i == 4 ? PLANISH_RMS : PLANISH_LAYER, shapes[i].images,
                            shapes[i].channels, shapes[i].pixels, shapes[i].type);
            c.numbers = i % 2 ? OUTLIER : MEAN_100;
            if (i % 3 == 1)
                c.weight = c.grad = F32;
            emulate_case(c);
            if (pass == 0) {
                c.out = CHANNELS_LAST;
                emulate_case(c);
            }
        }
}

static void channels_otherwise(void) {
    set_device(90, 2);
    for (int pass = 0; pass < 2; pass++) {
        static const unsigned drop[] = {HAS(WEIGHT) | HAS(BIAS) | HAS(MEAN) | HAS(RSTD), HAS(BIAS),
                                        HAS(WEIGHT) | HAS(DBIAS), HAS(DX),
                                        HAS(DWEIGHT) | HAS(DBIAS)};
        for (size_t i = 0; i < sizeof drop / sizeof *drop; i++) {
            norm_case c = channels_of(both[pass], PLANISH_LAYER, 3, 40, 96, types[i % 3]);
            c.has &= ~drop[i];
            if (both[pass] == PLANISH_BACKWARD || i < 3)
                emulate_case(c);
        }
        for (int i = 0; i < 3; i++) {
            norm_case c =
                channels_of(both[pass], PLANISH_LAYER, 3, 48, i == 1 ? 49 : 320, types[i]);
            c.in = c.out = i == 2 ? PADDED : MISALIGNED;
            emulate_case(c);
        }
        norm_case c = channels_of(both[pass], PLANISH_LAYER, 4, 72, 256, BF16);
        c.y = F32;
        c.stats = F64;
        emulate_case(c);
    }
    for (numbers n = MEAN_100; n < NUMBERS_COUNT; n++)
        for (int t = 0; t < 3; t++) {
            norm_case c = channels_of(n % 2 ? PLANISH_FORWARD : PLANISH_BACKWARD, PLANISH_LAYER, 2,
                                      t == 1 ? 520 : 96, t == 1 ? 49 : 80, types[t]);
            c.numbers = n;
            c.eps = n == SCALE_TINY ? 0 : 1e-5;
            emulate_case(c);
            c.pass = PLANISH_FORWARD;
            if (n != SUBNORMAL)
                emulate_case(c);
        }
}

/* (images, groups, channels, pixels), or with the channels last (images, pixels, groups, channels).
 */
static norm_case groups_of(planish_pass pass, planish_kind kind, const int64_t *n, bool last,
                           element type) {
    norm_case c = rows_of(pass, kind, 1, 1, type);
    c.ndim = 4;
    for (int i = 0; i < 4; i++)
        c.shape[i] = n[i];
    if (last) {
        c.shape[1] = n[3];
        c.shape[2] = n[1];
        c.shape[3] = n[2];
    }
    c.reduce_axes = last ? 10 : 12;
    c.affine_axes = last ? 12 : 6;
    return c;
}

static void groups(void) {
    static const int64_t shapes[][4] = {
        {3, 4, 8, 64},   {2, 32, 2, 196}, {2, 3, 5, 49},   {1, 1, 24, 100},
        {5, 40, 1, 81},  {3, 2, 12, 1},   {2, 2, 64, 400}, {4, 7, 3, 2},
        {2, 1, 9, 8192}, {6, 6, 1, 320},  {2, 5, 100, 9},  {2, 2, 8, 3136},
    };
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            for (int last = 0; last < 2; last++) {
                norm_case c = groups_of(both[pass], i % 4 == 3 ? PLANISH_RMS : PLANISH_LAYER,
                                        shapes[i], last, types[(i + (size_t)last) % 3]);
                set_device(i % 5 == 4 ? 80 : 90, 2);
                c.weight_offset = i == 6;
                if (i % 2)
                    c.weight = c.grad = F32;
                emulate_case(c);
            }
}

static void groups_otherwise(void) {
    static const int64_t small[] = {5, 3, 8, 96}, odd[] = {5, 3, 5, 49}, large[] = {2, 2, 40, 1600};
    static const int64_t fifths[] = {1, 2, 5, 6000};
    set_device(90, 2);
    for (int last = 0; last < 2; last++) {
        for (int pass = 0; pass < 2; pass++) {
            static const unsigned drop[] = {HAS(BIAS), HAS(WEIGHT) | HAS(DBIAS), HAS(DX),
                                            HAS(DWEIGHT) | HAS(DBIAS), HAS(MEAN) | HAS(RSTD)};
            for (size_t i = 0; i < sizeof drop / sizeof *drop; i++) {
                norm_case c = groups_of(both[pass], PLANISH_LAYER, small, last, types[i % 3]);
                c.has &= ~drop[i];
                emulate_case(c);
            }
            for (int i = 0; i < 3; i++) {
                norm_case c = groups_of(both[pass], PLANISH_LAYER, i ? odd : small, last, types[i]);
                c.in = c.out = i == 2 ? PADDED : MISALIGNED;
                emulate_case(c);
            }
            norm_case c = groups_of(both[pass], PLANISH_LAYER, small, last, F16);
            c.y = F32;
            c.stats = F64;
            emulate_case(c);
            c = groups_of(both[pass], PLANISH_LAYER, large, last, F32);
            emulate_case(c);
            c = groups_of(both[pass], PLANISH_LAYER, fifths, last, F32);
            emulate_case(c);
        }
        for (numbers n = MEAN_100; n < NUMBERS_COUNT; n++)
            for (int t = 0; t < 3; t++) {
                norm_case c = groups_of(n % 2 ? PLANISH_FORWARD : PLANISH_BACKWARD, PLANISH_LAYER,
                                        t == 1 ? odd : small, last, types[t]);
                c.numbers = n;
                c.eps = n == SCALE_TINY ? 0 : 1e-5;
                emulate_case(c);
                c.pass = PLANISH_FORWARD;
                if (n != SUBNORMAL)
                    emulate_case(c);
            }
    }
}

/* Channels last, in strips over clusters: whole and part chunks of a group, a last strip that is
 * cut, a block without its last pixels. */
static void strips(void) {
    static const int64_t shapes[][4] = {
        {1, 16, 10, 1601}, {1, 40, 2, 2499}, {3, 3, 40, 700}, {1, 48, 1, 2000}, {2, 1, 96, 901},
    };
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            for (int t = 0; t < 2; t++) {
                norm_case c = groups_of(both[pass], i == 2 ? PLANISH_RMS : PLANISH_LAYER, shapes[i],
                                        true, types[(i + (size_t)t) % 3]);
                set_device(90, 2);
                c.numbers = i % 2 ? OUTLIER : MEAN_100;
                if (t)
                    c.weight = c.grad = F32;
                emulate_case(c);
            }
    /* Rows beyond float's range beside others, so that a strip is summed again. */
    norm_case c = groups_of(PLANISH_FORWARD, PLANISH_LAYER, shapes[1], true, BF16);
    c.numbers = SCALE_BIG;
    emulate_case(c);
    c.numbers = SCALE_TINY;
    c.eps = 0;
    emulate_case(c);
}

/* Strips that one block holds, or a few where groups are many: small images, groups of a few
 * channels of which a chunk has several or parts, last strips that are cut, few pixels. */
static void strips_over_few(void) {
    static const int64_t shapes[][4] = {
        {3, 32, 8, 49}, {5, 48, 1, 49},  {2, 32, 3, 100},  {2, 24, 5, 60},  {2, 37, 8, 33},
        {7, 16, 2, 4},  {2, 134, 1, 30}, {1, 96, 1, 1900}, {3, 3, 128, 30}, {4, 300, 1, 9},
    };
    static const numbers of[] = {NORMAL, OUTLIER, MEAN_1E4, MEAN_100};
    for (int i = 0; i < 40; i++) {
        norm_case c = groups_of(both[i / 20], i % 7 == 6 ? PLANISH_RMS : PLANISH_LAYER,
                                shapes[i % 10], true, types[(i + i / 10) % 3]);
        set_device(i % 10 == 2 ? 80 : 90, 2);
        c.numbers = of[i % 4];
        c.weight_offset = i == 4;
        if (i % 3 == 1)
            c.weight = c.grad = F32;
        if (i % 4 == 2) {
            c.activation = i % 8 == 2 ? PLANISH_SILU : PLANISH_RELU;
            c.stats = F64;
        }
        if (i % 11 == 5)
            c.has &= ~(HAS(BIAS) | HAS(DBIAS));
        if (i % 9 == 7)
            c.in = c.out = i % 2 ? PADDED : MISALIGNED;
        emulate_case(c);
    }
    /* Rows beyond float's range beside others, so that a strip is summed again. */
    for (int i = 0; i < 4; i++) {
        norm_case c =
            groups_of(PLANISH_FORWARD, PLANISH_LAYER, shapes[i], true, i % 2 ? F32 : BF16);
        c.numbers = i < 2 ? SCALE_MIXED : i == 2 ? SCALE_BIG : SCALE_TINY;
        c.eps = c.numbers == SCALE_TINY ? 0 : 1e-5;
        emulate_case(c);
    }
    static const int64_t many[] = {300, 128, 1, 4}; /* rows, of which some err more than most */
    for (int i = 0; i < 2; i++) {
        norm_case c = groups_of(PLANISH_FORWARD, PLANISH_LAYER, many, true, F32);
        c.activation = i ? PLANISH_SILU : PLANISH_IDENTITY;
        c.stats = F64;
        emulate_case(c);
    }
}

static void strips_without_clusters(void) {
    without_clusters = true;
    strips();
    without_clusters = false;
}

/* A device that has room for strips over blocks anywhere, which few images do not need: slices are
 * in a cluster then. */
static void strips_as_planned(void) {
    static const struct {
        int64_t shape[4];
        planish_pass pass;
        element type;
    } works[] = {
        {{5, 8, 8, 1901}, PLANISH_BACKWARD, F16}, {{9, 4, 8, 1901}, PLANISH_BACKWARD, F32},
        {{5, 4, 8, 3701}, PLANISH_FORWARD, F32},  {{1, 8, 8, 7500}, PLANISH_BACKWARD, BF16},
        {{1, 8, 10, 3001}, PLANISH_FORWARD, F16},
    };
    for (size_t i = 0; i < sizeof works / sizeof *works; i++) {
        norm_case c = groups_of(works[i].pass, PLANISH_LAYER, works[i].shape, true, works[i].type);
        set_device(90, i == 3 ? 64 : 16);
        limits.cooperative = 1;
        c.weight = c.grad = F32;
        c.numbers = MEAN_100;
        emulate_case(c);
    }
}

/* An activation behind groups, in every way they go; behind other layers, in the general one. */
static void activations(void) {
    static const int64_t shapes[][4] = {
        {3, 2, 8, 64}, {2, 3, 5, 49}, {1, 16, 10, 901}, {2, 7, 3, 2}, {2, 2, 40, 1600}};
    static const numbers of[] = {NORMAL, MEAN_1E4, MEAN_100};
    set_device(90, 2);
    for (int i = 0; i < 60; i++) {
        const bool last = i / 10 % 2;
        norm_case c = groups_of(both[i / 5 % 2], i % 7 == 6 ? PLANISH_RMS : PLANISH_LAYER,
                                shapes[i % 5], last, types[(i + i / 5) % 3]);
        c.activation = i % 4 == 3 ? PLANISH_RELU : PLANISH_SILU;
        c.stats = i % 9 == 8 ? F32 : F64; /* of f32 the general way, backward */
        c.numbers = of[(i + i / 10) % 3];
        c.weight_offset = i % 8 == 5;
        if (i % 6 == 4)
            c.weight = c.grad = F32;
        if (i % 11 == 10)
            c.has &= ~(i % 2 ? HAS(BIAS) : HAS(WEIGHT) | HAS(DWEIGHT));
        emulate_case(c);
    }
    for (int i = 0; i < 8; i++) {
        norm_case c = i % 2 ? channels_of(both[i / 2 % 2], PLANISH_LAYER, 2, 24, 20, types[i % 4])
                            : rows_of(both[i / 2 % 2], PLANISH_LAYER, 9, 200, types[i / 2]);
        c.activation = i % 3 ? PLANISH_SILU : PLANISH_RELU;
        emulate_case(c);
    }
}

static void every_variant(void) {
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        const struct variant *v = &variants[i];
        test_case("%s with constant %d from %d to %d was emulated",
                  cuda_kernel_entry((cuda_kernel)v->kernel), v->constant, v->least, v->most);
        expect(v->seen, "no case launches it");
    }
}

int main(int argc, char **argv) {
    plain_f64_sums = true;
    const char *only = argument(argc, argv, "table", "");
    write_folder = argument(argc, argv, "write", NULL);
    unit_folder = argument(argc, argv, "units", NULL);
    share = atoll(argument(argc, argv, "share", "1"));
    if (!write_folder == !unit_folder) {
        fprintf(stderr, "wanted --write=FOLDER or --units=FOLDER\n");
        return 2;
    }
    static const struct {
        const char *name;
        void (*make)(void);
    } tables[] = {
        {"lengths", lengths},
        {"long", long_rows},
        {"outliers", outliers},
        {"rows", row_counts},
        {"centred", centred},
        {"tiled", tiled},
        {"runs", runs},
        {"outputs", outputs_and_dtypes},
        {"layouts", layouts},
        {"numbers", all_numbers},
        {"passes", other_passes},
        {"any layout", any_layout},
        {"any axes", any_axes},
        {"channels", channels},
        {"channels in clusters", channels_in_clusters},
        {"channels otherwise", channels_otherwise},
        {"groups", groups},
        {"groups otherwise", groups_otherwise},
        {"strips", strips},
        {"strips over few", strips_over_few},
        {"strips wide", strips_without_clusters},
        {"strips as planned", strips_as_planned},
        {"activations", activations},
    };
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (!only[0] || !strcmp(only, tables[i].name))
            tables[i].make();
    if (write_folder) {
        printf("%d specialisations written\n", units_written);
        return 0;
    }
    if (!only[0] && share == 1)
        every_variant();
    report_accuracy();
    printf("%d launches\n", launches_run);
    return test_finish("test_emulation");
}
