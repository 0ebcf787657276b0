/*
 * Plan -> kernels queued on a stream. The alignments of the buffers choose how wide the kernels
 * load and store; they never change what is computed.
 */
#include <pthread.h>
#include <string.h>

#include "backend.h"
#include "driver.h"
#include "geometry.h"
#include "jit.h"

enum { MOST_DEVICES = 64 };

/* As the kernels declare them. */
typedef struct forward_args {
    const void *x, *weight, *bias;
    void *y, *mean, *rstd;
    int64_t rows, x_stride, y_stride, mean_stride, rstd_stride;
    int64_t row_turn, x_turn, y_turn;
    double eps;
    float eps_rounded;
    uint32_t eps_is_small, zero;
} forward_args;

typedef struct backward_args {
    const void *dy, *x, *mean, *rstd, *weight;
    void *dx;
    void *partial_weight, *partial_bias;
    int64_t rows, x_stride, dy_stride, dx_stride, mean_stride, rstd_stride;
    int64_t row_turn, x_turn, dy_turn, dx_turn, mean_turn, rstd_turn;
    uint32_t zero;
} backward_args;

typedef struct long_args {
    const void *dy, *x, *mean, *rstd, *weight;
    void *dx;
    void *partial_weight, *partial_bias;
    void *sums;
    int64_t rows, x_stride, dy_stride, dx_stride, mean_stride, rstd_stride;
} long_args;

typedef struct finish_args {
    const void *partial_weight, *partial_bias;
    void *dweight, *dbias;
    int64_t count;
} finish_args;

planish_status cuda_device_limits(int device, cuda_limits *limits, message error) {
    const cuda_driver *d;
    planish_status status = cuda_driver_get(&d, error);
    if (status)
        return status;
    int count = 0, major = 0, minor = 0, clusters = 0;
    CUdevice handle;
    CUresult result = d->device_count(&count);
    if (!result && (device < 0 || device >= count))
        return fail(error, PLANISH_ERROR_DEVICE, "GPU %d: found %d GPUs", device, count);
    if (result || (result = d->device_get(&handle, device)) ||
        (result = d->device_attribute(&major, CU_COMPUTE_CAPABILITY_MAJOR, handle)) ||
        (result = d->device_attribute(&minor, CU_COMPUTE_CAPABILITY_MINOR, handle)) ||
        (result = d->device_attribute(&limits->multiprocessors, CU_MULTIPROCESSOR_COUNT, handle)) ||
        (result =
             d->device_attribute(&limits->shared_per_block, CU_SHARED_PER_BLOCK_OPTIN, handle)) ||
        (result = d->device_attribute(&clusters, CU_CLUSTER_LAUNCH, handle)))
        return cuda_check(d, result, "asking for the GPU's limits", error);
    limits->device = device;
    limits->arch = 10 * major + minor;
    if (limits->arch < 80)
        return fail(error, PLANISH_ERROR_UNAVAILABLE,
                    "GPU %d: found compute capability %d.%d, wanted at least 8.0", device, major,
                    minor);
    /* Every device with clusters takes 8; the data-centre ones take 16 when asked to. */
    limits->max_cluster = !clusters ? 1 : major == 9 || major == 10 ? 16 : 8;
    return PLANISH_OK;
}

/* The primary context of a device, kept from the first use on. */
static planish_status primary_context(const cuda_driver *d, int device, CUcontext *context,
                                      message error) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static CUcontext kept[MOST_DEVICES];
    planish_status status = PLANISH_OK;
    if (device < 0 || device >= MOST_DEVICES)
        return fail(error, PLANISH_ERROR_DEVICE, "GPU %d: wanted one below %d", device,
                    MOST_DEVICES);
    pthread_mutex_lock(&lock);
    if (!kept[device]) {
        CUdevice handle;
        CUresult result = d->device_get(&handle, device);
        if (!result)
            result = d->primary_retain(&kept[device], handle);
        status = cuda_check(d, result, "retaining the GPU's primary context", error);
    }
    *context = kept[device];
    pthread_mutex_unlock(&lock);
    return status;
}

