/*
 * planish::norm_forward, norm_backward and norm_statistics: the norm over any axes with the stages
 * around it (planish.h), of which any may be absent. Quantised results are in quantized_norm.c, two
 * norms by one call in norm_pair.c. python/planish/operators/ops.py gives the operators their fake
 * implementations and their autograd formulas, and is the only caller; it checks what a user may
 * get wrong. Axes, options and split are those of options.h.
 *
 *     norm_forward(x, residual?, row_scale?, column_scale?, rng?, weight?, bias?, scale?, shift?,
 *                  gate?, int axes, int options, int split, float eps, float dropout_p)
 *         -> (y, sum, mean, rstd)
 *     norm_backward(dy, s, rstd, mean?, dsum?, branch?, row_scale?, column_scale?, rng?, weight?,
 *                   bias?, scale?, shift?, gate?, int axes, int options, int split,
 *                   float dropout_p)
 *         -> (dx, dresidual, dweight, dbias, dcolumn_scale, dscale, dshift, dgate)
 *     norm_statistics(x, int axes)
 *         -> (mean, m2)                  the mean, and the sum of squares of what is left beside it
 *
 * What is not there is undefined: a sum without its dtype, statistics without OPTION_SAVE, the mean
 * of RMS, gradients that are not wanted. s is the sum that the forward returned, or x where there
 * was none. y, sum, dx, dresidual and dgate are laid out as torch.empty_like(x), or of s; every
 * other result is dense, with the sizes of its axes. The gradients of parameters have the dtype of
 * their parameter where it is given, else that of weight, else that of s. The statistics are f32;
 * f64 where any tensor is, where an activation follows, and for a LAYER norm with a modulation or a
 * gate, whose backward wants the mean with all its digits.
 */
#include "norm_operators.h"

#include "calls.h"
#include "kernels.h"

const role forward_inputs[FORWARD_INPUTS] = {
    ROLE_X,      ROLE_RESIDUAL, ROLE_ROW_SCALE, ROLE_COLUMN_SCALE, ROLE_RNG,
    ROLE_WEIGHT, ROLE_BIAS,     ROLE_SCALE,     ROLE_SHIFT,        ROLE_GATE};
const role forward_outputs[FORWARD_OUTPUTS] = {ROLE_Y, ROLE_SUM, ROLE_MEAN, ROLE_RSTD};
const role backward_inputs[BACKWARD_INPUTS] = {
    ROLE_DY,           ROLE_X,   ROLE_RSTD,   ROLE_MEAN, ROLE_DSUM,  ROLE_BRANCH, ROLE_ROW_SCALE,
    ROLE_COLUMN_SCALE, ROLE_RNG, ROLE_WEIGHT, ROLE_BIAS, ROLE_SCALE, ROLE_SHIFT,  ROLE_GATE};
const role backward_outputs[BACKWARD_OUTPUTS] = {ROLE_DX,     ROLE_DRESIDUAL,     ROLE_DWEIGHT,
                                                 ROLE_DBIAS,  ROLE_DCOLUMN_SCALE, ROLE_DSCALE,
                                                 ROLE_DSHIFT, ROLE_DGATE};

static int32_t statistics_dtype(const norm_call *c, bool more_doubles) {
    const bool layer = c->op.kind == PLANISH_LAYER;
    const bool exact = c->op.activation != PLANISH_IDENTITY ||
                       (layer && (c->given[ROLE_SCALE] || c->given[ROLE_GATE]));
    return more_doubles || exact || norm_call_is_double(c) ? torch.f64 : torch.f32;
}

/* Which of two counts a call is of. */
static bool has_stages(const norm_call *c) {
    for (int r = NORM_ROLES; r < ROLE_COUNT; r++)
        if (c->given[r])
            return true;
    return c->op.weight_offset || c->op.rounding;
}

void norm_forward_taken(norm_call *c, int64_t split) {
    INSIDE call = call_enter(has_stages(c) ? NORM_FORWARD_STAGES : NORM_FORWARD, BOXED);
    norm_call_view(c, split);
    if (c->op.kind == PLANISH_L2 && c->op.dropout_p != 0)
        torch_throw("planish: an L2 norm has no dropout");

    const bool dense = c->options & OPTION_DENSE;
    const bool has_sum = option_field(c->options, SUM_DTYPE_AT, BYTE_BITS);
    const int32_t y_dtype = norm_call_dtype(c, DTYPE_AT);
    const int32_t sum_dtype = norm_call_dtype(c, SUM_DTYPE_AT);
    norm_call_make_full(c, ROLE_Y, y_dtype, dense);
    if (has_sum)
        norm_call_make_full(c, ROLE_SUM, sum_dtype, dense);
    if (c->options & OPTION_SAVE) {
        const int32_t dtype =
            statistics_dtype(c, y_dtype == torch.f64 || (has_sum && sum_dtype == torch.f64));
        if (c->op.kind == PLANISH_LAYER)
            norm_call_make_dense(c, ROLE_MEAN, norm_call_kept_axes(c), true, dtype);
        norm_call_make_dense(c, ROLE_RSTD, norm_call_kept_axes(c), true, dtype);
    }
    norm_call_run(c, PLANISH_FORWARD, false);
}

