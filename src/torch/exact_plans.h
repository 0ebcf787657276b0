/*
 * Plans of norms with stages around them, and of tensors in other layouts, kept. Where plans.h
 * knows a few forms of dense tensors, here a plan is found by everything that it depends on: every
 * field of the operator, and the dtype, the sizes and the strides of every tensor.
 */
#ifndef PLANISH_TORCH_EXACT_PLANS_H
#define PLANISH_TORCH_EXACT_PLANS_H

#include <stdbool.h>

#include "planish.h"

/* Whether plans.h knows too little of this norm: it has stages, or weights around zero. */
bool is_staged(const planish_norm *op, const planish_tensors *tensors);

/*
 * The plan for this call, or NULL where none is kept: many elements on the CPU, whose work takes
 * longer than the planning, more tensors and axes than a key has room for, no room in the table.
 * `tensors` hold every present tensor's shape and strides. The table is as that of plans.h.
 */
const planish_plan *exact_plan_for(const planish_norm *op, planish_pass pass,
                                   const planish_tensors *tensors);

#endif
