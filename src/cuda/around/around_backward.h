/*
 * Plans and launches of the backward of dense rows with what stands around the norm
 * (kernels/around/around_backward.cu, around_samples.cu). Pure.
 */
#ifndef PLANISH_CUDA_AROUND_BACKWARD_H
#define PLANISH_CUDA_AROUND_BACKWARD_H

#include "cuda/families.h"

extern const cuda_family around_backward_family;

#endif
