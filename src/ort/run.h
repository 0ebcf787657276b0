/* One run of a fused node: its tensors by slots, and calls of planish on the runtime's threads. */
#ifndef PLANISH_ORT_RUN_H
#define PLANISH_ORT_RUN_H

#include "../status.h"
#include "kernel.h"
#include "tensor_view.h"

typedef struct norm_run {
    const norm_kernel *kernel;
    ort_kernel_context *context;
    message error;
    void *on_heap; /* freed at the end */
    bool is_there[SLOT_COUNT];
    tensor_view views[SLOT_COUNT];
} norm_run;

/* Reads what is there of the inputs. */
planish_status run_read_inputs(norm_run *run);
/* Makes an output with these sizes, dense; without one in the node it is not there. */
planish_status run_make_output(norm_run *run, slot s, const int64_t *sizes, int rank);

const DLTensor *run_tensor(const norm_run *run, slot s); /* NULL where it is not there */
/* Those of a forward pass. */
planish_tensors run_forward_tensors(const norm_run *run);

/* Finds the plan, gives it a workspace, runs it. */
planish_status run_call(norm_run *run, const planish_norm *op, planish_pass pass,
                        const planish_tensors *tensors);

/* Where there is an early bias, of numbers along these axes: x becomes x + residual + it, rounded
 * once, in the output of the sum or in memory of the run's own; the residual is then gone. `op` is
 * the norm that follows. */
planish_status run_add_early_bias(norm_run *run, const planish_norm *op, uint64_t axes);

#endif
