/*
 * Dense rows with a modulation behind the norm and nothing else around it, by the kernels of plain
 * rows (kernels/stages/modulated_forward.cu, modulated_backward.cu). Pure.
 */
#ifndef PLANISH_CUDA_MODULATED_H
#define PLANISH_CUDA_MODULATED_H

#include "cuda/families.h"

extern const cuda_family modulated_family;

#endif
