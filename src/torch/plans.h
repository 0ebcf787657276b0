/*
 * Plans of small dense norms, kept: for a row of eight numbers, deciding how to run it takes longer
 * than running it.
 *
 * The table is shared by all threads, filled without locks and never emptied: a plan, once found,
 * stays valid. It has room for a fixed number of plans; what finds no room is planned each time.
 */
#ifndef PLANISH_TORCH_PLANS_H
#define PLANISH_TORCH_PLANS_H

#include "planish.h"

/*
 * The plan for this call, or NULL where it is not worth keeping one: tensors that are neither dense
 * nor channels last, axes that are neither the last ones nor those of planish_group_norm_op, many
 * elements on the CPU, no room. `tensors` hold every present tensor's shape and strides.
 */
const planish_plan *plan_for(const planish_norm *op, planish_pass pass,
                             const planish_tensors *tensors);

#endif
