/*
 * What the command `planish pack` needs of the library; not part of the public API.
 */
#ifndef PLANISH_CUDA_AHEAD_H
#define PLANISH_CUDA_AHEAD_H

#include "planish.h"

/* What planning asks of a GPU, for one that is not there; the fields of cuda_limits. */
typedef struct planish_gpu {
    int32_t arch; /* compute capability, 90 for 9.0 */
    int32_t multiprocessors, shared_per_block, max_cluster, cooperative;
} planish_gpu;

/*
 * Compiles into the cache folder what planish_norm_run of these tensors needs on such a GPU,
 * without one; of statistics, also what puts those of several parts together. Of the data pointers
 * only the alignment counts; the tensors' device is kDLCUDA. Errors: as planish_norm_run; ARGUMENT:
 * no such GPU; UNAVAILABLE: no NVRTC, or one that does not know the architecture; FILE: what was
 * compiled could not be kept.
 */
PLANISH_API planish_status planish_pack_prepare(const planish_gpu *gpu, const planish_norm *op,
                                                planish_pass pass, const planish_tensors *tensors,
                                                char *message, size_t message_bytes);

/* Whether `file`, the contents of a file of the cache folder, belongs into a pack: whole, machine
 * code and not PTX, and of this library's kernel texts. */
PLANISH_API int planish_pack_takes(const void *file, size_t bytes);

#endif
