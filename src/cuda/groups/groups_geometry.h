/* Geometry of groups of channels but for those in tiles. Pure. */
#ifndef PLANISH_CUDA_GROUPS_GEOMETRY_H
#define PLANISH_CUDA_GROUPS_GEOMETRY_H

#include "cuda/backend.h"

/* Sets the geometry of a plan whose main kernel images_describe and groups.c began. */
void groups_set_geometry(cuda_plan *plan);

size_t groups_shared_bytes(const cuda_spec *spec);

#endif
