/*
 * Two problems of dense rows in one launch, such as the norms of queries and keys: where one
 * specialisation fits both, its blocks are shared between them (kernels/rows/forward_pair.cu,
 * backward_pair.cu). Pure. What does not fit is run as two, by whoever asks.
 */
#ifndef PLANISH_CUDA_ROWS_PAIR_H
#define PLANISH_CUDA_ROWS_PAIR_H

#include "cuda/families.h"

/* Two plans of one device, and where the tensors of each are. */
typedef struct cuda_pair {
    const cuda_plan *plan[2];
    void *const *buffers[2]; /* by role */
} cuda_pair;

extern const cuda_family rows_pair_family;

/* Sets the specialisations of one run of both, in the order of their launch, and returns how many;
 * 0: nothing that both can share, or nothing to do for one of them. */
int rows_pair_specs(const cuda_pair *pair, cuda_launch launches[CUDA_MOST_LAUNCHES]);

/* Sets the rest. Each plan has a workspace of its own; each result has the bits of its plan run
 * alone. */
void rows_pair_arguments(const cuda_pair *pair, void *const workspace[2],
                         cuda_launch launches[CUDA_MOST_LAUNCHES]);

#endif
