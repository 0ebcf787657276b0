/*
 * Plans and launches of the general kernels (kernels/general): whatever the others do not take,
 * with stages around the norm or without. Pure.
 */
#ifndef PLANISH_CUDA_GENERAL_H
#define PLANISH_CUDA_GENERAL_H

#include "cuda/families.h"

/* Takes every problem. */
extern const cuda_family general_family;

#endif
