/* The runtime's tensors as DLTensors, and how they are seen as a norm's. */
#ifndef PLANISH_ORT_TENSORS_H
#define PLANISH_ORT_TENSORS_H

#include "../roles.h"
#include "../status.h"
#include "kernel.h"

/* A DLTensor and its sizes and strides, which it points to: it must not be moved. */
typedef struct tensor_view {
    DLTensor tensor;
    int64_t sizes[PLANISH_MAX_NDIM], strides[PLANISH_MAX_NDIM];
} tensor_view;

/* One run: views by slots, of which those that are there have `is_there`. */
typedef struct norm_run {
    const norm_kernel *kernel;
    ort_kernel_context *context;
    message error;
    bool is_there[SLOT_COUNT];
    tensor_view views[SLOT_COUNT];
} norm_run;

/* Reads what is there of the inputs. */
planish_status run_read_inputs(norm_run *run);
/* Makes an output with these sizes, dense; without one in the node it is not there. */
planish_status run_make_output(norm_run *run, slot s, const int64_t *sizes, int rank);

/* How views are seen; each says whether it can be, by the rules of broadcasting. */
void view_dense(tensor_view *view, void *data, DLDataType dtype, const int64_t *sizes, int rank);
bool view_broadcast(tensor_view *view, const int64_t *sizes, int rank);
/* Channels, axis 1 or the last one, become axes 1 and 2: groups and the channels of each. */
void view_split(tensor_view *view, int64_t groups, bool channels_last);
/* Numbers of channels or groups, along these axes of x (x's sizes elsewhere are 1). */
bool view_along(tensor_view *view, const tensor_view *x, uint64_t axes);

#endif
