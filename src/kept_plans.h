/*
 * Plans that are kept for bindings, whose callers have tensors and no plan: for a row of eight
 * numbers, deciding how to run it takes longer than running it.
 *
 * The table is shared by all threads, filled without locks and never emptied: a plan, once found,
 * stays valid. It has room for a fixed number of plans; what finds no room is planned each time.
 */
#ifndef PLANISH_KEPT_PLANS_H
#define PLANISH_KEPT_PLANS_H

#include "planish.h"

/*
 * The plan for this call, or NULL where none is kept: no elements, many of them on the CPU, whose
 * work takes longer than the planning, more tensors and axes than a key has room for, no room in
 * the table, or what no plan can be made of. `tensors` hold every present tensor's shape and
 * strides.
 */
const planish_plan *kept_plan_for(const planish_norm *op, planish_pass pass,
                                  const planish_tensors *tensors);

#endif
