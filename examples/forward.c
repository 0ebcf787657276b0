/*
 * LayerNorm of a batch of rows: the smallest use of planish.
 *
 *     cc forward.c $(pkg-config --cflags --libs planish) -lm
 */
#include <math.h>
#include <planish.h>
#include <stdio.h>

enum { ROWS = 4, COLS = 6 };

int main(void) {
    float x[ROWS][COLS], weight[COLS], bias[COLS], y[ROWS][COLS];
    for (int c = 0; c < COLS; c++) {
        weight[c] = 2;
        bias[c] = (float)c;
        for (int r = 0; r < ROWS; r++)
            x[r][c] = (float)(r + c * c);
    }

    /* A tensor is a pointer with a shape; without strides it is dense. */
    const DLDevice cpu = {kDLCPU, 0};
    const DLDataType f32 = {kDLFloat, 32, 1};
    int64_t shape[] = {ROWS, COLS}, cols[] = {COLS};
    DLTensor tx = {.data = x, .device = cpu, .ndim = 2, .dtype = f32, .shape = shape};
    DLTensor ty = {.data = y, .device = cpu, .ndim = 2, .dtype = f32, .shape = shape};
    DLTensor tweight = {.data = weight, .device = cpu, .ndim = 1, .dtype = f32, .shape = cols};
    DLTensor tbias = {.data = bias, .device = cpu, .ndim = 1, .dtype = f32, .shape = cols};

    char message[256];
    planish_exec exec = {
        .struct_size = sizeof exec, .message = message, .message_bytes = sizeof message};
    if (planish_layer_norm_forward(1, 1e-5, &tx, &tweight, &tbias, &ty, NULL, NULL, &exec)) {
        fprintf(stderr, "%s\n", message);
        return 1;
    }

    /* Every row is back at mean 0 and standard deviation 1 once weight and bias are undone. */
    for (int r = 0; r < ROWS; r++) {
        double mean = 0, square = 0;
        for (int c = 0; c < COLS; c++) {
            double xhat = (y[r][c] - bias[c]) / weight[c];
            mean += xhat / COLS;
            square += xhat * xhat / COLS;
        }
        printf("row %d: mean %+.6f, standard deviation %.6f\n", r, mean, sqrt(square));
        if (fabs(mean) > 1e-6 || fabs(square - 1) > 1e-5)
            return 1;
    }
    return 0;
}
