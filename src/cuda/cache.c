#include "cuda/cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LIMIT_BYTES = 64 << 20, LONGEST_KEY = 1 << 16, PATH_BYTES = 4096 };

/* What a file begins with; key and code follow. */
typedef struct header {
    char magic[CACHE_MAGIC_BYTES];
    uint64_t key_bytes, code_bytes, check;
} header;

uint64_t cache_hash(const void *data, size_t bytes, uint64_t seed) {
    const unsigned char *p = data;
    uint64_t h = seed ^ 0xcbf29ce484222325u;
    for (size_t i = 0; i < bytes; i++)
        h = (h ^ p[i]) * 0x100000001b3u;
    /* FNV leaves the low bits of short keys alike. */
    h ^= h >> 32;
    h *= 0xd6e8feb86659fd93u;
    return h ^ h >> 32;
}

bool cache_folder(char *path, size_t bytes) {
    const char *own = getenv("PLANISH_CACHE_DIR"), *base = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    int length;
    if (own) {
        length = snprintf(path, bytes, "%s", own);
    } else if (base && *base) {
        length = snprintf(path, bytes, "%s/planish", base);
    } else if (home && *home) {
        length = snprintf(path, bytes, "%s/.cache", home);
        if (length > 0 && (size_t)length < bytes)
            mkdir(path, 0700);
        length = snprintf(path, bytes, "%s/.cache/planish", home);
    } else {
        return false;
    }
    if (length <= 0 || (size_t)length >= bytes)
        return false;
    mkdir(path, 0700);
    struct stat at;
    /* Code from a folder that others can write to would be code from others. */
    return lstat(path, &at) == 0 && S_ISDIR(at.st_mode) && at.st_uid == geteuid() &&
           !(at.st_mode & (S_IWGRP | S_IWOTH));
}

/* ---- Entries --------------------------------------------------------------------------------- */

static const char compiler_line[] = "nvrtc ";

/* How much of a key is in front of the compiler's line; 0 if that is not its last. */
static size_t without_compiler(const char *key, size_t bytes) {
    if (bytes < 2 || key[bytes - 1] != '\n')
        return 0;
    const char *before = memrchr(key, '\n', bytes - 1);
    const size_t line = before ? (size_t)(before + 1 - key) : 0;
    const size_t word = sizeof compiler_line - 1;
    return bytes - line > word && !memcmp(key + line, compiler_line, word) ? line : 0;
}

size_t cache_entry_read(const char *data, size_t bytes, cache_entry *entry) {
    header h;
    if (bytes < sizeof h)
        return 0;
    memcpy(&h, data, sizeof h);
    if (memcmp(h.magic, CACHE_MAGIC, sizeof h.magic) || h.key_bytes > LONGEST_KEY ||
        h.code_bytes > LIMIT_BYTES || h.key_bytes + h.code_bytes > bytes - sizeof h ||
        h.check != cache_hash(data + sizeof h, h.key_bytes + h.code_bytes, 1))
        return 0;
    entry->key = data + sizeof h;
    entry->key_bytes = without_compiler(entry->key, h.key_bytes);
    entry->code = entry->key + h.key_bytes;
    entry->code_bytes = h.code_bytes;
    return entry->key_bytes ? sizeof h + h.key_bytes + h.code_bytes : 0;
}

bool cache_entry_is(const cache_entry *entry, const char *key) {
    return entry->key_bytes == strlen(key) && !memcmp(entry->key, key, entry->key_bytes);
}

void *cache_entry_code(const cache_entry *entry, size_t *bytes) {
    void *code = malloc(entry->code_bytes + 1);
    if (code) {
        memcpy(code, entry->code, entry->code_bytes);
        *bytes = entry->code_bytes;
    }
    return code;
}

/* As many bytes as there are, at most `most`. */
static size_t read_all(int fd, char *data, size_t most) {
    size_t length = 0;
    while (length < most) {
        ssize_t n = read(fd, data + length, most - length);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        length += (size_t)n;
    }
    return length;
}

