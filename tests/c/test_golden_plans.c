/*
 * Which path each hot shape of the benches takes, how it is cut and what its kernels are told, on
 * every CPU that src/cpu/tuning.c has a row for: held against golden_plans.txt, so that no change
 * of a planner sends one to the general kernels, or to a slower way, unseen. Nothing is run.
 *
 *     test_golden_plans GOLDEN            compares
 *     test_golden_plans GOLDEN --write    writes the file anew; read its diff before it is
 * committed
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

#include "cpu/dispatch.h"
#include "cpu/plan.h"

#include "golden_shapes.h"

/* ---- Their problems -------------------------------------------------------------------------- */

/* A tensor without data, which no plan looks at. */
typedef struct blank {
    DLTensor tensor;
    int64_t shape[PLANISH_MAX_NDIM], strides[PLANISH_MAX_NDIM];
} blank;

static const DLTensor *blank_tensor(blank *b, types types, int ndim, const int64_t size[],
                                    bool channels_last) {
    static const DLDataType dtypes[] = {
        {kDLFloat, 32, 1}, {kDLBfloat, 16, 1}, {kDLBfloat, 16, 1}, {kDLFloat, 64, 1}};
    b->tensor = (DLTensor){.device = {kDLCPU, 0},
                           .ndim = ndim,
                           .dtype = dtypes[types],
                           .shape = b->shape,
                           .strides = b->strides};
    memcpy(b->shape, size, (size_t)ndim * sizeof *size);
    int64_t stride = 1;
    /* The channels, of a group and then the groups, are innermost of images stored by pixel. */
    for (int i = channels_last ? ndim - 3 : -1; i > 0; i--) {
        b->strides[i] = stride;
        stride *= size[i];
    }
    for (int i = ndim - 1; i >= 0; i--) {
        if (channels_last && i > 0 && i <= ndim - 3)
            continue;
        b->strides[i] = stride;
        stride *= size[i];
    }
    return &b->tensor;
}

static void problem_of(const shape *s, planish_pass pass, problem *p) {
    static const types of_weights[] = {F32, BF16, F32, F64}, of_stats[] = {F32, BF16, F32, F64};
    const bool grouped = s->layer >= GROUPS, rows = !s->size[2],
               backward = pass == PLANISH_BACKWARD;
    const int64_t by_group[] = {s->size[0], s->groups, s->groups ? s->size[1] / s->groups : 0,
                                s->size[2], s->size[3]};
    const int64_t *size = grouped ? by_group : s->size;
    const int ndim = rows ? 2 : grouped ? 5 : 4;
    const bool in_last = s->memory != NCHW, out_last = s->memory == NHWC;
    const types stats = of_stats[s->types], weights = of_weights[s->types];
    blank b[10];
    planish_norm op = rows      ? planish_layer_norm_op(ndim, 1, 1e-5)
                      : grouped ? planish_group_norm_op(ndim, 1e-5)
                                : planish_channel_norm_op(PLANISH_LAYER, ndim, 1e-5);
    if (s->layer == BATCH)
        op = planish_norm_op(PLANISH_LAYER, PLANISH_AXIS(0) | PLANISH_AXIS(2) | PLANISH_AXIS(3),
                             PLANISH_AXIS(1), 1e-5);
    if (s->layer == RMS)
        op = planish_rms_norm_op(ndim, 1, 1e-5);
    if (s->layer == GROUPS_SILU)
        op.activation = PLANISH_SILU;
    const int affine_ndim = grouped ? 2 : 1;
    const int64_t *affine = size + 1;
    const int64_t of_x[] = {size[0], grouped ? size[1] : size[2], size[3]};
    const int64_t *kept = s->layer == BATCH ? size + 1 : of_x;
    const int kept_ndim = rows || s->layer == BATCH ? 1 : grouped ? 2 : 3;
    planish_tensors t = {.struct_size = sizeof t};
    t.x = blank_tensor(&b[0], s->types, ndim, size, in_last);
    t.weight = blank_tensor(&b[1], weights, affine_ndim, affine, false);
    t.rstd = blank_tensor(&b[2], stats, kept_ndim, kept, false);
    if (op.kind != PLANISH_RMS)
        t.mean = blank_tensor(&b[3], stats, kept_ndim, kept, false);
    if (op.kind != PLANISH_RMS && (!backward || op.activation))
        t.bias = blank_tensor(&b[4], weights, affine_ndim, affine, false);
    if (!backward) {
        t.y = blank_tensor(&b[5], s->types, ndim, size, out_last);
    } else {
        t.dy = blank_tensor(&b[6], s->types, ndim, size, in_last);
        t.dx = blank_tensor(&b[7], s->types, ndim, size, out_last);
        t.dweight = blank_tensor(&b[8], weights, affine_ndim, affine, false);
        if (op.kind != PLANISH_RMS)
            t.dbias = blank_tensor(&b[9], weights, affine_ndim, affine, false);
    }
    char text[256] = "";
    expect(problem_make(p, &op, pass, &t, (message){text, sizeof text}) == PLANISH_OK, "%s", text);
}

