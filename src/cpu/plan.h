/*
 * How the plan of a problem in CPU memory (cut.h) is made: which kernels run it, cut how, with how
 * much workspace. Pure functions of the problem and of what the CPU offers; nothing is allocated
 * and no data is looked at. A plan does not hold its steps: whoever runs it has both.
 */
#ifndef PLANISH_CPU_PLAN_H
#define PLANISH_CPU_PLAN_H

#include "cpu/common/cut.h"
#include "cpu/tuning.h"
#include "steps.h"

/* What the caller's machine offers. No result depends on it, only speed. */
typedef struct cpu_limits {
    const cpu_kernels *kernels;
    const cpu_tuning *tuning;
    size_t first_bytes;       /* of a core's first-level cache, 0 where it is not known */
    size_t stream_rows_bytes; /* y of rows is streamed where it and x are larger than this */
} cpu_limits;

/* Of a CPU tuned so, with these bytes of first-level and shared cache (0: not known); and of this
 * machine's. */
cpu_limits cpu_limits_of(const cpu_tuning *tuning, const cpu_kernels *kernels, size_t first_cache,
                         size_t shared_cache);
cpu_limits cpu_limits_here(void);

/* The steps that p is run as; *norm, which has to be there as long as they are, may be one's. */
void cpu_steps_make(steps *s, const problem *p, problem *norm);

void cpu_plan_make(cpu_plan *plan, const steps *s, const cpu_limits *limits);

/* Whether it is right for everything and fast for nothing: rows or groups are copied first; and
 * what in its problem is the reason. */
int cpu_plan_is_general(const cpu_plan *plan);
const char *cpu_plan_why_general(const cpu_plan *plan, const problem *p);

/* One line; returns its whole length. */
int cpu_plan_describe(const cpu_plan *plan, const problem *p, char *text, size_t bytes);

#endif
