/*
 * Where torch's own CUDA kernel of a SyncBatchNorm operator is faster, by dtype, layout and size.
 */
#ifndef PLANISH_TORCH_SYNC_FASTER_H
#define PLANISH_TORCH_SYNC_FASTER_H

#include "batch_views.h"

typedef enum sync_operator {
    SYNC_STATISTICS,
    SYNC_APPLY,
    SYNC_SUMS,
    SYNC_GRADIENT,
    SYNC_OPERATORS
} sync_operator;

bool sync_torch_is_faster(sync_operator op, const batch *b);

#endif
