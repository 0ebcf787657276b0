/*
 * The kernels that registry.c puts under torch's operators: boxed, as aoti.h has it.
 */
#ifndef PLANISH_TORCH_KERNELS_H
#define PLANISH_TORCH_KERNELS_H

#include "aoti.h"
#include "planish_torch.h"

/* Each kernel twice, for the key it is registered at: what it falls back to is that key's. */

/* layer_norm.c */
void layer_norm_forward(stack_value *stack, uint64_t argument_count, uint64_t return_count);
void layer_norm_backward(stack_value *stack, uint64_t argument_count, uint64_t return_count);
void layer_norm_forward_cuda(stack_value *stack, uint64_t argument_count, uint64_t return_count);
void layer_norm_backward_cuda(stack_value *stack, uint64_t argument_count, uint64_t return_count);

/* group_norm.c */
void group_norm_forward(stack_value *stack, uint64_t argument_count, uint64_t return_count);
void group_norm_backward(stack_value *stack, uint64_t argument_count, uint64_t return_count);
void group_norm_forward_cuda(stack_value *stack, uint64_t argument_count, uint64_t return_count);
void group_norm_backward_cuda(stack_value *stack, uint64_t argument_count, uint64_t return_count);

/* rms_norm.c */
void fused_rms_norm_forward(stack_value *stack, uint64_t argument_count, uint64_t return_count);
void fused_rms_norm_backward(stack_value *stack, uint64_t argument_count, uint64_t return_count);
void rms_norm_inference(stack_value *stack, uint64_t argument_count, uint64_t return_count);
void rms_norm_autograd(stack_value *stack, uint64_t argument_count, uint64_t return_count);
void fused_rms_norm_forward_cuda(stack_value *stack, uint64_t argument_count,
                                 uint64_t return_count);
void fused_rms_norm_backward_cuda(stack_value *stack, uint64_t argument_count,
                                  uint64_t return_count);
void rms_norm_inference_cuda(stack_value *stack, uint64_t argument_count, uint64_t return_count);
void rms_norm_autograd_cuda(stack_value *stack, uint64_t argument_count, uint64_t return_count);

/* any_axes.c */
void norm_forward(stack_value *stack, uint64_t argument_count, uint64_t return_count);
void norm_backward(stack_value *stack, uint64_t argument_count, uint64_t return_count);
void norm_statistics(stack_value *stack, uint64_t argument_count, uint64_t return_count);

#endif
