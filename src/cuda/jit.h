/*
 * Specialisation -> loaded kernel: from memory, else from a pack, else from disk, else compiled by
 * NVRTC, which is not needed for any but the last. Safe from any thread; two threads that want the
 * same new kernel compile it harmlessly twice. What is loaded stays for the life of its context.
 */
#ifndef PLANISH_CUDA_JIT_H
#define PLANISH_CUDA_JIT_H

#include "cuda/driver.h"
#include "cuda/spec.h"

typedef struct jit_function {
    CUfunction function;
    int resident_clusters; /* how many clusters the device holds at once; 0: launched without */
    int resident_blocks;   /* how many blocks a multiprocessor does */
} jit_function;

/*
 * The kernel, ready for launch in the current context, whose id is `context` and whose device has
 * compute capability `arch` (90 for 9.0). The pointer stays valid. What is loaded already is found
 * without a lock and without a call into the driver.
 */
planish_status jit_get(const cuda_driver *driver, unsigned long long context, const cuda_spec *spec,
                       int arch, const jit_function **function, message error);

/* The kernel's code, to be freed by the caller: from where jit_get takes it, without a device. */
planish_status jit_code(const cuda_spec *spec, int arch, void **code, size_t *bytes, message error);

/* Compiles to disk what neither a pack nor the disk has, without a device. FILE: it was not kept.
 */
planish_status jit_prepare(const cuda_spec *spec, int arch, message error);

/*
 * Compiles, without a device. *code (cubin where the compiler knows the architecture, else PTX) and
 * *log, if asked for, are the caller's to free. `verbose` puts registers and spills in the log.
 */
planish_status jit_compile(const cuda_spec *spec, int arch, int verbose, void **code, size_t *bytes,
                           char **log, message error);

#endif
