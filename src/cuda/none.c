/*
 * The GPU's entry points in a build without CUDA (-Dcuda=disabled): a tensor on a GPU is refused
 * with a sentence before anything is planned for it.
 */
#include "cuda/backend.h"

#include <stdio.h>
#include <string.h>

#include "planish.h"

#define WITHOUT_CUDA "planish was built without CUDA (-Dcuda=disabled)"

planish_status cuda_device_limits(int device, cuda_limits *limits, message error) {
    (void)device;
    memset(limits, 0, sizeof *limits);
    return fail(error, PLANISH_ERROR_UNAVAILABLE, WITHOUT_CUDA);
}

/* Nothing is planned for a device without limits. */
void cuda_plan_make(cuda_plan *plan, const problem *p, const cuda_limits *limits) {
    (void)p;
    memset(plan, 0, sizeof *plan);
    plan->limits = *limits;
}

planish_status cuda_plan_run(const cuda_plan *plan, void *const buffers[ROLE_COUNT], void *stream,
                             void *workspace, message error) {
    (void)plan, (void)buffers, (void)stream, (void)workspace;
    return fail(error, PLANISH_ERROR_UNAVAILABLE, WITHOUT_CUDA);
}

planish_status cuda_plan_run_pair(const cuda_plan *const plans[2], void *const *const buffers[2],
                                  void *stream, void *const workspace[2], message error) {
    (void)buffers, (void)workspace;
    return cuda_plan_run(plans[0], NULL, stream, NULL, error);
}

int cuda_plan_is_general(const cuda_plan *plan) {
    (void)plan;
    return 0;
}

int cuda_plan_describe(const cuda_plan *plan, char *text, size_t bytes) {
    (void)plan;
    return snprintf(text, bytes, "none");
}

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
