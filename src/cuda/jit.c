#include "cuda/jit.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/cache.h"
#include "cuda/families.h"
#include "cuda/geometry.h"
#include "cuda/key.h"
#include "cuda/pack.h"

enum { BUCKETS = 1024 };

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

/* What is compiled for. */
typedef struct target {
    char name[24]; /* "sm_90", or "compute_90" for PTX */
    int ptx;       /* the driver finishes the compilation: this device is newer than the compiler */
} target;

static planish_status choose_target(const cuda_compiler *compiler, int arch, target *t,
                                    message error) {
    int known = known_arch(compiler, arch);
    if (!known)
        return fail(error, PLANISH_ERROR_UNAVAILABLE,
                    "NVRTC %d.%d does not compile for compute capability %d.%d", compiler->major,
                    compiler->minor, arch / 10, arch % 10);
    t->ptx = known != arch;
    snprintf(t->name, sizeof t->name, "%s_%d", t->ptx ? "compute" : "sm", known);
    return PLANISH_OK;
}

static planish_status compile(const cuda_compiler *c, const char *source, const target *t,
                              int verbose, void **code, size_t *bytes, char **log, message error) {
    char arch[48];
    const char *options[CUDA_OPTIONS + 2];
    int count = 0;
    snprintf(arch, sizeof arch, "--gpu-architecture=%s", t->name);
    options[count++] = arch;
    for (int i = 0; i < CUDA_OPTIONS; i++)
        options[count++] = cuda_options[i];
    if (verbose)
        options[count++] = "--ptxas-options=-v";
    nvrtcProgram program;
    nvrtcResult result = c->create(&program, source, "planish.cu", 0, NULL, NULL);
    if (result)
        return fail(error, PLANISH_ERROR_DRIVER, "NVRTC: %s", c->error_string(result));
    result = c->compile(program, count, options);
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
    } else if ((result = t->ptx ? c->ptx_size(program, bytes) : c->cubin_size(program, bytes)) ||
               !(*code = malloc(*bytes + 1))) {
        status = fail(error, result ? PLANISH_ERROR_DRIVER : PLANISH_ERROR_OUT_OF_MEMORY,
                      "NVRTC: no code of the compiled kernel");
    } else if ((result = t->ptx ? c->ptx(program, *code) : c->cubin(program, *code))) {
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
    char prelude[CUDA_PRELUDE_BYTES];
    size_t a = cuda_spec_prelude(spec, prelude, sizeof prelude);
    const char *kernel = cuda_kernel_of(spec)->text;
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
    target t;
    if (status || (status = choose_target(compiler, arch, &t, error)))
        return status;
    char *source = whole_source(spec);
    if (!source)
        return fail(error, PLANISH_ERROR_OUT_OF_MEMORY, "no memory for a kernel's text");
    status = compile(compiler, source, &t, verbose, code, bytes, log, error);
    free(source);
    return status;
}

/* A kernel's code and where it is from. */
typedef struct made {
    void *code; /* to be freed */
    size_t bytes;
    bool compiled, kept; /* kept: on disk, now or before */
} made;

/* Without a compiler: what any compiler made for exactly this architecture. */
static planish_status without_compiler(const cuda_spec *spec, int arch, const char *key, bool anew,
                                       made *m, message error) {
    const cuda_compiler *none;
    char reason[256] = "";
    if (!anew && (m->code = cache_read(key, NULL, &m->bytes))) {
        m->kept = true;
        return PLANISH_OK;
    }
    planish_status status = cuda_compiler_get(&none, (message){reason, sizeof reason});
    return fail(error, status, "%s; no pack and no cache has %s for compute capability %d.%d",
                reason, cuda_kernel_of(spec)->entry, arch / 10, arch % 10);
}

