/*
 * planish's operators that put together what the parts of rows sent (norm_parts.c has the passes
 * before and behind them; python/planish/operators/parts.py the exchange). Axes and options are
 * those of options.h; of these OPTION_RMS.
 *
 *     norm_merge(x, sent, int axes, int options, float eps) -> (mean, rstd, shares)
 *     norm_merge_sums(x, sent, shares, int axes, int options) -> (c1, c2)
 *
 * x is this rank's part, of which only the sizes count. sent is f64, a dense row for each part: in
 * norm_merge its number of elements, the means of all rows (RMS: none), then their m2; in
 * norm_merge_sums c1 (RMS: none), then c2. Parts are taken in their order, so that whoever merges
 * the same parts has the same bits:
 *
 *     share_p = n_p / sum of n          mean = sum of share_p mean_p
 *     m2 = sum of m2_p + n_p (mean_p - mean)^2 (Chan, Golub, LeVeque 1983)
 *     rstd = 1 / sqrt(m2 / sum of n + eps)          c = sum of share_p c_p
 *
 * Results are f64, with x's rank, 1 on every reduced axis; shares has one number for each part.
 */
#include "norm_call.h"

#include "../backends.h"
#include "calls.h"
#include "kernels.h"
#include "thrown.h"

static double *data_of(const norm_call *c, role r) {
    return c->list[r] ? c->view[r].data : NULL;
}

/* A new result of x's rows, unless the norm has none such. */
static void make_statistic(norm_call *c, role r) {
    if (!kind_lacks(c->op.kind, r))
        norm_call_make_dense(c, r, norm_call_kept_axes(c), true, torch.f64);
}

/* Makes both results and says where all of it is; `head` numbers are before those of x's rows. */
static merge_args arguments_of(norm_call *c, const DLTensor *sent, int64_t head, role first,
                               role second) {
    const int64_t rows = norm_call_rows(c), kinds = c->op.kind == PLANISH_RMS ? 1 : 2;
    if (sent->ndim != 2 || !view_is_double(sent) || sent->shape[1] != head + kinds * rows ||
        (sent->shape[1] > 1 && sent->strides[1] != 1) || !same_device(sent, &c->view[ROLE_X]))
        torch_throw("planish: sent must be a dense row of f64 for each part, with what was sent of "
                    "each of x's rows, on x's device");
    make_statistic(c, first);
    make_statistic(c, second);
    return (merge_args){.sent = sent->data,
                        .first = data_of(c, first),
                        .second = data_of(c, second),
                        .parts = sent->shape[0],
                        .stride = sent->strides[0],
                        .rows = rows};
}

static void run_merge(const merge_args *m, DLDevice device) {
    char text[512] = "";
    void *stream = NULL;
    if (device.device_type == kDLCUDA)
        torch_check(torch.get_current_cuda_stream(device.device_id, &stream));
    throw_status(
        backend_of(device)->merge(m, device.device_id, stream, (message){text, sizeof text}), text);
}

void norm_merge(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    INSIDE call = call_enter(NORM_MERGE, BOXED);
    static const role inputs[1] = {ROLE_X}, outputs[2] = {ROLE_MEAN, ROLE_RSTD};
    layout rooms[ROLE_COUNT];
    NORM_CALL c = {.op = op_of(stack[2], stack[3]), .options = stack[3], .rooms = rooms};
    const double eps = take_double(stack[4]);
    OWNED_TENSOR sent = take_tensor(stack[1]);
    norm_call_take(&c, stack, inputs, 1, 1);
    norm_call_view(&c, 0);
    const DLTensor view = view_input(sent);
    merge_args m = arguments_of(&c, &view, 1, ROLE_MEAN, ROLE_RSTD);
    int64_t sizes[1] = {m.parts}, strides[1];
    DLTensor shares_view;
    NEW_TENSOR shares = new_dense_tensor(&view, 1, sizes, torch.f64, strides, &shares_view);
    m.made_shares = shares_view.data;
    m.eps = eps;
    run_merge(&m, view.device);
    norm_call_give(&c, stack, outputs, 2);
    const returned_tensors last = {{give_tensor(&shares), NULL, NULL}};
    give_returned(stack + 2, &last, 1);
}

void norm_merge_sums(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    INSIDE call = call_enter(NORM_MERGE_SUMS, BOXED);
    static const role inputs[1] = {ROLE_X}, outputs[2] = {ROLE_C1, ROLE_C2};
    layout rooms[ROLE_COUNT];
    NORM_CALL c = {.op = op_of(stack[3], stack[4]), .options = stack[4], .rooms = rooms};
    OWNED_TENSOR sent = take_tensor(stack[1]);
    OWNED_TENSOR shares = take_tensor(stack[2]);
    norm_call_take(&c, stack, inputs, 1, 1);
    norm_call_view(&c, 0);
    const DLTensor view = view_input(sent), of_parts = view_input(shares);
    merge_args m = arguments_of(&c, &view, 0, ROLE_C1, ROLE_C2);
    if (of_parts.ndim != 1 || of_parts.shape[0] != m.parts || !view_is_double(&of_parts) ||
        !view_is_contiguous(&of_parts) || !same_device(&of_parts, &view))
        torch_throw("planish: shares must have one f64 for each part, on x's device");
    m.shares = of_parts.data;
    run_merge(&m, view.device);
    norm_call_give(&c, stack, outputs, 2);
}
