/*
 * Packs: files of kernels compiled ahead of time, for machines without a compiler. A pack is the 8
 * bytes "planpack" and then entries as cache.h has them, made by `planish pack`. It is read whole,
 * not mapped, and checked once: a file that is overwritten later changes nothing here.
 *
 * PLANISH_PACK names one to load at the first look for a kernel; planish_pack_load adds others. A
 * pack that is loaded is found without a lock and stays for the life of the process.
 */
#ifndef PLANISH_CUDA_PACK_H
#define PLANISH_CUDA_PACK_H

#include "cuda/cache.h"
#include "status.h"

#define PACK_MAGIC "planpack"

typedef struct pack {
    const struct pack *next;
    char *data; /* the whole file */
    size_t bytes;
    cache_entry *entries;
    size_t kernels;  /* how many of them */
    size_t left_out; /* damaged, or of other kernel texts */
    char path[];
} pack;

/* The code with this key, whatever compiler made it, to be freed by the caller; NULL if there is
 * none. */
void *pack_find(const char *key, size_t *bytes);

/* The pack loaded last; the others follow it. */
const pack *pack_list(void);

/* Why the pack that PLANISH_PACK names was not loaded; NULL if it was, or if it names none. */
const char *pack_problem(void);

#endif
