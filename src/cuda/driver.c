#include "cuda/driver.h"

#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    pthread_once_t once;
    planish_status status;
    char reason[256];
    cuda_driver driver;
} the_driver = {.once = PTHREAD_ONCE_INIT};

static struct {
    pthread_once_t once;
    planish_status status;
    char reason[256];
    cuda_compiler compiler;
} the_compiler = {.once = PTHREAD_ONCE_INIT};

typedef struct wanted {
    void *to; /* a pointer to function of the table */
    const char *name;
} wanted;

/* The first name the library lacks, or NULL. */
static const char *resolve(void *library, const wanted *list, size_t count) {
    for (size_t i = 0; i < count; i++) {
        void *symbol = dlsym(library, list[i].name);
        if (!symbol)
            return list[i].name;
        memcpy(list[i].to, &symbol, sizeof symbol);
    }
    return NULL;
}

static void load_driver(void) {
    message reason = {the_driver.reason, sizeof the_driver.reason};
    cuda_driver *d = &the_driver.driver;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        the_driver.status = fail(reason, PLANISH_ERROR_UNAVAILABLE,
                                 "no CUDA driver: libcuda.so.1 could not be loaded");
        return;
    }
    const wanted list[] = {
        {&d->init, "cuInit"},
        {&d->get_error_string, "cuGetErrorString"},
        {&d->driver_version, "cuDriverGetVersion"},
        {&d->device_name, "cuDeviceGetName"},
        {&d->device_count, "cuDeviceGetCount"},
        {&d->device_get, "cuDeviceGet"},
        {&d->device_attribute, "cuDeviceGetAttribute"},
        {&d->ctx_current, "cuCtxGetCurrent"},
        {&d->ctx_device, "cuCtxGetDevice"},
        {&d->ctx_push, "cuCtxPushCurrent_v2"},
        {&d->ctx_pop, "cuCtxPopCurrent_v2"},
        {&d->ctx_id, "cuCtxGetId"},
        {&d->primary_retain, "cuDevicePrimaryCtxRetain"},
        {&d->module_load, "cuModuleLoadDataEx"},
        {&d->module_unload, "cuModuleUnload"},
        {&d->module_function, "cuModuleGetFunction"},
        {&d->func_set_attribute, "cuFuncSetAttribute"},
        {&d->launch, "cuLaunchKernelEx"},
        {&d->max_active_blocks, "cuOccupancyMaxActiveBlocksPerMultiprocessor"},
        {&d->max_active_clusters, "cuOccupancyMaxActiveClusters"},
        {&d->capture_mode, "cuThreadExchangeStreamCaptureMode"},
    };
    const char *missing = resolve(library, list, sizeof list / sizeof *list);
    if (missing) {
        the_driver.status = fail(reason, PLANISH_ERROR_UNAVAILABLE,
                                 "the CUDA driver is too old: libcuda.so.1 has no %s", missing);
        return;
    }
    CUresult result = d->init(0);
    if (result) {
        const char *words = NULL;
        d->get_error_string(result, &words);
        the_driver.status = fail(reason, PLANISH_ERROR_UNAVAILABLE,
                                 "the CUDA driver did not start: %s", words ? words : "no reason");
    }
}

planish_status cuda_driver_get(const cuda_driver **driver, message error) {
    pthread_once(&the_driver.once, load_driver);
    if (the_driver.status)
        return fail(error, the_driver.status, "%s", the_driver.reason);
    *driver = &the_driver.driver;
    return PLANISH_OK;
}

planish_status cuda_check(const cuda_driver *driver, CUresult result, const char *what,
                          message error) {
    if (!result)
        return PLANISH_OK;
    const char *words = NULL;
    driver->get_error_string(result, &words);
    return fail(error, PLANISH_ERROR_DRIVER, "%s: %s (CUDA error %d)", what,
                words ? words : "unknown error", result);
}

/* libnvrtc of some releases does not find its own builtins library beside it; loaded first by its
 * full path it is found by name. */
static void load_builtins(const char *folder) {
    DIR *open_folder = opendir(folder);
    if (!open_folder)
        return;
    for (struct dirent *entry; (entry = readdir(open_folder));) {
        if (!strncmp(entry->d_name, "libnvrtc-builtins.so.", 21)) {
            char path[4096];
            if (snprintf(path, sizeof path, "%s/%s", folder, entry->d_name) < (int)sizeof path)
                dlopen(path, RTLD_NOW | RTLD_GLOBAL);
        }
    }
    closedir(open_folder);
}

