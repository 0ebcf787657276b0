/*
 * A row that is split over two processes (here: two halves of one buffer): statistics of each part,
 * merged by the formula in planish.h, then applied to each part.
 *
 *     cc split.c $(pkg-config --cflags --libs planish) -lm
 */
#include <math.h>
#include <planish.h>
#include <stdio.h>

enum { ROWS = 8, COLS = 100, CUT = 37 };

static const DLDevice cpu = {kDLCPU, 0};
static float x[ROWS][COLS], whole[ROWS][COLS], parts[ROWS][COLS];

/* Columns from `begin` up to `end` of a matrix: a view with the matrix's row stride. */
typedef struct view {
    int64_t shape[2], strides[2];
    DLTensor tensor;
} view;

static const DLTensor *columns(view *v, float (*matrix)[COLS], int begin, int end) {
    *v = (view){.shape = {ROWS, end - begin}, .strides = {COLS, 1}};
    v->tensor = (DLTensor){.data = &matrix[0][begin],
                           .device = cpu,
                           .ndim = 2,
                           .dtype = {kDLFloat, 32, 1},
                           .shape = v->shape,
                           .strides = v->strides};
    return &v->tensor;
}

static DLTensor per_row(double *data) {
    static int64_t rows[] = {ROWS};
    return (DLTensor){
        .data = data, .device = cpu, .ndim = 1, .dtype = {kDLFloat, 64, 1}, .shape = rows};
}

int main(void) {
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLS; c++)
            x[r][c] = 1000 + (float)((r * 31 + c * 17) % 101);

    const double eps = 1e-5;
    const int begin[2] = {0, CUT}, end[2] = {CUT, COLS};
    planish_norm op = planish_layer_norm_op(2, 1, eps);
    view vx, vy;
    double mean[2][ROWS], m2[2][ROWS], rstd[ROWS];
    for (int p = 0; p < 2; p++) {
        DLTensor tmean = per_row(mean[p]), tm2 = per_row(m2[p]);
        planish_tensors t = {.struct_size = sizeof t,
                             .x = columns(&vx, x, begin[p], end[p]),
                             .mean = &tmean,
                             .m2 = &tm2};
        if (planish_norm_run(&op, PLANISH_STATISTICS, &t, NULL))
            return 1;
    }

    /* This is what the processes would exchange: two numbers for each row. */
    const double a = CUT, b = COLS - CUT;
    for (int r = 0; r < ROWS; r++) {
        double difference = mean[0][r] - mean[1][r];
        mean[0][r] = (a * mean[0][r] + b * mean[1][r]) / (a + b);
        m2[0][r] += m2[1][r] + difference * difference * a * b / (a + b);
        rstd[r] = 1 / sqrt(m2[0][r] / (a + b) + eps);
    }
    for (int p = 0; p < 2; p++) {
        DLTensor tmean = per_row(mean[0]), trstd = per_row(rstd);
        planish_tensors t = {.struct_size = sizeof t,
                             .x = columns(&vx, x, begin[p], end[p]),
                             .mean = &tmean,
                             .rstd = &trstd,
                             .y = columns(&vy, parts, begin[p], end[p])};
        if (planish_norm_run(&op, PLANISH_APPLY, &t, NULL))
            return 1;
    }

    if (planish_norm_forward(&op, columns(&vx, x, 0, COLS), NULL, NULL,
                             columns(&vy, whole, 0, COLS), NULL, NULL, NULL))
        return 1;
    float largest = 0;
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLS; c++)
            largest = fmaxf(largest, fabsf(parts[r][c] - whole[r][c]));
    printf("largest difference between split and whole: %g\n", (double)largest);
    return largest > 1e-6f;
}
