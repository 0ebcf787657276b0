/* The part of the rows of tuning.c that is of rows with stages around the norm. */
#ifndef PLANISH_CUDA_TUNING_STAGES_H
#define PLANISH_CUDA_TUNING_STAGES_H

#include "cuda/tuning.h"

/* Changes what is otherwise on the architecture `arch`, which begins a row of tuning.c, than on the
 * one before it; 80: sets everything. */
void stages_tuning_change(int arch, stages_tuning *row);

#endif
