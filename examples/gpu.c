/*
 * LayerNorm and its backward on a GPU, from C: the caller owns memory, stream and context; planish
 * queues the work. Says why and ends well where there is no GPU.
 *
 *     cc gpu.c $(pkg-config --cflags --libs planish) -ldl -lm
 */
#include <dlfcn.h>
#include <math.h>
#include <planish.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 300, COLS = 1000, ELEMENTS = ROWS * COLS };

/* The few functions of the driver that a caller needs, so that this builds without CUDA. */
static int (*mem_alloc)(unsigned long long *, size_t);
static int (*to_device)(unsigned long long, const void *, size_t);
static int (*to_host)(void *, unsigned long long, size_t);
static int (*stream_wait)(void *);

/* Prints the reason and ends the program as one that had nothing to do. */
static void skip(const char *reason) {
    printf("no GPU is used: %s\n", reason);
    exit(77); /* what a test says that was skipped */
}

static void check(int result, const char *what) {
    if (result) {
        fprintf(stderr, "%s: CUDA error %d\n", what, result);
        exit(1);
    }
}

static void *symbol(void *driver, const char *name) {
    void *found = dlsym(driver, name);
    if (!found)
        skip(name);
    return found;
}

/* A stream in the first GPU's primary context, which is made current. */
static void *start_cuda(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context, *stream, *address;
    int device, count = 0;
    if (!driver)
        skip("libcuda.so.1 is not there");
    int (*init)(unsigned), (*get_count)(int *), (*get)(int *, int), (*retain)(void **, int);
    int (*set_current)(void *), (*create)(void **, unsigned);
    const struct {
        void *to;
        const char *name;
    } wanted[] = {
        {&init, "cuInit"},
        {&get_count, "cuDeviceGetCount"},
        {&get, "cuDeviceGet"},
        {&retain, "cuDevicePrimaryCtxRetain"},
        {&set_current, "cuCtxSetCurrent"},
        {&create, "cuStreamCreate"},
        {&mem_alloc, "cuMemAlloc_v2"},
        {&to_device, "cuMemcpyHtoD_v2"},
        {&to_host, "cuMemcpyDtoH_v2"},
        {&stream_wait, "cuStreamSynchronize"},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        address = symbol(driver, wanted[i].name);
        memcpy(wanted[i].to, &address, sizeof address);
    }
    if (init(0) || get_count(&count) || count < 1)
        skip("the driver has no GPU");
    check(get(&device, 0), "cuDeviceGet");
    check(retain(&context, device), "cuDevicePrimaryCtxRetain");
    check(set_current(context), "cuCtxSetCurrent");
    check(create(&stream, 1), "cuStreamCreate"); /* 1: does not wait for the default stream */
    return stream;
}

static void *device_memory(const void *data, size_t bytes) {
    unsigned long long address;
    check(mem_alloc(&address, bytes), "cuMemAlloc");
    if (data)
        check(to_device(address, data, bytes), "cuMemcpyHtoD");
    return (void *)(uintptr_t)address;
}

static float *fetch(const void *address, size_t bytes) {
    float *data = malloc(bytes);
    if (!data)
        exit(1);
    check(to_host(data, (unsigned long long)(uintptr_t)address, bytes), "cuMemcpyDtoH");
    return data;
}

static double worst;

static void compare(const char *name, double found, double exact, double scale) {
    double error = fabs(found - exact) / scale;
    if (!(error < 1e-6)) {
        fprintf(stderr, "%s: found %.9g, wanted %.9g\n", name, found, exact);
        exit(1);
    }
    if (error > worst)
        worst = error;
}

static float x[ELEMENTS], dy[ELEMENTS];

