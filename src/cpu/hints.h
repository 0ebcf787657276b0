/* What a CPU's row of numbers (cpu/tuning.h) says of one problem. Pure. */
#ifndef PLANISH_CPU_HINTS_H
#define PLANISH_CPU_HINTS_H

#include "cpu/plan.h"

/* Where the data of a problem on this path lies. */
traffic cpu_traffic_of(const problem *p, const cpu_limits *limits, cpu_path path);

/* Hints for kernels that take the tensors as they are: on PATH_ROWS of rows; on PATH_GROUP_ROWS,
 * PATH_PIXELS and PATH_PLANES of groups; on the others none. */
cpu_hints cpu_hints_of(const problem *p, const cpu_limits *limits, cpu_path path, traffic t);

#endif
