/*
 * planish::batch_norm: the norm of x (N, C, ...) by its own statistics over all axes but the
 * channels, a tensor that is added behind it and an activation behind that (planish.h). It brings
 * the running statistics up to date, which are written where they lie.
 *
 *     batch_norm(x, addend?, weight?, bias?, running_mean?, running_var?, int axes, int options,
 *                float momentum, float eps) -> (y, mean, rstd)
 *
 * Axes and options are those of options.h; of these the activation and OPTION_SAVE, without which
 * the statistics are undefined. They are vectors of f32; of f64 where a tensor is, and where
 * anything follows the norm, whose backward wants the mean with all its digits. The norm by the
 * running ones, by those of several parts and the backward of each are norm_parts.c's.
 * python/planish/operators/batch.py is the only caller, and checks what a user may get wrong.
 */
#include "calls.h"
#include "kernels.h"
#include "norm_call.h"

static int32_t statistics_dtype(const norm_call *c) {
    const bool exact = c->op.activation != PLANISH_IDENTITY || c->given[ROLE_ADDEND];
    return exact || norm_call_is_double(c) ? torch.f64 : torch.f32;
}

void batch_norm(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    static const role inputs[6] = {ROLE_X,    ROLE_ADDEND,       ROLE_WEIGHT,
                                   ROLE_BIAS, ROLE_RUNNING_MEAN, ROLE_RUNNING_VAR};
    static const role outputs[3] = {ROLE_Y, ROLE_MEAN, ROLE_RSTD};
    INSIDE call = call_enter(BATCH_NORM, BOXED);
    layout rooms[ROLE_COUNT];
    NORM_CALL c = {.op = op_of(stack[6], stack[7]), .options = stack[7], .rooms = rooms};
    c.op.momentum = take_double(stack[8]);
    c.op.eps = take_double(stack[9]);
    norm_call_take(&c, stack, inputs, 6, 1);
    norm_call_view(&c, 0);
    norm_call_make_full(&c, ROLE_Y, view_dtype(&c.view[ROLE_X]), false);
    for (int i = 1; i < 3 && c.options & OPTION_SAVE; i++)
        norm_call_make_dense(&c, outputs[i], norm_call_kept_axes(&c), false, statistics_dtype(&c));
    norm_call_run(&c, PLANISH_FORWARD, false);
    norm_call_give(&c, stack, outputs, 3);
}
