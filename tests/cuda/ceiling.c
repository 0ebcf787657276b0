/*
 * The ceilings that the kernels are held against, for benches: a plain copy and a plain add of two
 * inputs, 16 bytes an access. Compiled by NVRTC as the library's kernels are.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../src/cuda/driver.h"

static const char text[] =
    "struct four { unsigned a, b, c, d; };\n"
    "__device__ four load(const four *p) { four v; asm volatile("
    "\"ld.global\" LOAD \".v4.u32 {%0,%1,%2,%3}, [%4];\" : \"=r\"(v.a), \"=r\"(v.b), "
    "\"=r\"(v.c), \"=r\"(v.d) : \"l\"(p)); return v; }\n"
    "__device__ void store(four *p, four v) { asm volatile("
    "\"st.global\" STORE \".v4.u32 [%0], {%1,%2,%3,%4};\" :: \"l\"(p), \"r\"(v.a), \"r\"(v.b), "
    "\"r\"(v.c), \"r\"(v.d) : \"memory\"); }\n"
    "extern \"C\" __global__ void __launch_bounds__(THREADS) ceiling(const four *x, const four *z, "
    "four *y, long long count) {\n"
    "  long long first = (long long)blockIdx.x * (THREADS * UNROLL) + threadIdx.x;\n"
    "  four v[UNROLL], w[UNROLL];\n"
    "  for (int i = 0; i < UNROLL; i++) if (first + i * THREADS < count) {\n"
    "    v[i] = load(x + first + i * THREADS); if (ADD) w[i] = load(z + first + i * THREADS); }\n"
    "  for (int i = 0; i < UNROLL; i++) if (first + i * THREADS < count) {\n"
    "    if (ADD) { v[i].a += w[i].a; v[i].b += w[i].b; v[i].c += w[i].c; v[i].d += w[i].d; }\n"
    "    store(y + first + i * THREADS, v[i]); }\n"
    "}\n";

/* How x is read and y written. Which is the fastest depends on the size. */
static const char *const hints[][2] = {{"", ".cs"}, {"", ""}, {".L1::no_allocate", ".cs"}};

/* Queues y = x (z NULL) or y = x + z over `bytes` (a multiple of 16). Returns 0, or what failed. */
__attribute__((visibility("default"))) int shim_ceiling(const void *x, const void *z, void *y,
                                                        int64_t bytes, int threads, int unroll,
                                                        int hint, void *stream) {
    static struct {
        int key;
        CUfunction function;
    } made[64];
    const cuda_driver *d;
    const cuda_compiler *c;
    message none = {NULL, 0};
    if (cuda_driver_get(&d, none) || cuda_compiler_get(&c, none))
        return 1;
    int key = ((threads << 8 | unroll) * 4 + hint) * 2 + (z != NULL), i = 0;
    while (i < 63 && made[i].key && made[i].key != key)
        i++;
    if (!made[i].key) {
        char source[4096];
        snprintf(source, sizeof source,
                 "#define THREADS %d\n#define UNROLL %d\n#define ADD %d\n#define LOAD \"%s\"\n"
                 "#define STORE \"%s\"\n%s",
                 threads, unroll, z != NULL, hints[hint][0], hints[hint][1], text);
        const char *options[] = {"--gpu-architecture=sm_90"};
        nvrtcProgram program;
        size_t size = 0;
        CUmodule module;
        if (c->create(&program, source, "ceiling.cu", 0, NULL, NULL) ||
            c->compile(program, 1, options) || c->cubin_size(program, &size))
            return 2;
        char *code = malloc(size);
        if (!code || c->cubin(program, code) || d->module_load(&module, code, 0, NULL, NULL) ||
            d->module_function(&made[i].function, module, "ceiling"))
            return 3;
        made[i].key = key;
        free(code);
        c->destroy(&program);
    }
    long long count = bytes / 16, each = (long long)threads * unroll;
    CUlaunchConfig config = {.grid_x = (unsigned)((count + each - 1) / each),
                             .grid_y = 1,
                             .grid_z = 1,
                             .block_x = (unsigned)threads,
                             .block_y = 1,
                             .block_z = 1,
                             .stream = stream};
    void *arguments[] = {&x, &z, &y, &count};
    return d->launch(&config, made[i].function, arguments, NULL) ? 4 : 0;
}
