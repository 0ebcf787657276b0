#include "cpu/caches.h"

#include <stdatomic.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>

/* By cpuid, which has one cache's bytes: sysconf has those of all third-level caches of a package
 * of AMD's together. 0 where it does not tell. */
static size_t described(unsigned level) {
    enum { NONE = 0, CODE = 2 }; /* kinds of cache */
    const unsigned leaf = __builtin_cpu_is("amd") ? 0x8000001du : 4;
    unsigned a, b, c, d;
    for (unsigned i = 0; __get_cpuid_count(leaf, i, &a, &b, &c, &d) && (a & 31) != NONE; i++) {
        const size_t ways = (b >> 22) + 1, parts = (b >> 12 & 1023) + 1, line = (b & 4095) + 1;
        if ((a & 31) != CODE && (a >> 5 & 7) == level)
            return ways * parts * line * ((size_t)c + 1);
    }
    return 0;
}
#else
static size_t described(unsigned level) {
    (void)level;
    return 0;
}
#endif

/* What the system says where cpuid does not. */
static size_t configured(unsigned level) {
#if defined(_SC_LEVEL1_DCACHE_SIZE) && defined(_SC_LEVEL3_CACHE_SIZE)
    const long bytes = sysconf(level == 1 ? _SC_LEVEL1_DCACHE_SIZE : _SC_LEVEL3_CACHE_SIZE);
    return bytes > 0 ? (size_t)bytes : 0;
#else
    (void)level;
    return 0;
#endif
}

/* `known` is 1 more than the bytes, 0 before. */
static size_t cache_bytes(unsigned level, _Atomic size_t *known) {
    size_t found = atomic_load_explicit(known, memory_order_relaxed);
    if (!found) {
        const size_t bytes = described(level);
        found = 1 + (bytes ? bytes : configured(level));
        atomic_store_explicit(known, found, memory_order_relaxed);
    }
    return found - 1;
}

size_t cpu_first_cache(void) {
    static _Atomic size_t known;
    return cache_bytes(1, &known);
}

size_t cpu_shared_cache(void) {
    static _Atomic size_t known;
    return cache_bytes(3, &known);
}
