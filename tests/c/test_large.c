/*
 * More than 2^31 elements: an index that is a 32-bit int somewhere goes wrong here. About 9 GB for
 * forward and 13 GB for backward, so it looks first whether the memory is there. Rows
 * are checked at both ends of the batch and around element 2^31.
 */
#define _DEFAULT_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "check.h"
#include "tensor.h"

static int64_t available_bytes(void) {
    FILE *f = fopen("/proc/meminfo", "r");
    char line[256];
    long long kib = 0;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %lld", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib * 1024;
}

static void *reserve(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static DLTensor tensor_2(void *data, element type, int64_t *shape) {
    return (DLTensor){.data = data,
                      .device = {.device_type = kDLCPU},
                      .ndim = 2,
                      .dtype = element_dtype(type),
                      .shape = shape};
}

/* A cheap number for element i, the same wherever it is asked for; a bf16 as it is. */
static uint16_t number(int64_t i) {
    uint64_t z = (uint64_t)i * 0x9e3779b97f4a7c15u;
    z ^= z >> 29;
    /* Sign, exponent of [0.5, 2), 7 bits of fraction. */
    return (uint16_t)((z & 0x8000) | (0x3f00 + (z >> 16 & 0xff)));
}

static double widened(uint16_t bits) {
    uint32_t word = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}

/* Row r of y against its own formula: at its ends and around element 2^31 of the whole. */
static void check_row(const uint16_t *x, const uint16_t *y, int64_t r, int64_t cols) {
    const uint16_t *row = x + r * cols;
    double mean = 0, square = 0;
    for (int64_t i = 0; i < cols; i++)
        mean += widened(row[i]);
    mean /= (double)cols;
    for (int64_t i = 0; i < cols; i++)
        square += (widened(row[i]) - mean) * (widened(row[i]) - mean);
    double rstd = 1 / sqrt(square / (double)cols + 1e-5);
    int64_t edge = ((int64_t)1 << 31) - r * cols, off = 0, looked = 0;
    for (int64_t i = 0; i < cols; i++) {
        if (i > 2000 && i < cols - 2000 && (i < edge - 2000 || i > edge + 2000))
            continue;
        real got = element_read(BF16, y + r * cols + i);
        real wanted = element_round(BF16, (widened(row[i]) - mean) * rstd);
        int64_t steps = element_steps(BF16, got, wanted);
        looked++;
        off += steps != 0;
        if (!expect(steps <= 1, "row %lld element %lld is %Lg, exact %Lg", (long long)r,
                    (long long)i, got, wanted))
            return;
    }
    expect(off * 1000 <= looked + 999, "row %lld: %lld of %lld rounded otherwise", (long long)r,
           (long long)off, (long long)looked);
}

static void forward(int64_t rows, int64_t cols) {
    int64_t count = rows * cols;
    test_case("forward of %lld x %lld, %lld elements", (long long)rows, (long long)cols,
              (long long)count);
    int64_t needed = 2 * count * 2 + ((int64_t)1 << 30);
    int64_t available = available_bytes();
    if (available < needed) {
        test_skip("%lld MB of memory available, %lld needed", (long long)(available >> 20),
                  (long long)(needed >> 20));
        return;
    }
    uint16_t *x = reserve((size_t)count * 2), *y = reserve((size_t)count * 2);
    if (!x || !y) {
        test_skip("the memory could not be mapped");
        return;
    }
    for (int64_t i = 0; i < count; i++)
        x[i] = number(i);
    int64_t shape[2] = {rows, cols};
    DLTensor tx = tensor_2(x, BF16, shape), ty = tensor_2(y, BF16, shape);
    char message[256] = "";
    planish_exec exec = {
        .struct_size = sizeof exec, .message = message, .message_bytes = sizeof message};
    planish_norm op = planish_layer_norm_op(2, 1, 1e-5);
    planish_status status = planish_norm_forward(&op, &tx, NULL, NULL, &ty, NULL, NULL, &exec);
    expect(status == PLANISH_OK, "%s: %s", planish_status_name(status), message);

    int64_t middle = ((int64_t)1 << 31) / cols;
    const int64_t looked_at[] = {0, 1, middle - 1, middle, middle + 1, rows - 2, rows - 1};
    for (size_t k = 0; k < sizeof looked_at / sizeof *looked_at; k++)
        if (looked_at[k] >= 0 && looked_at[k] < rows)
            check_row(x, y, looked_at[k], cols);
    munmap(x, (size_t)count * 2);
    munmap(y, (size_t)count * 2);
}

/* dbias of ones counts rows; dx of a gradient of ones is 0 for every element. */
static void backward(int64_t rows, int64_t cols) {
    int64_t count = rows * cols;
    int64_t needed = count * 2 * 2 + rows * 8 + ((int64_t)1 << 30);
    test_case("backward of %lld x %lld, %lld elements, the gradient one expanded number",
              (long long)rows, (long long)cols, (long long)count);
    int64_t available = available_bytes();
    if (available < needed) {
        test_skip("%lld MB of memory available, %lld needed", (long long)(available >> 20),
                  (long long)(needed >> 20));
        return;
    }
    uint16_t *x = reserve((size_t)count * 2), *dx = reserve((size_t)count * 2);
    float *mean = reserve((size_t)rows * 4), *rstd = reserve((size_t)rows * 4);
    float *dbias = calloc((size_t)cols, 4), *dweight = calloc((size_t)cols, 4);
    if (!x || !dx || !mean || !rstd || !dbias || !dweight) {
        test_skip("the memory could not be had");
        return;
    }
    for (int64_t i = 0; i < count; i++)
        x[i] = number(i);
    memset(dx, 0xff, (size_t)count * 2);
    for (int64_t r = 0; r < rows; r++)
        rstd[r] = 1;
    uint16_t one = 0x3f80;
    int64_t shape[2] = {rows, cols}, per_row[1] = {rows}, per_col[1] = {cols}, still[2] = {0, 0};
    DLTensor tx = tensor_2(x, BF16, shape), tdx = tensor_2(dx, BF16, shape);
    DLTensor tdy = tensor_2(&one, BF16, shape);
    tdy.strides = still;
    DLTensor tmean = tensor_2(mean, F32, per_row), trstd = tensor_2(rstd, F32, per_row);
    DLTensor tdw = tensor_2(dweight, F32, per_col), tdb = tensor_2(dbias, F32, per_col);
    tmean.ndim = trstd.ndim = tdw.ndim = tdb.ndim = 1;
    planish_norm op = planish_layer_norm_op(2, 1, 1e-5);
    planish_tensors t = {.struct_size = sizeof t,
                         .x = &tx,
                         .dy = &tdy,
                         .mean = &tmean,
                         .rstd = &trstd,
                         .dx = &tdx,
                         .dweight = &tdw,
                         .dbias = &tdb};
    size_t bytes = 0;
    char message[256] = "";
    planish_exec exec = {
        .struct_size = sizeof exec, .message = message, .message_bytes = sizeof message};
    planish_norm_workspace_bytes(&op, PLANISH_BACKWARD, &t, &bytes, &exec);
    guarded workspace = guarded_make(bytes, 256);
    exec.workspace = workspace.data;
    exec.workspace_bytes = bytes;
    planish_status status = planish_norm_run(&op, PLANISH_BACKWARD, &t, &exec);
    expect(status == PLANISH_OK, "%s: %s", planish_status_name(status), message);
    for (int64_t c = 0; c < cols; c++)
        if (!expect(dbias[c] == (float)rows, "dbias[%lld] is %g", (long long)c, (double)dbias[c]))
            break;
    /* With mean 0 given and taken anew from x, c1 is 1 and c2 nearly 0: what is left of dx is
     * rounding, below one part in a million. */
    int64_t wrong = 0;
    for (int64_t i = 0; i < count; i++)
        wrong += (dx[i] & 0x7fff) > 0x3580;
    expect(wrong == 0, "%lld elements of dx are not near 0", (long long)wrong);
    guarded_free(&workspace);
    munmap(x, (size_t)count * 2);
    munmap(dx, (size_t)count * 2);
    munmap(mean, (size_t)rows * 4);
    munmap(rstd, (size_t)rows * 4);
    free(dbias);
    free(dweight);
}

int main(void) {
    forward(((int64_t)1 << 31) / 1024 + 3, 1024);
    forward(3, ((int64_t)1 << 30) + 5);
    backward(((int64_t)1 << 31) / 64 + 3, 64);
    return test_finish("large");
}
