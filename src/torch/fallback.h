/*
 * torch's own kernels, for input that planish does not run: same results, same errors.
 *
 * They are called by their exported C++ names, past the dispatcher, which would come back to
 * planish. Exceptions they throw go through these frames unchanged.
 */
#ifndef PLANISH_TORCH_FALLBACK_H
#define PLANISH_TORCH_FALLBACK_H

#include "aoti.h"
#include "planish.h"

/* Whose kernel: that of the key a call came in by. torch chose it by all tensors together. */
typedef enum backend { BACKEND_CPU, BACKEND_CUDA } backend;

static inline DLDeviceType device_type_of(backend whose) {
    return whose == BACKEND_CUDA ? kDLCUDA : kDLCPU;
}

/* Arguments stay the caller's; NULL is None. */
returned_tensors torch_layer_norm(backend whose, tensor_handle input,
                                  int_array_ref normalized_shape, tensor_handle weight,
                                  tensor_handle bias, double eps);
returned_tensors torch_layer_norm_backward(backend whose, tensor_handle dy, tensor_handle input,
                                           int_array_ref normalized_shape, tensor_handle mean,
                                           tensor_handle rstd, tensor_handle weight,
                                           tensor_handle bias, mask3 mask);

/* The sizes of a group norm's call: x is (batch, channels, pixels). */
typedef struct group_sizes {
    int64_t batch, channels, pixels, groups;
} group_sizes;

returned_tensors torch_group_norm(backend whose, tensor_handle input, tensor_handle weight,
                                  tensor_handle bias, const group_sizes *sizes, double eps);
returned_tensors torch_group_norm_backward(backend whose, tensor_handle dy, tensor_handle input,
                                           tensor_handle mean, tensor_handle rstd,
                                           tensor_handle weight, const group_sizes *sizes,
                                           mask3 mask);

typedef enum rms_norm_variant {
    FUSED_COMPOSITE,  /* _fused_rms_norm made of other operators: y and rstd */
    FUSED_CUDA,       /* torch's CUDA kernel of _fused_rms_norm: y and rstd */
    FUSED_DISPATCHED, /* _fused_rms_norm through the dispatcher: y and rstd */
    NORM_COMPOSITE    /* rms_norm made of other operators: y */
} rms_norm_variant;

/* Results go to the first slots of `stack`. */
void torch_rms_norm(rms_norm_variant variant, stack_value *stack, tensor_handle input,
                    int_array_ref normalized_shape, tensor_handle weight, optional_double eps);

/* torch's CUDA kernel; it has none for the CPU. */
void torch_rms_norm_backward(stack_value *stack, tensor_handle dy, tensor_handle input,
                             int_array_ref normalized_shape, tensor_handle rstd,
                             tensor_handle weight, mask2 mask);

/*
 * Runs torch's norms by their exported names on one row and compares with the formula: that the C++
 * ABI is what it is taken for. For CUDA on GPU `device`, which it waits for.
 */
planish_status fallback_self_test(backend whose, int device, message error);

#endif
