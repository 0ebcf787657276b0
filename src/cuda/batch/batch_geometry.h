/* How rows that lie spread are cut. Pure. */
#ifndef PLANISH_CUDA_BATCH_GEOMETRY_H
#define PLANISH_CUDA_BATCH_GEOMETRY_H

#include "cuda/batch/batch_view.h"

/* Sets a plan's geometry, all else of its spec being described: the variant of its first kernel,
 * and how many steps are a piece of a row (turns). */
void batch_set_geometry(cuda_plan *plan, const batch_view *v);

/* Steps of a row, and pieces. */
int64_t batch_steps(const cuda_plan *plan);
int64_t batch_pieces(const cuda_plan *plan);

/* Bytes of what is held of a step: of x, and in the backward of dy and what is beside them, but
 * where that has done its work. */
int batch_step_bytes(const cuda_spec *spec);

/* Of so many turns of a thread as many steps under way together, `fewest` to `largest`, that few of
 * the last are none. */
int batch_at_once_within(int64_t turns, int fewest, int largest);

size_t batch_shared_bytes(const cuda_spec *spec);

/* Whether the sums write what a ReLU leaves of dy, daddend, and the output reads that. */
bool batch_leaves_gradient(const cuda_spec *spec);

#endif
