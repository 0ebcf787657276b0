/* Shapes of launches. */
#include "cuda/geometry.h"

#include "cuda/families.h"

unsigned cuda_spec_threads(const cuda_spec *spec) {
    return cuda_kernel_of(spec)->family->threads(spec);
}

size_t cuda_spec_shared_bytes(const cuda_spec *spec) {
    const cuda_family *family = cuda_kernel_of(spec)->family;
    return family->shared_bytes ? family->shared_bytes(spec) : 0;
}

int cuda_spec_is_cooperative(const cuda_spec *spec) {
    return spec->cooperating_blocks > 1;
}

int cuda_spec_cluster(const cuda_spec *spec) {
    return spec->cluster;
}
