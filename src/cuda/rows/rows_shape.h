/* Dense rows: what follows from a specialisation, or from a plan's, alone. Pure. */
#ifndef PLANISH_CUDA_ROWS_SHAPE_H
#define PLANISH_CUDA_ROWS_SHAPE_H

#include "cuda/backend.h"

/* LONG_PIECE of kernels/backward_long.cu. */
enum { CUDA_LONG_PIECE = 8192 };

/* Whether a kernel cuts rows as the forward of dense rows alone does, or as its backward: stages or
 * another norm beside it change nothing of what is said here. */
bool rows_are_forward(const cuda_spec *spec);
bool rows_are_backward(const cuda_spec *spec);

/* Whether this is a pass over rows of which each device has a part: statistics, or what follows of
 * statistics that are given. */
bool rows_are_parts(const cuda_spec *spec);

/* Whether slices of rows are samples, one after the other on a grid's second axis, and not beside
 * each other on its first: as was faster (docs/notebook/033). */
bool rows_slices_are_last(const cuda_spec *spec);

/* Whether rows go through shared memory, many in one piece (kernels/row_tiles.cu). */
int rows_are_tiled(const cuda_spec *spec);

/* Rows that one block (or cluster) of the kernel takes at a time. */
int rows_at_a_time(const cuda_spec *spec);

/* Turns of blocks (or clusters) over the plan's rows, and blocks (or clusters) that the device
 * holds at once as planned. */
int64_t rows_units(const cuda_plan *plan, const cuda_spec *spec);
int64_t rows_resident(const cuda_plan *plan, const cuda_spec *spec);

unsigned rows_threads(const cuda_spec *spec);
size_t rows_shared_bytes(const cuda_spec *spec);

/* Groups of blocks that the cooperative way is planned for, of which each takes some of the rows.
 */
int64_t rows_plan_groups(const cuda_plan *plan);

/* What a group of blocks hands its sums through, in bytes. */
size_t rows_mail_bytes(const cuda_spec *spec);

/* What the plan's roads need of workspace. */
size_t rows_plan_workspace(const cuda_plan *plan);

#endif
