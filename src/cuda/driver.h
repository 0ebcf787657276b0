/*
 * The CUDA driver and NVRTC, found at run time. Declares the few types and functions that planish
 * uses itself, so that nothing of CUDA is needed to build; where a library is missing, a status and
 * a sentence say which and why. Loads each library once and never unloads it.
 */
#ifndef PLANISH_CUDA_DRIVER_H
#define PLANISH_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "status.h"

typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef int CUdevice;
typedef int CUresult;
typedef struct _nvrtcProgram *nvrtcProgram;
typedef int nvrtcResult;

enum {
    CU_MULTIPROCESSOR_COUNT = 16,
    CU_COMPUTE_CAPABILITY_MAJOR = 75,
    CU_COMPUTE_CAPABILITY_MINOR = 76,
    CU_SHARED_PER_MULTIPROCESSOR = 81,
    CU_SHARED_PER_BLOCK_OPTIN = 97,
    CU_COOPERATIVE_LAUNCH = 95,
    CU_CLUSTER_LAUNCH = 120,
    CU_FUNC_MAX_DYNAMIC_SHARED = 8,
    CU_FUNC_NON_PORTABLE_CLUSTER = 14,
    CU_LAUNCH_COOPERATIVE = 2,
    CU_LAUNCH_CLUSTER_DIMENSION = 4,
    CU_LAUNCH_PROGRAMMATIC_SERIALIZATION = 6,
    CU_CAPTURE_RELAXED = 2,
    CU_COOPERATIVE_TOO_LARGE = 720
};

typedef struct CUlaunchAttribute {
    int id;
    char pad[4];
    union {
        char room[64];
        struct {
            unsigned x, y, z;
        } cluster;
        int flag;
    } value;
} CUlaunchAttribute;

typedef struct CUlaunchConfig {
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
    CUstream stream;
    CUlaunchAttribute *attributes;
    unsigned attribute_count;
} CUlaunchConfig;

typedef struct cuda_driver {
    CUresult (*init)(unsigned);
    CUresult (*get_error_string)(CUresult, const char **);
    CUresult (*driver_version)(int *);
    CUresult (*device_name)(char *, int, CUdevice);
    CUresult (*device_count)(int *);
    CUresult (*device_get)(CUdevice *, int);
    CUresult (*device_attribute)(int *, int, CUdevice);
    CUresult (*ctx_current)(CUcontext *);
    CUresult (*ctx_device)(CUdevice *);
    CUresult (*ctx_push)(CUcontext);
    CUresult (*ctx_pop)(CUcontext *);
    CUresult (*ctx_id)(CUcontext, unsigned long long *);
    CUresult (*primary_retain)(CUcontext *, CUdevice);
    CUresult (*module_load)(CUmodule *, const void *, unsigned, int *, void **);
    CUresult (*module_unload)(CUmodule);
    CUresult (*module_function)(CUfunction *, CUmodule, const char *);
    CUresult (*func_set_attribute)(CUfunction, int, int);
    CUresult (*launch)(const CUlaunchConfig *, CUfunction, void **, void **);
    CUresult (*max_active_blocks)(int *, CUfunction, int, size_t);
    CUresult (*max_active_clusters)(int *, CUfunction, const CUlaunchConfig *);
    CUresult (*capture_mode)(int *);
} cuda_driver;

typedef struct cuda_compiler {
    nvrtcResult (*version)(int *, int *);
    nvrtcResult (*arch_count)(int *);
    nvrtcResult (*archs)(int *);
    nvrtcResult (*create)(nvrtcProgram *, const char *, const char *, int, const char *const *,
                          const char *const *);
    nvrtcResult (*compile)(nvrtcProgram, int, const char *const *);
    nvrtcResult (*destroy)(nvrtcProgram *);
    nvrtcResult (*log_size)(nvrtcProgram, size_t *);
    nvrtcResult (*log)(nvrtcProgram, char *);
    nvrtcResult (*cubin_size)(nvrtcProgram, size_t *);
    nvrtcResult (*cubin)(nvrtcProgram, char *);
    nvrtcResult (*ptx_size)(nvrtcProgram, size_t *);
    nvrtcResult (*ptx)(nvrtcProgram, char *);
    const char *(*error_string)(nvrtcResult);
    int major, minor; /* of the library loaded */
} cuda_compiler;

/* The driver, loaded and initialised at the first call. Any thread. */
planish_status cuda_driver_get(const cuda_driver **driver, message error);

/* The compiler, loaded at the first call. Any thread. */
planish_status cuda_compiler_get(const cuda_compiler **compiler, message error);

/* PLANISH_OK, or PLANISH_ERROR_DRIVER with a sentence: `what` and the driver's own words. */
planish_status cuda_check(const cuda_driver *driver, CUresult result, const char *what,
                          message error);

#endif
