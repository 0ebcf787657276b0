/*
 * LayerNorm of rows that are split over the processes of MPI, forward and backward: statistics of
 * each part, an all-gather of a few numbers a row, and the rest of the pass by the whole row's.
 * Each process has columns of its own, one of them none. What is gathered is merged in the order of
 * the ranks, so that all processes compute with the same bits.
 *
 *     mpicc mpi.c $(pkg-config --cflags --libs planish) -lm && mpirun -n 3 ./a.out
 */
#include <math.h>
#include <mpi.h>
#include <planish.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 16, COLS = 101, MOST_RANKS = 64 };

static const DLDevice cpu = {kDLCPU, 0};
static const double eps = 1e-5;
static float x[ROWS][COLS], dy[ROWS][COLS], weight[COLS], bias[COLS]; /* the same on every rank */
static float y[ROWS][COLS], dx[ROWS][COLS], dweight[COLS],
    dbias[COLS]; /* its own columns of these */

/* Two numbers for each row. */
typedef struct pairs {
    double first[ROWS], second[ROWS];
} pairs;

/* Columns from `begin` up to `end` of a matrix, or with one row less of a vector. */
typedef struct view {
    int64_t shape[2], strides[2];
    DLTensor tensor;
} view;

static const DLTensor *columns(view *v, float *data, int ndim, int begin, int end) {
    *v = (view){.shape = {ROWS, end - begin}, .strides = {COLS, 1}};
    v->tensor = (DLTensor){.data = data + begin,
                           .device = cpu,
                           .ndim = ndim,
                           .dtype = {kDLFloat, 32, 1},
                           .shape = v->shape + 2 - ndim,
                           .strides = v->strides + 2 - ndim};
    return &v->tensor;
}

static DLTensor per_row(double *data) {
    static int64_t rows[] = {ROWS};
    return (DLTensor){
        .data = data, .device = cpu, .ndim = 1, .dtype = {kDLFloat, 64, 1}, .shape = rows};
}

