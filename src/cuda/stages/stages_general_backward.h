/* The backward of norms with stages around them, over any axes
 * (kernels/stages/stages_general_backward.cu). Pure. */
#ifndef PLANISH_CUDA_STAGES_GENERAL_BACKWARD_H
#define PLANISH_CUDA_STAGES_GENERAL_BACKWARD_H

#include "cuda/families.h"

extern const cuda_family stages_general_backward_family;

#endif
