/*
 * The tensors of a batch norm as planish sees them: x (N, C, ...) normalized over all axes but the
 * channels, which weight, bias and both kinds of statistics vary along; and results in torch's
 * layout.
 */
#ifndef PLANISH_TORCH_BATCH_VIEWS_H
#define PLANISH_TORCH_BATCH_VIEWS_H

#include "batch_fallback.h"
#include "calls.h"
#include "planish_torch.h"
#include "tensor.h"

/* How an operator of torch lays out its results, and which tensors it takes. */
typedef enum batch_habit {
    HABIT_CPU,
    HABIT_CUDA,
    HABIT_CUDNN,
} batch_habit;

/* A vector of one number a channel. */
typedef struct channel_view {
    DLTensor view;
    int64_t size, stride;
} channel_view;

typedef struct batch {
    tensor_handle input, weight, bias, running_mean, running_var; /* all but input may be NULL */
    batch_habit habit;
    DLTensor x, w, b, mean, var; /* the last two: the running statistics */
    int64_t channels;
    int32_t parameter_dtype;         /* of dweight and dbias */
    int32_t statistics_dtype;        /* of what the forward saves */
    bool own;                        /* a call of planish's own, or its derivative (own_call.h) */
    bool channels_last;              /* x is, as torch takes it */
    int64_t dense[PLANISH_MAX_NDIM]; /* its dense strides then */
} batch;

static inline backend batch_backend(batch_habit habit) {
    return habit == HABIT_CPU ? BACKEND_CPU : BACKEND_CUDA;
}

static inline uint32_t batch_group(batch_habit habit) {
    return habit == HABIT_CPU ? PLANISH_TORCH_BATCH_NORM : PLANISH_TORCH_CUDA_BATCH_NORM;
}

/* Fills the views; anything but SUPPORTED is for torch. */
reason batch_examine(batch *b);

/* y or dx: x's shape, in torch's layout; `like`: x or dy, of which that is. Those of planish's own
 * calls are laid out as torch.empty_like(x). */
new_tensor batch_new_result(batch *b, const DLTensor *like, bool keeps_order, int64_t *strides,
                            DLTensor *view);

/* A new vector of one number a channel, or of none. */
new_tensor batch_new_channels(const batch *b, int64_t size, int32_t dtype, channel_view *made);

/* mean and rstd of a call of planish's own, vectors of `size`. What marks them is how they lie in
 * one memory: torch's operators read vectors, which have no axis for a mark. */
void batch_new_own_statistics(const batch *b, int64_t size, new_tensor made[2],
                              channel_view views[2]);

/* Whether they have that mark; either may be NULL. */
bool batch_statistics_are_own(tensor_handle mean, tensor_handle rstd);

/* The statistics that a backward got. */
reason batch_examine_statistics(const batch *b, tensor_handle mean, tensor_handle rstd,
                                DLTensor views[2]);

/* The axes of the reserve that a forward of planish's returns to be known by. Those of torch's have
 * one; it has no elements, and survives being copied. */
enum { BATCH_RESERVE_NDIM = 2 };

#endif