/* Makes a context of the device current unless one is; *pushed tells. */
static planish_status enter(const cuda_driver *d, int device, int *pushed, message error) {
    CUcontext context = NULL;
    CUdevice now = -1, handle = -1;
    *pushed = 0;
    CUresult result = d->ctx_current(&context);
    if (!result && context && !(result = d->ctx_device(&now)) &&
        !(result = d->device_get(&handle, device)) && now == handle)
        return PLANISH_OK;
    if (result)
        return cuda_check(d, result, "asking for the current context", error);
    planish_status status = primary_context(d, device, &context, error);
    if (!status && !(status = cuda_check(d, d->ctx_push(context), "entering a context", error)))
        *pushed = 1;
    return status;
}

/* The largest power of two up to 16 that divides everything given: how wide accesses may be. */
static int32_t access_of(const void *pointer, int64_t stride, int bytes) {
    uint64_t bits = (uint64_t)(uintptr_t)pointer | (uint64_t)(stride * bytes) | 16;
    return (int32_t)(bits & ~(bits - 1));
}

typedef struct launch {
    const cuda_driver *driver;
    const cuda_plan *plan;
    CUstream stream;
    message error;
} launch;

static planish_status queue(const launch *l, const cuda_spec *spec, int64_t blocks_x,
                            unsigned blocks_y, const jit_function *f, void *args) {
    CUlaunchAttribute attributes[2];
    unsigned count = 0;
    int cluster = spec->kernel == CUDA_FINISH ? 1 : spec->constant[C_CLUSTER];
    if (cluster > 1) {
        memset(&attributes[count], 0, sizeof *attributes);
        attributes[count].id = CU_LAUNCH_CLUSTER_DIMENSION;
        attributes[count].value.cluster.x = (unsigned)cluster;
        attributes[count].value.cluster.y = attributes[count].value.cluster.z = 1;
        count++;
    }
    if (l->plan->limits.arch >= 90) {
        memset(&attributes[count], 0, sizeof *attributes);
        attributes[count].id = CU_LAUNCH_PROGRAMMATIC_SERIALIZATION;
        attributes[count].value.flag = 1;
        count++;
    }
    CUlaunchConfig config = {.grid_x = (unsigned)blocks_x,
                             .grid_y = blocks_y,
                             .grid_z = 1,
                             .block_x = cuda_spec_threads(spec),
                             .block_y = 1,
                             .block_z = 1,
                             .shared_bytes = (unsigned)cuda_spec_shared_bytes(spec),
                             .stream = l->stream,
                             .attributes = attributes,
                             .attribute_count = count};
    void *parameters[] = {args};
    return cuda_check(l->driver, l->driver->launch(&config, f->function, parameters, NULL),
                      "launching a kernel", l->error);
}

static int bytes_of(const cuda_spec *spec, cuda_constant type) {
    return dtype_bytes((dtype)spec->constant[type]);
}

/* Bytes from one row of a tensor to the next. */
static int64_t row_bytes(const cuda_plan *plan, role r) {
    static const cuda_constant types[ROLE_COUNT] = {
        [ROLE_X] = C_X_TYPE,       [ROLE_Y] = C_Y_TYPE,  [ROLE_MEAN] = C_MEAN_TYPE,
        [ROLE_RSTD] = C_RSTD_TYPE, [ROLE_DY] = C_G_TYPE, [ROLE_DX] = C_D_TYPE};
    return plan->stride[r] * bytes_of(&plan->main, types[r]);
}

/* Turns of blocks (or clusters) over the rows. */
static int64_t units_of(const cuda_plan *plan, const cuda_spec *spec) {
    int64_t at_a_time = cuda_spec_rows_at_a_time(spec);
    return (plan->rows + at_a_time - 1) / at_a_time;
}

