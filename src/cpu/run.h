/* Runs a plan on the CPU: cuts it into work items, hands them to the caller's threads, adds up. */
#ifndef PLANISH_CPU_RUN_H
#define PLANISH_CPU_RUN_H

#include "cpu/plan.h"

/* Everything is checked: this cannot fail. `plan` was made of these steps. */
void cpu_run(const steps *s, const cpu_plan *plan, void *const buffers[ROLE_COUNT],
             const planish_exec *exec);

#endif
