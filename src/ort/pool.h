/* planish's parallel_for over the threads of the runtime's pool. */
#ifndef PLANISH_ORT_POOL_H
#define PLANISH_ORT_POOL_H

#include "ort_api.h"
#include "planish.h"

typedef struct ort_pool {
    const ort_api *api;
    const ort_kernel_context *context;
} ort_pool;

/* `context` is an ort_pool. */
void ort_pool_parallel_for(void *context, int64_t count, planish_task task, void *task_data);

#endif