int main(void) {
    char message[512] = "";
    void *stream = start_cuda();
    unsigned random = 1;
    for (int i = 0; i < ELEMENTS; i++) {
        random = random * 1664525u + 1013904223u;
        x[i] = (float)(random >> 8) / (1 << 23) - 1;
        random = random * 1664525u + 1013904223u;
        dy[i] = (float)(random >> 8) / (1 << 23) - 1;
    }

    const DLDevice gpu = {kDLCUDA, 0};
    const DLDataType f32 = {kDLFloat, 32, 1};
    int64_t full[] = {ROWS, COLS}, cols[] = {COLS}, rows[] = {ROWS};
    DLTensor tensor = {.device = gpu, .ndim = 2, .dtype = f32, .shape = full};
    DLTensor tx = tensor, ty = tensor, tdy = tensor, tdx = tensor, tmean = tensor, trstd;
    DLTensor tdweight = tensor, tdbias;
    tmean.ndim = tdweight.ndim = 1;
    tmean.shape = rows;
    tdweight.shape = cols;
    trstd = tmean;
    tdbias = tdweight;
    tx.data = device_memory(x, sizeof x);
    tdy.data = device_memory(dy, sizeof dy);
    ty.data = device_memory(NULL, sizeof x);
    tdx.data = device_memory(NULL, sizeof x);
    tmean.data = device_memory(NULL, ROWS * sizeof *x);
    trstd.data = device_memory(NULL, ROWS * sizeof *x);
    tdweight.data = device_memory(NULL, COLS * sizeof *x);
    tdbias.data = device_memory(NULL, COLS * sizeof *x);

    planish_exec exec = {.struct_size = sizeof exec,
                         .stream = stream,
                         .message = message,
                         .message_bytes = sizeof message};
    planish_norm op = planish_layer_norm_op(2, 1, 1e-5);
    planish_tensors forward = {
        .struct_size = sizeof forward, .x = &tx, .y = &ty, .mean = &tmean, .rstd = &trstd};
    planish_tensors backward = {.struct_size = sizeof backward,
                                .x = &tx,
                                .mean = &tmean,
                                .rstd = &trstd,
                                .dy = &tdy,
                                .dx = &tdx,
                                .dweight = &tdweight,
                                .dbias = &tdbias};
    planish_status status = planish_norm_run(&op, PLANISH_FORWARD, &forward, &exec);
    if (status == PLANISH_ERROR_UNAVAILABLE)
        skip(message);
    if (!status)
        status = planish_norm_workspace_bytes(&op, PLANISH_BACKWARD, &backward,
                                              &exec.workspace_bytes, &exec);
    if (!status) {
        exec.workspace = device_memory(NULL, exec.workspace_bytes);
        status = planish_norm_run(&op, PLANISH_BACKWARD, &backward, &exec);
    }
    if (status) {
        fprintf(stderr, "%s: %s\n", planish_status_name(status), message);
        return 1;
    }
    check(stream_wait(stream), "cuStreamSynchronize");

    float *y = fetch(ty.data, sizeof x), *dx = fetch(tdx.data, sizeof x);
    float *dweight = fetch(tdweight.data, COLS * sizeof *x);
    float *dbias = fetch(tdbias.data, COLS * sizeof *x);
    static double exact_dweight[COLS], exact_dbias[COLS];
    for (int r = 0; r < ROWS; r++) {
        const float *row = x + r * COLS, *g = dy + r * COLS;
        double mean = 0, variance = 0, c1 = 0, c2 = 0;
        for (int c = 0; c < COLS; c++)
            mean += row[c] / (double)COLS;
        for (int c = 0; c < COLS; c++)
            variance += (row[c] - mean) * (row[c] - mean) / COLS;
        double rstd = 1 / sqrt(variance + 1e-5);
        for (int c = 0; c < COLS; c++) {
            double xhat = (row[c] - mean) * rstd;
            c1 += g[c] / (double)COLS;
            c2 += g[c] * xhat / COLS;
            exact_dweight[c] += g[c] * xhat;
            exact_dbias[c] += g[c];
        }
        for (int c = 0; c < COLS; c++) {
            double xhat = (row[c] - mean) * rstd;
            compare("y", y[r * COLS + c], xhat, 2);
            compare("dx", dx[r * COLS + c], rstd * (g[c] - c1 - xhat * c2), 2);
        }
    }
    for (int c = 0; c < COLS; c++) {
        compare("dweight", dweight[c], exact_dweight[c], ROWS);
        compare("dbias", dbias[c], exact_dbias[c], ROWS);
    }
    free(y);
    free(dx);
    free(dweight);
    free(dbias);
    printf("LayerNorm of %d x %d on the GPU, forward and backward: largest error %.1e\n", ROWS,
           COLS, worst);
    return 0;
}
