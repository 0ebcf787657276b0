/* planish's parallel_for over the threads of XLA's pool. */
#ifndef PLANISH_JAX_POOL_H
#define PLANISH_JAX_POOL_H

#include "planish.h"
#include "xla_ffi.h"

/* `context` is the xla_frame of the call. */
void pool_parallel_for(void *context, int64_t count, planish_task task, void *task_data);

#endif
