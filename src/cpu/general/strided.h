/* The general path, for any strides, axes and dtypes. */
#ifndef PLANISH_CPU_STRIDED_H
#define PLANISH_CPU_STRIDED_H

#include "cpu/common/job.h"

/* Blocks [begin, end) of a job on PATH_STRIDED: a planish_task. */
void strided_blocks(void *job, int64_t begin, int64_t end);

#endif
