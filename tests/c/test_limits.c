/*
 * What a plan is told of the CPU changes speed alone: plans made for CPUs of every kind, with
 * caches of every size, give the same bits on this one.
 */
#include <stdlib.h>

#include "cases.h"
#include "check.h"
#include "every_cpu.h"

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

static uint64_t digest_of(void *context, const problem *p, const cpu_plan *plan) {
    bundle *b = context;
    spoil_outputs(b);
    run_in_workspace(p, plan, &b->tensors);
    return bundle_digest(b);
}

static void every_cpu(const norm_case *c) {
    char text[512];
    test_case("every CPU: %s", case_text(c, text, sizeof text));
    bundle b;
    bundle_make(&b, c);
    expect_same_on_every_cpu(&b.test.op, c->pass, &b.tensors, digest_of, &b);
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
                c.x = c.dx = c.y = c.weight = c.grad = types[t];
                c.stats = types[t] == F64 ? F64 : F32;
                c.seed = (uint64_t)turn;
                every_cpu(&c);
                c.op.activation = (planish_activation)(PLANISH_SILU + turn / 4 % 4);
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
                    c.op.activation = turn % 5 == 0   ? PLANISH_SILU
                                      : turn % 5 == 2 ? PLANISH_GELU
                                                      : PLANISH_IDENTITY;
                    c.x = c.dx = c.y = c.weight = c.grad = types[t];
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
