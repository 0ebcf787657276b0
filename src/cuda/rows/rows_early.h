/* Weight and bias of dense rows before the statistics; see rows_early.c. */
#ifndef PLANISH_CUDA_ROWS_EARLY_H
#define PLANISH_CUDA_ROWS_EARLY_H

#include "cuda/backend.h"

/* Sets where the weights of a plan whose geometry stands wait, and what that asks of its blocks. */
void rows_early_geometry(cuda_plan *plan);

/* Whether the L1 can have weight and bias as they are aligned. */
bool rows_early_can_be_brought(const cuda_spec *spec);

#endif