/* ---- What is written of a plan --------------------------------------------------------------- */

__attribute__((format(printf, 2, 3))) static void add(char line[512], const char *format, ...) {
    const size_t length = strlen(line);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line + length, 512 - length, format, arguments);
    va_end(arguments);
}

/* As planish_plan_describe has it, but for the tier. */
static void add_description(const cpu_plan *plan, const problem *p, char line[512]) {
    char text[256];
    cpu_plan_describe(plan, p, text, sizeof text);
    const char *tier = strchr(text, '/');
    add(line, "%.*s%s", (int)(tier - text), text, tier + strcspn(tier, " "));
}

static void add_cut(const cpu_plan *plan, char line[512]) {
    const group_tiles_cut *tiles = &plan->cut.tiles;
    switch (plan->path) {
    case PATH_ROWS:
        add(line, "; %lld rows a block", (long long)plan->cut.rows.block_rows);
        break;
    case PATH_STRIDED:
        add(line, "; %lld rows a block", (long long)plan->cut.strided.block_rows);
        break;
    case PATH_STAGES:
        add(line, "; %lld rows a block", (long long)plan->cut.stages.block_rows);
        break;
    case PATH_CHANNELS:
        add(line, "; tiles of %lld, %lld a block", (long long)plan->cut.channels.tile_pixels,
            (long long)plan->cut.channels.block_tiles);
        break;
    case PATH_GROUP_ROWS:
        add(line, "; %lld rows a block, %d together, slots of %zu",
            (long long)plan->cut.group_rows.block_rows, plan->cut.group_rows.together,
            plan->cut.group_rows.slots.bytes);
        break;
    case PATH_PIXELS:
    case PATH_PLANES:
        add(line, "; tiles of %lld, %lld a block, %lld joined%s, slots of %zu",
            (long long)tiles->tile_rows, (long long)tiles->block_tiles,
            (long long)tiles->joined_tiles, tiles->keeps ? ", kept" : "", tiles->slots.bytes);
        break;
    case PATH_BATCH:
        add(line, "; tiles of %lld rows, parts of %lld pieces of %lld, slots of %zu",
            (long long)plan->cut.batch.tile_rows, (long long)plan->cut.batch.part_pieces,
            (long long)plan->cut.batch.span, plan->cut.batch.slots.bytes);
        break;
    case PATH_EMPTY:
        break;
    }
}

static void add_hints(const cpu_plan *plan, char line[512]) {
    static const char *const traffics[] = {"cached", "ahead", "stream", "lines"};
    const cpu_hints *h = &plan->hints;
    const struct {
        bool is_set;
        const char *name;
    } hints[] = {
        {plan->parallel, "parallel"},
        {h->far, "far"},
        {h->alone, "alone"},
        {h->in_turn, "in_turn"},
        {h->prefetch_y, "prefetch_y"},
        {h->prefetch_steps, "prefetch_steps"},
        {h->prefetch_sums, "prefetch_sums"},
        {h->stream_lines, "stream_lines"},
        {h->stream_runs, "stream_runs"},
        {h->steps_of_parts, "steps_of_parts"},
        {h->large_short_steps, "large_short_steps"},
        {h->more_short_rows, "more_short_rows"},
        {h->prefetch_groups, "prefetch_groups"},
        {h->prefetch_dx, "prefetch_dx"},
        {h->by_pixel, "by_pixel"},
    };
    add(line, "%s", traffics[plan->traffic]);
    for (size_t i = 0; i < sizeof hints / sizeof *hints; i++)
        if (hints[i].is_set)
            add(line, " %s", hints[i].name);
    if (h->rows_ahead)
        add(line, " rows_ahead=%d", h->rows_ahead);
}

/* The caches of a machine with such a CPU: those that it was timed with, or usual ones. */
static cpu_limits limits_of(cpu_microarchitecture m) {
    static const size_t first[CPU_COUNT] = {[CPU_GENERIC] = 32768, [CPU_GENERIC_AVX512] = 49152,
                                            [CPU_INTEL] = 49152,   [CPU_INTEL_AVX512] = 49152,
                                            [CPU_ZEN3] = 32768,    [CPU_ZEN4] = 32768,
                                            [CPU_ZEN5] = 49152,    [CPU_NEOVERSE] = 65536};
    const size_t shared = (size_t)(cpu_is_intel(m) ? 300 : 32) << 20;
    return cpu_limits_of(cpu_tuning_of(m), cpu_kernels_chosen(), first[m], shared);
}