/* Blocks (or clusters) the device holds at once, as planned. */
static int64_t resident(const cuda_plan *plan, const cuda_spec *spec) {
    const int32_t *c = spec->constant;
    int64_t n = (int64_t)plan->limits.multiprocessors * c[C_MIN_BLOCKS] / c[C_CLUSTER];
    return n > 0 ? n : 1;
}

/* The plan's main kernel for buffers at these addresses. */
static cuda_spec spec_for(const cuda_plan *plan, void *const *b) {
    cuda_spec spec = plan->main;
    int32_t *c = spec.constant;
    const int64_t *stride = plan->stride;
    c[C_X_ACCESS] = access_of(b[ROLE_X], stride[ROLE_X], bytes_of(&spec, C_X_TYPE));
    c[C_W_ACCESS] = access_of(b[ROLE_WEIGHT], 0, 1);
    /* Asynchronous copies need 4 bytes. Without them the sums stay the same. */
    int narrow = c[C_X_ACCESS] < 4 || c[C_WIDTH] * bytes_of(&spec, C_X_TYPE) < 4;
    if (spec.kernel == CUDA_FORWARD) {
        c[C_Y_ACCESS] = access_of(b[ROLE_Y], stride[ROLE_Y], bytes_of(&spec, C_Y_TYPE));
        c[C_B_ACCESS] = access_of(b[ROLE_BIAS], 0, 1);
        if (c[C_HOLD] == 1 && narrow)
            c[C_HOLD] = 2;
        /* A ring needs rows to come: with one turn for each team it would only delay the first. */
        if (narrow || units_of(plan, &spec) <= resident(plan, &spec))
            c[C_STAGES] = 0;
        if (c[C_HOLD] == 0 && !c[C_REAL_DOUBLE] && c[C_WARPS] <= 16 &&
            units_of(plan, &spec) <= 2 * plan->limits.multiprocessors / c[C_CLUSTER]) {
            c[C_EARLY] = 1;
            c[C_MIN_BLOCKS] = 1;
        }
    } else {
        c[C_G_ACCESS] = access_of(b[ROLE_DY], stride[ROLE_DY], bytes_of(&spec, C_G_TYPE));
        c[C_D_ACCESS] = access_of(b[ROLE_DX], stride[ROLE_DX], bytes_of(&spec, C_D_TYPE));
        if (spec.kernel == CUDA_APPLY || narrow || c[C_G_ACCESS] < 4 ||
            c[C_WIDTH] * bytes_of(&spec, C_G_TYPE) < 4)
            c[C_STAGES] = 0;
    }
    return spec;
}

planish_status cuda_plan_prepare(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                                 message error) {
    cuda_spec spec = spec_for(plan, buffers);
    planish_status status = jit_prepare(&spec, plan->limits.arch, error);
    if (!status && spec.kernel == CUDA_APPLY) {
        spec.kernel = CUDA_SUMS;
        status = jit_prepare(&spec, plan->limits.arch, error);
    }
    if (!status && plan->finish.kernel >= 0)
        status = jit_prepare(&plan->finish, plan->limits.arch, error);
    return status;
}

