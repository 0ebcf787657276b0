/*
 * The functions of planish.h that the other examples do not need, each called once on small
 * tensors. The norms' results are compared: every way to say the same norm gives the same bits.
 *
 *     cc reference.c $(pkg-config --cflags --libs planish) -lm
 */
#include <math.h>
#include <planish.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 4, COLS = 16, COUNT = ROWS * COLS };

static int64_t shape[] = {ROWS, COLS};
static char message[256];
static _Alignas(64) char workspace[1 << 16];
static const planish_exec exec = {.struct_size = sizeof exec,
                                  .workspace = workspace,
                                  .workspace_bytes = sizeof workspace,
                                  .message = message,
                                  .message_bytes = sizeof message};

static DLTensor tensor(float *data, int ndim, int64_t *sizes) {
    return (DLTensor){.data = data,
                      .device = {kDLCPU, 0},
                      .ndim = ndim,
                      .dtype = {kDLFloat, 32, 1},
                      .shape = sizes};
}

static int are_equal(const float *one, const float *other) {
    for (int i = 0; i < COUNT; i++)
        if (one[i] != other[i])
            return 0;
    return 1;
}

static void check(int good, const char *what) {
    if (!good) {
        printf("%s: %s\n", what, message);
        exit(1);
    }
    printf("%s: ok\n", what);
}

#define RUNS(call) check((call) == PLANISH_OK, #call)

static float data[2][COUNT], y[3][COUNT], dx[2][COUNT], mean[ROWS], rstd[2][ROWS];
static float dweight[2][COLS], weights[COLS];

/* LayerNorm and RMSNorm over the last axis, by the short calls and by an operator. */
static void rows(void) {
    DLTensor x = tensor(data[0], 2, shape), dy = tensor(data[1], 2, shape);
    DLTensor w = tensor(weights, 1, shape + 1), dw = tensor(dweight[0], 1, shape + 1);
    DLTensor m = tensor(mean, 1, shape), r = tensor(rstd[0], 1, shape);
    DLTensor out = tensor(y[0], 2, shape), gradient = tensor(dx[0], 2, shape);
    DLTensor other = tensor(dx[1], 2, shape);

    RUNS(planish_layer_norm_forward(1, 1e-5, &x, &w, NULL, &out, &m, &r, &exec));
    RUNS(planish_layer_norm_backward(1, &dy, &x, &m, &r, &w, &gradient, &dw, NULL, &exec));
    const planish_norm op = planish_layer_norm_op(2, 1, 1e-5);
    RUNS(planish_norm_backward(&op, &dy, &x, &m, &r, &w, &other, NULL, NULL, &exec));
    check(are_equal(dx[0], dx[1]), "planish_norm_backward is planish_layer_norm_backward");

    RUNS(planish_rms_norm_forward(1, 1e-5, &x, &w, &out, &r, &exec));
    check(fabsf(y[0][0] - data[0][0] * rstd[0][0] * weights[0]) < 1e-6F, "y = x * rstd * weight");
    RUNS(planish_rms_norm_backward(1, &dy, &x, &r, &w, &gradient, &dw, &exec));
}

