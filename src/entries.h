/* What the entries that name their tensors one by one share: the tensors as one struct. */
#ifndef PLANISH_ENTRIES_H
#define PLANISH_ENTRIES_H

#include "planish.h"

static inline planish_tensors tensors_of_forward(const DLTensor *x, const DLTensor *weight,
                                                 const DLTensor *bias, const DLTensor *y,
                                                 const DLTensor *mean, const DLTensor *rstd) {
    return (planish_tensors){.struct_size = sizeof(planish_tensors),
                             .x = x,
                             .weight = weight,
                             .bias = bias,
                             .y = y,
                             .mean = mean,
                             .rstd = rstd};
}

static inline planish_tensors tensors_of_backward(const DLTensor *dy, const DLTensor *x,
                                                  const DLTensor *mean, const DLTensor *rstd,
                                                  const DLTensor *weight, const DLTensor *bias,
                                                  const DLTensor *dx, const DLTensor *dweight,
                                                  const DLTensor *dbias) {
    return (planish_tensors){.struct_size = sizeof(planish_tensors),
                             .x = x,
                             .weight = weight,
                             .bias = bias,
                             .mean = mean,
                             .rstd = rstd,
                             .dy = dy,
                             .dx = dx,
                             .dweight = dweight,
                             .dbias = dbias};
}

#endif
