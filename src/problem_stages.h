/*
 * What stands around the norm, as a problem is made: the checks of its fields and tensors, and how
 * those fit x.
 */
#ifndef PLANISH_PROBLEM_STAGES_H
#define PLANISH_PROBLEM_STAGES_H

#include "problem.h"

/* Checks op's stages, once p->present and the dtypes are known, and fills p->stages but for what
 * depends on sizes. */
planish_status problem_check_stages(problem *p, const planish_norm *op, message error);

/* Matches a tensor of one element, of a pair or of blocks to x's axes, of which `kept` are not
 * reduced; `strides` are its own. Writes the index of its axis for each of x's, or -1. */
planish_status problem_match_stage(problem *p, role r, const DLTensor *t, const DLTensor *x,
                                   uint64_t kept, const int64_t strides[], int of_axis[],
                                   message error);

#endif
