/*
 * A residual, then RMSNorm, in one pass over memory: what stands between two layers of a language
 * model. Forward writes the sum and the norm of it; backward takes the gradients of both.
 *
 *     sum = x + residual
 *     y   = sum / sqrt(mean(sum^2) + eps) * weight
 *
 *     cc fused.c $(pkg-config --cflags --libs planish) -lm
 */
#include <math.h>
#include <planish.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 16, COLS = 64 };

static float x[ROWS][COLS], residual[ROWS][COLS], weight[COLS], rstd[ROWS];
static float sum[ROWS][COLS], y[ROWS][COLS];
static float dy[ROWS][COLS], dsum[ROWS][COLS], dx[ROWS][COLS], dweight[COLS];

static int64_t shape[] = {ROWS, COLS};
static char message[256];

static DLTensor tensor(void *data, int ndim, int64_t *sizes) {
    return (DLTensor){.data = data,
                      .device = {kDLCPU, 0},
                      .ndim = ndim,
                      .dtype = {kDLFloat, 32, 1},
                      .shape = sizes};
}

/* Plans, says what the plan is, and runs it with the workspace that it wants. */
static int run(const planish_norm *op, planish_pass pass, const planish_tensors *tensors) {
    planish_plan *plan;
    if (planish_plan_create(op, pass, tensors, &plan, message, sizeof message))
        return 1;
    char line[128];
    planish_plan_describe(plan, line, sizeof line);
    printf("%s%s\n", line, planish_plan_is_general(plan) ? " (general: right but slow)" : "");
    size_t bytes = planish_plan_workspace_bytes(plan);
    planish_plan_destroy(plan);
    planish_exec exec = {.struct_size = sizeof exec,
                         .workspace = aligned_alloc(64, (bytes + 63) / 64 * 64),
                         .workspace_bytes = bytes,
                         .message = message,
                         .message_bytes = sizeof message};
    planish_status status = planish_norm_run(op, pass, tensors, &exec);
    free(exec.workspace);
    return status != PLANISH_OK;
}

static double larger(double a, double b) {
    return a > b ? a : b;
}

int main(void) {
    for (int c = 0; c < COLS; c++) {
        weight[c] = 1 + (float)c / COLS;
        for (int r = 0; r < ROWS; r++) {
            x[r][c] = (float)sin(r * 7 + c * 3);
            residual[r][c] = (float)cos(r * 2 + c * 5);
            dy[r][c] = (float)sin(r + c * 11);
            dsum[r][c] = (float)cos(r * 3 + c);
        }
    }
    DLTensor tx = tensor(x, 2, shape), tresidual = tensor(residual, 2, shape);
    DLTensor tsum = tensor(sum, 2, shape), ty = tensor(y, 2, shape);
    DLTensor tweight = tensor(weight, 1, shape + 1), trstd = tensor(rstd, 1, shape);
    planish_norm op = planish_rms_norm_op(2, 1, 1e-6);

    /* A stage is there where its tensors are; everything else is as without it. */
    planish_tensors forward = {.struct_size = sizeof forward,
                               .x = &tx,
                               .residual = &tresidual,
                               .weight = &tweight,
                               .sum = &tsum,
                               .y = &ty,
                               .rstd = &trstd};
    if (run(&op, PLANISH_FORWARD, &forward)) {
        fprintf(stderr, "%s\n", message);
        return 1;
    }

    /* Backward's x is the sum. dx is the gradient of both x and the residual: nothing else stands
     * between them here. */
    DLTensor tdy = tensor(dy, 2, shape), tdsum = tensor(dsum, 2, shape);
    DLTensor tdx = tensor(dx, 2, shape), tdweight = tensor(dweight, 1, shape + 1);
    planish_tensors backward = {.struct_size = sizeof backward,
                                .dy = &tdy,
                                .dsum = &tdsum,
                                .x = &tsum,
                                .rstd = &trstd,
                                .weight = &tweight,
                                .dx = &tdx,
                                .dweight = &tdweight};
    if (run(&op, PLANISH_BACKWARD, &backward)) {
        fprintf(stderr, "%s\n", message);
        return 1;
    }

    /* The same by the formulas, in double. */
    double off_y = 0, off_dx = 0, off_dweight = 0;
    double sums[COLS] = {0};
    for (int r = 0; r < ROWS; r++) {
        double square = 0, c2 = 0;
        for (int c = 0; c < COLS; c++) {
            if (x[r][c] + residual[r][c] != sum[r][c])
                return fprintf(stderr, "the sum is not the rounded sum\n"), 1;
            square += (double)sum[r][c] * sum[r][c] / COLS;
        }
        double scale = 1 / sqrt(square + 1e-6);
        for (int c = 0; c < COLS; c++) {
            double xhat = sum[r][c] * scale;
            c2 += dy[r][c] * weight[c] * xhat / COLS;
            sums[c] += dy[r][c] * xhat;
        }
        for (int c = 0; c < COLS; c++)
            off_y = larger(off_y, fabs(y[r][c] - sum[r][c] * scale * weight[c]));
        for (int c = 0; c < COLS; c++) {
            double ds = scale * (dy[r][c] * weight[c] - sum[r][c] * scale * c2) + dsum[r][c];
            off_dx = larger(off_dx, fabs(dx[r][c] - ds));
        }
    }
    for (int c = 0; c < COLS; c++)
        off_dweight = larger(off_dweight, fabs(dweight[c] - sums[c]));
    printf("largest errors: y %.1e, dx %.1e, dweight %.1e\n", off_y, off_dx, off_dweight);
    return off_y > 2e-6 || off_dx > 5e-6 || off_dweight > 5e-6;
}
