/* Plan -> kernels queued on a stream: what arguments.c makes, told to the driver. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "cuda/arguments.h"
#include "cuda/backend.h"
#include "cuda/common/integers.h"
#include "cuda/common/merge.h"
#include "cuda/driver.h"
#include "cuda/geometry.h"
#include "cuda/jit.h"
#include "cuda/rows/rows_pair.h"

enum { MOST_DEVICES = 64 };

static planish_status ask_limits(const cuda_driver *d, int device, cuda_limits *limits,
                                 message error) {
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
        (result = d->device_attribute(&limits->cooperative, CU_COOPERATIVE_LAUNCH, handle)) ||
        (result = d->device_attribute(&clusters, CU_CLUSTER_LAUNCH, handle)))
        return cuda_check(d, result, "asking for the GPU's limits", error);
    limits->device = device;
    limits->arch = 10 * major + minor;
    if (limits->arch < 80)
        return fail(error, PLANISH_ERROR_UNAVAILABLE,
                    "GPU %d: found compute capability %d.%d, wanted at least 8.0", device, major,
                    minor);
    limits->max_cluster = clusters ? gpu_tuning_of(limits->arch)->most_cluster : 1;
    return PLANISH_OK;
}

planish_status cuda_device_limits(int device, cuda_limits *limits, message error) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static cuda_limits kept[MOST_DEVICES];
    static atomic_bool known[MOST_DEVICES]; /* kept[device] is filled and stays as it is */
    bool in_table = device >= 0 && device < MOST_DEVICES;
    if (in_table && atomic_load_explicit(&known[device], memory_order_acquire)) {
        *limits = kept[device];
        return PLANISH_OK;
    }
    const cuda_driver *d;
    planish_status status = cuda_driver_get(&d, error);
    if (!status)
        status = ask_limits(d, device, limits, error);
    if (status || !in_table)
        return status;
    pthread_mutex_lock(&lock);
    if (!atomic_load_explicit(&known[device], memory_order_relaxed)) {
        kept[device] = *limits;
        atomic_store_explicit(&known[device], true, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
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

/*
 * Whether the current context is one of the device. Each device's latest context is remembered by
 * its id, which is never used twice: one call into the driver, not three.
 */
static CUresult is_current(const cuda_driver *d, int device, unsigned long long *id,
                           bool *is_current) {
    static atomic_ullong latest[MOST_DEVICES];
    bool in_table = device >= 0 && device < MOST_DEVICES;
    CUdevice now = -1, handle = -1;
    CUresult result = d->ctx_id(NULL, id);
    if (result)
        return result;
    *is_current = in_table && atomic_load_explicit(&latest[device], memory_order_relaxed) == *id;
    if (*is_current || (result = d->ctx_device(&now)) || (result = d->device_get(&handle, device)))
        return result;
    *is_current = now == handle;
    if (*is_current && in_table)
        atomic_store_explicit(&latest[device], *id, memory_order_relaxed);
    return result;
}

/* Makes a context of the device current unless one is; *pushed tells. */
static planish_status enter(const cuda_driver *d, int device, unsigned long long *id, int *pushed,
                            message error) {
    CUcontext context = NULL;
    bool there = false;
    *pushed = 0;
    CUresult result = d->ctx_current(&context);
    if (!result && context)
        result = is_current(d, device, id, &there);
    if (there)
        return PLANISH_OK;
    if (result)
        return cuda_check(d, result, "asking for the current context", error);
    planish_status status = primary_context(d, device, &context, error);
    if (status || (status = cuda_check(d, d->ctx_push(context), "entering a context", error)))
        return status;
    *pushed = 1;
    return cuda_check(d, d->ctx_id(NULL, id), "asking for the context", error);
}

typedef struct launch {
    const cuda_driver *driver;
    const cuda_plan *plan;
    CUstream stream;
    unsigned long long context;
    bool loads_only;
    message error;
} launch;

/* More blocks that wait for each other than the context holds at once. */
enum { NOT_HELD = -1 };

static int queue(const launch *l, cuda_launch *work, const jit_function *f) {
    const cuda_spec *spec = &work->spec;
    CUlaunchAttribute attributes[3];
    unsigned count = 0;
    int cluster = cuda_spec_cluster(spec);
    if (cluster > 1) {
        memset(&attributes[count], 0, sizeof *attributes);
        attributes[count].id = CU_LAUNCH_CLUSTER_DIMENSION;
        attributes[count].value.cluster.x = (unsigned)cluster;
        attributes[count].value.cluster.y = attributes[count].value.cluster.z = 1;
        count++;
    }
    if (cuda_spec_is_cooperative(spec)) {
        memset(&attributes[count], 0, sizeof *attributes);
        attributes[count].id = CU_LAUNCH_COOPERATIVE;
        attributes[count].value.flag = 1;
        count++;
    }
    if (l->plan->limits.tuning->has_dependent_runs) {
        memset(&attributes[count], 0, sizeof *attributes);
        attributes[count].id = CU_LAUNCH_PROGRAMMATIC_SERIALIZATION;
        attributes[count].value.flag = 1;
        count++;
    }
    CUlaunchConfig config = {.grid_x = (unsigned)work->blocks_x,
                             .grid_y = work->blocks_y,
                             .grid_z = 1,
                             .block_x = cuda_spec_threads(spec),
                             .block_y = 1,
                             .block_z = 1,
                             .shared_bytes = (unsigned)cuda_spec_shared_bytes(spec),
                             .stream = l->stream,
                             .attributes = attributes,
                             .attribute_count = count};
    void *parameters[] = {&work->args};
    CUresult result = l->driver->launch(&config, f->function, parameters, NULL);
    if (result == CU_COOPERATIVE_TOO_LARGE)
        return NOT_HELD;
    return (int)cuda_check(l->driver, result, "launching a kernel", l->error);
}

planish_status cuda_plan_prepare(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                                 message error) {
    cuda_launch launches[CUDA_MOST_LAUNCHES];
    int count = cuda_launch_specs(plan, buffers, launches);
    planish_status status = PLANISH_OK;
    for (int i = 0; i < count && !status; i++)
        status = jit_prepare(&launches[i].spec, plan->limits.arch, error);
    if (status || plan->cooperative.kernel < 0)
        return status;
    cuda_plan plain = *plan; /* what run_held falls back on */
    plain.cooperative.kernel = -1;
    return cuda_plan_prepare(&plain, buffers, error);
}

/* All kernels are at hand before the first is queued: a failure leaves the outputs as they were. */
static int run(const launch *l, void *const *buffers, void *workspace) {
    cuda_launch launches[CUDA_MOST_LAUNCHES];
    const jit_function *functions[CUDA_MOST_LAUNCHES];
    int count = cuda_launch_specs(l->plan, buffers, launches), resident = 0;
    planish_status status = PLANISH_OK;
    for (int i = 0; i < count && !status; i++) {
        const cuda_spec *spec = &launches[i].spec;
        status =
            jit_get(l->driver, l->context, spec, l->plan->limits.arch, &functions[i], l->error);
        if (!status && cuda_spec_is_cooperative(spec)) {
            resident = functions[i]->resident_blocks * l->plan->limits.multiprocessors /
                       spec->cooperating_blocks;
            if (resident < 1)
                return NOT_HELD;
        } else if (!status && spec->kernel == l->plan->main.kernel) {
            resident = functions[i]->resident_clusters;
        }
    }
    if (status)
        return (int)status;
    cuda_launch_arguments(l->plan, buffers, workspace, resident, launches);
    int result = 0;
    for (int i = 0; i < count && !result; i++)
        if (launches[i].blocks_x)
            result = queue(l, &launches[i], functions[i]);
    return result;
}

/* Where a cooperative plan's blocks are not held at once, the plan without it runs. */
static planish_status run_held(const launch *l, void *const *buffers, void *workspace) {
    int result = run(l, buffers, workspace);
    if (result == NOT_HELD) {
        cuda_plan plain = *l->plan;
        launch again = *l;
        plain.cooperative.kernel = -1;
        again.plan = &plain;
        result = run(&again, buffers, workspace);
    }
    return (planish_status)result;
}

/* As one launch; false where that cannot be. */
static bool run_as_one(const launch *l, const cuda_pair *pair, void *const workspace[2],
                       planish_status *status) {
    /* Set where no kernel of pairs can be had: not to look for one at every call. */
    static atomic_bool cannot_be_had;
    cuda_launch launches[CUDA_MOST_LAUNCHES];
    const jit_function *functions[CUDA_MOST_LAUNCHES];
    if (atomic_load_explicit(&cannot_be_had, memory_order_relaxed))
        return false;
    const int count = rows_pair_specs(pair, launches);
    for (int i = 0; i < count; i++)
        if (jit_get(l->driver, l->context, &launches[i].spec, l->plan->limits.arch, &functions[i],
                    (message){NULL, 0})) {
            atomic_store_explicit(&cannot_be_had, true, memory_order_relaxed);
            return false;
        }
    if (!count)
        return false;
    rows_pair_arguments(pair, workspace, launches);
    int result = 0;
    for (int i = 0; i < count && !result; i++)
        if (launches[i].blocks_x)
            result = queue(l, &launches[i], functions[i]);
    *status = (planish_status)result;
    return true;
}

/* All that a plan's kernels are is at hand: a later run of it does not fail for want of them. */
static planish_status load_all(const launch *l, void *const *buffers) {
    cuda_launch launches[CUDA_MOST_LAUNCHES];
    const jit_function *unused;
    const int count = cuda_launch_specs(l->plan, buffers, launches);
    planish_status status = PLANISH_OK;
    for (int i = 0; i < count && !status; i++)
        status = jit_get(l->driver, l->context, &launches[i].spec, l->plan->limits.arch, &unused,
                         l->error);
    return status;
}

static planish_status run_pair_held(const launch *l, const cuda_pair *pair,
                                    void *const workspace[2]) {
    planish_status status = PLANISH_OK;
    if (run_as_one(l, pair, workspace, &status))
        return status;
    launch second = *l;
    second.plan = pair->plan[1];
    status = load_all(&second, pair->buffers[1]);
    if (!status)
        status = run_held(l, pair->buffers[0], workspace[0]);
    return status ? status : run_held(&second, pair->buffers[1], workspace[1]);
}

/* The same of what run_held falls back on, too. */
static planish_status load_held(const launch *l, void *const *buffers) {
    const planish_status status = load_all(l, buffers);
    if (status || l->plan->cooperative.kernel < 0)
        return status;
    cuda_plan plain = *l->plan;
    launch again = *l;
    plain.cooperative.kernel = -1;
    again.plan = &plain;
    return load_all(&again, buffers);
}

/* `pair` NULL: l->plan alone, of these buffers. */
static planish_status run_inside(launch *l, void *const *buffers, const cuda_pair *pair,
                                 void *const *workspace) {
    int pushed;
    planish_status status = cuda_driver_get(&l->driver, l->error);
    if (status)
        return status;
    status = enter(l->driver, l->plan->limits.device, &l->context, &pushed, l->error);
    if (!status && l->loads_only)
        status = load_held(l, buffers);
    else if (!status)
        status = pair ? run_pair_held(l, pair, workspace) : run_held(l, buffers, workspace[0]);
    if (pushed) {
        CUcontext popped;
        l->driver->ctx_pop(&popped);
    }
    return status;
}

planish_status cuda_plan_run(const cuda_plan *plan, void *const buffers[ROLE_COUNT], void *stream,
                             void *workspace, message error) {
    launch l = {.plan = plan, .stream = stream, .error = error};
    return run_inside(&l, buffers, NULL, &workspace);
}

planish_status cuda_plan_load(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                              message error) {
    launch l = {.plan = plan, .loads_only = true, .error = error};
    return run_inside(&l, buffers, NULL, NULL);
}

planish_status cuda_plan_run_pair(const cuda_plan *const plans[2], void *const *const buffers[2],
                                  void *stream, void *const workspace[2], message error) {
    launch l = {.plan = plans[0], .stream = stream, .error = error};
    const cuda_pair pair = {{plans[0], plans[1]}, {buffers[0], buffers[1]}};
    return run_inside(&l, NULL, &pair, workspace);
}

/* ---- Without a plan -------------------------------------------------------------------------- */

/* In the current context. No launch that begins early: what it reads is another library's. */
static planish_status queue_merge(const cuda_driver *d, unsigned long long context, int arch,
                                  const merge_args *m, CUstream stream, message error) {
    const jit_function *f;
    const cuda_spec spec = cuda_merge_spec();
    const planish_status status = jit_get(d, context, &spec, arch, &f, error);
    if (status)
        return status;
    const int64_t blocks = ceil_div(m->rows, MERGE_THREADS);
    const CUlaunchConfig config = {.grid_x = blocks ? (unsigned)blocks : 1,
                                   .grid_y = 1,
                                   .grid_z = 1,
                                   .block_x = MERGE_THREADS,
                                   .block_y = 1,
                                   .block_z = 1,
                                   .stream = stream};
    merge_args args = *m;
    void *parameters[] = {&args};
    return cuda_check(d, d->launch(&config, f->function, parameters, NULL), "launching a kernel",
                      error);
}

planish_status cuda_merge(const merge_args *m, int device, void *stream, message error) {
    const cuda_driver *d;
    cuda_limits limits;
    unsigned long long context = 0;
    int pushed = 0;
    planish_status status = cuda_device_limits(device, &limits, error);
    if (!status)
        status = cuda_driver_get(&d, error);
    if (status)
        return status;
    status = enter(d, device, &context, &pushed, error);
    if (!status)
        status = queue_merge(d, context, limits.arch, m, stream, error);
    if (pushed) {
        CUcontext popped;
        d->ctx_pop(&popped);
    }
    return status;
}
