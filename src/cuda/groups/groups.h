/*
 * Plans and launches for norms over groups of channels: the forward with dense pixels is one of
 * rows (kernels/forward.cu), the rest are kernels/groups.cu. Pure.
 */
#ifndef PLANISH_CUDA_GROUPS_H
#define PLANISH_CUDA_GROUPS_H

#include "cuda/families.h"

extern const cuda_family groups_family;

#endif
