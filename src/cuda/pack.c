#include "cuda/pack.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/key.h"

enum { MAGIC_BYTES = sizeof PACK_MAGIC - 1 };

/* Read without a lock: packs are put in front and stay for ever. */
static _Atomic(const pack *) packs;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* for writers */

/* ---- Reading a file -------------------------------------------------------------------------- */

static void free_pack(pack *p) {
    free(p->entries);
    free(p->data);
    free(p);
}

static bool add_entry(pack *p, size_t *room, const cache_entry *entry) {
    if (p->kernels == *room) {
        cache_entry *more = realloc(p->entries, (*room = *room ? 2 * *room : 64) * sizeof *more);
        if (!more)
            return false;
        p->entries = more;
    }
    p->entries[p->kernels++] = *entry;
    return true;
}

/* Every entry that is whole and this library's. Where one is damaged, its size is as well: the next
 * one is found by how entries begin. False: no memory. */
static bool list_entries(pack *p) {
    const char *const end = p->data + p->bytes;
    size_t room = 0, whole;
    for (const char *at = p->data + MAGIC_BYTES;
         (at = memmem(at, (size_t)(end - at), CACHE_MAGIC, CACHE_MAGIC_BYTES)); at += whole) {
        cache_entry entry;
        whole = cache_entry_read(at, (size_t)(end - at), &entry);
        if (!whole || !cuda_key_is_ours(entry.key, entry.key_bytes))
            p->left_out++;
        else if (!add_entry(p, &room, &entry))
            return false;
        if (!whole)
            whole = CACHE_MAGIC_BYTES;
    }
    return true;
}

static planish_status check_pack(pack *p, message error) {
    if (p->bytes < MAGIC_BYTES || memcmp(p->data, PACK_MAGIC, MAGIC_BYTES) != 0)
        return fail(error, PLANISH_ERROR_FILE,
                    "pack %s: found a file that is no pack; wanted one made by `planish pack`",
                    p->path);
    if (!list_entries(p))
        return fail(error, PLANISH_ERROR_OUT_OF_MEMORY, "pack %s: no memory for its list", p->path);
    if (!p->kernels && !p->left_out)
        return fail(error, PLANISH_ERROR_FILE, "pack %s: found no kernel; wanted one or more",
                    p->path);
    if (!p->kernels)
        return fail(error, PLANISH_ERROR_FILE,
                    "pack %s: found %zu kernels, damaged or made by another version of planish; "
                    "wanted kernels of planish %d.%d.%d, by its own `planish pack`",
                    p->path, p->left_out, PLANISH_VERSION_MAJOR, PLANISH_VERSION_MINOR,
                    PLANISH_VERSION_PATCH);
    return PLANISH_OK;
}

static planish_status read_pack(const char *path, pack **out, message error) {
    const size_t path_bytes = strlen(path) + 1;
    pack *p = calloc(1, sizeof *p + path_bytes);
    if (!p)
        return fail(error, PLANISH_ERROR_OUT_OF_MEMORY, "pack %s: no memory", path);
    memcpy(p->path, path, path_bytes);
    planish_status status;
    p->data = cache_file(path, &p->bytes);
    if (p->data)
        status = check_pack(p, error);
    else if (errno == ENOMEM)
        status = fail(error, PLANISH_ERROR_OUT_OF_MEMORY, "pack %s: no memory to read it", path);
    else
        status =
            fail(error, PLANISH_ERROR_FILE, "pack %s: cannot be read: %s", path, strerror(errno));
    if (status)
        free_pack(p);
    else
        *out = p;
    return status;
}

/* ---- The packs of this process --------------------------------------------------------------- */

static bool is_loaded(const pack *p) {
    for (const pack *q = atomic_load_explicit(&packs, memory_order_relaxed); q; q = q->next)
        if (q->bytes == p->bytes && !memcmp(q->data, p->data, p->bytes))
            return true;
    return false;
}

static planish_status load(const char *path, message error) {
    pack *p = NULL;
    planish_status status = read_pack(path, &p, error);
    if (status)
        return status;
    pthread_mutex_lock(&lock);
    const bool again = is_loaded(p);
    if (!again) {
        p->next = atomic_load_explicit(&packs, memory_order_relaxed);
        atomic_store_explicit(&packs, p, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    if (again)
        free_pack(p);
    return PLANISH_OK;
}

planish_status planish_pack_load(const char *path, char *text, size_t text_bytes) {
    const message error = {text, text_bytes};
    if (!path)
        return fail(error, PLANISH_ERROR_NULL_POINTER, "path is NULL; wanted a pack's path");
    return load(path, error);
}

static char named_problem[512];

static void load_named(void) {
    const char *path = getenv("PLANISH_PACK");
    if (path && *path)
        load(path, (message){named_problem, sizeof named_problem});
}

const pack *pack_list(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load_named);
    return atomic_load_explicit(&packs, memory_order_acquire);
}

const char *pack_problem(void) {
    pack_list();
    return *named_problem ? named_problem : NULL;
}

void *pack_find(const char *key, size_t *bytes) {
    for (const pack *p = pack_list(); p; p = p->next)
        for (size_t i = 0; i < p->kernels; i++)
            if (cache_entry_is(&p->entries[i], key))
                return cache_entry_code(&p->entries[i], bytes);
    return NULL;
}
