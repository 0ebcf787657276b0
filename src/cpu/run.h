/* Runs a plan on the CPU: cuts it into work items, hands them to the caller's threads, adds up. */
#ifndef PLANISH_CPU_RUN_H
#define PLANISH_CPU_RUN_H

#include "plan.h"

/* Everything is checked: this cannot fail. */
void cpu_run(const planish_plan *plan, void *const buffers[ROLE_COUNT], const planish_exec *exec);

#endif
