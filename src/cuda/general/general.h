/*
 * Plans and launches of the general kernels (kernels/general.cu): whatever the row kernels do not
 * take. Pure.
 */
#ifndef PLANISH_CUDA_GENERAL_H
#define PLANISH_CUDA_GENERAL_H

#include "cuda/families.h"

/* Takes every problem. */
extern const cuda_family general_family;

#endif
