/*
 * Calls of torch's operators that planish's own functions make, for the derivatives that torch has
 * of these in C++: planish runs them, whether it is enabled or not.
 *
 * What the call is comes beside it, in a number of the thread's. What the forward saves for torch
 * says to the backward, whichever thread that is on, whose it is: mean and rstd have an axis of one
 * element at the end, whose stride nobody looks at, and theirs is a mark. (Those of batch norms,
 * vectors for torch, are marked by how they lie in memory: batch_views.h.)
 */
#ifndef PLANISH_TORCH_OWN_CALL_H
#define PLANISH_TORCH_OWN_CALL_H

#include <stdbool.h>
#include <stdint.h>

#include "batch_fallback.h"
#include "calls.h"
#include "fallback.h"
#include "tensor.h"

/* Whether the call that comes in is planish's own (planish_torch_own_begin); the next one is not.
 */
bool own_call_take(void);

/* The running statistics of a batch norm, or NULL. In training they come beside a call of planish's
 * own: of what torch's operator is given autograd would keep them, and refuse a derivative once
 * they were written again. They are the caller's. */
typedef struct running_pair {
    tensor_handle mean, var;
} running_pair;

/* As planish_torch_own_begin, for a batch norm. */
void own_call_begin(running_pair beside);
/* As own_call_take, for one. */
bool own_call_take_running(running_pair *beside);

/* What a call of torch's operator of this group counts as: while the group is enabled that
 * operator, else planish's own. */
static inline operation operation_of(bool own, uint32_t group, operation torchs,
                                     operation planishs) {
    return own && !group_is_active(group) ? planishs : torchs;
}

/* Runs it, by the general kernels, too, and where torch's own kernel is faster. What the library
 * refuses is thrown; UNAVAILABLE is returned: there is no kernel, and the call is torch's;
 * and NO_FAST_KERNEL, where a GPU has none for a batch norm of tensors that lie so. */
planish_status own_call_run(const planish_norm *op, planish_pass pass,
                            const planish_tensors *tensors);

/* Tells who wants to know (planish_torch_when_recorded) that autograd records the backward of the
 * call, if it does. */
void own_call_tell_recorded(tensor_handle dy);

/*
 * The forwards as torch's dispatcher calls them, for whoever calls them without it. `own`: a call
 * of planish's own; an RMS norm is one where its group is not enabled, and throws what is not
 * planish's to run.
 */
returned_tensors layer_norm_at_once(backend whose, bool own, tensor_handle input,
                                    int_array_ref shape, const optional_tensor *weight,
                                    const optional_tensor *bias, double eps);
returned_tensors group_norm_at_once(backend whose, bool own, tensor_handle input,
                                    const optional_tensor *weight, const optional_tensor *bias,
                                    int64_t batch, int64_t channels, int64_t pixels, int64_t groups,
                                    double eps);
returned_tensors batch_norm_at_once(backend whose, bool own, const batch_arguments *a);
returned_tensors rms_norm_at_once(backend whose, tensor_handle input, int_array_ref shape,
                                  const optional_tensor *weight, optional_double eps);

/* Between begin and end autograd sees no call of this thread's. */
void own_call_begin_unrecorded(void);
void own_call_end_unrecorded(void);

/* Whether a forward has to make mean and rstd. A call of planish's own, outside of which nobody
 * sees them, needs none for a derivative that cannot come. */
bool saves_statistics(bool own);

/* A new mean or rstd of a layer or group norm (batch_views.h has those of batch norms, whose torch
 * reads vectors): of these sizes, of which the view has the first `ndim`. With
 * `own` it has an axis of one element more where the last is not one, and the mark. */
new_tensor new_statistic(const DLTensor *like, int32_t ndim, int64_t *sizes, int32_t dtype,
                         bool own, int64_t *strides, DLTensor *view);

/* Whether a saved mean or rstd has the mark. */
bool is_own_statistic(tensor_handle statistic);

#endif
