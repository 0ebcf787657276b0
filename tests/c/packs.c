#include "packs.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda/cache.h"
#include "cuda/pack.h"

static char folder[] = "/tmp/planish-packs-XXXXXX", cache[64];

static void empty(const char *path) {
    DIR *open_folder = opendir(path);
    if (!open_folder)
        return;
    for (struct dirent *e; (e = readdir(open_folder));) {
        char file[512];
        snprintf(file, sizeof file, "%s/%s", path, e->d_name);
        if (e->d_name[0] != '.')
            unlink(file);
    }
    closedir(open_folder);
    rmdir(path);
}

static void remove_folder(void) {
    empty(cache);
    empty(folder);
}

static void make_folder(void) {
    if (*cache)
        return;
    if (!mkdtemp(folder)) {
        perror(folder);
        exit(1);
    }
    snprintf(cache, sizeof cache, "%s/cache", folder);
    setenv("PLANISH_CACHE_DIR", cache, 1);
    atexit(remove_folder);
}

const char *packs_path(const char *name) {
    static char path[256];
    make_folder();
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static bool put(const char *path, const char *mode, const void *data, size_t bytes) {
    FILE *file = fopen(path, mode);
    if (!file)
        return false;
    bool whole = fwrite(data, 1, bytes, file) == bytes;
    return !fclose(file) && whole;
}

bool packs_write(const char *path, const void *data, size_t bytes) {
    return put(path, "wb", data, bytes);
}

char *packs_read(const char *path, size_t *bytes) {
    return cache_file(path, bytes);
}

void packs_key(int number, char key[CUDA_KEY_BYTES]) {
    cuda_spec spec = {.kernel = number % CUDA_KERNEL_COUNT};
    spec.weight_offset = (uint8_t)(100 + number);
    if (!cuda_key(&spec, "sm_90", key, CUDA_KEY_BYTES))
        key[0] = 0;
}

unsigned char *packs_code(int number, size_t *bytes) {
    *bytes = 100 + 37 * (size_t)number;
    unsigned char *code = malloc(*bytes);
    for (size_t i = 0; code && i < *bytes; i++)
        code[i] = (unsigned char)((i + 1) * 2654435761u >> (number % 8));
    return code;
}

bool packs_entry(const char *key, const char *compiler, const void *code, size_t bytes) {
    make_folder();
    return cache_write(key, compiler, code, bytes);
}

bool packs_gather(const char *path) {
    DIR *open_folder = opendir(cache);
    if (!open_folder)
        return false;
    bool whole = access(path, F_OK) == 0 || packs_write(path, PACK_MAGIC, strlen(PACK_MAGIC));
    for (struct dirent *e; whole && (e = readdir(open_folder));) {
        char file[512];
        size_t bytes = 0;
        if (e->d_name[0] == '.')
            continue;
        snprintf(file, sizeof file, "%s/%s", cache, e->d_name);
        char *data = cache_file(file, &bytes);
        whole = data && put(path, "ab", data, bytes) && !unlink(file);
        free(data);
    }
    closedir(open_folder);
    return whole;
}

bool packs_make(const char *path, int kernels) {
    bool whole = true;
    for (int i = 0; whole && i < kernels; i++) {
        char key[CUDA_KEY_BYTES];
        size_t bytes;
        unsigned char *code = packs_code(i, &bytes);
        packs_key(i, key);
        whole = code && packs_entry(key, "13.0", code, bytes);
        free(code);
    }
    return whole && packs_gather(path);
}
