#include "jit.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache.h"
#include "geometry.h"

enum { BUCKETS = 1024, PRELUDE_BYTES = 4096 };

typedef struct loaded {
    unsigned long long context;
    cuda_spec spec;
    jit_function function;
    struct loaded *next;
} loaded;

/* Read without a lock: entries are put in front of their list and stay for ever. */
static _Atomic(loaded *) table[BUCKETS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* for writers */

/* The newest architecture the compiler knows up to `arch`, or 0. */
static int known_arch(const cuda_compiler *compiler, int arch) {
    int count = 0, archs[256], best = 0;
    if (compiler->arch_count(&count) || count <= 0 || count > 256 || compiler->archs(archs))
        return 0;
    for (int i = 0; i < count; i++)
        if (archs[i] <= arch && archs[i] > best)
            best = archs[i];
    return best;
}

typedef struct options {
    char arch[40];
    const char *list[4];
    int count;
    int ptx; /* the driver finishes the compilation: this device is newer than the compiler */
} options;

static planish_status choose_options(const cuda_compiler *compiler, int arch, int verbose,
                                     options *o, message error) {
    int known = known_arch(compiler, arch);
    if (!known)
        return fail(error, PLANISH_ERROR_UNAVAILABLE,
                    "NVRTC %d.%d does not compile for compute capability %d.%d", compiler->major,
                    compiler->minor, arch / 10, arch % 10);
    o->ptx = known != arch;
    snprintf(o->arch, sizeof o->arch, "--gpu-architecture=%s_%d", o->ptx ? "compute" : "sm", known);
    o->count = 0;
    o->list[o->count++] = o->arch;
    o->list[o->count++] = "--std=c++17";
    o->list[o->count++] = "--fmad=false"; /* the kernels say where they contract */
    if (verbose)
        o->list[o->count++] = "--ptxas-options=-v";
    return PLANISH_OK;
}

static planish_status compile(const cuda_compiler *c, const char *source, const options *o,
                              void **code, size_t *bytes, char **log, message error) {
    nvrtcProgram program;
    nvrtcResult result = c->create(&program, source, "planish.cu", 0, NULL, NULL);
    if (result)
        return fail(error, PLANISH_ERROR_DRIVER, "NVRTC: %s", c->error_string(result));
    result = c->compile(program, o->count, o->list);
    size_t log_bytes = 0;
    char *text = NULL;
    if ((result || log) && !c->log_size(program, &log_bytes) && (text = malloc(log_bytes + 1))) {
        text[0] = 0;
        c->log(program, text);
        text[log_bytes] = 0;
    }
    planish_status status = PLANISH_OK;
    if (result) {
        status = fail(error, PLANISH_ERROR_DRIVER, "NVRTC: %s: %.400s", c->error_string(result),
                      text ? text : "no log");
    } else if ((result = o->ptx ? c->ptx_size(program, bytes) : c->cubin_size(program, bytes)) ||
               !(*code = malloc(*bytes + 1))) {
        status = fail(error, result ? PLANISH_ERROR_DRIVER : PLANISH_ERROR_OUT_OF_MEMORY,
                      "NVRTC: no code of the compiled kernel");
    } else if ((result = o->ptx ? c->ptx(program, *code) : c->cubin(program, *code))) {
        free(*code);
        status = fail(error, PLANISH_ERROR_DRIVER, "NVRTC: %s", c->error_string(result));
    }
    if (log && !status)
        *log = text;
    else
        free(text);
    c->destroy(&program);
    return status;
}

/* Prelude, vocabulary and kernel in one text, to be freed. */
static char *whole_source(const cuda_spec *spec) {
    char prelude[PRELUDE_BYTES];
    size_t a = cuda_spec_prelude(spec, prelude, sizeof prelude);
    const char *kernel = cuda_kernel_text((cuda_kernel)spec->kernel);
    size_t b = strlen(cuda_text_vocabulary), c = strlen(kernel);
    char *source = a < sizeof prelude ? malloc(a + b + c + 1) : NULL;
    if (source) {
        memcpy(source, prelude, a);
        memcpy(source + a, cuda_text_vocabulary, b);
        memcpy(source + a + b, kernel, c + 1);
    }
    return source;
}

planish_status jit_compile(const cuda_spec *spec, int arch, int verbose, void **code, size_t *bytes,
                           char **log, message error) {
    const cuda_compiler *compiler;
    planish_status status = cuda_compiler_get(&compiler, error);
    options o;
    if (status || (status = choose_options(compiler, arch, verbose, &o, error)))
        return status;
    char *source = whole_source(spec);
    if (!source)
        return fail(error, PLANISH_ERROR_OUT_OF_MEMORY, "no memory for a kernel's text");
    status = compile(compiler, source, &o, code, bytes, log, error);
    free(source);
    return status;
}

/* What an entry on disk must agree in: constants, texts, options, compiler. */
static int make_key(const cuda_spec *spec, int arch, const cuda_compiler *compiler, char *key,
                    size_t bytes) {
    const char *kernel = cuda_kernel_text((cuda_kernel)spec->kernel);
    options o;
    if (choose_options(compiler, arch, 0, &o, (message){NULL, 0}))
        return 0;
    int n = snprintf(
        key, bytes, "%s vocabulary %016llx kernel %016llx nvrtc %d.%d",
        cuda_kernel_entry((cuda_kernel)spec->kernel),
        (unsigned long long)cache_hash(cuda_text_vocabulary, strlen(cuda_text_vocabulary), 0),
        (unsigned long long)cache_hash(kernel, strlen(kernel), 0), compiler->major,
        compiler->minor);
    for (int i = 0; i < o.count && n > 0 && (size_t)n < bytes; i++)
        n += snprintf(key + n, bytes - (size_t)n, " %s", o.list[i]);
    if (n <= 0 || (size_t)n + 1 >= bytes)
        return 0;
    key[n++] = '\n';
    return (size_t)n + cuda_spec_prelude(spec, key + n, bytes - (size_t)n) < bytes;
}

/* From disk, else compiled and kept there; *fresh tells which. */
static planish_status make_code(const cuda_spec *spec, int arch, int *fresh, void **code,
                                size_t *bytes, message error) {
    const cuda_compiler *compiler;
    planish_status status = cuda_compiler_get(&compiler, error);
    if (status)
        return status;
    char key[PRELUDE_BYTES + 512];
    int keyed = make_key(spec, arch, compiler, key, sizeof key);
    if (keyed && !*fresh && (*code = cache_read(key, bytes)))
        return PLANISH_OK;
    *fresh = 1;
    status = jit_compile(spec, arch, 0, code, bytes, NULL, error);
    if (!status && keyed)
        cache_write(key, *code, *bytes);
    return status;
}

planish_status jit_prepare(const cuda_spec *spec, int arch, message error) {
    void *code;
    size_t bytes;
    int fresh = 0;
    planish_status status = make_code(spec, arch, &fresh, &code, &bytes, error);
    if (!status)
        free(code);
    return status;
}

static planish_status load(const cuda_driver *driver, const cuda_spec *spec, const void *code,
                           CUmodule *module, jit_function *f, message error) {
    unsigned shared = (unsigned)cuda_spec_shared_bytes(spec);
    CUresult result = driver->module_load(module, code, 0, NULL, NULL);
    if (result)
        return cuda_check(driver, result, "loading a kernel", error);
    planish_status status = PLANISH_OK;
    result = driver->module_function(&f->function, *module,
                                     cuda_kernel_entry((cuda_kernel)spec->kernel));
    if (!result && shared) /* static shared memory counts towards the 48 KiB, too */
        result = driver->func_set_attribute(f->function, CU_FUNC_MAX_DYNAMIC_SHARED, (int)shared);
    f->resident_clusters = f->resident_blocks = 0;
    int cluster = spec->kernel == CUDA_FINISH ? 1 : spec->constant[C_CLUSTER];
    if (!result)
        result = driver->max_active_blocks(&f->resident_blocks, f->function,
                                           (int)cuda_spec_threads(spec), shared);
    if (!result && cluster > 1) {
        if (cluster > 8)
            result = driver->func_set_attribute(f->function, CU_FUNC_NON_PORTABLE_CLUSTER, 1);
        if (!result) {
            CUlaunchAttribute attribute = {.id = CU_LAUNCH_CLUSTER_DIMENSION};
            attribute.value.cluster.x = (unsigned)cluster;
            attribute.value.cluster.y = attribute.value.cluster.z = 1;
            CUlaunchConfig config = {.grid_x = (unsigned)cluster,
                                     .grid_y = 1,
                                     .grid_z = 1,
                                     .block_x = cuda_spec_threads(spec),
                                     .block_y = 1,
                                     .block_z = 1,
                                     .shared_bytes = shared,
                                     .attributes = &attribute,
                                     .attribute_count = 1};
            result = driver->max_active_clusters(&f->resident_clusters, f->function, &config);
        }
        if (!result && f->resident_clusters < 1)
            status = fail(error, PLANISH_ERROR_UNAVAILABLE,
                          "the device holds no cluster of %d blocks of this kernel", cluster);
    }
    if (result)
        status = cuda_check(driver, result, "preparing a kernel", error);
    if (status)
        driver->module_unload(*module);
    return status;
}

static planish_status make_and_load(const cuda_driver *driver, const cuda_spec *spec, int arch,
                                    CUmodule *module, jit_function *f, message error) {
    void *code;
    size_t bytes;
    int fresh = 0;
    planish_status status = make_code(spec, arch, &fresh, &code, &bytes, error);
    if (status)
        return status;
    status = load(driver, spec, code, module, f, error);
    free(code);
    if (status && !fresh) {
        /* The driver does not take what was on disk: compile anew. */
        fresh = 1;
        status = make_code(spec, arch, &fresh, &code, &bytes, error);
        if (!status) {
            status = load(driver, spec, code, module, f, error);
            free(code);
        }
    }
    return status;
}

static loaded *find(unsigned bucket, unsigned long long context, const cuda_spec *spec) {
    for (loaded *l = atomic_load_explicit(&table[bucket], memory_order_acquire); l; l = l->next)
        if (l->context == context && !memcmp(&l->spec, spec, sizeof *spec))
            return l;
    return NULL;
}

/* Two constants at a time: this runs before every launch. */
static unsigned bucket_of(unsigned long long context, const cuda_spec *spec) {
    uint64_t h = context;
    for (size_t i = 0; i < sizeof *spec; i += sizeof h) {
        uint64_t word = 0;
        size_t left = sizeof *spec - i;
        memcpy(&word, (const char *)spec + i, left < sizeof word ? left : sizeof word);
        h = (h ^ word) * 0x9E3779B97F4A7C15u;
        h ^= h >> 29;
    }
    return (unsigned)(h >> 32) % BUCKETS;
}

/* A new entry, or the one that another thread was first with. */
static planish_status add(const cuda_driver *driver, unsigned bucket, unsigned long long context,
                          const cuda_spec *spec, int arch, loaded **entry, message error) {
    loaded *fresh = malloc(sizeof *fresh);
    if (!fresh)
        return fail(error, PLANISH_ERROR_OUT_OF_MEMORY, "no memory for a kernel's entry");
    fresh->context = context;
    fresh->spec = *spec;
    /* Loading code is no work of the stream; a capture elsewhere must not forbid it. */
    CUmodule module;
    int mode = CU_CAPTURE_RELAXED;
    driver->capture_mode(&mode);
    planish_status status = make_and_load(driver, spec, arch, &module, &fresh->function, error);
    driver->capture_mode(&mode);
    if (status) {
        free(fresh);
        return status;
    }
    pthread_mutex_lock(&lock);
    loaded *first = find(bucket, context, spec);
    if (!first) {
        fresh->next = atomic_load_explicit(&table[bucket], memory_order_relaxed);
        atomic_store_explicit(&table[bucket], fresh, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    if (first) {
        driver->module_unload(module);
        free(fresh);
    }
    *entry = first ? first : fresh;
    return PLANISH_OK;
}

planish_status jit_get(const cuda_driver *driver, unsigned long long context, const cuda_spec *spec,
                       int arch, const jit_function **function, message error) {
    unsigned bucket = bucket_of(context, spec);
    loaded *entry = find(bucket, context, spec);
    planish_status status =
        entry ? PLANISH_OK : add(driver, bucket, context, spec, arch, &entry, error);
    if (!status)
        *function = &entry->function;
    return status;
}