/* With one: what the same compiler made before, else compiled and kept. */
static planish_status with_compiler(const cuda_compiler *compiler, const cuda_spec *spec, int arch,
                                    bool anew, made *m, message error) {
    char key[CUDA_KEY_BYTES], version[32];
    target t;
    planish_status status = choose_target(compiler, arch, &t, error);
    if (status)
        return status;
    bool keyed = cuda_key(spec, t.name, key, sizeof key);
    snprintf(version, sizeof version, "%d.%d", compiler->major, compiler->minor);
    if (keyed && !anew && (m->code = cache_read(key, version, &m->bytes))) {
        m->kept = true;
        return PLANISH_OK;
    }
    m->compiled = true;
    status = jit_compile(spec, arch, 0, &m->code, &m->bytes, NULL, error);
    if (!status && keyed)
        m->kept = cache_write(key, version, m->code, m->bytes);
    return status;
}

/* From a pack or the disk unless it is wanted `anew`, else compiled. */
static planish_status make_code(const cuda_spec *spec, int arch, bool anew, made *m,
                                message error) {
    char key[CUDA_KEY_BYTES], exact[24];
    const cuda_compiler *compiler;
    *m = (made){.code = NULL};
    snprintf(exact, sizeof exact, "sm_%d", arch);
    if (!cuda_key(spec, exact, key, sizeof key))
        return fail(error, PLANISH_ERROR_OUT_OF_MEMORY, "no room for a kernel's key");
    if (!anew && (m->code = pack_find(key, &m->bytes)))
        return PLANISH_OK;
    if (cuda_compiler_get(&compiler, (message){NULL, 0}))
        return without_compiler(spec, arch, key, anew, m, error);
    return with_compiler(compiler, spec, arch, anew, m, error);
}

planish_status jit_code(const cuda_spec *spec, int arch, void **code, size_t *bytes,
                        message error) {
    made m;
    planish_status status = make_code(spec, arch, false, &m, error);
    *code = m.code;
    *bytes = m.bytes;
    return status;
}

planish_status jit_prepare(const cuda_spec *spec, int arch, message error) {
    made m;
    planish_status status = make_code(spec, arch, false, &m, error);
    if (status)
        return status;
    free(m.code);
    if (m.compiled && !m.kept)
        return fail(error, PLANISH_ERROR_FILE,
                    "a compiled kernel could not be kept: the cache folder is missing, full or "
                    "read-only (PLANISH_CACHE_DIR)");
    return PLANISH_OK;
}

static planish_status load(const cuda_driver *driver, const cuda_spec *spec, const void *code,
                           CUmodule *module, jit_function *f, message error) {
    unsigned shared = (unsigned)cuda_spec_shared_bytes(spec);
    CUresult result = driver->module_load(module, code, 0, NULL, NULL);
    if (result)
        return cuda_check(driver, result, "loading a kernel", error);
    planish_status status = PLANISH_OK;
    result = driver->module_function(&f->function, *module, cuda_kernel_of(spec)->entry);
    if (!result && shared) /* static shared memory counts towards the 48 KiB, too */
        result = driver->func_set_attribute(f->function, CU_FUNC_MAX_DYNAMIC_SHARED, (int)shared);
    f->resident_clusters = f->resident_blocks = 0;
    int cluster = cuda_spec_cluster(spec);
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
    const cuda_compiler *compiler;
    made m;
    planish_status status = make_code(spec, arch, false, &m, error);
    if (status)
        return status;
    status = load(driver, spec, m.code, module, f, error);
    free(m.code);
    if (!status || m.compiled || cuda_compiler_get(&compiler, (message){NULL, 0}))
        return status;
    /* The driver does not take what was stored: compile anew. */
    status = make_code(spec, arch, true, &m, error);
    if (status)
        return status;
    status = load(driver, spec, m.code, module, f, error);
    free(m.code);
    return status;
}

/* Every spec begins as zeros and has no bytes between its numbers: equal ones have equal bytes. */
static loaded *find(unsigned bucket, unsigned long long context, const cuda_spec *spec) {
    for (loaded *l = atomic_load_explicit(&table[bucket], memory_order_acquire); l; l = l->next)
        /* NOLINTNEXTLINE(bugprone-suspicious-memory-comparison) */
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
