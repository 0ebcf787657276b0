/*
 * The kernel that puts together what parts of rows sent (kernels/common/merge.cu). It belongs to no
 * plan: nothing of it depends on a problem. Pure.
 */
#ifndef PLANISH_CUDA_MERGE_H
#define PLANISH_CUDA_MERGE_H

#include "cuda/families.h"

extern const cuda_family merge_family;

/* Its only specialisation. */
cuda_spec cuda_merge_spec(void);

#endif
