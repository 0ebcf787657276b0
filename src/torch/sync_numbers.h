/*
 * What SyncBatchNorm's operators have of each channel, made of what planish's passes have: rstd of
 * a sum of squares, and the means c1 and c2 of sums. All on the tensors' device, of which nothing
 * is awaited, by as few kernels as can be: planish's own, whose rows are then of one element, and
 * torch's small operators.
 */
#ifndef PLANISH_TORCH_SYNC_NUMBERS_H
#define PLANISH_TORCH_SYNC_NUMBERS_H

#include "batch_views.h"

/* One number for each channel that was given, or made: `tensor` is NULL where it is not owned. */
typedef struct sync_vector {
    new_tensor tensor;
    int64_t size, stride;
    DLTensor view;
} sync_vector;

static inline void free_sync_vector(sync_vector *v) {
    free_new_tensor(&v->tensor);
}

#define SYNC_VECTOR __attribute__((cleanup(free_sync_vector))) sync_vector

/* A new vector of one number a channel, of the dtype of statistics or another. */
void sync_new_vector(const batch *b, int32_t dtype, sync_vector *made);

/* rstd = 1 / sqrt(m2 / n + eps), of n values of each channel. */
reason sync_rstd(const batch *b, const DLTensor *m2, double eps, const DLTensor *rstd);

/* numerator / denominator, element by element; the dtype is torch's choice. */
new_tensor sync_quotient(tensor_handle numerator, tensor_handle denominator);

/* What backward's sums of all processes are divided by and multiplied with. */
typedef struct sync_sums {
    tensor_handle sum_dy, sum_dy_xmu, weight, count; /* weight may be NULL */
    DLTensor rstd;
} sync_sums;

/* c1 = weight * sum_dy / n and c2 = weight * rstd * sum_dy_xmu / n, of n = sum(count). */
reason sync_means(const batch *b, const sync_sums *s, sync_vector *c1, sync_vector *c2);

#endif
