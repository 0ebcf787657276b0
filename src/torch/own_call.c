/*
 * The number beside a call, and the mark of what it saves; see own_call.h.
 */
#include "own_call.h"

#include <stdatomic.h>
#include <string.h>

#include "planish_torch.h"
#include "run.h"
#include "thrown.h"

static _Thread_local bool is_under_way, is_unrecorded;

/* No stride that a tensor has by itself. */
static const int64_t mark = 0x706c616e697368;

bool own_call_take(void) {
    const bool own = is_under_way;
    is_under_way = false;
    return own;
}

static _Thread_local running_pair running;

void own_call_begin(running_pair beside) {
    running = beside;
    is_under_way = true;
}

bool own_call_take_running(running_pair *beside) {
    *beside = running;
    running = (running_pair){NULL, NULL};
    return own_call_take();
}

static void (*_Atomic when_recorded)(void *);

void planish_torch_when_recorded(void (*recorded)(void *)) {
    atomic_store(&when_recorded, recorded);
}

void own_call_tell_recorded(tensor_handle dy) {
    void (*tell)(void *) = atomic_load(&when_recorded);
    tensor_handle given = NULL;
    if (!tell || !torch.grad_mode_is_enabled())
        return;
    torch_check(torch.new_handle(dy, &given));
    tell(given);
}

void planish_torch_own_begin(void) {
    is_under_way = true;
}

void planish_torch_own_end(void) {
    is_under_way = false;
}

void own_call_begin_unrecorded(void) {
    is_unrecorded = true;
}

void own_call_end_unrecorded(void) {
    is_unrecorded = false;
}

bool saves_statistics(bool own) {
    return !own || (torch.grad_mode_is_enabled() && !is_unrecorded);
}

new_tensor new_statistic(const DLTensor *like, int32_t ndim, int64_t *sizes, int32_t dtype,
                         bool own, int64_t *strides, DLTensor *view) {
    if (!own)
        return new_dense_tensor(like, ndim, sizes, dtype, strides, view);
    int64_t marked_sizes[PLANISH_MAX_NDIM + 1], marked[PLANISH_MAX_NDIM + 1];
    int32_t rank = ndim;
    memcpy(marked_sizes, sizes, (size_t)ndim * sizeof *sizes);
    if (ndim == 0 || sizes[ndim - 1] != 1)
        marked_sizes[rank++] = 1;
    contiguous_strides(rank, marked_sizes, marked);
    marked[rank - 1] = mark;
    new_tensor made = new_strided_tensor(like, rank, marked_sizes, marked, dtype, view);
    contiguous_strides(ndim, sizes, strides);
    view->ndim = ndim;
    view->shape = sizes;
    view->strides = strides;
    return made;
}

planish_status own_call_run(const planish_norm *op, planish_pass pass,
                            const planish_tensors *tensors) {
    char text[512] = "";
    const planish_status status = run_norm(op, pass, tensors, (message){text, sizeof text});
    if (status != PLANISH_ERROR_UNAVAILABLE && status != PLANISH_ERROR_NO_FAST_KERNEL)
        throw_status(status, text);
    return status;
}

bool is_own_statistic(tensor_handle statistic) {
    int64_t ndim = 0, *sizes = NULL, *strides = NULL;
    if (torch.get_dim(statistic, &ndim) != 0 || ndim < 1 ||
        torch.get_sizes(statistic, &sizes) != 0 || torch.get_strides(statistic, &strides) != 0)
        return false;
    return sizes[ndim - 1] == 1 && strides[ndim - 1] == mark;
}
