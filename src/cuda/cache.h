/*
 * Compiled kernels on disk. An entry is one file named by a hash of its key and holding the whole
 * key, so that a collision or a damaged file reads as absent. Files appear by rename: a reader sees
 * a whole entry or none, and two processes that write the same one do no harm. Every failure (no
 * folder, read-only, full) only means that nothing is kept.
 *
 * The folder is PLANISH_CACHE_DIR, else XDG_CACHE_HOME/planish, else HOME/.cache/planish; an empty
 * PLANISH_CACHE_DIR means none. It is made with mode 0700 and used only if it is this user's and
 * nobody else may write there. Past 64 MiB the oldest entries go.
 *
 * A file: the 8 bytes "planish1"; the sizes of key and code and a check sum of both, 64 bits each
 * in the machine's order; the key, which is text; the code. `planish cache list` reads the keys.
 */
#ifndef PLANISH_CUDA_CACHE_H
#define PLANISH_CUDA_CACHE_H

#include <stddef.h>
#include <stdint.h>

/* A hash that is the same on every machine. */
uint64_t cache_hash(const void *data, size_t bytes, uint64_t seed);

/* The entry's code, to be freed by the caller; NULL if there is none. */
void *cache_read(const char *key, size_t *bytes);

/* Keeps an entry if it can. */
void cache_write(const char *key, const void *code, size_t bytes);

/* Writes the folder's path; 0 if there is none to use. */
int cache_folder(char *path, size_t bytes);

#endif
