#include "cuda/ahead.h"

#include "buffers.h"
#include "cuda/backend.h"
#include "cuda/cache.h"
#include "cuda/common/merge.h"
#include "cuda/jit.h"
#include "cuda/key.h"
#include "sized.h"

static planish_status limits_of(const planish_gpu *gpu, cuda_limits *limits, message error) {
    if (!gpu)
        return fail(error, PLANISH_ERROR_NULL_POINTER, "gpu is NULL; wanted a planish_gpu");
    if (gpu->arch < 80 || gpu->multiprocessors < 1 || gpu->shared_per_block < 48 << 10 ||
        gpu->max_cluster < 1)
        return fail(error, PLANISH_ERROR_ARGUMENT,
                    "gpu: found compute capability %d.%d, %d multiprocessors, %d bytes of shared "
                    "memory for a block and clusters of %d; wanted at least 8.0, 1, 49152 and 1",
                    gpu->arch / 10, gpu->arch % 10, gpu->multiprocessors, gpu->shared_per_block,
                    gpu->max_cluster);
    *limits = (cuda_limits){.arch = gpu->arch,
                            .multiprocessors = gpu->multiprocessors,
                            .shared_per_block = gpu->shared_per_block,
                            .max_cluster = gpu->max_cluster,
                            .cooperative = gpu->cooperative};
    return PLANISH_OK;
}

planish_status planish_pack_prepare(const planish_gpu *gpu, const planish_norm *op,
                                    planish_pass pass, const planish_tensors *tensors, char *text,
                                    size_t text_bytes) {
    const message error = {text, text_bytes};
    cuda_limits limits;
    problem p, norm;
    steps steps;
    cuda_plan plan;
    planish_norm own_op;
    planish_tensors own_tensors;
    planish_status status = limits_of(gpu, &limits, error);
    if (!status)
        status = read_norm(&own_op, op, error);
    if (!status)
        status = read_tensors(&own_tensors, tensors, error);
    if (!status)
        status = problem_make(&p, &own_op, pass, &own_tensors, error);
    if (status)
        return status;
    cuda_plan_make(&plan, &steps, &p, &norm, &limits);
    void *buffers[ROLE_COUNT];
    buffers_of(&own_tensors, buffers);
    status = cuda_plan_prepare(&plan, buffers, error);
    if (status || (pass != PLANISH_STATISTICS && pass != PLANISH_BACKWARD_STATISTICS))
        return status;
    const cuda_spec merge = cuda_merge_spec(); /* what puts the statistics of parts together */
    return jit_prepare(&merge, limits.arch, error);
}

int planish_pack_takes(const void *file, size_t bytes) {
    cache_entry entry;
    const size_t whole = file ? cache_entry_read(file, bytes, &entry) : 0;
    return whole && whole == bytes && cuda_key_is_ours(entry.key, entry.key_bytes);
}
