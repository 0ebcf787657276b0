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
 * A file is one entry: the 8 bytes "planish1"; the sizes of key and code and a check sum of both,
 * 64 bits each in the machine's order; the key, which is text; the code. The key's last line names
 * the compiler ("nvrtc 13.0"); what is in front of it is key.h's. A pack (pack.h) holds the same
 * entries, and `planish cache list` reads the keys.
 */
#ifndef PLANISH_CUDA_CACHE_H
#define PLANISH_CUDA_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A hash that is the same on every machine. */
uint64_t cache_hash(const void *data, size_t bytes, uint64_t seed);

/* The code of the entry with this key, to be freed by the caller; NULL if there is none.
 * `compiler` is the version it was made by, such as "13.0"; NULL: any, the newest there is. */
void *cache_read(const char *key, const char *compiler, size_t *bytes);

/* Keeps an entry if it can; tells whether. */
bool cache_write(const char *key, const char *compiler, const void *code, size_t bytes);

/* Writes the folder's path; false if there is none to use. */
bool cache_folder(char *path, size_t bytes);

/* ---- Entries, wherever they are -------------------------------------------------------------- */

#define CACHE_MAGIC "planish1"
enum { CACHE_MAGIC_BYTES = 8 };

typedef struct cache_entry {
    const char *key, *code;
    size_t key_bytes, code_bytes; /* key_bytes: without the compiler's line */
} cache_entry;

/* The whole and undamaged entry that `data` begins with; returns its size, 0 if there is none. */
size_t cache_entry_read(const char *data, size_t bytes, cache_entry *entry);

/* Whether an entry has this key, whatever its compiler. */
bool cache_entry_is(const cache_entry *entry, const char *key);

/* The entry's code, to be freed by the caller; NULL: no memory. */
void *cache_entry_code(const cache_entry *entry, size_t *bytes);

/* What a regular file holds, to be freed by the caller; NULL: errno says why. */
char *cache_file(const char *path, size_t *bytes);

#endif
