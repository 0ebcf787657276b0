/* Geometry of the forward of dense rows (kernels/forward.cu). Pure. */
#ifndef PLANISH_CUDA_ROWS_FORWARD_H
#define PLANISH_CUDA_ROWS_FORWARD_H

#include "cuda/backend.h"

/* Sets the plan's constants for rows of `cols` columns within blocks or clusters. */
void forward_geometry(cuda_plan *plan, int cols, int x_bytes, int is_double,
                      const cuda_limits *limits);

/* Long rows that are groups of channels wait in shared memory for their output: several independent
 * blocks do better than rows over clusters or groups of blocks. */
void group_rows_geometry(cuda_plan *plan, int x_bytes);

/* What is otherwise in a kernel of the plan for so many rows, in buffers that are aligned as
 * spec->access says: a rows_fit_function. */
void forward_fit(const cuda_plan *plan, cuda_spec *spec);

#endif
