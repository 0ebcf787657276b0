#include "cpu/identify.h"
#include "cpu/caches.h"
#include "cpu/tuning.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>

static void read_cpu(cpu_identity *id) {
    unsigned a, b, c, d;
    id->vendor = __builtin_cpu_is("intel") ? VENDOR_INTEL
                 : __builtin_cpu_is("amd") ? VENDOR_AMD
                                           : VENDOR_OTHER;
    if (__get_cpuid(1, &a, &b, &c, &d)) {
        id->family = (a >> 8 & 15) + (a >> 20 & 255);
        id->model = (a >> 4 & 15) + (a >> 16 & 15) * 16;
    }
    id->has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                     __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#elif defined(__aarch64__)
static void read_cpu(cpu_identity *id) {
    id->vendor = VENDOR_ARM;
}
#else
static void read_cpu(cpu_identity *id) {
    id->vendor = VENDOR_OTHER;
}
#endif

cpu_microarchitecture cpu_microarchitecture_of(const cpu_identity *id) {
    enum { FAMILY_ZEN3_ZEN4 = 0x19 };
    switch (id->vendor) {
    case VENDOR_ARM:
        return CPU_NEOVERSE;
    case VENDOR_INTEL:
        return id->has_avx512 ? CPU_INTEL_AVX512 : CPU_INTEL;
    case VENDOR_AMD:
        /* Zen 3 and Zen 4 share a family. One newer than Zen 5 is taken for it until it is timed;
         * a Zen 4 whose hypervisor hides AVX-512, for a Zen 3. */
        if (id->family == FAMILY_ZEN3_ZEN4)
            return id->has_avx512 ? CPU_ZEN4 : CPU_ZEN3;
        return id->has_avx512 ? CPU_ZEN5 : CPU_GENERIC;
    default:
        return id->has_avx512 ? CPU_GENERIC_AVX512 : CPU_GENERIC;
    }
}

static cpu_microarchitecture wanted_or(cpu_microarchitecture found) {
    const char *wanted = getenv("PLANISH_CPU");
    for (int m = 0; wanted && m < CPU_COUNT; m++)
        if (!strcmp(wanted, cpu_tuning_of((cpu_microarchitecture)m)->name))
            return (cpu_microarchitecture)m;
    return found;
}

/* An identity but for its caches in one word, which threads that come here first write alike. */
enum { IS_KNOWN = 1 << 30 };
static unsigned packed(const cpu_identity *id) {
    return IS_KNOWN | (unsigned)id->vendor << 28 | (unsigned)id->microarchitecture << 24 |
           (id->family & 0x1ff) << 12 | (id->model & 0xff) << 4 | id->has_avx512;
}
static cpu_identity unpacked(unsigned word) {
    return (cpu_identity){
        .vendor = (cpu_vendor)(word >> 28 & 3),
        .family = word >> 12 & 0x1ff,
        .model = word >> 4 & 0xff,
        .has_avx512 = word & 1,
        .microarchitecture = (cpu_microarchitecture)(word >> 24 & 15),
    };
}

cpu_identity cpu_identify(void) {
    static _Atomic unsigned known;
    unsigned word = atomic_load_explicit(&known, memory_order_relaxed);
    if (!word) {
        cpu_identity id = {0};
        read_cpu(&id);
        id.microarchitecture = wanted_or(cpu_microarchitecture_of(&id));
        word = packed(&id);
        atomic_store_explicit(&known, word, memory_order_relaxed);
    }
    cpu_identity id = unpacked(word);
    id.first_cache = cpu_first_cache();
    id.shared_cache = cpu_shared_cache();
    return id;
}
