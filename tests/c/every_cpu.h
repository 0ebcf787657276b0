/* Plans of one problem for CPUs of every kind, with caches of every size: they give the same bits.
 */
#ifndef EVERY_CPU_H
#define EVERY_CPU_H

#include "cpu/plan.h"

/* Runs the problem by this plan, after what it writes was spoilt; a hash of what it wrote. */
typedef uint64_t run_plan(void *context, const problem *p, const cpu_plan *plan);

/* Expects the same hash of every plan that is unlike those before. */
void expect_same_on_every_cpu(const planish_norm *op, planish_pass pass,
                              const planish_tensors *tensors, run_plan *run, void *context);

/* By this plan, with a workspace of its own. */
void run_in_workspace(const problem *p, const cpu_plan *plan, const planish_tensors *tensors);

#endif