static planish_status run_forward(const launch *l, void *const *b) {
    const cuda_plan *plan = l->plan;
    cuda_spec spec = spec_for(plan, b);
    const int32_t *c = spec.constant;
    const jit_function *f;
    planish_status status = jit_get(l->driver, &spec, plan->limits.arch, &f, l->error);
    if (status)
        return status;
    int64_t units = units_of(plan, &spec), cluster = c[C_CLUSTER], grid = units;
    int64_t at_once = cluster > 1 ? f->resident_clusters : resident(plan, &spec);
    /* Short-lived blocks even out what multiprocessors differ in; long-lived ones save starts. */
    if (plan->turns && units >= 2 * plan->turns * at_once)
        grid = (units + plan->turns - 1) / plan->turns;
    else if (c[C_STAGES] || c[C_HOLD])
        grid = at_once;
    if (grid > units)
        grid = units;
    if (grid > (1 << 30) / cluster)
        grid = (1 << 30) / cluster;
    int64_t turn = grid * cuda_spec_rows_at_a_time(&spec);
    forward_args args = {.x = b[ROLE_X],
                         .weight = b[ROLE_WEIGHT],
                         .bias = b[ROLE_BIAS],
                         .y = b[ROLE_Y],
                         .mean = b[ROLE_MEAN],
                         .rstd = b[ROLE_RSTD],
                         .rows = plan->rows,
                         .x_stride = row_bytes(plan, ROLE_X),
                         .y_stride = row_bytes(plan, ROLE_Y),
                         .mean_stride = row_bytes(plan, ROLE_MEAN),
                         .rstd_stride = row_bytes(plan, ROLE_RSTD),
                         .row_turn = turn,
                         .x_turn = turn * row_bytes(plan, ROLE_X),
                         .y_turn = turn * row_bytes(plan, ROLE_Y),
                         .eps = plan->eps,
                         .eps_rounded = (float)plan->eps,
                         .eps_is_small = plan->eps < 1e-30};
    return queue(l, &spec, grid * cluster, 1, f, &args);
}

static planish_status run_backward(const launch *l, void *const *b, void *workspace) {
    const cuda_plan *plan = l->plan;
    cuda_spec spec = spec_for(plan, b);
    const int32_t *c = spec.constant;
    const jit_function *f, *finish = NULL;
    planish_status status = jit_get(l->driver, &spec, plan->limits.arch, &f, l->error);
    if (!status && plan->finish.kernel >= 0)
        status = jit_get(l->driver, &plan->finish, plan->limits.arch, &finish, l->error);
    if (status)
        return status;
    int64_t cluster = c[C_CLUSTER], units = units_of(plan, &spec), grid = plan->partials;
    if (cluster > 1 && f->resident_clusters < grid)
        grid = f->resident_clusters;
    if (units < grid)
        grid = units > 0 ? units : 1;
    size_t row = (size_t)plan->cols * (c[C_REAL_DOUBLE] ? 8 : 4);
    char *weight = workspace;
    char *bias = weight + (c[C_WANT_DWEIGHT] ? (size_t)plan->partials * row : 0);
    int64_t turn = grid * cuda_spec_rows_at_a_time(&spec);
    backward_args args = {.dy = b[ROLE_DY],
                          .x = b[ROLE_X],
                          .mean = b[ROLE_MEAN],
                          .rstd = b[ROLE_RSTD],
                          .weight = b[ROLE_WEIGHT],
                          .dx = b[ROLE_DX],
                          .partial_weight = weight,
                          .partial_bias = bias,
                          .rows = plan->rows,
                          .x_stride = row_bytes(plan, ROLE_X),
                          .dy_stride = row_bytes(plan, ROLE_DY),
                          .dx_stride = row_bytes(plan, ROLE_DX),
                          .mean_stride = row_bytes(plan, ROLE_MEAN),
                          .rstd_stride = row_bytes(plan, ROLE_RSTD),
                          .row_turn = turn,
                          .x_turn = turn * row_bytes(plan, ROLE_X),
                          .dy_turn = turn * row_bytes(plan, ROLE_DY),
                          .dx_turn = turn * row_bytes(plan, ROLE_DX),
                          .mean_turn = turn * row_bytes(plan, ROLE_MEAN),
                          .rstd_turn = turn * row_bytes(plan, ROLE_RSTD)};
    status = queue(l, &spec, grid * cluster, 1, f, &args);
    if (status || !finish)
        return status;
    finish_args last = {.partial_weight = weight,
                        .partial_bias = bias,
                        .dweight = b[ROLE_DWEIGHT],
                        .dbias = b[ROLE_DBIAS],
                        .count = grid};
    return queue(l, &plan->finish, (plan->cols + 31) / 32,
                 (unsigned)(c[C_WANT_DWEIGHT] + c[C_WANT_DBIAS]), finish, &last);
}