char *cache_file(const char *path, size_t *bytes) {
    /* Without waiting: a pipe has nobody at its other end. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return NULL;
    struct stat at;
    char *data = NULL;
    int problem = 0;
    if (fstat(fd, &at))
        problem = errno;
    else if (!S_ISREG(at.st_mode))
        problem = S_ISDIR(at.st_mode) ? EISDIR : EINVAL;
    else if (!(data = malloc((size_t)at.st_size + 1)))
        problem = ENOMEM;
    else
        *bytes = read_all(fd, data, (size_t)at.st_size);
    close(fd);
    errno = problem;
    return data;
}

/* ---- The folder ------------------------------------------------------------------------------ */

/* Files of one key begin alike, whatever their compiler. */
static void entry_name(const char *key, char *name, size_t bytes) {
    const size_t length = strlen(key);
    snprintf(name, bytes, "%016llx%016llx-", (unsigned long long)cache_hash(key, length, 0),
             (unsigned long long)cache_hash(key, length, 0x9e3779b97f4a7c15u));
}

static bool entry_path(const char *folder, const char *key, const char *compiler, char *path,
                       size_t bytes) {
    char name[40];
    entry_name(key, name, sizeof name);
    int n = snprintf(path, bytes, "%s/%s%s.kernel", folder, name, compiler);
    return n > 0 && (size_t)n < bytes;
}

/* The code in one file, if it is of this key. */
static void *read_entry(const char *path, const char *key, size_t *bytes) {
    size_t file_bytes, whole = 0;
    char *file = cache_file(path, &file_bytes);
    cache_entry entry;
    void *code = NULL;
    if (file)
        whole = cache_entry_read(file, file_bytes, &entry);
    if (whole && whole == file_bytes && cache_entry_is(&entry, key))
        code = cache_entry_code(&entry, bytes);
    free(file);
    return code;
}

/* The newest compiler's code among the files of this key. */
static void *read_any(const char *folder, const char *key, size_t *bytes) {
    DIR *open_folder = opendir(folder);
    if (!open_folder)
        return NULL;
    char name[40], best[256] = "", path[PATH_BYTES + 300];
    entry_name(key, name, sizeof name);
    void *code = NULL;
    for (struct dirent *e; (e = readdir(open_folder));) {
        if (strncmp(e->d_name, name, strlen(name)) != 0 || strverscmp(e->d_name, best) <= 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        size_t length;
        void *found = read_entry(path, key, &length);
        if (!found)
            continue;
        free(code);
        code = found;
        *bytes = length;
        snprintf(best, sizeof best, "%s", e->d_name);
    }
    closedir(open_folder);
    return code;
}

void *cache_read(const char *key, const char *compiler, size_t *bytes) {
    char folder[PATH_BYTES], path[PATH_BYTES];
    if (!cache_folder(folder, sizeof folder))
        return NULL;
    if (!compiler)
        return read_any(folder, key, bytes);
    return entry_path(folder, key, compiler, path, sizeof path) ? read_entry(path, key, bytes)
                                                                : NULL;
}

typedef struct aged {
    struct timespec when;
    off_t bytes;
    char name[64];
} aged;

static int older(const void *a, const void *b) {
    const aged *x = a, *y = b;
    if (x->when.tv_sec != y->when.tv_sec)
        return x->when.tv_sec < y->when.tv_sec ? -1 : 1;
    return x->when.tv_nsec < y->when.tv_nsec ? -1 : x->when.tv_nsec > y->when.tv_nsec;
}

/* Removes the oldest entries until what is left is within the limit. */
static void trim(const char *folder) {
    DIR *open_folder = opendir(folder);
    if (!open_folder)
        return;
    aged *list = NULL;
    size_t count = 0, room = 0;
    off_t total = 0;
    for (struct dirent *e; (e = readdir(open_folder));) {
        char path[PATH_BYTES + 300];
        struct stat at;
        size_t length = strlen(e->d_name);
        if (length < 7 || length >= sizeof list->name || strcmp(e->d_name + length - 7, ".kernel"))
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (lstat(path, &at))
            continue;
        if (count == room) {
            aged *more = realloc(list, (room = room ? 2 * room : 256) * sizeof *list);
            if (!more)
                break;
            list = more;
        }
        list[count].when = at.st_mtim;
        list[count].bytes = at.st_size;
        memcpy(list[count++].name, e->d_name, length + 1);
        total += at.st_size;
    }
    closedir(open_folder);
    if (total > LIMIT_BYTES) {
        qsort(list, count, sizeof *list, older);
        for (size_t i = 0; i < count && total > LIMIT_BYTES; i++) {
            char path[PATH_BYTES + 300];
            snprintf(path, sizeof path, "%s/%s", folder, list[i].name);
            if (!unlink(path))
                total -= list[i].bytes;
        }
    }
    free(list);
}

/* Header, key with its compiler's line, and code, to be freed. */
static char *make_entry(const char *key, const char *compiler, const void *code, size_t bytes,
                        size_t *entry_bytes) {
    char line[64];
    const size_t known = strlen(key);
    const int line_bytes = snprintf(line, sizeof line, "%s%s\n", compiler_line, compiler);
    header h = {.key_bytes = known + (size_t)line_bytes, .code_bytes = bytes};
    memcpy(h.magic, CACHE_MAGIC, sizeof h.magic);
    *entry_bytes = sizeof h + h.key_bytes + bytes;
    char *entry = malloc(*entry_bytes);
    if (!entry)
        return NULL;
    char *body = entry + sizeof h;
    memcpy(body, key, known);
    memcpy(body + known, line, (size_t)line_bytes);
    memcpy(body + h.key_bytes, code, bytes);
    h.check = cache_hash(body, h.key_bytes + bytes, 1);
    memcpy(entry, &h, sizeof h);
    return entry;
}

/* A new file in the folder, renamed to `path` once it is whole. */
static bool write_file(const char *folder, const char *path, const char *data, size_t bytes) {
    char temporary[PATH_BYTES + 16];
    snprintf(temporary, sizeof temporary, "%s/.new-XXXXXX", folder);
    int fd = mkstemp(temporary); /* mode 0600 */
    if (fd < 0)
        return false;
    FILE *file = fdopen(fd, "wb");
    bool whole = file && fwrite(data, 1, bytes, file) == bytes;
    if (file ? fclose(file) : close(fd))
        whole = false;
    if (whole && !rename(temporary, path))
        return true;
    unlink(temporary);
    return false;
}

bool cache_write(const char *key, const char *compiler, const void *code, size_t bytes) {
    char folder[PATH_BYTES], path[PATH_BYTES];
    if (!cache_folder(folder, sizeof folder) ||
        !entry_path(folder, key, compiler, path, sizeof path))
        return false;
    size_t entry_bytes;
    char *entry = make_entry(key, compiler, code, bytes, &entry_bytes);
    bool kept = entry && write_file(folder, path, entry, entry_bytes);
    free(entry);
    if (kept)
        trim(folder);
    return kept;
}
