#include "cuda/common/merge.h"

#include <string.h>

static unsigned merge_threads(const cuda_spec *spec) {
    (void)spec;
    return MERGE_THREADS;
}

const cuda_family merge_family = {.threads = merge_threads};

cuda_spec cuda_merge_spec(void) {
    cuda_spec spec;
    memset(&spec, 0, sizeof spec); /* comparable as bytes */
    spec.kernel = CUDA_MERGE;
    spec.cluster = spec.cooperating_blocks = 1;
    spec.real_double = 1;
    memset(spec.type, DTYPE_NONE, sizeof spec.type);
    memset(spec.access, 1, sizeof spec.access);
    return spec;
}
