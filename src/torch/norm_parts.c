/*
 * planish's operators for norms of which a tensor has a part of each row: what the parts exchange
 * stands between two of them (planish.h, PLANISH_STATISTICS to PLANISH_BACKWARD_STATISTICS).
 * python/planish/operators/parts.py exchanges it, and sync_batch.py the statistics of batches. Axes
 * and options are those of options.h; of these OPTION_RMS, OPTION_DENSE, the weight's offset,
 * dtypes and what is wanted.
 *
 *     norm_part_statistics(x, int axes, int options) -> (mean, m2)
 *     norm_apply(x, rstd, mean?, weight?, bias?, int axes, int options) -> y
 *     norm_backward_statistics(dy, x, rstd, mean?, weight?, int axes, int options)
 *         -> (c1, c2, dweight, dbias)
 *     norm_backward_apply(dy, x, rstd, c2, mean?, c1?, weight?, int axes, int options) -> dx
 *
 * What is not there is undefined: mean and c1 of RMS, gradients that are not wanted (bits 2 and
 * 3, as norm_backward has them). Statistics are f64, with x's rank, 1 on every reduced axis;
 * y and dx are laid out as torch.empty_like(x); dweight and dbias are dense, of the weight's dtype,
 * or x's.
 */
#include "norm_call.h"

#include "calls.h"
#include "kernels.h"

enum { WANTS_DWEIGHT = 1 << 2, WANTS_DBIAS = 1 << 3 };

static void make_statistic(norm_call *c, role r) {
    if (!kind_lacks(c->op.kind, r))
        norm_call_make_dense(c, r, norm_call_kept_axes(c), true, torch.f64);
}

void norm_part_statistics(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    INSIDE call = call_enter(NORM_PART_STATISTICS, BOXED);
    static const role inputs[1] = {ROLE_X}, outputs[2] = {ROLE_MEAN, ROLE_M2};
    layout rooms[ROLE_COUNT];
    NORM_CALL c = {.op = op_of(stack[1], stack[2]), .options = stack[2], .rooms = rooms};
    norm_call_take(&c, stack, inputs, 1, 1);
    norm_call_view(&c, 0);
    for (int i = 0; i < 2; i++)
        make_statistic(&c, outputs[i]);
    norm_call_run(&c, PLANISH_STATISTICS, false);
    norm_call_give(&c, stack, outputs, 2);
}

void norm_apply(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    INSIDE call = call_enter(NORM_APPLY, BOXED);
    static const role inputs[5] = {ROLE_X, ROLE_RSTD, ROLE_MEAN, ROLE_WEIGHT, ROLE_BIAS};
    static const role outputs[1] = {ROLE_Y};
    layout rooms[ROLE_COUNT];
    NORM_CALL c = {.op = op_of(stack[5], stack[6]), .options = stack[6], .rooms = rooms};
    norm_call_take(&c, stack, inputs, 5, 2);
    norm_call_view(&c, 0);
    norm_call_make_full(&c, ROLE_Y, norm_call_dtype(&c, DTYPE_AT), c.options & OPTION_DENSE);
    norm_call_run(&c, PLANISH_APPLY, false);
    norm_call_give(&c, stack, outputs, 1);
}

void norm_backward_statistics(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    INSIDE call = call_enter(NORM_BACKWARD_STATISTICS, BOXED);
    static const role inputs[5] = {ROLE_DY, ROLE_X, ROLE_RSTD, ROLE_MEAN, ROLE_WEIGHT};
    static const role outputs[4] = {ROLE_C1, ROLE_C2, ROLE_DWEIGHT, ROLE_DBIAS};
    layout rooms[ROLE_COUNT];
    NORM_CALL c = {.op = op_of(stack[5], stack[6]), .options = stack[6], .rooms = rooms};
    norm_call_take(&c, stack, inputs, 5, 3);
    norm_call_view(&c, 0);
    const int wanted = option_field(c.options, WANTED_AT, BYTE_BITS);
    const role like = c.given[ROLE_WEIGHT] ? ROLE_WEIGHT : ROLE_X;
    for (int i = 0; i < 2; i++)
        make_statistic(&c, outputs[i]);
    for (int i = 2; i < 4; i++)
        if (wanted & (i == 2 ? WANTS_DWEIGHT : WANTS_DBIAS))
            norm_call_make_dense(&c, outputs[i], c.op.affine_axes, false,
                                 view_dtype(&c.view[like]));
    norm_call_run(&c, PLANISH_BACKWARD_STATISTICS, false);
    norm_call_give(&c, stack, outputs, 4);
}

void norm_backward_apply(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    INSIDE call = call_enter(NORM_BACKWARD_APPLY, BOXED);
    static const role inputs[7] = {ROLE_DY,   ROLE_X,  ROLE_RSTD,  ROLE_C2,
                                   ROLE_MEAN, ROLE_C1, ROLE_WEIGHT};
    static const role outputs[1] = {ROLE_DX};
    layout rooms[ROLE_COUNT];
    NORM_CALL c = {.op = op_of(stack[7], stack[8]), .options = stack[8], .rooms = rooms};
    norm_call_take(&c, stack, inputs, 7, 4);
    norm_call_view(&c, 0);
    norm_call_make_full(&c, ROLE_DX, norm_call_dtype(&c, DTYPE_AT), false);
    norm_call_run(&c, PLANISH_BACKWARD, false);
    norm_call_give(&c, stack, outputs, 1);
}