/* Rows too long for one read: sums, apply, finish. */
static planish_status run_long(const launch *l, void *const *b, void *workspace) {
    enum { MOST_GRID_Y = 65535 };
    const cuda_plan *plan = l->plan;
    cuda_spec spec = spec_for(plan, b), sums = spec;
    const int32_t *c = spec.constant;
    sums.kernel = CUDA_SUMS;
    const jit_function *f, *s, *finish = NULL;
    planish_status status = jit_get(l->driver, &sums, plan->limits.arch, &s, l->error);
    if (!status)
        status = jit_get(l->driver, &spec, plan->limits.arch, &f, l->error);
    if (!status && plan->finish.kernel >= 0)
        status = jit_get(l->driver, &plan->finish, plan->limits.arch, &finish, l->error);
    if (status)
        return status;
    size_t bytes = c[C_REAL_DOUBLE] ? 8 : 4;
    int64_t pieces = (plan->cols + CUDA_LONG_PIECE - 1) / CUDA_LONG_PIECE;
    int64_t strip = (int64_t)cuda_spec_threads(&spec) * c[C_WIDTH];
    char *weight = (char *)workspace + (size_t)(plan->rows * pieces) * 4 * bytes;
    char *bias = weight + (c[C_WANT_DWEIGHT] ? (size_t)(plan->partials * plan->cols) * bytes : 0);
    long_args args = {.dy = b[ROLE_DY],
                      .x = b[ROLE_X],
                      .mean = b[ROLE_MEAN],
                      .rstd = b[ROLE_RSTD],
                      .weight = b[ROLE_WEIGHT],
                      .dx = b[ROLE_DX],
                      .partial_weight = weight,
                      .partial_bias = bias,
                      .sums = workspace,
                      .rows = plan->rows,
                      .x_stride = row_bytes(plan, ROLE_X),
                      .dy_stride = row_bytes(plan, ROLE_DY),
                      .dx_stride = row_bytes(plan, ROLE_DX),
                      .mean_stride = row_bytes(plan, ROLE_MEAN),
                      .rstd_stride = row_bytes(plan, ROLE_RSTD)};
    if (plan->rows > 0)
        status = queue(l, &sums, pieces,
                       (unsigned)(plan->rows < MOST_GRID_Y ? plan->rows : MOST_GRID_Y), s, &args);
    if (!status)
        status =
            queue(l, &spec, (plan->cols + strip - 1) / strip, (unsigned)plan->partials, f, &args);
    if (status || !finish)
        return status;
    finish_args last = {.partial_weight = weight,
                        .partial_bias = bias,
                        .dweight = b[ROLE_DWEIGHT],
                        .dbias = b[ROLE_DBIAS],
                        .count = plan->partials};
    return queue(l, &plan->finish, (plan->cols + 31) / 32,
                 (unsigned)(c[C_WANT_DWEIGHT] + c[C_WANT_DBIAS]), finish, &last);
}

planish_status cuda_plan_run(const cuda_plan *plan, void *const buffers[ROLE_COUNT], void *stream,
                             void *workspace, message error) {
    launch l = {.plan = plan, .stream = stream, .error = error};
    int pushed;
    planish_status status = cuda_driver_get(&l.driver, error);
    if (status)
        return status;
    if (plan->rows == 0 && plan->main.kernel == CUDA_FORWARD)
        return PLANISH_OK;
    status = enter(l.driver, plan->limits.device, &pushed, error);
    if (status)
        return status;
    status = plan->main.kernel == CUDA_FORWARD ? run_forward(&l, buffers)
             : plan->main.kernel == CUDA_APPLY ? run_long(&l, buffers, workspace)
                                               : run_backward(&l, buffers, workspace);
    if (pushed) {
        CUcontext popped;
        l.driver->ctx_pop(&popped);
    }
    return status;
}
