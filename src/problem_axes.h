/* Lists of a problem's axes. */
#ifndef PLANISH_PROBLEM_AXES_H
#define PLANISH_PROBLEM_AXES_H

#include "problem.h"

/* Adds an axis to a list, merged into the last one where every tensor's strides allow it; the
 * product of a list's sizes. */
void axes_append(axis list[], int *count, const axis *next);
int64_t axes_size(const axis list[], int count);

/* Leaves the norm alone: what it would be without the tensors and fields of stages. */
void problem_drop_stages(problem *p);

#endif
