/*
 * RMSNorm forward and backward: the plan says how much workspace a pass needs, the caller brings
 * it. The gradients are held against finite differences.
 *
 *     cc backward.c $(pkg-config --cflags --libs planish) -lm
 */
#include <math.h>
#include <planish.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 64, COLS = 48 };

static double x[ROWS][COLS], weight[COLS], y[ROWS][COLS], rstd[ROWS];
static double dy[ROWS][COLS], dx[ROWS][COLS], dweight[COLS];

static int64_t shape[] = {ROWS, COLS};

static DLTensor tensor(void *data, int ndim, int64_t *sizes) {
    return (DLTensor){.data = data,
                      .device = {kDLCPU, 0},
                      .ndim = ndim,
                      .dtype = {kDLFloat, 64, 1},
                      .shape = sizes};
}

/* The loss whose gradient dy is: the sum of y * dy. */
static double loss(const planish_norm *op, planish_tensors forward) {
    if (planish_norm_run(op, PLANISH_FORWARD, &forward, NULL))
        exit(1);
    double sum = 0;
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLS; c++)
            sum += y[r][c] * dy[r][c];
    return sum;
}

static int differs(const char *name, double gradient, double difference) {
    printf("%s: planish %+.9f, finite difference %+.9f\n", name, gradient, difference);
    return fabs(gradient - difference) > 1e-6;
}

int main(void) {
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLS; c++) {
            x[r][c] = sin(r * 7 + c * 3);
            dy[r][c] = cos(r + c * 5);
            weight[c] = 1 + 0.1 * sin(c);
        }

    DLTensor tx = tensor(x, 2, shape), ty = tensor(y, 2, shape), trstd = tensor(rstd, 1, shape);
    DLTensor tdy = tensor(dy, 2, shape), tdx = tensor(dx, 2, shape);
    DLTensor tweight = tensor(weight, 1, shape + 1), tdweight = tensor(dweight, 1, shape + 1);
    planish_norm op = planish_rms_norm_op(2, 1, 1e-6);
    planish_tensors forward = {
        .struct_size = sizeof forward, .x = &tx, .weight = &tweight, .y = &ty, .rstd = &trstd};
    planish_tensors backward = {.struct_size = sizeof backward,
                                .dy = &tdy,
                                .x = &tx,
                                .rstd = &trstd,
                                .weight = &tweight,
                                .dx = &tdx,
                                .dweight = &tdweight};
    loss(&op, forward); /* saves rstd, which backward reads */

    /* Decide once, run often: the plan knows the workspace. */
    char message[256];
    planish_plan *plan;
    if (planish_plan_create(&op, PLANISH_BACKWARD, &backward, &plan, message, sizeof message)) {
        fprintf(stderr, "%s\n", message);
        return 1;
    }
    size_t bytes = planish_plan_workspace_bytes(plan);
    planish_exec exec = {.struct_size = sizeof exec,
                         .workspace = aligned_alloc(256, (bytes + 255) / 256 * 256),
                         .workspace_bytes = bytes,
                         .message = message,
                         .message_bytes = sizeof message};
    planish_buffers buffers = {.struct_size = sizeof buffers,
                               .dy = dy,
                               .x = x,
                               .rstd = rstd,
                               .weight = weight,
                               .dx = dx,
                               .dweight = dweight};
    if (planish_plan_run(plan, &buffers, &exec)) {
        fprintf(stderr, "%s\n", message);
        return 1;
    }
    char line[128];
    planish_plan_describe(plan, line, sizeof line);
    printf("%s, workspace %zu bytes\n", line, bytes);
    planish_plan_destroy(plan);
    free(exec.workspace);

    const double step = 1e-5;
    double *inputs[] = {&x[5][7], &weight[11]}, gradients[] = {dx[5][7], dweight[11]};
    const char *names[] = {"dx[5][7]", "dweight[11]"};
    int wrong = 0;
    for (int i = 0; i < 2; i++) {
        double kept = *inputs[i];
        *inputs[i] = kept + step;
        double up = loss(&op, forward);
        *inputs[i] = kept - step;
        double down = loss(&op, forward);
        *inputs[i] = kept;
        wrong += differs(names[i], gradients[i], (up - down) / (2 * step));
    }
    return wrong != 0;
}
