/*
 * torch's own batch norms, by their exported C++ names: see fallback.h.
 */
#ifndef PLANISH_TORCH_BATCH_FALLBACK_H
#define PLANISH_TORCH_BATCH_FALLBACK_H

#include "fallback.h"

/* What a batch norm's forward takes, with handles that stay the caller's; NULL is None. */
typedef struct batch_arguments {
    tensor_handle input, weight, bias, running_mean, running_var;
    bool training;
    double momentum, eps;
} batch_arguments;

/* The same of a backward. `reserve` is NULL for native_batch_norm_backward, which has none. */
typedef struct batch_gradient_arguments {
    tensor_handle dy, input, weight, running_mean, running_var, mean, rstd, reserve;
    bool training;
    double eps;
    mask3 mask;
} batch_gradient_arguments;

returned_tensors torch_batch_norm(backend whose, const batch_arguments *a);
returned_tensors torch_batch_norm_backward(backend whose, const batch_gradient_arguments *a);

/* _batch_norm_with_update and batch_norm_backward, which have a reserve. */
returned_four torch_batch_norm_with_update(backend whose, const batch_arguments *a);
returned_tensors torch_batch_norm_with_reserve_backward(backend whose,
                                                        const batch_gradient_arguments *a);

returned_four torch_cudnn_batch_norm(const batch_arguments *a);
returned_tensors torch_cudnn_batch_norm_backward(const batch_gradient_arguments *a);

/* Whether this torch tells the names of all that are used on CUDA. */
planish_status cuda_batch_norms_are_there(message error);

/* As fallback_self_test, of native_batch_norm and its backward. */
planish_status batch_fallback_self_test(backend whose, int device, message error);

#endif
