/*
 * torch's own CUDA kernels of SyncBatchNorm's operators, by their exported C++ names: see
 * fallback.h. For the CPU torch has none.
 */
#ifndef PLANISH_TORCH_SYNC_FALLBACK_H
#define PLANISH_TORCH_SYNC_FALLBACK_H

#include "batch_views.h"

/* What the operators take, with handles that stay the caller's; NULL is None. */
typedef struct sync_arguments {
    tensor_handle dy, input, mean, rstd, weight, bias;
    tensor_handle sum_dy, sum_dy_xmu, count; /* of batch_norm_backward_elemt */
    tensor_handle out;                       /* of batch_norm_elemt.out */
    double eps;
    mask3 mask; /* of batch_norm_backward_reduce: the sums, dweight, dbias */
} sync_arguments;

/* Each hands a call over, or throws on the CPU, in words that tell why planish did not run it. */
returned_tensors torch_sync_statistics(batch_habit habit, const sync_arguments *a, reason why);
returned_tensors torch_sync_apply(batch_habit habit, const sync_arguments *a, reason why);
void torch_sync_apply_out(batch_habit habit, const sync_arguments *a, reason why);
returned_four torch_sync_sums(batch_habit habit, const sync_arguments *a, reason why);
returned_tensors torch_sync_gradient(batch_habit habit, const sync_arguments *a, reason why);

/* Whether this torch has all of them, and what planish needs beside its kernels. */
bool cuda_sync_batch_norms_are_there(void);

#endif
