/*
 * Running planish inside a torch operator: torch's threads, torch's memory.
 */
#ifndef PLANISH_TORCH_RUN_H
#define PLANISH_TORCH_RUN_H

#include <stdbool.h>

#include "../merge.h"
#include "../status.h"

/*
 * planish_norm_run with libtorch's parallel-for and, where the pass needs one, a workspace from
 * torch's allocator. Throws only where torch cannot give the workspace.
 */
planish_status run_norm(const planish_norm *op, planish_pass pass, const planish_tensors *tensors,
                        message error);

/*
 * Two of one pass, as planish_plan_pair_run has them; `fast`: NO_FAST_KERNEL where a GPU has only
 * the general kernel for either.
 */
planish_status run_norm_pair(const planish_norm *const ops[2], planish_pass pass,
                             const planish_tensors *const tensors[2], bool fast, message error);

/* The same for outputs that the caller of torch gave: that they share no memory is looked at. */
planish_status run_norm_into(const planish_norm *op, planish_pass pass,
                             const planish_tensors *tensors, message error);

/* run_norm, but NO_FAST_KERNEL where a GPU has only the general kernel for it, which is slower than
 * what torch does: a copy, then its own kernel. */
planish_status run_norm_if_fast(const planish_norm *op, planish_pass pass,
                                const planish_tensors *tensors, message error);

/* The same, and NO_FAST_KERNEL also where the CPU has only the general kernel, for large tensors.
 */
planish_status run_norm_if_faster(const planish_norm *op, planish_pass pass,
                                  const planish_tensors *tensors, message error);

/* Merges on this device (merge.h), on a GPU on torch's current stream; throws what the library
 * says. */
void run_merge(const merge_args *m, DLDevice device);

#endif
