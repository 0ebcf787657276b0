/*
 * What the alignment of buffers changes in how rows are cut. It is planned for every class of
 * alignments with the rest of the plan, so that a run only looks up what its buffers' class has;
 * the sums are the same in all of them. Pure.
 */
#ifndef PLANISH_CUDA_ROWS_FIT_H
#define PLANISH_CUDA_ROWS_FIT_H

#include "cuda/backend.h"

/* Sets, in a kernel of the plan, what follows from spec->access. */
typedef void rows_fit_function(const cuda_plan *plan, cuda_spec *spec);

/* Plans the fit of every class, once all else of plan->main is known. */
void rows_fit_make(cuda_plan *plan, rows_fit_function *fit);

/* The same for rows that stand alone, or have weights of their own by samples; and whether they
 * follow each other. */
void rows_fit_alone(cuda_plan *plan);

/* Has a kernel of the plan cut rows as the class of its buffers says, whose alignments are in
 * spec->access. */
void rows_fit_apply(const cuda_plan *plan, cuda_spec *spec);

#endif
