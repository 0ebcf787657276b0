/*
 * Geometry of groups in tiles (kernels/group_tiles.cu): pixels dense, channels of a number of
 * pixels that makes no whole chunks, or (backward) rows that are short. Pure.
 */
#ifndef PLANISH_CUDA_TILES_H
#define PLANISH_CUDA_TILES_H

#include "cuda/backend.h"

/* Sets the geometry of groups described in `spec`; false: not for tiles. */
bool tiles_geometry(cuda_spec *spec, const cuda_limits *limits);

size_t tiles_shared_bytes(const cuda_spec *spec);

/* Tiles of an image. */
int64_t tiles_of_image(const cuda_spec *spec);

/* Images whose tiles have blocks of their own, of `images`: the rows of partial sums. */
int64_t tiles_images_at_once(const cuda_spec *spec, int64_t images, const cuda_limits *limits);

#endif
