/* Geometry of groups of channels but for those in tiles. Pure. */
#ifndef PLANISH_CUDA_GROUPS_GEOMETRY_H
#define PLANISH_CUDA_GROUPS_GEOMETRY_H

#include "backend.h"

/* The values of C_STAGE: a row, or a strip, in one read; of two reads the sums, the moments and
 * what is written; tiles (tiles.h). */
enum { STAGE_ROW, STAGE_SUMS, STAGE_MOMENTS, STAGE_APPLY, STAGE_TILE };

/* Sets the geometry of a plan whose main kernel images_describe and groups.c began. */
void groups_set_geometry(cuda_plan *plan);

size_t groups_shared_bytes(const cuda_spec *spec);

#endif
