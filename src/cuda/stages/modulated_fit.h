/* How modulated rows are cut otherwise than plain ones; see modulated_fit.c. */
#ifndef PLANISH_CUDA_MODULATED_FIT_H
#define PLANISH_CUDA_MODULATED_FIT_H

#include "cuda/families.h"

/* Of the backward: a row over at most two blocks. */
void modulated_fit_clusters(const cuda_limits *limits, cuda_spec *spec);

/* Of the forward: blocks of a multiprocessor. */
void modulated_fit_registers(cuda_plan *plan);

#endif
