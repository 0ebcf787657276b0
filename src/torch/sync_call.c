/*
 * Calls of SyncBatchNorm's operators; see sync_call.h.
 */
#include "sync_call.h"

#include "planish_torch.h"

void sync_free_results(sync_results *made) {
    for (int i = 0; i < 4; i++) {
        free_new_tensor(&made->list[i]);
        made->list[i].impl = NULL;
    }
}

void sync_give_results(stack_value *stack, sync_results *made, int count) {
    for (int i = 0; i < count; i++) {
        tensor_handle tensor = NULL;
        torch_check(torch.new_undefined(&tensor));
        *(void **)tensor = give_tensor(&made->list[i]);
        stack[i] = (stack_value)(uintptr_t)tensor;
    }
}

/* Whether a tensor of x's shape has no gaps, in the order of x. */
static bool lies_as_x(const batch *b, const DLTensor *view) {
    if (!b->channels_last)
        return view_is_contiguous(view);
    for (int32_t i = 0; i < view->ndim; i++)
        if (view->shape[i] != 1 && view->strides[i] != b->dense[i])
            return false;
    return true;
}

reason sync_examine(batch *b, const sync_arguments *a, sync_operator op, DLTensor saved[2]) {
    const bool on_cpu = b->habit == HABIT_CPU;
    b->input = a->input;
    b->weight = a->weight;
    b->bias = a->bias;
    reason why = DISABLED;
    if (group_is_active(on_cpu ? PLANISH_TORCH_BATCH_NORM : PLANISH_TORCH_CUDA_BATCH_NORM))
        why = batch_examine(b);
    if (why != SUPPORTED)
        return why;
    b->statistics_dtype = view_is_double(&b->x) ? torch.f64 : torch.f32;
    if (op != SYNC_STATISTICS)
        why = batch_examine_statistics(b, a->mean, a->rstd, saved);
    if (why == SUPPORTED && !on_cpu && !lies_as_x(b, &b->x))
        why = NOT_DENSE;
    return why == SUPPORTED && !on_cpu && sync_torch_is_faster(op, b) ? TORCH_IS_FASTER : why;
}

reason sync_examine_full(const batch *b, tensor_handle tensor, DLTensor *view) {
    *view = view_input(tensor);
    if (!same_device(&b->x, view))
        return OTHER_DEVICE;
    if (!same_dtype(&b->x, view))
        return MIXED_DTYPES;
    if (!same_shape(&b->x, view))
        return WRONG_SHAPE;
    return b->habit == HABIT_CPU || lies_as_x(b, view) ? SUPPORTED : NOT_DENSE;
}

bool sync_is_served(operation_counts *call, reason why, sync_results *made) {
    if (why == SUPPORTED)
        return true;
    count_reason(call, why);
    sync_free_results(made);
    return false;
}
