/* Lists of a problem's axes. */
#ifndef PLANISH_PROBLEM_AXES_H
#define PLANISH_PROBLEM_AXES_H

#include "problem.h"

/* Gives every tensor that is there a place in rows of strides; no axis is there yet. */
void axes_begin(problem *p);

/* Adds an axis, whose row of strides is written, to one of p's lists, merged into the last one
 * where every tensor's strides allow it. Whether it became one of its own, and keeps its row. */
bool axes_append(problem *p, axis list[], int *count, const axis *next);

/* The product of a list's sizes. */
int64_t axes_size(const axis list[], int count);

/* Leaves the norm alone: what it would be without the tensors and fields of stages. */
void problem_drop_stages(problem *p);

#endif
