/*
 * Shapes of launches: what follows from a specialisation alone, whatever its kernel. Pure.
 */
#ifndef PLANISH_CUDA_GEOMETRY_H
#define PLANISH_CUDA_GEOMETRY_H

#include "cuda/spec.h"

/* Threads of a block. */
unsigned cuda_spec_threads(const cuda_spec *spec);

/* Dynamic shared memory of a block. */
size_t cuda_spec_shared_bytes(const cuda_spec *spec);

/* Whether groups of blocks share rows: a cooperative launch, of the plan's only kernel. */
int cuda_spec_is_cooperative(const cuda_spec *spec);

/* Blocks of a cluster; 1: launched without. */
int cuda_spec_cluster(const cuda_spec *spec);

#endif
