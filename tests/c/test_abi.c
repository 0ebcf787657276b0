/*
 * A client of the first release: compiled with that release's header (tests/c/abi), linked with the
 * library as it is now. And one of a later release, whose structs are larger. This file is compiled
 * with no other header of planish's.
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planish.h"

static int passed, failed;

static void expect(int ok, const char *what) {
    ok ? passed++ : failed++;
    if (!ok)
        printf("failed: %s\n", what);
}

enum { ROWS = 3, COLS = 8 };

/* A dense f32 tensor on the stack of its own. */
typedef struct array {
    float data[ROWS * COLS];
    int64_t shape[4];
    DLTensor tensor;
} array;

static DLTensor *make(array *a, int ndim, int64_t s0, int64_t s1, int64_t s2) {
    const int64_t shape[] = {s0, s1, s2, 1};
    memcpy(a->shape, shape, sizeof shape);
    a->tensor = (DLTensor){.data = a->data,
                           .device = {kDLCPU, 0},
                           .ndim = ndim,
                           .dtype = {kDLFloat, 32, 1},
                           .shape = a->shape};
    return &a->tensor;
}

static void fill(array *a) {
    for (int i = 0; i < ROWS * COLS; i++)
        a->data[i] = (float)((i * 7 + 3) % 11) - 4;
}

/* Whether y holds each run of `cols` elements of x normalised. */
static int normalised(const array *x, const array *y, int cols) {
    for (int row = 0; row < ROWS * COLS / cols; row++) {
        const float *from = x->data + row * cols;
        double mean = 0, square = 0;
        for (int i = 0; i < cols; i++)
            mean += from[i] / (double)cols;
        for (int i = 0; i < cols; i++)
            square += (from[i] - mean) * (from[i] - mean) / cols;
        for (int i = 0; i < cols; i++)
            if (!(fabs(y->data[row * cols + i] - (from[i] - mean) / sqrt(square + 1e-5)) < 1e-5))
                return 0;
    }
    return 1;
}

static array x, y, mean, rstd, dy, dx;

static void test_run_and_plan(void) {
    char text[256] = "";
    const planish_norm op = planish_layer_norm_op(2, 1, 1e-5);
    const planish_tensors forward = {.struct_size = sizeof forward,
                                     .x = make(&x, 2, ROWS, COLS, 1),
                                     .y = make(&y, 2, ROWS, COLS, 1),
                                     .mean = make(&mean, 2, ROWS, 1, 1),
                                     .rstd = make(&rstd, 2, ROWS, 1, 1)};
    const planish_exec exec = {
        .struct_size = sizeof exec, .message = text, .message_bytes = sizeof text};
    fill(&x);
    expect(planish_norm_run(&op, PLANISH_FORWARD, &forward, &exec) == PLANISH_OK, text);
    expect(normalised(&x, &y, COLS), "forward");

    const planish_tensors backward = {.struct_size = sizeof backward,
                                      .x = forward.x,
                                      .mean = forward.mean,
                                      .rstd = forward.rstd,
                                      .dy = make(&dy, 2, ROWS, COLS, 1),
                                      .dx = make(&dx, 2, ROWS, COLS, 1)};
    for (int i = 0; i < ROWS * COLS; i++)
        dy.data[i] = 1;
    expect(planish_norm_run(&op, PLANISH_BACKWARD, &backward, &exec) == PLANISH_OK, text);
    for (int i = 0; i < ROWS * COLS; i++)
        expect(fabsf(dx.data[i]) < 1e-5f, "dx of a constant dy");

    planish_plan *plan = NULL;
    memset(y.data, 0, sizeof y.data);
    expect(planish_plan_create(&op, PLANISH_FORWARD, &forward, &plan, text, sizeof text) ==
               PLANISH_OK,
           text);
    const planish_buffers buffers = {.struct_size = sizeof buffers,
                                     .x = x.data,
                                     .y = y.data,
                                     .mean = mean.data,
                                     .rstd = rstd.data};
    expect(planish_plan_run(plan, &buffers, &exec) == PLANISH_OK, text);
    expect(normalised(&x, &y, COLS), "a plan's run");
    planish_plan_destroy(plan);
}

