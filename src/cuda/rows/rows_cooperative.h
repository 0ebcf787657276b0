/* Geometry of rows over groups of blocks (kernels/forward.cu and backward.cu). Pure. */
#ifndef PLANISH_CUDA_ROWS_COOPERATIVE_H
#define PLANISH_CUDA_ROWS_COOPERATIVE_H

#include "cuda/backend.h"

/*
 * Rows over groups of blocks: those too long for a block, where the machine is large enough.
 * `bytes` is the larger element of those read.
 */
void cooperative_geometry(cuda_plan *plan, int bytes, const cuda_limits *limits);

#endif
