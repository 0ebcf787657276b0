/*
 * Strips: how groups of images stored by pixel are cut for the kernel that reads them once. Pure.
 */
#ifndef PLANISH_CUDA_STRIPS_H
#define PLANISH_CUDA_STRIPS_H

#include <stdbool.h>
#include <stddef.h>

#include "cuda/spec.h"

struct cuda_limits;

/* Sets the geometry of a spec that images_describe and groups.c began; false, and nothing set,
 * where no cluster of this device holds a strip. */
bool strips_geometry(cuda_spec *spec, const struct cuda_limits *limits);

/* The same strips over blocks anywhere on the device, where that is faster for so many images: from
 * what strips_geometry set; false, and nothing set, where it is not. */
bool strips_shared_geometry(cuda_spec *spec, int64_t images, const struct cuda_limits *limits);

/* Strips of an image of which neither a cluster nor so few blocks hold one, over all of the device:
 * from what groups.c began; false, and nothing set, where that is not to be. */
bool strips_large_geometry(cuda_spec *spec, const struct cuda_limits *limits);

size_t strips_shared_bytes(const cuda_spec *spec);

/* Blocks that share a strip. */
int strips_blocks(const cuda_spec *spec);

/* Strips of `images` images, and how many of them the device is planned to hold at once. */
int64_t strips_of(const cuda_spec *spec, int64_t images);
int64_t strips_at_once(const cuda_spec *spec, int64_t images, const struct cuda_limits *limits);

/* What the blocks of a strip that are no cluster tell each other through, in bytes. */
size_t strips_mail_bytes(const cuda_spec *spec);

#endif
