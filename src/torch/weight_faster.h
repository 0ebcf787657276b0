/*
 * Where torch's own weight norm on the CPU is faster, by dtype, axis, size and threads.
 */
#ifndef PLANISH_TORCH_WEIGHT_FASTER_H
#define PLANISH_TORCH_WEIGHT_FASTER_H

#include "tensor.h"

/* v and g of a weight norm on the CPU, and how the axis falls. */
typedef struct weights {
    DLTensor v, g;
    int32_t axis, norm_dtype;
    int64_t sizes[PLANISH_MAX_NDIM], strides[PLANISH_MAX_NDIM]; /* of a number a slice */
} weights;

bool weight_torch_is_faster(const weights *w, bool backward);

#endif
