/* Geometry of groups of channels but for those in tiles. Pure. */
#ifndef PLANISH_CUDA_GROUPS_GEOMETRY_H
#define PLANISH_CUDA_GROUPS_GEOMETRY_H

#include "cuda/backend.h"

/* Sets the geometry of a plan whose main kernel images_describe and groups.c began. */
void groups_set_geometry(cuda_plan *plan);

/* The same of a kernel of large images that runs in its place where the device holds all its blocks
 * at once; false, and nothing set, where there is none. */
bool groups_large_geometry(cuda_spec *spec, const cuda_limits *limits);

/* Parts of a channel, of which a block has one. */
int groups_split(const cuda_spec *spec);

size_t groups_shared_bytes(const cuda_spec *spec);

#endif
