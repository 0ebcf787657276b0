/*
 * What this machine's CPU is: its vendor, family and model, the microarchitecture that the library
 * tunes for, and its caches. What follows from that is in cpu/tuning.c; which instructions it has,
 * in cpu/dispatch.c.
 */
#ifndef PLANISH_CPU_IDENTIFY_H
#define PLANISH_CPU_IDENTIFY_H

#include <stdbool.h>
#include <stddef.h>

typedef enum cpu_vendor { VENDOR_OTHER, VENDOR_INTEL, VENDOR_AMD, VENDOR_ARM } cpu_vendor;

/* Each has a row of its own in cpu/tuning.c. */
typedef enum cpu_microarchitecture {
    CPU_GENERIC,        /* x86 of other makers, AMD's before Zen 3, anything else */
    CPU_GENERIC_AVX512, /* the same with AVX-512 */
    CPU_INTEL,          /* Intel's without AVX-512, */
    CPU_INTEL_AVX512,   /* and with it */
    CPU_ZEN3,
    CPU_ZEN4,
    CPU_ZEN5,
    CPU_NEOVERSE, /* 64-bit Arm */
    CPU_COUNT
} cpu_microarchitecture;

typedef struct cpu_identity {
    cpu_vendor vendor;
    unsigned family, model; /* of x86, as cpuid has them; else 0 */
    bool has_avx512;        /* F, BW, VL and DQ, as the AVX-512 kernels need */
    cpu_microarchitecture microarchitecture;
    size_t first_cache, shared_cache; /* bytes (cpu/caches.h); 0: not known */
} cpu_identity;

/* The microarchitecture of such a CPU: a pure function of vendor, family and has_avx512. */
cpu_microarchitecture cpu_microarchitecture_of(const cpu_identity *id);

/* This machine's. Found once, for cpuid takes longer than a small norm under a hypervisor. The
 * environment's PLANISH_CPU, the name of a row of cpu/tuning.c, stands for the microarchitecture
 * that would be found. */
cpu_identity cpu_identify(void);

static inline bool cpu_is_intel(cpu_microarchitecture m) {
    return m == CPU_INTEL || m == CPU_INTEL_AVX512;
}

#endif