static void *open_compiler_in(const char *folder) {
    static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[4096];
        if (snprintf(path, sizeof path, "%s/%s", folder, names[i]) >= (int)sizeof path)
            continue;
        FILE *there = fopen(path, "rb");
        if (!there)
            continue;
        fclose(there);
        load_builtins(folder);
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (library)
            return library;
    }
    return NULL;
}

/* Looks beside the libraries this process has already mapped: torch's wheels keep NVRTC in
 * site-packages/nvidia/cu13/lib or nvidia/cuda_nvrtc/lib, next to what torch itself has loaded. */
static void *open_compiler_of_wheels(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    if (!maps)
        return NULL;
    void *library = NULL;
    char line[4500];
    while (!library && fgets(line, sizeof line, maps)) {
        char *path = strchr(line, '/'), *end;
        if (!path || !(end = strstr(path, "/site-packages/")))
            continue;
        end[strlen("/site-packages")] = 0;
        static const char *const inside[] = {"nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"};
        for (size_t i = 0; !library && i < sizeof inside / sizeof *inside; i++) {
            char folder[4700];
            snprintf(folder, sizeof folder, "%s/%s", path, inside[i]);
            library = open_compiler_in(folder);
        }
    }
    fclose(maps);
    return library;
}

static void load_compiler(void) {
    message reason = {the_compiler.reason, sizeof the_compiler.reason};
    cuda_compiler *c = &the_compiler.compiler;
    void *library = NULL;
    /* PLANISH_NVRTC_PATH: the folder to take NVRTC from, before any other (docs/guide/gpu.md). */
    const char *folder = getenv("PLANISH_NVRTC_PATH");
    if (folder)
        library = open_compiler_in(folder);
    /* First what torch has loaded or would load: one compiler in the process, not two. */
    static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12"};
    for (size_t i = 0; !library && i < 2; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (!library)
        library = open_compiler_of_wheels();
    for (size_t i = 0; !library && i < 2; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    static const char *const folders[] = {"/usr/local/cuda/lib64", "/usr/local/cuda-13/lib64",
                                          "/usr/local/cuda-12/lib64"};
    for (size_t i = 0; !library && i < sizeof folders / sizeof *folders; i++)
        library = open_compiler_in(folders[i]);
    if (!library) {
        the_compiler.status =
            fail(reason, PLANISH_ERROR_UNAVAILABLE,
                 "no NVRTC: neither libnvrtc.so.13 nor libnvrtc.so.12 was found "
                 "(pip install nvidia-cuda-nvrtc, or set PLANISH_NVRTC_PATH to its folder)");
        return;
    }
    const wanted list[] = {
        {&c->version, "nvrtcVersion"},
        {&c->arch_count, "nvrtcGetNumSupportedArchs"},
        {&c->archs, "nvrtcGetSupportedArchs"},
        {&c->create, "nvrtcCreateProgram"},
        {&c->compile, "nvrtcCompileProgram"},
        {&c->destroy, "nvrtcDestroyProgram"},
        {&c->log_size, "nvrtcGetProgramLogSize"},
        {&c->log, "nvrtcGetProgramLog"},
        {&c->cubin_size, "nvrtcGetCUBINSize"},
        {&c->cubin, "nvrtcGetCUBIN"},
        {&c->ptx_size, "nvrtcGetPTXSize"},
        {&c->ptx, "nvrtcGetPTX"},
        {&c->error_string, "nvrtcGetErrorString"},
    };
    const char *missing = resolve(library, list, sizeof list / sizeof *list);
    if (missing)
        the_compiler.status = fail(reason, PLANISH_ERROR_UNAVAILABLE,
                                   "NVRTC is too old: libnvrtc has no %s", missing);
    else if (c->version(&c->major, &c->minor))
        the_compiler.status = fail(reason, PLANISH_ERROR_UNAVAILABLE, "NVRTC tells no version");
}

planish_status cuda_compiler_get(const cuda_compiler **compiler, message error) {
    pthread_once(&the_compiler.once, load_compiler);
    if (the_compiler.status)
        return fail(error, the_compiler.status, "%s", the_compiler.reason);
    *compiler = &the_compiler.compiler;
    return PLANISH_OK;
}
