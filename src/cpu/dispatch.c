#include "cpu/dispatch.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

extern const cpu_kernels cpu_kernels_portable;
#if defined(PLANISH_HAVE_AVX2)
extern const cpu_kernels cpu_kernels_avx2;
/* clang 14's __builtin_cpu_supports does not know the name. */
static bool has_f16c(void) {
    unsigned a, b, c = 0, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
static bool runs_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}
#endif
#if defined(PLANISH_HAVE_AVX512)
extern const cpu_kernels cpu_kernels_avx512;
static bool runs_avx512(void) {
    return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif
#if defined(PLANISH_HAVE_AVX512BF16)
extern const cpu_kernels cpu_kernels_avx512bf16;
static bool runs_avx512bf16(void) {
    return runs_avx512() && __builtin_cpu_supports("avx512bf16");
}
#endif
#if defined(PLANISH_HAVE_NEON)
extern const cpu_kernels cpu_kernels_neon;
#endif
static bool runs_always(void) {
    return true;
}

static const struct {
    const cpu_kernels *kernels;
    bool (*runs)(void);
} tiers[] = {
    {&cpu_kernels_portable, runs_always},
#if defined(PLANISH_HAVE_AVX2)
    {&cpu_kernels_avx2, runs_avx2},
#endif
#if defined(PLANISH_HAVE_AVX512)
    {&cpu_kernels_avx512, runs_avx512},
#endif
#if defined(PLANISH_HAVE_AVX512BF16)
    {&cpu_kernels_avx512bf16, runs_avx512bf16},
#endif
#if defined(PLANISH_HAVE_NEON)
    {&cpu_kernels_neon, runs_always},
#endif
};
enum { TIERS = sizeof tiers / sizeof *tiers };

bool cpu_kernels_tier(int i, const cpu_kernels **kernels) {
    if (i < 0 || i >= TIERS)
        return false;
    *kernels = tiers[i].runs() ? tiers[i].kernels : NULL;
    return true;
}

static int cap(void) {
    const char *wanted = getenv("PLANISH_CPU_TIER");
    for (int i = 0; wanted && i < TIERS; i++)
        if (!strcmp(wanted, tiers[i].kernels->tier))
            return i;
    return TIERS - 1;
}

const cpu_kernels *cpu_kernels_chosen(void) {
    /* Two threads that come here first choose the same. */
    static _Atomic(const cpu_kernels *) chosen;
    const cpu_kernels *kernels = atomic_load_explicit(&chosen, memory_order_acquire);
    if (kernels)
        return kernels;
    for (int i = cap(); !kernels; i--)
        if (tiers[i].runs())
            kernels = tiers[i].kernels;
    atomic_store_explicit(&chosen, kernels, memory_order_release);
    return kernels;
}

const char *planish_cpu_tier(void) {
    return cpu_kernels_chosen()->tier;
}
