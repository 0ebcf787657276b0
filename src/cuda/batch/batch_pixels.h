/* How rows that are neighbours are cut: channels stored by pixel. Pure. */
#ifndef PLANISH_CUDA_BATCH_PIXELS_H
#define PLANISH_CUDA_BATCH_PIXELS_H

#include "cuda/batch/batch_view.h"

/* As batch_set_geometry, of such a view, whose chunks are known. */
void batch_pixels_geometry(cuda_plan *plan, const batch_view *v);

#endif
