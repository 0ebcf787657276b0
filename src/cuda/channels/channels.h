/*
 * Plans and launches of the kernels for norms over channels with dense pixels
 * (kernels/channels.cu). Pure.
 */
#ifndef PLANISH_CUDA_CHANNELS_H
#define PLANISH_CUDA_CHANNELS_H

#include "cuda/families.h"

extern const cuda_family channels_family;

#endif
