/*
 * planish's operators behind an exchange: they put together what the parts of rows sent, and run
 * the pass that needs it (norm_parts.c has the passes before; python/planish/operators/parts.py the
 * exchange). Axes and options are those of options.h; of these OPTION_RMS, OPTION_L2, the weight's
 * offset and y's dtype.
 *
 *     norm_part_apply(x, sent, weight?, bias?, int axes, int options, float eps)
 *         -> (y, mean, rstd, shares)
 *     norm_part_backward_apply(dy, x, sent, shares, rstd, mean?, weight?, int axes, int options)
 *         -> dx
 *
 * x is this rank's part. sent is f64, a dense row for each part: forward its number of elements,
 * the means of all rows (RMS: none), then their m2; backward c1 (RMS: none), then c2. Parts are
 * taken in their order, so that whoever merges the same parts has the same bits:
 *
 *     share_p = n_p / sum of n          mean = sum of share_p mean_p
 *     m2 = sum of m2_p + n_p (mean_p - mean)^2 (Chan, Golub, LeVeque 1983)
 *     rstd = 1 / sqrt(m2 / sum of n + eps)          c = sum of share_p c_p
 *
 * Of an L2 norm every share is 1, and rstd = 1 / max(sqrt(m2), eps).
 *
 * mean and rstd are f64, with x's rank, 1 on every reduced axis; shares has one number for each
 * part. y and dx are laid out as torch.empty_like(x), dx of x's dtype.
 */
#include "norm_call.h"

#include "calls.h"
#include "kernels.h"
#include "run.h"

/* What is merged into both roles, `head` numbers being before those of x's rows. */
static merge_args arguments_of(const norm_call *c, const DLTensor *sent, int64_t head, role first,
                               role second) {
    const int64_t rows = norm_call_rows(c), kinds = c->op.kind == PLANISH_LAYER ? 2 : 1;
    if (sent->ndim != 2 || !view_is_double(sent) || sent->shape[0] < 1 ||
        sent->shape[1] != head + kinds * rows || (sent->shape[1] > 1 && sent->strides[1] != 1) ||
        !same_device(sent, &c->view[ROLE_X]))
        torch_throw("planish: sent must be a dense row of f64 for each part, with what was sent of "
                    "each of x's rows, on x's device");
    return (merge_args){.sent = sent->data,
                        .first = c->list[first] ? c->view[first].data : NULL,
                        .second = c->view[second].data,
                        .parts = sent->shape[0],
                        .stride = sent->strides[0],
                        .rows = rows,
                        .l2 = c->op.kind == PLANISH_L2};
}

void norm_part_apply(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    INSIDE call = call_enter(NORM_PART_APPLY, BOXED);
    static const role x[1] = {ROLE_X}, parameters[2] = {ROLE_WEIGHT, ROLE_BIAS};
    static const role outputs[3] = {ROLE_Y, ROLE_MEAN, ROLE_RSTD};
    layout rooms[ROLE_COUNT];
    NORM_CALL c = {.op = op_of(stack[4], stack[5]), .options = stack[5], .rooms = rooms};
    c.op.eps = take_double(stack[6]);
    OWNED_TENSOR sent = take_tensor(stack[1]);
    norm_call_take(&c, stack, x, 1, 1);
    norm_call_take(&c, stack + 2, parameters, 2, 0);
    norm_call_view(&c, 0);
    const DLTensor view = view_input(sent);
    for (int i = 1; i < 3; i++)
        norm_call_make_statistic(&c, outputs[i]);
    merge_args m = arguments_of(&c, &view, 1, ROLE_MEAN, ROLE_RSTD);
    int64_t sizes[1] = {m.parts}, strides[1];
    DLTensor shares_view;
    NEW_TENSOR shares = new_dense_tensor(&view, 1, sizes, torch.f64, strides, &shares_view);
    m.made_shares = shares_view.data;
    m.eps = c.op.eps;
    run_merge(&m, view.device);
    norm_call_make_full(&c, ROLE_Y, norm_call_dtype(&c, DTYPE_AT), false);
    norm_call_run(&c, PLANISH_APPLY, false);
    norm_call_give(&c, stack, outputs, 3);
    const returned_tensors last = {{give_tensor(&shares), NULL, NULL}};
    give_returned(stack + 3, &last, 1);
}

void norm_part_backward_apply(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    INSIDE call = call_enter(NORM_PART_BACKWARD_APPLY, BOXED);
    static const role both[2] = {ROLE_DY, ROLE_X}, sums[2] = {ROLE_C1, ROLE_C2};
    static const role known[3] = {ROLE_RSTD, ROLE_MEAN, ROLE_WEIGHT}, outputs[1] = {ROLE_DX};
    layout rooms[ROLE_COUNT];
    NORM_CALL c = {.op = op_of(stack[7], stack[8]), .options = stack[8], .rooms = rooms};
    OWNED_TENSOR sent = take_tensor(stack[2]);
    OWNED_TENSOR shares = take_tensor(stack[3]);
    norm_call_take(&c, stack, both, 2, 2);
    norm_call_take(&c, stack + 4, known, 3, 1);
    norm_call_view(&c, 0);
    const DLTensor view = view_input(sent), of_parts = view_input(shares);
    for (int i = 0; i < 2; i++)
        norm_call_make_statistic(&c, sums[i]);
    merge_args m = arguments_of(&c, &view, 0, ROLE_C1, ROLE_C2);
    if (of_parts.ndim != 1 || of_parts.shape[0] != m.parts || !view_is_double(&of_parts) ||
        !view_is_contiguous(&of_parts) || !same_device(&of_parts, &view))
        torch_throw("planish: shares must have one f64 for each part, on x's device");
    m.shares = of_parts.data;
    run_merge(&m, view.device);
    norm_call_make_full(&c, ROLE_DX, view_dtype(&c.view[ROLE_X]), false);
    norm_call_run(&c, PLANISH_BACKWARD, false);
    norm_call_give(&c, stack, outputs, 1);
}
