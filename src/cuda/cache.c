#include "cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LIMIT_BYTES = 64 << 20, PATH_BYTES = 4096 };

/* What a file begins with; key and code follow. */
typedef struct header {
    char magic[8];
    uint64_t key_bytes, code_bytes, check;
} header;

static const char magic[8] = {'p', 'l', 'a', 'n', 'i', 's', 'h', '1'};

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

int cache_folder(char *path, size_t bytes) {
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
        return 0;
    }
    if (length <= 0 || (size_t)length >= bytes)
        return 0;
    mkdir(path, 0700);
    struct stat at;
    /* Code from a folder that others can write to would be code from others. */
    return lstat(path, &at) == 0 && S_ISDIR(at.st_mode) && at.st_uid == geteuid() &&
           !(at.st_mode & (S_IWGRP | S_IWOTH));
}

static int entry_path(const char *key, char *path, size_t bytes) {
    char folder[PATH_BYTES];
    size_t length = strlen(key);
    if (!cache_folder(folder, sizeof folder))
        return 0;
    int n = snprintf(path, bytes, "%s/%016llx%016llx.kernel", folder,
                     (unsigned long long)cache_hash(key, length, 0),
                     (unsigned long long)cache_hash(key, length, 0x9e3779b97f4a7c15u));
    return n > 0 && (size_t)n < bytes;
}

void *cache_read(const char *key, size_t *bytes) {
    char path[PATH_BYTES];
    if (!entry_path(key, path, sizeof path))
        return NULL;
    FILE *file = fopen(path, "rb");
    if (!file)
        return NULL;
    header h;
    size_t key_bytes = strlen(key);
    char *body = NULL;
    void *code = NULL;
    if (fread(&h, sizeof h, 1, file) == 1 && !memcmp(h.magic, magic, sizeof magic) &&
        h.key_bytes == key_bytes && h.code_bytes <= LIMIT_BYTES &&
        (body = malloc(key_bytes + h.code_bytes + 1)) &&
        fread(body, 1, key_bytes + h.code_bytes + 1, file) == key_bytes + h.code_bytes &&
        h.check == cache_hash(body, key_bytes + h.code_bytes, 1) && !memcmp(body, key, key_bytes) &&
        (code = malloc(h.code_bytes ? h.code_bytes : 1))) {
        memcpy(code, body + key_bytes, h.code_bytes);
        *bytes = h.code_bytes;
    }
    free(body);
    fclose(file);
    return code;
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

void cache_write(const char *key, const void *code, size_t bytes) {
    char folder[PATH_BYTES], path[PATH_BYTES], temporary[PATH_BYTES + 16];
    if (!cache_folder(folder, sizeof folder) || !entry_path(key, path, sizeof path))
        return;
    snprintf(temporary, sizeof temporary, "%s/.new-XXXXXX", folder);
    int fd = mkstemp(temporary); /* mode 0600 */
    if (fd < 0)
        return;
    FILE *file = fdopen(fd, "wb");
    if (!file) {
        close(fd);
        unlink(temporary);
        return;
    }
    size_t key_bytes = strlen(key);
    char *body = malloc(key_bytes + bytes + 1);
    header h = {.key_bytes = key_bytes, .code_bytes = bytes};
    memcpy(h.magic, magic, sizeof magic);
    int whole = 0;
    if (body) {
        memcpy(body, key, key_bytes);
        memcpy(body + key_bytes, code, bytes);
        h.check = cache_hash(body, key_bytes + bytes, 1);
        whole = fwrite(&h, sizeof h, 1, file) == 1 &&
                fwrite(body, 1, key_bytes + bytes, file) == key_bytes + bytes;
    }
    free(body);
    if (fclose(file))
        whole = 0;
    if (!whole || rename(temporary, path))
        unlink(temporary);
    else
        trim(folder);
}
