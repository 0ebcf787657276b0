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

typedef enum caches { NEAR, AHEAD, PAST, FAR_PAST, CACHES } caches;

static const char *const cache_names[] = {"near", "ahead", "beyond the cache",
                                          "far beyond the cache"};

/* A CPU of this kind in whose caches everything lies where `where` says; `row` is room for how it
 * is tuned. */
static cpu_limits limits_of(cpu_microarchitecture kind, caches where, cpu_tuning *row) {
    const size_t none = 0, all = (size_t)1 << 40;
    *row = *cpu_tuning_of(kind);
    row->near_bytes = where == NEAR ? all : none;
    row->stream_bytes = row->stream_rows_least = row->stream_rows_most = where >= PAST ? none : all;
    row->stream_run_bytes[0] = row->stream_run_bytes[1] = where == FAR_PAST ? none : all;
    return cpu_limits_of(row, cpu_kernels_chosen(), 49152, none);
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

static uint64_t digest_of(bundle *b, const problem *p, const cpu_plan *plan) {
    const size_t bytes = (plan->workspace_bytes + 63) / 64 * 64;
    planish_exec exec = {.struct_size = sizeof exec,
                         .workspace = aligned_alloc(64, bytes + 64),
                         .workspace_bytes = bytes};
    void *buffers[ROLE_COUNT];
    buffers_of(&b->tensors, buffers);
    spoil_outputs(b);
    cpu_run(p, plan, buffers, &exec);
    free(exec.workspace);
    return bundle_digest(b);
}

/* Whether none of the plans before is this one, byte by byte: one that is taken for new costs time
 * alone. */
static bool is_new(const cpu_plan plans[], int count) {
    for (int i = 0; i < count; i++)
        /* NOLINTNEXTLINE(bugprone-suspicious-memory-comparison) */
        if (!memcmp(&plans[i], &plans[count], sizeof *plans))
            return false;
    return true;
}

/* The first plan says what the bits are. */
static void every_cpu(const norm_case *c) {
    char text[512], error[256] = "";
    test_case("every CPU: %s", case_text(c, text, sizeof text));
    bundle b;
    problem p;
    bundle_make(&b, c);
    const message told = {error, sizeof error};
    if (!expect(problem_make(&p, &b.op, c->pass, &b.tensors, told) == PLANISH_OK, "%s", error))
        return;
    cpu_plan plans[CPU_COUNT * CACHES];
    memset(plans, 0, sizeof plans);
    uint64_t wanted = 0;
    int count = 0;
    for (cpu_microarchitecture kind = CPU_GENERIC; kind < CPU_COUNT; kind++)
        for (caches where = NEAR; where < CACHES; where++) {
            cpu_tuning row;
            const cpu_limits limits = limits_of(kind, where, &row);
            cpu_plan_make(&plans[count], &p, &limits);
            if (!is_new(plans, count))
                continue;
            const uint64_t digest = digest_of(&b, &p, &plans[count]);
            wanted = count++ ? wanted : digest;
            expect(digest == wanted, "%s, %s: other bits", row.name, cache_names[where]);
        }
    expect(count > 1, "all plans are one");
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
