/*
 * Where torch's own batch norm on the CPU is faster, by shape, dtype and layout alone.
 */
#ifndef PLANISH_TORCH_BATCH_FASTER_H
#define PLANISH_TORCH_BATCH_FASTER_H

#include "batch_views.h"

/* dy: NULL for a forward. */
bool batch_torch_is_faster(const batch *b, const DLTensor *dy, bool training);

#endif
