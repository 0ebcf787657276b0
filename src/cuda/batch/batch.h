/*
 * Plans and launches of norms whose rows lie spread over all of memory, the kept axis between two
 * reduced ones, as a batch norm's channels do (kernels/batch). Pure.
 */
#ifndef PLANISH_CUDA_BATCH_H
#define PLANISH_CUDA_BATCH_H

#include "cuda/families.h"

extern const cuda_family batch_family;

#endif