void norm_forward(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    layout rooms[ROLE_COUNT];
    NORM_CALL c = {.op = op_of(stack[10], stack[11]), .options = stack[11], .rooms = rooms};
    c.op.eps = take_double(stack[13]);
    c.op.dropout_p = take_double(stack[14]);
    const int64_t split = (int64_t)stack[12];
    norm_call_take(&c, stack, forward_inputs, FORWARD_INPUTS, 1);
    norm_forward_taken(&c, split);
    norm_call_give(&c, stack, forward_outputs, FORWARD_OUTPUTS);
}

/* What a parameter's gradient has: the parameter's dtype, or weight's, or x's. */
static int32_t gradient_dtype(const norm_call *c, role parameter) {
    const role r = c->given[parameter] ? parameter : c->given[ROLE_WEIGHT] ? ROLE_WEIGHT : ROLE_X;
    return view_dtype(&c->view[r]);
}

static void make_gradient(norm_call *c, role r) {
    switch (r) {
    case ROLE_DX:
        norm_call_make_full(c, r, norm_call_dtype(c, DTYPE_AT), false);
        break;
    case ROLE_DRESIDUAL:
        norm_call_make_full(c, r, norm_call_dtype(c, SUM_DTYPE_AT), false);
        break;
    case ROLE_DGATE:
        norm_call_make_full(c, r, gradient_dtype(c, ROLE_GATE), false);
        break;
    case ROLE_DCOLUMN_SCALE:
        norm_call_make_dense(c, r, c->op.column_axes, false, gradient_dtype(c, ROLE_COLUMN_SCALE));
        break;
    case ROLE_DSCALE:
        norm_call_make_dense(c, r, c->op.modulation_axes, false, gradient_dtype(c, ROLE_SCALE));
        break;
    case ROLE_DSHIFT:
        norm_call_make_dense(c, r, c->op.modulation_axes, false, gradient_dtype(c, ROLE_SHIFT));
        break;
    case ROLE_DWEIGHT:
        norm_call_make_dense(c, r, c->op.affine_axes, false, gradient_dtype(c, ROLE_WEIGHT));
        break;
    default:
        norm_call_make_dense(c, r, c->op.affine_axes, false, gradient_dtype(c, ROLE_BIAS));
    }
}

void norm_backward_taken(norm_call *c, int64_t split) {
    INSIDE call = call_enter(has_stages(c) ? NORM_BACKWARD_STAGES : NORM_BACKWARD, BOXED);
    norm_call_view(c, split);

    const int wanted = option_field(c->options, WANTED_AT, BYTE_BITS);
    for (int i = 0; i < BACKWARD_OUTPUTS; i++)
        if (wanted & 1 << i)
            make_gradient(c, backward_outputs[i]);
    if (wanted)
        norm_call_run(c, PLANISH_BACKWARD, false);
}

void norm_backward(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    layout rooms[ROLE_COUNT];
    NORM_CALL c = {.op = op_of(stack[14], stack[15]), .options = stack[15], .rooms = rooms};
    set_last(&c.op, take_double(stack[17]));
    const int64_t split = (int64_t)stack[16];
    norm_call_take(&c, stack, backward_inputs, BACKWARD_INPUTS, 3);
    norm_backward_taken(&c, split);
    norm_call_give(&c, stack, backward_outputs, BACKWARD_OUTPUTS);
}

void norm_statistics(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    INSIDE call = call_enter(NORM_STATISTICS, BOXED);
    static const role inputs[1] = {ROLE_X}, outputs[2] = {ROLE_MEAN, ROLE_M2};
    layout rooms[ROLE_COUNT];
    NORM_CALL c = {.op = op_of(stack[1], 0), .rooms = rooms};
    norm_call_take(&c, stack, inputs, 1, 1);
    norm_call_view(&c, 0);
    const int32_t dtype = norm_call_is_double(&c) ? torch.f64 : torch.f32;
    for (int i = 0; i < 2; i++)
        norm_call_make_dense(&c, outputs[i], norm_call_kept_axes(&c), true, dtype);
    norm_call_run(&c, PLANISH_STATISTICS, false);
    norm_call_give(&c, stack, outputs, 2);
}
