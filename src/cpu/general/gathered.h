/* The general path, for any strides, axes and dtypes. */
#ifndef PLANISH_CPU_GATHERED_H
#define PLANISH_CPU_GATHERED_H

#include "cpu/common/job.h"

/* Blocks [begin, end) of a job on PATH_STRIDED: a planish_task. */
void gathered_blocks(void *job, int64_t begin, int64_t end);

#endif