static void test_group_norm(void) {
    char text[256] = "";
    const planish_exec exec = {
        .struct_size = sizeof exec, .message = text, .message_bytes = sizeof text};
    fill(&x);
    expect(planish_group_norm_forward(2, 1e-5, PLANISH_IDENTITY, make(&x, 3, 1, 6, 4), NULL, NULL,
                                      make(&y, 3, 1, 6, 4), NULL, NULL, &exec) == PLANISH_OK,
           text);
    expect(normalised(&x, &y, 12), "group norm");
}

/* The padding at the end of a struct of the first release holds anything: it is no field. */
static void test_padding(void) {
    planish_exec exec;
    memset(&exec, 0xa5, sizeof exec);
    memset(&exec, 0, offsetof(planish_exec, apart) + sizeof exec.apart);
    exec.struct_size = sizeof exec;
    const planish_norm op = planish_layer_norm_op(2, 1, 1e-5);
    const planish_tensors forward = {.struct_size = sizeof forward,
                                     .x = make(&x, 2, ROWS, COLS, 1),
                                     .y = make(&y, 2, ROWS, COLS, 1)};
    fill(&x);
    memset(y.data, 0, sizeof y.data);
    expect(planish_norm_run(&op, PLANISH_FORWARD, &forward, &exec) == PLANISH_OK, "padding");
    expect(normalised(&x, &y, COLS), "forward with numbers in the padding of exec");
}

/* What a later header's structs look like to this library: longer. */
static void test_later(void) {
    char text[256] = "";
    struct {
        planish_norm known;
        uint64_t more[64];
    } op = {planish_layer_norm_op(2, 1, 1e-5), {0}};
    struct {
        planish_tensors known;
        const DLTensor *more[64];
    } tensors = {{.struct_size = sizeof tensors,
                  .x = make(&x, 2, ROWS, COLS, 1),
                  .y = make(&y, 2, ROWS, COLS, 1)},
                 {0}};
    struct {
        planish_exec known;
        char more[24];
    } exec = {{.struct_size = sizeof exec, .message = text, .message_bytes = sizeof text}, {0}};
    op.known.struct_size = sizeof op;
    fill(&x);
    memset(y.data, 0, sizeof y.data);
    expect(planish_norm_run(&op.known, PLANISH_FORWARD, &tensors.known, &exec.known) == PLANISH_OK,
           text);
    expect(normalised(&x, &y, COLS), "larger structs whose further fields are 0");

    memset(y.data, 0, sizeof y.data);
    op.more[63] = 1;
    expect(planish_norm_run(&op.known, PLANISH_FORWARD, &tensors.known, &exec.known) ==
               PLANISH_ERROR_STRUCT_SIZE,
           "a field of op that is not known");
    expect(strstr(text, "op->struct_size") && strstr(text, "wanted 0"), text);
    op.more[63] = 0;
    tensors.more[63] = tensors.known.x;
    expect(planish_norm_run(&op.known, PLANISH_FORWARD, &tensors.known, &exec.known) ==
               PLANISH_ERROR_STRUCT_SIZE,
           "a tensor that is not known");
    expect(strstr(text, "tensors->struct_size") != NULL, text);
    expect(planish_group_norm_run(1, 1e-5, PLANISH_IDENTITY, PLANISH_FORWARD, &tensors.known,
                                  &exec.known) == PLANISH_ERROR_STRUCT_SIZE,
           "a tensor of a group norm that is not known");
    exec.more[0] = 1;
    expect(planish_norm_run(&op.known, PLANISH_FORWARD, &tensors.known, &exec.known) ==
               PLANISH_ERROR_STRUCT_SIZE,
           "a field of exec that is not known");
    for (int i = 0; i < ROWS * COLS; i++)
        expect(y.data[i] == 0, "y was written");
}

int main(void) {
    test_run_and_plan();
    test_group_norm();
    test_padding();
    test_later();
    printf("abi: %d passed, %d failed\n", passed, failed);
    return failed != 0;
}
