/*
 * torch's own kernels, for input that planish does not run: same results, same errors.
 *
 * They are called by their exported C++ names, past the dispatcher, which would come back to
 * planish. Exceptions they throw go through these frames unchanged.
 */
#ifndef PLANISH_TORCH_FALLBACK_H
#define PLANISH_TORCH_FALLBACK_H

#include "aoti.h"

/* Results go to the first slots of `stack`; arguments stay the caller's. NULL is None. */
void torch_layer_norm(stack_value *stack, tensor_handle input, int_array_ref normalized_shape,
                      tensor_handle weight, tensor_handle bias, double eps);
void torch_layer_norm_backward(stack_value *stack, tensor_handle dy, tensor_handle input,
                               int_array_ref normalized_shape, tensor_handle mean,
                               tensor_handle rstd, tensor_handle weight, tensor_handle bias,
                               mask3 mask);

typedef enum rms_norm_variant {
    FUSED_COMPOSITE,  /* _fused_rms_norm made of other operators: y and rstd */
    FUSED_DISPATCHED, /* _fused_rms_norm through the dispatcher: y and rstd */
    NORM_COMPOSITE    /* rms_norm made of other operators: y */
} rms_norm_variant;

void torch_rms_norm(rms_norm_variant variant, stack_value *stack, tensor_handle input,
                    int_array_ref normalized_shape, tensor_handle weight, optional_double eps);

/*
 * Runs torch's layer norm by its exported names and through the dispatcher, which must not have
 * been overridden yet, and compares: that the C++ ABI is what it is taken for.
 */
planish_status fallback_self_test(message error);

#endif
