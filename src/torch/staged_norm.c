/*
 * planish::staged_norm and staged_norm_backward: the norm with the stages around it (planish.h),
 * but for quantised results, which are in quantized_norm.c. python/planish/_staged_ops.py gives
 * them their fake implementations and their autograd formulas; python/planish/_staged.py is the
 * only caller and checks what a user may get wrong.
 *
 *     staged_norm(x, residual?, row_scale?, column_scale?, rng?, weight?, bias?, scale?, shift?,
 *                 gate?, int[] reduce, int[] affine, int[] column, int[] modulation, float eps,
 *                 bool rms, int weight_offset, int activation, bool gate_before, bool round_xhat,
 *                 float dropout_p, ScalarType y_dtype, ScalarType? sum_dtype)
 *         -> (y, sum, mean, rstd)     (RMS: mean has no elements; without sum_dtype: no sum)
 *     staged_norm_backward(dy, s, mean, rstd, dsum?, branch?, row_scale?, column_scale?, rng?,
 *                          weight?, bias?, scale?, shift?, gate?, int[] reduce, int[] affine,
 *                          int[] column, int[] modulation, bool rms, int weight_offset,
 *                          int activation, bool gate_before, float dropout_p,
 *                          ScalarType dx_dtype, ScalarType dresidual_dtype, bool[8] wanted)
 *         -> (dx, dresidual, dweight, dbias, dcolumn_scale, dscale, dshift, dgate)
 *                                     (undefined where not wanted)
 *
 * s is the sum that the forward returned, or x where there was none. y, sum, dx, dresidual and
 * dgate are laid out as torch.empty_like(x), or of s; every other result is dense, with the sizes
 * of its axes. The gradients of parameters have the dtype of their parameter where it is given,
 * else that of weight, else that of s. The statistics are f32; f64 where any tensor is, where an
 * activation follows, and for a LAYER norm with a modulation or a gate, whose backward wants the
 * mean with all its digits.
 */
#include "staged.h"

#include "calls.h"
#include "kernels.h"

enum { FORWARD_INPUTS = 10, BACKWARD_INPUTS = 14, BACKWARD_OUTPUTS = 8 };

static int32_t statistics_dtype(const staged *s, bool more_doubles) {
    const bool layer = s->op.kind == PLANISH_LAYER;
    const bool exact = s->op.activation != PLANISH_IDENTITY ||
                       (layer && (s->given[ROLE_SCALE] || s->given[ROLE_GATE]));
    return more_doubles || exact || staged_is_double(s) ? torch.f64 : torch.f32;
}

static uint64_t kept_axes(const staged *s) {
    return (PLANISH_AXIS(s->view[ROLE_X].ndim) - 1) & ~s->op.reduce_axes;
}

void staged_norm(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    INSIDE call = call_enter(STAGED_NORM, BOXED);
    static const role inputs[FORWARD_INPUTS] = {
        ROLE_X,      ROLE_RESIDUAL, ROLE_ROW_SCALE, ROLE_COLUMN_SCALE, ROLE_RNG,
        ROLE_WEIGHT, ROLE_BIAS,     ROLE_SCALE,     ROLE_SHIFT,        ROLE_GATE};
    static const role outputs[4] = {ROLE_Y, ROLE_SUM, ROLE_MEAN, ROLE_RSTD};
    STAGED s = {.op.struct_size = sizeof s.op};
    staged_take(&s, stack, inputs, FORWARD_INPUTS, 1);
    OWNED_LIST reduce = take_list(stack[10]);
    OWNED_LIST affine = take_list(stack[11]);
    OWNED_LIST column = take_list(stack[12]);
    OWNED_LIST modulation = take_list(stack[13]);
    s.op.eps = take_double(stack[14]);
    s.op.kind = take_bool(stack[15]) ? PLANISH_RMS : PLANISH_LAYER;
    s.op.gate = take_bool(stack[18]) ? PLANISH_GATE_BEFORE : PLANISH_GATE_AFTER;
    s.op.rounding = take_bool(stack[19]) ? PLANISH_ROUND_XHAT : PLANISH_ROUND_ONCE;
    s.op.dropout_p = take_double(stack[20]);
    const int32_t y_dtype = (int32_t)stack[21];
    stack_value sum_dtype = 0;
    const bool has_sum = take_optional(stack[22], &sum_dtype);
    s.op.weight_offset = take_small(stack[16]);
    s.op.activation = (planish_activation)take_small(stack[17]);

    staged_view(&s);
    const DLTensor *x = &s.view[ROLE_X];
    s.op.reduce_axes = read_axes(reduce, x->ndim);
    s.op.affine_axes = read_axes(affine, x->ndim);
    s.op.column_axes = read_axes(column, x->ndim);
    s.op.modulation_axes = read_axes(modulation, x->ndim);
    layout y, sum, mean, rstd;
    staged_make_full(&s, ROLE_Y, y_dtype, &y);
    if (has_sum)
        staged_make_full(&s, ROLE_SUM, (int32_t)sum_dtype, &sum);
    const int32_t dtype =
        statistics_dtype(&s, y_dtype == torch.f64 || (has_sum && (int32_t)sum_dtype == torch.f64));
    if (s.op.kind == PLANISH_LAYER)
        staged_make_dense(&s, ROLE_MEAN, kept_axes(&s), true, dtype, &mean);
    staged_make_dense(&s, ROLE_RSTD, kept_axes(&s), true, dtype, &rstd);
    staged_run(&s, PLANISH_FORWARD, false);
    if (s.op.kind == PLANISH_RMS) {
        int64_t none = 0, stride;
        s.made[ROLE_MEAN] = new_dense_tensor(x, 1, &none, dtype, &stride, &s.view[ROLE_MEAN]);
    }
    staged_give(&s, stack, outputs, 4);
}

