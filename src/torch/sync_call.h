/*
 * What the calls of SyncBatchNorm's operators share: which planish takes, and their results.
 */
#ifndef PLANISH_TORCH_SYNC_CALL_H
#define PLANISH_TORCH_SYNC_CALL_H

#include "sync_fallback.h"
#include "sync_faster.h"

/* What planish made, in the order in which it is returned. */
typedef struct sync_results {
    new_tensor list[4];
} sync_results;

void sync_free_results(sync_results *made);

#define SYNC_RESULTS __attribute__((cleanup(sync_free_results))) sync_results

void sync_give_results(stack_value *stack, sync_results *made, int count);

/* Looks at x and its parameters, and but for batch_norm_stats at the statistics that are given;
 * anything but SUPPORTED is for torch. */
reason sync_examine(batch *b, const sync_arguments *a, sync_operator op, DLTensor saved[2]);

/* The same of another tensor that is to lie as x does. */
reason sync_examine_full(const batch *b, tensor_handle tensor, DLTensor *view);

/* SUPPORTED, or why a call whose pass returned this goes to torch. */
static inline reason sync_reason(planish_status status) {
    return status == PLANISH_OK ? SUPPORTED : refusal(status);
}

/* Whether planish made the results; else the reason is counted, and what was made is freed before
 * torch's kernel makes its own. */
bool sync_is_served(operation_counts *call, reason why, sync_results *made);

#endif
