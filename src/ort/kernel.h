/*
 * A fused node at run time: its recipe with the places of its tensors among the node's inputs and
 * outputs. Sizes are those of each run. It may run on several threads at once, and keeps nothing.
 */
#ifndef PLANISH_ORT_KERNEL_H
#define PLANISH_ORT_KERNEL_H

#include "recipe.h"

typedef struct norm_kernel {
    ort_compute compute; /* first: the runtime's pointer is one to this */
    const ort_api *api;
    norm_facts facts;
    int at[SLOT_COUNT]; /* -1: absent */
} norm_kernel;

/* One run: reads the inputs, makes the outputs, and runs. */
ort_status *norm_kernel_run(const norm_kernel *kernel, ort_kernel_context *context);

#endif
