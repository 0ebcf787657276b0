/*
 * The GPU's backend and entry points in a build without CUDA (-Dcuda=disabled): a tensor on a GPU
 * is refused with a sentence before anything is planned for it.
 */
#include "backends.h"

#include <stdio.h>

#include "planish.h"

#define WITHOUT_CUDA "planish was built without CUDA (-Dcuda=disabled)"

static planish_status plan_steps(void *plan, steps *s, const problem *p, problem *norm,
                                 size_t *workspace_bytes, message error) {
    (void)plan, (void)s, (void)p, (void)norm, (void)workspace_bytes;
    return fail(error, PLANISH_ERROR_UNAVAILABLE, WITHOUT_CUDA);
}

planish_status cuda_merge(const merge_args *m, int device, void *stream, message error) {
    (void)m, (void)device, (void)stream;
    return fail(error, PLANISH_ERROR_UNAVAILABLE, WITHOUT_CUDA);
}

/* Nothing else is asked of a backend that plans nothing. */
const backend cuda_backend = {.workspace_alignment = 1, .plan = plan_steps, .merge = cuda_merge};

planish_status planish_pack_load(const char *path, char *text, size_t text_bytes) {
    (void)path;
    return fail((message){text, text_bytes}, PLANISH_ERROR_UNAVAILABLE, WITHOUT_CUDA);
}

int planish_gpu_report(char *text, size_t bytes) {
    return snprintf(text, bytes,
                    "{\"driver\": {\"version\": null, \"problem\": \"%s\"}, \"devices\": [], "
                    "\"nvrtc\": {\"version\": null, \"problem\": \"%s\"}, "
                    "\"packs\": {\"loaded\": []}, \"cache\": null}",
                    WITHOUT_CUDA, WITHOUT_CUDA);
}

int planish_cache_path(char *path, size_t bytes) {
    return snprintf(path, bytes, "%s", "");
}
