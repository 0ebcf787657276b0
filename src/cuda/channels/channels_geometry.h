/* Geometry of norms over channels (kernels/channels.cu). Pure. */
#ifndef PLANISH_CUDA_CHANNELS_GEOMETRY_H
#define PLANISH_CUDA_CHANNELS_GEOMETRY_H

#include "cuda/backend.h"

/* Sets the geometry of a plan whose problem is described (images.h); false: none fits. */
bool channels_set_geometry(cuda_plan *plan);

#endif