/* How the case is cut, and a line for each way that some CPUs go: "name, name: what they do". */
static void write_case(FILE *to, const shape *s, planish_pass pass) {
    char cuts[CPU_COUNT][512] = {{0}}, hints[CPU_COUNT][512] = {{0}};
    problem p, norm;
    steps steps;
    problem_of(s, pass, &p);
    cpu_steps_make(&steps, &p, &norm);
    for (cpu_microarchitecture m = CPU_GENERIC; m < CPU_COUNT; m++) {
        const cpu_limits limits = limits_of(m);
        cpu_plan plan;
        cpu_plan_make(&plan, &steps, &limits);
        add_description(&plan, &p, cuts[m]);
        add_cut(&plan, cuts[m]);
        add_hints(&plan, hints[m]);
    }
    fprintf(to, "%s %lldx%lld", layer_names[s->layer], (long long)s->size[0],
            (long long)s->size[1]);
    if (s->size[2])
        fprintf(to, "x%lldx%lld", (long long)s->size[2], (long long)s->size[3]);
    if (s->groups)
        fprintf(to, " in %lld groups", (long long)s->groups);
    fprintf(to, "%s, %s, %s\n", memory_names[s->memory], type_names[s->types],
            pass == PLANISH_FORWARD    ? "forward"
            : pass == PLANISH_BACKWARD ? "backward"
                                       : "apply");
    bool is_written[CPU_COUNT] = {false};
    for (int m = 0, before = -1; m < CPU_COUNT; m++) {
        if (is_written[m])
            continue;
        if (before < 0 || strcmp(cuts[before], cuts[m]))
            fprintf(to, "  %s\n", cuts[m]);
        before = m;
        for (int same = m; same < CPU_COUNT; same++)
            if (!strcmp(cuts[m], cuts[same]) && !strcmp(hints[m], hints[same])) {
                is_written[same] = true;
                fprintf(to, "%s%s", same == m ? "    " : ", ",
                        cpu_tuning_of((cpu_microarchitecture)same)->name);
            }
        fprintf(to, ": %s\n", hints[m]);
    }
}

/* ---- Against the file ------------------------------------------------------------------------ */

static char *read_all(FILE *from) {
    fseek(from, 0, SEEK_END);
    const long bytes = ftell(from);
    char *text = calloc((size_t)bytes + 1, 1);
    fseek(from, 0, SEEK_SET);
    const size_t read = fread(text, 1, (size_t)bytes, from);
    text[read] = 0;
    return text;
}

/* A case begins with a line that is not indented; the lines behind it are its own. */
static size_t case_length(const char *at) {
    const char *next = at;
    do
        next += strcspn(next, "\n") + 1;
    while (*next == ' ');
    return (size_t)(next - at);
}

static int line_length(const char *at) {
    return (int)strcspn(at, "\n");
}

static const char *find_case(const char *in, const char *first_line) {
    for (const char *at = in; *at; at += case_length(at))
        if (!strncmp(at, first_line, strcspn(first_line, "\n") + 1))
            return at;
    return NULL;
}

static void compare(const char *golden, const char *now) {
    int cases = 0, kept = 0;
    for (const char *at = now; *at; at += case_length(at), cases++) {
        test_case("%.*s", line_length(at), at);
        const char *wanted = find_case(golden, at);
        if (!expect(wanted != NULL, "the file does not have it"))
            continue;
        const char *found = at, *end = at + case_length(at), *last = wanted + case_length(wanted);
        while (found < end && wanted < last && *found == *wanted)
            found++, wanted++;
        if (found == end && wanted == last)
            continue;
        while (found > at && found[-1] != '\n')
            found--, wanted--;
        expect(false, "it is '%.*s'; the file has '%.*s'", line_length(found), found,
               line_length(wanted), wanted);
    }
    test_case("the file has these cases alone");
    for (const char *at = golden; *at; at += case_length(at))
        kept++;
    expect(kept == cases, "it has %d cases, and there are %d", kept, cases);
}

int main(int argc, char **argv) {
    const char *path = argc > 1 ? argv[1] : "golden_plans.txt";
    const bool writes = flag(argc, argv, "write");
    FILE *now = writes ? fopen(path, "w") : tmpfile();
    FILE *golden = writes ? NULL : fopen(path, "r");
    test_case("%s can be opened", path);
    if (!expect(now != NULL && (writes || golden != NULL), "it cannot"))
        return test_finish("golden_plans");
    for (int i = 0; i < SHAPES; i++)
        for (planish_pass pass = PLANISH_FORWARD; pass <= PLANISH_BACKWARD; pass++)
            write_case(now, &shapes[i], pass);
    /* What a batch norm is in an inference. */
    for (int i = 0; i < SHAPES; i++)
        if (shapes[i].layer == BATCH)
            write_case(now, &shapes[i], PLANISH_APPLY);
    if (golden) {
        char *wanted = read_all(golden), *found = read_all(now);
        compare(wanted, found);
        free(wanted);
        free(found);
        fclose(golden);
    }
    fclose(now);
    return test_finish("golden_plans");
}