static void run(planish_pass pass, planish_tensors *tensors) {
    static _Alignas(64) char workspace[1 << 16];
    static char message[256];
    const planish_norm op = planish_layer_norm_op(2, 1, eps);
    const planish_exec exec = {.struct_size = sizeof exec,
                               .workspace = workspace,
                               .workspace_bytes = sizeof workspace,
                               .message = message,
                               .message_bytes = sizeof message};
    tensors->struct_size = sizeof *tensors;
    if (planish_norm_run(&op, pass, tensors, &exec)) {
        fprintf(stderr, "%s\n", message);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

/* Where a rank's columns begin: the second has none, the others about the same number. */
static int begin_of(int rank, int ranks) {
    if (ranks < 3)
        return rank * COLS / ranks;
    return rank < 2 ? rank * (COLS / (ranks - 1)) : (rank - 1) * COLS / (ranks - 1);
}

/* What all parts together have of what each has: the mean of `first` over all columns and, where
 * these are means, the sum of squares of x beside it; else the mean of `second`. */
static pairs merged(const pairs *own, int ranks, int are_statistics) {
    static pairs all[MOST_RANKS];
    pairs whole = {{0}, {0}};
    MPI_Allgather(own, 2 * ROWS, MPI_DOUBLE, all, 2 * ROWS, MPI_DOUBLE, MPI_COMM_WORLD);
    for (int r = 0; r < ROWS; r++) {
        double count = 0;
        for (int rank = 0; rank < ranks; rank++) {
            const double n = begin_of(rank + 1, ranks) - begin_of(rank, ranks);
            if (n == 0) /* the mean of nothing is NaN */
                continue;
            const double a = all[rank].first[r], b = all[rank].second[r];
            const double distance = a - whole.first[r], share = n / (count + n);
            whole.first[r] += distance * share;
            if (are_statistics)
                whole.second[r] += b + distance * distance * count * share;
            else
                whole.second[r] += (b - whole.second[r]) * share;
            count += n;
        }
    }
    return whole;
}

/* The largest difference from what one process makes of whole rows. */
static double difference(int begin, int end) {
    static float whole_y[ROWS][COLS], whole_dx[ROWS][COLS], whole_dweight[COLS], whole_dbias[COLS];
    static double mean[ROWS], rstd[ROWS];
    view v[9];
    DLTensor tmean = per_row(mean), trstd = per_row(rstd);
    planish_tensors forward = {.x = columns(&v[0], x[0], 2, 0, COLS),
                               .weight = columns(&v[1], weight, 1, 0, COLS),
                               .bias = columns(&v[2], bias, 1, 0, COLS),
                               .y = columns(&v[3], whole_y[0], 2, 0, COLS),
                               .mean = &tmean,
                               .rstd = &trstd};
    planish_tensors backward = {.x = forward.x,
                                .weight = forward.weight,
                                .mean = &tmean,
                                .rstd = &trstd,
                                .dy = columns(&v[4], dy[0], 2, 0, COLS),
                                .dx = columns(&v[5], whole_dx[0], 2, 0, COLS),
                                .dweight = columns(&v[6], whole_dweight, 1, 0, COLS),
                                .dbias = columns(&v[7], whole_dbias, 1, 0, COLS)};
    double largest = 0;
    run(PLANISH_FORWARD, &forward);
    run(PLANISH_BACKWARD, &backward);
    for (int c = begin; c < end; c++) {
        for (int r = 0; r < ROWS; r++) {
            largest = fmax(largest, fabs((double)y[r][c] - whole_y[r][c]));
            largest = fmax(largest, fabs((double)dx[r][c] - whole_dx[r][c]));
        }
        largest = fmax(largest, fabs((double)dweight[c] - whole_dweight[c]));
        largest = fmax(largest, fabs((double)dbias[c] - whole_dbias[c]));
    }
    return largest;
}

int main(int argc, char **argv) {
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (ranks > MOST_RANKS)
        MPI_Abort(MPI_COMM_WORLD, 1);
    for (int c = 0; c < COLS; c++) {
        weight[c] = 1 + (float)(c % 7) / 8;
        bias[c] = (float)(c % 5) / 4;
        for (int r = 0; r < ROWS; r++) {
            x[r][c] = 1000 + (float)((r * 31 + c * 17) % 101);
            dy[r][c] = (float)((r * 13 + c * 29) % 37) / 16 - 1;
        }
    }

    const int begin = begin_of(rank, ranks), end = begin_of(rank + 1, ranks);
    static pairs own;
    DLTensor first = per_row(own.first), second = per_row(own.second);
    view v[8];
    planish_tensors statistics = {
        .x = columns(&v[0], x[0], 2, begin, end), .mean = &first, .m2 = &second};
    run(PLANISH_STATISTICS, &statistics);

    static pairs norm; /* mean and rstd of whole rows */
    norm = merged(&own, ranks, 1);
    for (int r = 0; r < ROWS; r++)
        norm.second[r] = 1 / sqrt(norm.second[r] / COLS + eps);
    DLTensor mean = per_row(norm.first), rstd = per_row(norm.second);
    planish_tensors apply = {.x = statistics.x,
                             .weight = columns(&v[1], weight, 1, begin, end),
                             .bias = columns(&v[2], bias, 1, begin, end),
                             .mean = &mean,
                             .rstd = &rstd,
                             .y = columns(&v[3], y[0], 2, begin, end)};
    run(PLANISH_APPLY, &apply);

    /* The gradients of the parameters need no exchange: a column lies on one rank. */
    planish_tensors sums = {.x = statistics.x,
                            .weight = apply.weight,
                            .mean = &mean,
                            .rstd = &rstd,
                            .dy = columns(&v[4], dy[0], 2, begin, end),
                            .dweight = columns(&v[5], dweight, 1, begin, end),
                            .dbias = columns(&v[6], dbias, 1, begin, end),
                            .c1 = &first,
                            .c2 = &second};
    run(PLANISH_BACKWARD_STATISTICS, &sums);
    static pairs whole;
    whole = merged(&own, ranks, 0);
    DLTensor c1 = per_row(whole.first), c2 = per_row(whole.second);
    planish_tensors gradient = {.x = statistics.x,
                                .weight = apply.weight,
                                .mean = &mean,
                                .rstd = &rstd,
                                .dy = sums.dy,
                                .c1 = &c1,
                                .c2 = &c2,
                                .dx = columns(&v[7], dx[0], 2, begin, end)};
    run(PLANISH_BACKWARD, &gradient);

    double largest = difference(begin, end);
    MPI_Allreduce(MPI_IN_PLACE, &largest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (rank == 0)
        printf("largest difference between %d processes and one: %g\n", ranks, largest);
    MPI_Finalize();
    return largest > 1e-5;
}
