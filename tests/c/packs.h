/*
 * Packs for tests, without a compiler: the keys are real, the code is made up. Made of the
 * library's own objects.
 */
#ifndef PACKS_H
#define PACKS_H

#include <stdbool.h>
#include <stddef.h>

#include "cuda/key.h"

/* A file of one temporary folder, which is the cache's folder, too; removed when the program ends.
 */
const char *packs_path(const char *name);

bool packs_write(const char *path, const void *data, size_t bytes);

/* The whole file, to be freed. */
char *packs_read(const char *path, size_t *bytes);

/* The key of kernel `number` (any) for compute capability 9.0. */
void packs_key(int number, char key[CUDA_KEY_BYTES]);

/* Its made-up code, to be freed. */
unsigned char *packs_code(int number, size_t *bytes);

/* Puts an entry into the cache, and moves all that the cache holds to the end of a pack. */
bool packs_entry(const char *key, const char *compiler, const void *code, size_t bytes);
bool packs_gather(const char *path);

/* A pack of so many kernels. */
bool packs_make(const char *path, int kernels);

#endif
