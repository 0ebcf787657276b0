#include "pages.h"

#if defined(__linux__)

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Smaller ones are mostly kept by malloc, and have few huge pages. */
enum { LARGE_BYTES = 4 << 20 };

static bool wanted(void) {
    static atomic_int known; /* 1: no, 2: yes */
    int found = atomic_load_explicit(&known, memory_order_relaxed);
    if (!found) {
        const char *set = getenv("PLANISH_HUGE_PAGES");
        found = set && !strcmp(set, "0") ? 1 : 2;
        atomic_store_explicit(&known, found, memory_order_relaxed);
    }
    return found == 2;
}

void ask_for_huge_pages(void *data, size_t bytes) {
    if (bytes < LARGE_BYTES || !wanted())
        return;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t before = (uintptr_t)data % page;
    char *const first = (char *)data - before;
    unsigned char resident = 1;
    /* Memory that malloc kept has its pages, and is left as it is. */
    if (mincore(first + bytes / 2 / page * page, page, &resident) || resident & 1)
        return;
    (void)madvise(first, before + bytes, MADV_HUGEPAGE); /* advice: it may be refused */
}

#else
void ask_for_huge_pages(void *data, size_t bytes) {
    (void)data, (void)bytes;
}
#endif
