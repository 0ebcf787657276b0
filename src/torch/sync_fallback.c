/*
 * Calls into torch's SyncBatchNorm operators by the Itanium C++ ABI; see sync_fallback.h.
 */
#include "sync_fallback.h"

#include <stdio.h>

static optional_tensor borrow(tensor_handle tensor) {
    return tensor ? (optional_tensor){*(void **)tensor, true} : (optional_tensor){NULL, false};
}

/* There is no kernel of torch's to hand a call of the CPU to. */
static void only_on_cuda(batch_habit habit, const char *name, reason why) {
    char text[160];
    if (habit != HABIT_CPU)
        return;
    snprintf(text, sizeof text,
             "aten::%s: torch has no kernel for the CPU, and planish does not run this call: %s",
             name, reason_text(why));
    torch_throw(text);
}

returned_tensors torch_sync_statistics(batch_habit habit, const sync_arguments *a, reason why) {
    only_on_cuda(habit, "batch_norm_stats", why);
    return torch.cuda_sync_statistics(a->input, a->eps);
}

returned_tensors torch_sync_apply(batch_habit habit, const sync_arguments *a, reason why) {
    only_on_cuda(habit, "batch_norm_elemt", why);
    const optional_tensor w = borrow(a->weight), b = borrow(a->bias);
    return torch.cuda_sync_apply(a->input, &w, &b, a->mean, a->rstd, a->eps);
}

void torch_sync_apply_out(batch_habit habit, const sync_arguments *a, reason why) {
    only_on_cuda(habit, "batch_norm_elemt.out", why);
    const optional_tensor w = borrow(a->weight), b = borrow(a->bias);
    torch.cuda_sync_apply_out(a->out, a->input, &w, &b, a->mean, a->rstd, a->eps);
}

returned_four torch_sync_sums(batch_habit habit, const sync_arguments *a, reason why) {
    only_on_cuda(habit, "batch_norm_backward_reduce", why);
    const optional_tensor w = borrow(a->weight);
    const bool *wanted = a->mask.wanted;
    return torch.cuda_sync_sums(a->dy, a->input, a->mean, a->rstd, &w, wanted[0], wanted[1],
                                wanted[2]);
}

returned_tensors torch_sync_gradient(batch_habit habit, const sync_arguments *a, reason why) {
    only_on_cuda(habit, "batch_norm_backward_elemt", why);
    const optional_tensor w = borrow(a->weight);
    return torch.cuda_sync_gradient(a->dy, a->input, a->mean, a->rstd, &w, a->sum_dy, a->sum_dy_xmu,
                                    a->count);
}

bool cuda_sync_batch_norms_are_there(void) {
    return torch.cuda_sync_statistics && torch.cuda_sync_apply && torch.cuda_sync_apply_out &&
           torch.cuda_sync_sums && torch.cuda_sync_gradient && torch.cuda_fill;
}
