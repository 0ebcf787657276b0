/*
 * planish::batch_norm, batch_norm_apply and batch_norm_backward: the norm of x (N, C, ...) over all
 * axes but the channels, a tensor that is added behind it and an activation behind that
 * (planish.h). python/planish/operators/batch_ops.py gives them their fake implementations and
 * their derivatives, and is the only caller; it checks what a user may get wrong.
 *
 *     batch_norm            (x, addend?, weight?, bias?, running_mean?, running_var?,
 *                            activation, save, momentum, eps) -> (y, mean, rstd)
 *     batch_norm_apply      (x, mean, spread, addend?, weight?, bias?,
 *                            activation, running, eps) -> y
 *     batch_norm_backward   (dy, x, mean, spread, y?, addend?, weight?, bias?, c1?, c2?,
 *                            activation, running, eps, wanted) -> (dx, daddend, dweight, dbias)
 *
 * batch_norm is the norm by x's own statistics, and brings the running ones up to date, which are
 * written where they lie. The others are given them: `running`: mean and spread are the running
 * mean and variance, which do not depend on x; else the mean and rstd of x, or of all the parts
 * that x is one of. c1 and c2 are then what all parts make together. y stands in for addend and
 * bias where the activation is a ReLU. `wanted`: the bits of the gradients, in their order,
 * and one more: dweight and dbias are not rounded to the dtype of their parameters.
 *
 * y and dx are laid out as torch.empty_like(x), in x's dtype; daddend likewise, in addend's or x's.
 * What is not saved or not wanted is undefined. Statistics are vectors of f32; of f64 where a
 * tensor is, and where anything follows the norm, whose backward wants the mean with all its
 * digits. Those of a part of x are planish::norm_part_statistics (norm_parts.c).
 */
#include "calls.h"
#include "kernels.h"
#include "norm_call.h"

static void set_operator(norm_call *c, int64_t activation, double eps, double momentum) {
    norm_call_view(c, 0);
    if (c->view[ROLE_X].ndim < 2)
        torch_throw("planish: x of a batch norm must have channels, which are axis 1");
    c->op = planish_batch_norm_op(c->view[ROLE_X].ndim, eps, momentum);
    c->op.activation = (planish_activation)activation;
}

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
    NORM_CALL c = {.rooms = rooms};
    norm_call_take(&c, stack, inputs, 6, 1);
    set_operator(&c, (int64_t)stack[6], take_double(stack[9]), take_double(stack[8]));
    norm_call_make_full(&c, ROLE_Y, view_dtype(&c.view[ROLE_X]), false);
    if (take_bool(stack[7]))
        for (int i = 1; i < 3; i++)
            norm_call_make_dense(&c, outputs[i], norm_call_kept_axes(&c), false,
                                 statistics_dtype(&c));
    norm_call_run(&c, PLANISH_FORWARD, false);
    norm_call_give(&c, stack, outputs, 3);
}

void batch_norm_apply(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    static const role own[6] = {ROLE_X, ROLE_MEAN, ROLE_RSTD, ROLE_ADDEND, ROLE_WEIGHT, ROLE_BIAS};
    static const role running[6] = {ROLE_X,      ROLE_RUNNING_MEAN, ROLE_RUNNING_VAR,
                                    ROLE_ADDEND, ROLE_WEIGHT,       ROLE_BIAS};
    static const role outputs[1] = {ROLE_Y};
    INSIDE call = call_enter(BATCH_NORM_APPLY, BOXED);
    layout rooms[ROLE_COUNT];
    NORM_CALL c = {.rooms = rooms};
    norm_call_take(&c, stack, take_bool(stack[7]) ? running : own, 6, 3);
    set_operator(&c, (int64_t)stack[6], take_double(stack[8]), 0);
    norm_call_make_full(&c, ROLE_Y, view_dtype(&c.view[ROLE_X]), false);
    norm_call_run(&c, PLANISH_APPLY, false);
    norm_call_give(&c, stack, outputs, 1);
}

enum { WANTS_DX = 1, WANTS_DADDEND = 2, WANTS_DWEIGHT = 4, WANTS_DBIAS = 8, WANTS_SUMS = 16 };

/* What a parameter's gradient has: the parameter's dtype, or weight's, or x's. */
static int32_t gradient_dtype(const norm_call *c, role parameter, int wanted) {
    if (wanted & WANTS_SUMS)
        return norm_call_is_double(c) ? torch.f64 : torch.f32;
    const role r = c->given[parameter] ? parameter : c->given[ROLE_WEIGHT] ? ROLE_WEIGHT : ROLE_X;
    return view_dtype(&c->view[r]);
}

void batch_norm_gradients(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    enum { INPUTS = 10, OUTPUTS = 4 };
    static const role own[INPUTS] = {ROLE_DY,     ROLE_X,      ROLE_MEAN, ROLE_RSTD, ROLE_Y,
                                     ROLE_ADDEND, ROLE_WEIGHT, ROLE_BIAS, ROLE_C1,   ROLE_C2};
    static const role running[INPUTS] = {ROLE_DY, ROLE_X,      ROLE_RUNNING_MEAN, ROLE_RUNNING_VAR,
                                         ROLE_Y,  ROLE_ADDEND, ROLE_WEIGHT,       ROLE_BIAS,
                                         ROLE_C1, ROLE_C2};
    static const role outputs[OUTPUTS] = {ROLE_DX, ROLE_DADDEND, ROLE_DWEIGHT, ROLE_DBIAS};
    INSIDE call = call_enter(PLANISH_BATCH_NORM_BACKWARD, BOXED);
    layout rooms[ROLE_COUNT];
    NORM_CALL c = {.rooms = rooms};
    norm_call_take(&c, stack, take_bool(stack[11]) ? running : own, INPUTS, 4);
    const int wanted = (int)stack[13];
    set_operator(&c, (int64_t)stack[10], take_double(stack[12]), 0);
    if (wanted & WANTS_DX)
        norm_call_make_full(&c, ROLE_DX, view_dtype(&c.view[ROLE_X]), false);
    if (wanted & WANTS_DADDEND)
        norm_call_make_full(&c, ROLE_DADDEND,
                            view_dtype(&c.view[c.given[ROLE_ADDEND] ? ROLE_ADDEND : ROLE_X]),
                            false);
    if (wanted & WANTS_DWEIGHT)
        norm_call_make_dense(&c, ROLE_DWEIGHT, c.op.affine_axes, false,
                             gradient_dtype(&c, ROLE_WEIGHT, wanted));
    if (wanted & WANTS_DBIAS)
        norm_call_make_dense(&c, ROLE_DBIAS, c.op.affine_axes, false,
                             gradient_dtype(&c, ROLE_BIAS, wanted));
    if (wanted)
        norm_call_run(&c, PLANISH_BACKWARD, false);
    norm_call_give(&c, stack, outputs, OUTPUTS);
}
