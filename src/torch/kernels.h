/*
 * The kernels that registry.c puts under torch's operators: boxed, as aoti.h has it.
 */
#ifndef PLANISH_TORCH_KERNELS_H
#define PLANISH_TORCH_KERNELS_H

#include "aoti.h"
#include "planish_torch.h"

/*
 * Each kernel twice, for the key it is registered at: what it falls back to is that key's. Those
 * named unboxed are the same for calls of the CPU that come without the boxed stack, as
 * c10::KernelFunction calls a kernel's C++ function: its functor and the call's keys go first.
 */

/* layer_norm.c */
void layer_norm_forward(stack_value *stack, uint64_t argument_count, uint64_t return_count);
void layer_norm_backward(stack_value *stack, uint64_t argument_count, uint64_t return_count);
void layer_norm_forward_cuda(stack_value *stack, uint64_t argument_count, uint64_t return_count);
void layer_norm_backward_cuda(stack_value *stack, uint64_t argument_count, uint64_t return_count);

returned_tensors layer_norm_forward_unboxed(void *functor, uint64_t keys, tensor_handle input,
                                            int_array_ref shape, const optional_tensor *weight,
                                            const optional_tensor *bias, double eps);
returned_tensors layer_norm_backward_unboxed(void *functor, uint64_t keys, tensor_handle grad_out,
                                             tensor_handle input, int_array_ref shape,
                                             tensor_handle mean, tensor_handle rstd,
                                             const optional_tensor *weight,
                                             const optional_tensor *bias, mask3 mask);

/* group_norm.c */
void group_norm_forward(stack_value *stack, uint64_t argument_count, uint64_t return_count);
void group_norm_backward(stack_value *stack, uint64_t argument_count, uint64_t return_count);
void group_norm_forward_cuda(stack_value *stack, uint64_t argument_count, uint64_t return_count);
void group_norm_backward_cuda(stack_value *stack, uint64_t argument_count, uint64_t return_count);
returned_tensors group_norm_forward_unboxed(void *functor, uint64_t keys, tensor_handle input,
                                            const optional_tensor *weight,
                                            const optional_tensor *bias, int64_t batch,
                                            int64_t channels, int64_t pixels, int64_t groups,
                                            double eps);

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

/* batch_norm.c */
void batch_norm_forward(stack_value *stack, uint64_t argument_count, uint64_t return_count);
void batch_norm_forward_cuda(stack_value *stack, uint64_t argument_count, uint64_t return_count);
returned_tensors batch_norm_forward_unboxed(void *functor, uint64_t keys, tensor_handle input,
                                            const optional_tensor *weight,
                                            const optional_tensor *bias,
                                            const optional_tensor *running_mean,
                                            const optional_tensor *running_var, bool training,
                                            double momentum, double eps);
void batch_norm_legit(stack_value *stack, uint64_t argument_count, uint64_t return_count);
void batch_norm_legit_cuda(stack_value *stack, uint64_t argument_count, uint64_t return_count);
void batch_norm_no_stats(stack_value *stack, uint64_t argument_count, uint64_t return_count);
void batch_norm_no_stats_cuda(stack_value *stack, uint64_t argument_count, uint64_t return_count);
void batch_norm_with_update(stack_value *stack, uint64_t argument_count, uint64_t return_count);
void batch_norm_with_update_cuda(stack_value *stack, uint64_t argument_count,
                                 uint64_t return_count);
void batch_norm_cudnn(stack_value *stack, uint64_t argument_count, uint64_t return_count);

/* batch_backward.c */
void batch_norm_backward(stack_value *stack, uint64_t argument_count, uint64_t return_count);
void batch_norm_backward_cuda(stack_value *stack, uint64_t argument_count, uint64_t return_count);
returned_tensors batch_norm_backward_unboxed(void *functor, uint64_t keys, tensor_handle grad_out,
                                             tensor_handle input, const optional_tensor *weight,
                                             const optional_tensor *running_mean,
                                             const optional_tensor *running_var,
                                             const optional_tensor *mean,
                                             const optional_tensor *rstd, bool training, double eps,
                                             mask3 mask);
void batch_norm_reserve_backward(stack_value *stack, uint64_t argument_count,
                                 uint64_t return_count);
void batch_norm_reserve_backward_cuda(stack_value *stack, uint64_t argument_count,
                                      uint64_t return_count);
void batch_norm_cudnn_backward(stack_value *stack, uint64_t argument_count, uint64_t return_count);

/* sync_batch.c */
void batch_norm_stats(stack_value *stack, uint64_t argument_count, uint64_t return_count);
void batch_norm_stats_cuda(stack_value *stack, uint64_t argument_count, uint64_t return_count);
void batch_norm_elemt(stack_value *stack, uint64_t argument_count, uint64_t return_count);
void batch_norm_elemt_cuda(stack_value *stack, uint64_t argument_count, uint64_t return_count);
void batch_norm_elemt_out(stack_value *stack, uint64_t argument_count, uint64_t return_count);
void batch_norm_elemt_out_cuda(stack_value *stack, uint64_t argument_count, uint64_t return_count);
void batch_norm_backward_reduce(stack_value *stack, uint64_t argument_count, uint64_t return_count);
void batch_norm_backward_reduce_cuda(stack_value *stack, uint64_t argument_count,
                                     uint64_t return_count);
void batch_norm_backward_elemt(stack_value *stack, uint64_t argument_count, uint64_t return_count);
void batch_norm_backward_elemt_cuda(stack_value *stack, uint64_t argument_count,
                                    uint64_t return_count);

/* weight_norm.c */
void weight_norm_forward(stack_value *stack, uint64_t argument_count, uint64_t return_count);
void weight_norm_backward(stack_value *stack, uint64_t argument_count, uint64_t return_count);

/* norm_operators.c */
void norm_forward(stack_value *stack, uint64_t argument_count, uint64_t return_count);
void norm_backward(stack_value *stack, uint64_t argument_count, uint64_t return_count);
void norm_statistics(stack_value *stack, uint64_t argument_count, uint64_t return_count);

/* norm_parts.c */
void norm_part_statistics(stack_value *stack, uint64_t argument_count, uint64_t return_count);
void norm_part_message(stack_value *stack, uint64_t argument_count, uint64_t return_count);
void norm_apply(stack_value *stack, uint64_t argument_count, uint64_t return_count);
void norm_backward_statistics(stack_value *stack, uint64_t argument_count, uint64_t return_count);
void norm_backward_apply(stack_value *stack, uint64_t argument_count, uint64_t return_count);

/* norm_merge.c */
void norm_part_apply(stack_value *stack, uint64_t argument_count, uint64_t return_count);
void norm_part_backward_apply(stack_value *stack, uint64_t argument_count, uint64_t return_count);

/* norm_pair.c */
void norm_pair(stack_value *stack, uint64_t argument_count, uint64_t return_count);
void norm_pair_backward(stack_value *stack, uint64_t argument_count, uint64_t return_count);

/* batch_operators.c */
void batch_norm(stack_value *stack, uint64_t argument_count, uint64_t return_count);

/* quantized_norm.c */
void quantized_norm(stack_value *stack, uint64_t argument_count, uint64_t return_count);
void norm_into(stack_value *stack, uint64_t argument_count, uint64_t return_count);

#endif
