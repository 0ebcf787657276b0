/*
 * planish::norm_pair and norm_pair_backward: two norms over the last axis by one call, such as
 * those of queries and keys (planish_norm_pair_run, which says when a GPU has one launch for both).
 * python/planish/operators/ops.py gives them their fake implementations and their autograd
 * formulas; it is the only caller and checks what a user may get wrong.
 *
 *     norm_pair(first, second, first_weight?, second_weight?, int options, float eps)
 *         -> (y, mean, rstd, of first and then of second)
 *     norm_pair_backward(first_dy, second_dy, first, second, first_mean?, second_mean?, first_rstd,
 *                        second_rstd, first_weight?, second_weight?, int options)
 *         -> (dx, dweight, of first and then of second)
 *
 * A weight has the sizes of the last axes, as many as it has itself. y and dx are laid out as
 * torch.empty_like of their x, all else is dense; y and dx have x's dtype, the statistics f32, or
 * f64 where any tensor is, dweight the dtype of the weight. What there is not, the mean of RMS,
 * statistics without OPTION_SAVE and gradients that are not wanted, is undefined.
 */
#include "norm_call.h"

#include "calls.h"
#include "kernels.h"

typedef struct pair {
    norm_call of[2];
} pair;

static void pair_free(pair *p) {
    norm_call_free(&p->of[0]);
    norm_call_free(&p->of[1]);
}

#define PAIR __attribute__((cleanup(pair_free))) pair

typedef layout pair_rooms[2][ROLE_COUNT];

/* Takes the tensors of these roles, of first and second by turns; those of the set `required` are
 * not optional. */
static void take(pair *p, stack_value *stack, const role roles[], int count, uint64_t required,
                 pair_rooms rooms) {
    for (int k = 0; k < 2; k++) {
        norm_call *c = &p->of[k];
        c->op = op_of(0, c->options);
        c->rooms = rooms[k];
        for (int i = 0; i < count; i++) {
            const stack_value value = stack[2 * i + k];
            c->given[roles[i]] =
                required >> roles[i] & 1 ? take_tensor(value) : take_optional_tensor(value);
        }
    }
}

/* Looks at what was taken, and sets the axes by it. */
static void describe(norm_call *c) {
    if (c->op.kind == PLANISH_L2)
        torch_throw("planish: L2 norms take a call each");
    norm_call_view(c, 0);
    const int32_t ndim = c->view[ROLE_X].ndim;
    const int32_t count = c->given[ROLE_WEIGHT] ? c->view[ROLE_WEIGHT].ndim : 1;
    if (ndim < 1 || count < 1 || count > ndim)
        torch_throw("planish: a weight has the sizes of the last axes, one or more");
    c->op.reduce_axes = PLANISH_AXIS(ndim - 1);
    c->op.affine_axes = (PLANISH_AXIS(ndim) - 1) & ~(PLANISH_AXIS(ndim - count) - 1);
}

void norm_pair(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    INSIDE call = call_enter(NORM_PAIR, BOXED);
    static const role inputs[2] = {ROLE_X, ROLE_WEIGHT};
    static const role outputs[3] = {ROLE_Y, ROLE_MEAN, ROLE_RSTD};
    pair_rooms rooms;
    PAIR p = {.of = {{.options = stack[4]}, {.options = stack[4]}}};
    const double eps = take_double(stack[5]);
    take(&p, stack, inputs, 2, 1ull << ROLE_X, rooms);
    for (int k = 0; k < 2; k++) {
        norm_call *c = &p.of[k];
        c->op.eps = eps;
        describe(c);
        const int32_t dtype = norm_call_is_double(c) ? torch.f64 : torch.f32;
        norm_call_make_full(c, ROLE_Y, view_dtype(&c->view[ROLE_X]), false);
        if (!(c->options & OPTION_SAVE))
            continue;
        if (c->op.kind == PLANISH_LAYER)
            norm_call_make_dense(c, ROLE_MEAN, norm_call_kept_axes(c), true, dtype);
        norm_call_make_dense(c, ROLE_RSTD, norm_call_kept_axes(c), true, dtype);
    }
    norm_call_run_pair(&p.of[0], &p.of[1], PLANISH_FORWARD);
    norm_call_give(&p.of[0], stack, outputs, 3);
    norm_call_give(&p.of[1], stack + 3, outputs, 3);
}

void norm_pair_backward(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    INSIDE call = call_enter(NORM_PAIR_BACKWARD, BOXED);
    enum { INPUTS = 5, OUTPUTS = 2 };
    static const role inputs[INPUTS] = {ROLE_DY, ROLE_X, ROLE_MEAN, ROLE_RSTD, ROLE_WEIGHT};
    static const role outputs[OUTPUTS] = {ROLE_DX, ROLE_DWEIGHT};
    pair_rooms rooms;
    const uint64_t options = stack[2 * INPUTS];
    PAIR p = {.of = {{.options = options}, {.options = options}}};
    take(&p, stack, inputs, INPUTS, 1ull << ROLE_DY | 1ull << ROLE_X | 1ull << ROLE_RSTD, rooms);
    const int wanted = option_field(options, WANTED_AT, BYTE_BITS);
    const int of[2] = {wanted & 3, wanted >> OUTPUTS & 3};
    for (int k = 0; k < 2; k++) {
        norm_call *c = &p.of[k];
        describe(c);
        if (of[k] & 1)
            norm_call_make_full(c, ROLE_DX, view_dtype(&c->view[ROLE_X]), false);
        if (of[k] & 2) {
            const role like = c->given[ROLE_WEIGHT] ? ROLE_WEIGHT : ROLE_X;
            norm_call_make_dense(c, ROLE_DWEIGHT, c->op.affine_axes, false,
                                 view_dtype(&c->view[like]));
        }
    }
    if (of[0] && of[1])
        norm_call_run_pair(&p.of[0], &p.of[1], PLANISH_BACKWARD);
    else if (of[0] || of[1])
        norm_call_run(&p.of[of[0] ? 0 : 1], PLANISH_BACKWARD, false);
    norm_call_give(&p.of[0], stack, outputs, OUTPUTS);
    norm_call_give(&p.of[1], stack + OUTPUTS, outputs, OUTPUTS);
}
