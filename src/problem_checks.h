/*
 * What problem.c refuses before it looks at how tensors fit together: each with the argument, what
 * was found and what was wanted.
 */
#ifndef PLANISH_PROBLEM_CHECKS_H
#define PLANISH_PROBLEM_CHECKS_H

#include "problem.h"

/* The numbers of an operator by themselves, and the pass. */
planish_status problem_check_op(const planish_norm *op, planish_pass pass, message error);

/* That a pass has the tensors it needs, and no others; `present`: their roles. */
planish_status problem_check_presence(const planish_norm *op, planish_pass pass, role_set present,
                                      message error);

/* Every tensor by itself, and that it is on the device of the one that others are held against,
 * that of role `model`. Sets p->dtypes; p->present is known. */
planish_status problem_check_tensors(problem *p, role model, const DLTensor *const t[ROLE_COUNT],
                                     message error);

/* The operator's axes, for a tensor of so many. */
planish_status problem_check_axes(const planish_norm *op, role model, int ndim, message error);

#endif
