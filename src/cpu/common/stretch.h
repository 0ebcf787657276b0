/* Elements of one tensor with one stride, to and from dense ones in the compute type. */
#ifndef PLANISH_CPU_STRETCH_H
#define PLANISH_CPU_STRETCH_H

#include "cpu/common/cut.h"

/* `count` elements of this dtype, `stride` elements apart in the tensor. */
void stretch_gather(const cpu_plan *plan, void *dense, const char *from, int64_t stride, dtype type,
                    int64_t count);
void stretch_scatter(const cpu_plan *plan, char *to, const void *dense, int64_t stride, dtype type,
                     int64_t count);

#endif