static void read_wanted(list_handle list, bool wanted[BACKWARD_OUTPUTS]) {
    int64_t numbers[LIST_ROOM] = {0};
    if (read_list(list, numbers, LIST_ROOM) != BACKWARD_OUTPUTS)
        torch_throw("planish: wanted has another length than 8");
    for (int i = 0; i < BACKWARD_OUTPUTS; i++)
        wanted[i] = take_bool((stack_value)numbers[i]);
}

/* What a parameter's gradient has: the parameter's dtype, or weight's, or x's. */
static int32_t gradient_dtype(const staged *s, role parameter) {
    const role r = s->given[parameter] ? parameter : s->given[ROLE_WEIGHT] ? ROLE_WEIGHT : ROLE_X;
    return view_dtype(&s->view[r]);
}

void staged_norm_backward(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    INSIDE call = call_enter(STAGED_NORM_BACKWARD, BOXED);
    static const role inputs[BACKWARD_INPUTS] = {
        ROLE_DY,     ROLE_X,         ROLE_MEAN,         ROLE_RSTD, ROLE_DSUM,
        ROLE_BRANCH, ROLE_ROW_SCALE, ROLE_COLUMN_SCALE, ROLE_RNG,  ROLE_WEIGHT,
        ROLE_BIAS,   ROLE_SCALE,     ROLE_SHIFT,        ROLE_GATE};
    static const role outputs[BACKWARD_OUTPUTS] = {ROLE_DX,     ROLE_DRESIDUAL,     ROLE_DWEIGHT,
                                                   ROLE_DBIAS,  ROLE_DCOLUMN_SCALE, ROLE_DSCALE,
                                                   ROLE_DSHIFT, ROLE_DGATE};
    STAGED s = {.op.struct_size = sizeof s.op};
    staged_take(&s, stack, inputs, BACKWARD_INPUTS, 4);
    OWNED_LIST reduce = take_list(stack[14]);
    OWNED_LIST affine = take_list(stack[15]);
    OWNED_LIST column = take_list(stack[16]);
    OWNED_LIST modulation = take_list(stack[17]);
    OWNED_LIST mask = take_list(stack[25]);
    s.op.kind = take_bool(stack[18]) ? PLANISH_RMS : PLANISH_LAYER;
    s.op.gate = take_bool(stack[21]) ? PLANISH_GATE_BEFORE : PLANISH_GATE_AFTER;
    s.op.dropout_p = take_double(stack[22]);
    const int32_t dx_dtype = (int32_t)stack[23], dresidual_dtype = (int32_t)stack[24];
    s.op.weight_offset = take_small(stack[19]);
    s.op.activation = (planish_activation)take_small(stack[20]);
    bool wanted[BACKWARD_OUTPUTS];
    read_wanted(mask, wanted);

    staged_view(&s);
    if (s.op.kind == PLANISH_RMS)
        s.list[ROLE_MEAN] = NULL;
    const int32_t ndim = s.view[ROLE_X].ndim;
    s.op.reduce_axes = read_axes(reduce, ndim);
    s.op.affine_axes = read_axes(affine, ndim);
    s.op.column_axes = read_axes(column, ndim);
    s.op.modulation_axes = read_axes(modulation, ndim);
    layout made[BACKWARD_OUTPUTS];
    bool any = false;
    for (int i = 0; i < BACKWARD_OUTPUTS; i++) {
        const role r = outputs[i];
        if (!wanted[i])
            continue;
        any = true;
        if (r == ROLE_DX || r == ROLE_DRESIDUAL)
            staged_make_full(&s, r, r == ROLE_DX ? dx_dtype : dresidual_dtype, &made[i]);
        else if (r == ROLE_DGATE)
            staged_make_full(&s, r, gradient_dtype(&s, ROLE_GATE), &made[i]);
        else if (r == ROLE_DCOLUMN_SCALE)
            staged_make_dense(&s, r, s.op.column_axes, false, gradient_dtype(&s, ROLE_COLUMN_SCALE),
                              &made[i]);
        else if (r == ROLE_DSCALE || r == ROLE_DSHIFT)
            staged_make_dense(&s, r, s.op.modulation_axes, false,
                              gradient_dtype(&s, r == ROLE_DSCALE ? ROLE_SCALE : ROLE_SHIFT),
                              &made[i]);
        else
            staged_make_dense(&s, r, s.op.affine_axes, false,
                              gradient_dtype(&s, r == ROLE_DWEIGHT ? ROLE_WEIGHT : ROLE_BIAS),
                              &made[i]);
    }
    if (any)
        staged_run(&s, PLANISH_BACKWARD, false);
    staged_give(&s, stack, outputs, BACKWARD_OUTPUTS);
}
