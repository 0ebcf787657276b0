/*
 * Plans and launches of the forward of dense rows with what stands around the norm
 * (kernels/stages/stages_forward.cu). Pure.
 */
#ifndef PLANISH_CUDA_STAGES_H
#define PLANISH_CUDA_STAGES_H

#include "cuda/families.h"

/* Takes what has stages, in rows whose elements are neighbours in every tensor that has them all.
 */
extern const cuda_family stages_forward_family;

/* Sets what these and the general kernels know of a problem's stages. */
void stages_set_constants(cuda_spec *spec, const problem *p);

/* Whether a tensor is of a row's columns, or has one element for all of them. */
bool stages_is_of_columns(role r);

/* Whether rows lie along at most two axes, and a row's elements are neighbours in every tensor that
 * has them all. */
bool stages_is_dense(const problem *p);
#define STAGES_NOT_DENSE                                                                           \
    "rows along three axes or more, or whose elements are not neighbours in every tensor"

/* How far a tensor's rows are apart at one of two levels, in elements. */
int64_t stages_stride(const cuda_plan *plan, int level, role r);

/* p * 2^32, rounded up: words below drop an element. */
uint64_t stages_dropped(double p);

#endif
