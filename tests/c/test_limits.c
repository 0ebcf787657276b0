/*
 * What a plan is told of the CPU changes speed alone: plans made for CPUs of every kind, with
 * caches of every size, give the same bits on this one.
 */
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "check.h"

#include "buffers.h"
#include "cpu/dispatch.h"
#include "cpu/run.h"
#include "plan.h"

typedef enum cpu { PLAIN, INTEL, ZEN4, ZEN5, CPUS } cpu;
typedef enum caches { NEAR, AHEAD, PAST, FAR_PAST, CACHES } caches;

static const char *const cpu_names[] = {"no kind", "Intel", "Zen 4", "Zen 5"};
static const char *const cache_names[] = {"near", "ahead", "past the cache", "far past the cache"};

/* A CPU of this kind in whose caches everything lies where `where` says. */
static cpu_limits limits_of(cpu kind, caches where) {
    const size_t none = 0, all = (size_t)1 << 40;
    const size_t runs = where == FAR_PAST ? none : all;
    return (cpu_limits){
        .kernels = cpu_kernels_chosen(),
        .first_bytes = 49152,
        .near_bytes = where == NEAR ? all : none,
        .cache_bytes = where >= PAST ? none : all,
        .rows_bytes = where >= PAST ? none : all,
        .run_bytes = {runs, runs},
        .fetches_rows = kind == INTEL,
        .fetches_short_rows = kind == ZEN4,
        .writes_lines = kind == ZEN4 || kind == ZEN5,
    };
}

/* What is not written is not to be what was there. */
static void spoil_outputs(bundle *b) {
    for (part p = 0; p < PARTS; p++) {
        const tensor *t = &b->tensor[p];
        if (!t->memory.mapping || !part_is_output(b->test.pass, p))
            continue;
        real *values = malloc(((size_t)t->count + 1) * sizeof *values);
        for (int64_t i = 0; i < t->count; i++)
            values[i] = 77;
        tensor_write(&t->dl, values);
        free(values);
    }
}

static uint64_t digest_of(bundle *b, const cpu_limits *limits) {
    char text[256] = "";
    planish_plan plan;
    if (!expect(problem_make(&plan.problem, &b->op, b->test.pass, &b->tensors,
                             (message){text, sizeof text}) == PLANISH_OK,
                "%s", text))
        return 0;
    plan_make(&plan, limits);
    const size_t bytes = (plan.workspace_bytes + 63) / 64 * 64;
    planish_exec exec = {.struct_size = sizeof exec,
                         .workspace = aligned_alloc(64, bytes + 64),
                         .workspace_bytes = bytes};
    void *buffers[ROLE_COUNT];
    buffers_of(&b->tensors, buffers);
    spoil_outputs(b);
    cpu_run(&plan, buffers, &exec);
    free(exec.workspace);
    return bundle_digest(b);
}

static void every_cpu(const norm_case *c) {
    char text[512];
    test_case("every CPU: %s", case_text(c, text, sizeof text));
    bundle b;
    bundle_make(&b, c);
    const cpu_limits first = limits_of(PLAIN, NEAR);
    const uint64_t wanted = digest_of(&b, &first);
    for (cpu kind = PLAIN; kind < CPUS; kind++)
        for (caches where = NEAR; where < CACHES; where++) {
            const cpu_limits limits = limits_of(kind, where);
            expect(digest_of(&b, &limits) == wanted, "%s, %s: other bits", cpu_names[kind],
                   cache_names[where]);
        }
    bundle_free(&b);
}

static const element types[] = {F32, BF16, F16, F64};
enum { TYPES = sizeof types / sizeof *types };

static void rows(void) {
    static const int64_t cols[] = {5,   24,  32,  40,  48,   53,   64,   80,   96,   128, 200,
                                   256, 320, 512, 531, 1000, 1024, 1280, 2048, 4096, 9001};
    int turn = 0;
    for (size_t i = 0; i < sizeof cols / sizeof *cols; i++)
        for (int t = 0; t < TYPES; t++)
            for (planish_pass pass = PLANISH_FORWARD; pass <= PLANISH_BACKWARD; pass++, turn++) {
                const int64_t count = 16384 / cols[i] < 100 ? 16384 / cols[i] + 10 : 110;
                norm_case c = rows_case(pass, (planish_kind)(turn / 2 % 2), count, cols[i]);
                c.x = c.y = c.weight = c.grad = types[t];
                c.stats = types[t] == F64 ? F64 : F32;
                c.seed = (uint64_t)turn;
                every_cpu(&c);
                c.activation = (planish_activation)(PLANISH_SILU + turn / 4 % 4);
                every_cpu(&c);
            }
}

static void images(void) {
    static const struct {
        int64_t channels, height, width, groups;
    } shapes[] = {{32, 7, 7, 8}, {64, 14, 14, 32}, {48, 28, 28, 3}, {8, 40, 40, 1}};
    int turn = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (image_layer layer = CHANNEL_NORM; layer < IMAGE_LAYERS; layer++)
            for (int t = 0; t < TYPES; t++)
                for (planish_pass pass = PLANISH_FORWARD; pass <= PLANISH_BACKWARD;
                     pass++, turn++) {
                    norm_case c = image_case(pass, PLANISH_LAYER, layer, 3, shapes[i].channels,
                                             shapes[i].height, shapes[i].width, shapes[i].groups);
                    c.in = c.out = turn / 2 % 2 ? CHANNELS_LAST : DENSE;
                    c.activation = turn % 5 == 0   ? PLANISH_SILU
                                   : turn % 5 == 2 ? PLANISH_GELU
                                                   : PLANISH_IDENTITY;
                    c.x = c.y = c.weight = c.grad = types[t];
                    c.stats = types[t] == F64 ? F64 : F32;
                    c.seed = (uint64_t)turn;
                    every_cpu(&c);
                }
}

int main(void) {
    rows();
    images();
    return test_finish("limits");
}