/* Of x (N, C, L): groups of channels, and the channels of each place. */
static void channels(void) {
    int64_t image[] = {2, 4, 8}, channel[] = {4}, groups[] = {2, 2}, pixels[] = {2, 8};
    DLTensor x = tensor(data[0], 3, image), dy = tensor(data[1], 3, image);
    DLTensor out = tensor(y[0], 3, image), gradient = tensor(dx[0], 3, image);
    DLTensor w = tensor(weights, 1, channel), dw = tensor(dweight[0], 1, channel);
    DLTensor db = tensor(dweight[1], 1, channel);
    float group_mean[4], group_rstd[4], pixel_mean[16], pixel_rstd[16];
    DLTensor m = tensor(group_mean, 2, groups), r = tensor(group_rstd, 2, groups);

    RUNS(planish_group_norm_forward(2, 1e-5, PLANISH_SILU, &x, &w, NULL, &out, &m, &r, &exec));
    RUNS(planish_group_norm_backward(2, PLANISH_SILU, &dy, &x, &m, &r, &w, NULL, &gradient, &dw,
                                     &db, &exec));
    DLTensor again = tensor(y[1], 3, image);
    const planish_tensors same = {.struct_size = sizeof same, .x = &x, .weight = &w, .y = &again};
    size_t bytes;
    RUNS(
        planish_group_norm_workspace_bytes(2, PLANISH_SILU, PLANISH_FORWARD, &same, &bytes, &exec));
    check(bytes <= sizeof workspace, "the workspace is large enough");
    RUNS(planish_group_norm_run(2, 1e-5, PLANISH_SILU, PLANISH_FORWARD, &same, &exec));
    check(are_equal(y[0], y[1]), "planish_group_norm_run is planish_group_norm_forward");

    m = tensor(pixel_mean, 2, pixels), r = tensor(pixel_rstd, 2, pixels);
    RUNS(planish_channel_norm_forward(PLANISH_LAYER, 1e-5, &x, &w, NULL, &out, &m, &r, &exec));
    RUNS(planish_channel_norm_backward(PLANISH_LAYER, &dy, &x, &m, &r, &w, &gradient, &dw, &db,
                                       &exec));
}

/* Two norms of one operator at once, such as those of queries and keys; then the same by plans. */
static void pair(void) {
    DLTensor q = tensor(data[0], 2, shape), k = tensor(data[1], 2, shape);
    DLTensor q_out = tensor(y[0], 2, shape), k_out = tensor(y[1], 2, shape);
    const planish_norm op = planish_rms_norm_op(2, 1, 1e-6);
    const planish_tensors first = {.struct_size = sizeof first, .x = &q, .y = &q_out};
    const planish_tensors second = {.struct_size = sizeof second, .x = &k, .y = &k_out};
    size_t bytes;
    RUNS(planish_norm_supports(&op, PLANISH_FORWARD, &first, message, sizeof message));
    RUNS(planish_norm_pair_workspace_bytes(&op, PLANISH_FORWARD, &first, &second, &bytes, &exec));
    RUNS(planish_norm_pair_run(&op, PLANISH_FORWARD, &first, &second, &exec));

    planish_plan *plans[2];
    RUNS(planish_plan_create(&op, PLANISH_FORWARD, &first, &plans[0], message, sizeof message));
    RUNS(planish_plan_create(&op, PLANISH_FORWARD, &second, &plans[1], message, sizeof message));
    check(planish_plan_pair_workspace_bytes(plans[0], plans[1]) == bytes, "plans ask for as much");
    const planish_buffers of_q = {.struct_size = sizeof of_q, .x = data[0], .y = y[2]};
    const planish_buffers of_k = {.struct_size = sizeof of_k, .x = data[1], .y = y[1]};
    RUNS(planish_plan_pair_run(plans[0], plans[1], &of_q, &of_k, &exec));
    check(are_equal(y[0], y[2]), "planish_plan_pair_run is planish_norm_pair_run");
    planish_plan_destroy(plans[0]);
    planish_plan_destroy(plans[1]);
}

/* What is there. */
static void about(void) {
    char text[4096];
    printf("version %d, header %d; tier %s\n", planish_version(), PLANISH_VERSION,
           planish_cpu_tier());
    check(!strcmp(planish_tensor_name(0), "x") && !planish_tensor_name(1000), "tensor names");
    check(planish_gpu_report(text, sizeof text) > 0 && text[0] == '{', "planish_gpu_report");
    check(planish_cache_path(text, sizeof text) >= 0, "planish_cache_path");
    check(planish_pack_load("/no/such.pack", message, sizeof message) != PLANISH_OK,
          "a pack that is not there is refused");
    printf("%s\n", message);
}

int main(void) {
    for (int i = 0; i < COUNT; i++) {
        data[0][i] = (float)sin(i * 7);
        data[1][i] = (float)cos(i * 3);
        weights[i % COLS] = 1 + (float)(i % COLS) / COLS;
    }
    rows();
    channels();
    pair();
    about();
    return 0;
}
