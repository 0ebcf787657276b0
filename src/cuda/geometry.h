/*
 * Shapes of launches: what follows from a specialisation alone. Pure.
 */
#ifndef PLANISH_CUDA_GEOMETRY_H
#define PLANISH_CUDA_GEOMETRY_H

#include "backend.h"

/* LONG_PIECE of kernels/backward_long.cu. */
enum { CUDA_LONG_PIECE = 8192 };

/* Threads of a block. */
unsigned cuda_spec_threads(const cuda_spec *spec);

/* Whether rows go through shared memory, many in one piece (kernels/row_tiles.cu). */
int cuda_spec_is_tiled(const cuda_spec *spec);

/* Groups of blocks that the wide road is planned for, of which each takes some of the rows. */
int64_t cuda_plan_groups(const cuda_plan *plan);

/* What a group of blocks hands its sums through, in bytes. */
size_t cuda_spec_mail_bytes(const cuda_spec *spec);

/* What the plan's roads need of workspace. */
size_t cuda_plan_workspace(const cuda_plan *plan);

/* Dynamic shared memory of a block. */
size_t cuda_spec_shared_bytes(const cuda_spec *spec);

/* Rows that one block (or cluster) of the kernel takes at a time. */
int cuda_spec_rows_at_a_time(const cuda_spec *spec);

#endif
