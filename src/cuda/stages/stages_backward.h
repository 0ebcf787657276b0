/*
 * Plans and launches of the backward of dense rows with what stands around the norm
 * (kernels/stages/stages_backward.cu, stages_samples.cu). Pure.
 */
#ifndef PLANISH_CUDA_STAGES_BACKWARD_H
#define PLANISH_CUDA_STAGES_BACKWARD_H

#include "cuda/families.h"

extern const cuda_family stages_backward_family;

#endif
