/* Geometry of the backward of dense rows (kernels/backward.cu). Pure. */
#ifndef PLANISH_CUDA_ROWS_BACKWARD_H
#define PLANISH_CUDA_ROWS_BACKWARD_H

#include "cuda/backend.h"

/* Sets the constants `c` for rows of `cols` columns within blocks or clusters; 0: they are too
 * long. */
int backward_geometry(cuda_spec *spec, int cols, int x_bytes, int dy_bytes, int is_double,
                      const cuda_limits *limits);

/* What is otherwise in a kernel of the plan, in buffers that are aligned as spec->access says: a
 * rows_fit_function. */
void backward_fit(const cuda_plan *plan, cuda_spec *spec);

#endif
