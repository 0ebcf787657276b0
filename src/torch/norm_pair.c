/*
 * planish::norm_pair and norm_pair_backward: two norms over the last axis by one call, such as
 * those of queries and keys (planish_norm_pair_run, which says when a GPU has one launch for both).
 * python/planish/_pairs.py gives them their fake implementations and their autograd formulas; it is
 * the only caller and checks what a user may get wrong.
 *
 *     norm_pair(first, second, first_weight?, second_weight?, float eps, bool rms,
 *               int weight_offset, bool save)
 *         -> (y, mean, rstd, of first and then of second)
 *     norm_pair_backward(first_dy, second_dy, first, second, first_mean?, second_mean?, first_rstd,
 *                        second_rstd, first_weight?, second_weight?, bool rms, int weight_offset,
 *                        bool[4] wanted)
 *         -> (dx, dweight, of first and then of second)
 *
 * A weight has the sizes of the last axes, as many as it has itself. y and dx are laid out as
 * torch.empty_like of their x, all else is dense; y and dx have x's dtype, the statistics f32, or
 * f64 where any tensor is, dweight the dtype of the weight. What there is not, the mean of RMS,
 * statistics without `save` and gradients that are not wanted, is undefined.
 */
#include "staged.h"

#include <stdio.h>

#include "calls.h"
#include "kernels.h"
#include "run.h"

typedef struct pair {
    staged of[2];
} pair;

static void pair_free(pair *p) {
    staged_free(&p->of[0]);
    staged_free(&p->of[1]);
}

#define PAIR __attribute__((cleanup(pair_free))) pair

/* Looks at what was taken, and sets the axes by it. */
static void describe(staged *s, bool rms, stack_value weight_offset) {
    s->op.struct_size = sizeof s->op;
    s->op.kind = rms ? PLANISH_RMS : PLANISH_LAYER;
    s->op.weight_offset = take_small(weight_offset);
    staged_view(s);
    const int32_t ndim = s->view[ROLE_X].ndim;
    const int32_t count = s->given[ROLE_WEIGHT] ? s->view[ROLE_WEIGHT].ndim : 1;
    if (ndim < 1 || count < 1 || count > ndim)
        torch_throw("planish: a weight has the sizes of the last axes, one or more");
    s->op.reduce_axes = PLANISH_AXIS(ndim - 1);
    s->op.affine_axes = (PLANISH_AXIS(ndim) - 1) & ~(PLANISH_AXIS(ndim - count) - 1);
}

void norm_pair(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    INSIDE call = call_enter(NORM_PAIR, BOXED);
    static const role outputs[3] = {ROLE_Y, ROLE_MEAN, ROLE_RSTD};
    PAIR p = {{{.op.eps = take_double(stack[4])}, {.op.eps = take_double(stack[4])}}};
    layout made[2][3];
    for (int i = 0; i < 2; i++) {
        p.of[i].given[ROLE_X] = take_tensor(stack[i]);
        p.of[i].given[ROLE_WEIGHT] = take_optional_tensor(stack[2 + i]);
    }
    const bool rms = take_bool(stack[5]), save = take_bool(stack[7]);
    for (int i = 0; i < 2; i++) {
        staged *s = &p.of[i];
        describe(s, rms, stack[6]);
        const DLTensor *x = &s->view[ROLE_X];
        const int32_t dtype = staged_is_double(s) ? torch.f64 : torch.f32;
        const uint64_t kept = PLANISH_AXIS(x->ndim - 1) - 1;
        staged_make_full(s, ROLE_Y, view_dtype(x), &made[i][0]);
        if (save && !rms)
            staged_make_dense(s, ROLE_MEAN, kept, true, dtype, &made[i][1]);
        if (save)
            staged_make_dense(s, ROLE_RSTD, kept, true, dtype, &made[i][2]);
    }
    staged_run_pair(&p.of[0], &p.of[1], PLANISH_FORWARD);
    staged_give(&p.of[0], stack, outputs, 3);
    staged_give(&p.of[1], stack + 3, outputs, 3);
}

/* One of the two, where the other's gradients are not wanted. */
static void run_backward(pair *p, const bool any[2]) {
    if (any[0] && any[1])
        staged_run_pair(&p->of[0], &p->of[1], PLANISH_BACKWARD);
    else if (any[0] || any[1])
        staged_run(&p->of[any[1]], PLANISH_BACKWARD, false);
}

void norm_pair_backward(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    INSIDE call = call_enter(NORM_PAIR_BACKWARD, BOXED);
    static const role outputs[2] = {ROLE_DX, ROLE_DWEIGHT};
    PAIR p = {{{.op.eps = 0}, {.op.eps = 0}}};
    layout made[2][2];
    for (int i = 0; i < 2; i++) {
        p.of[i].given[ROLE_DY] = take_tensor(stack[i]);
        p.of[i].given[ROLE_X] = take_tensor(stack[2 + i]);
        p.of[i].given[ROLE_MEAN] = take_optional_tensor(stack[4 + i]);
        p.of[i].given[ROLE_RSTD] = take_tensor(stack[6 + i]);
        p.of[i].given[ROLE_WEIGHT] = take_optional_tensor(stack[8 + i]);
    }
    const bool rms = take_bool(stack[10]);
    OWNED_LIST mask = take_list(stack[12]);
    int64_t wanted[LIST_ROOM] = {0};
    if (read_list(mask, wanted, LIST_ROOM) != 4)
        torch_throw("planish: wanted has another length than 4");
    bool any[2] = {false, false};
    for (int i = 0; i < 2; i++) {
        staged *s = &p.of[i];
        describe(s, rms, stack[11]);
        const bool dx = take_bool((stack_value)wanted[2 * i]);
        const bool dweight = take_bool((stack_value)wanted[2 * i + 1]);
        any[i] = dx || dweight;
        if (dx)
            staged_make_full(s, ROLE_DX, view_dtype(&s->view[ROLE_X]), &made[i][0]);
        if (dweight) {
            const role like = s->given[ROLE_WEIGHT] ? ROLE_WEIGHT : ROLE_X;
            staged_make_dense(s, ROLE_DWEIGHT, s->op.affine_axes, false, view_dtype(&s->view[like]),
                              &made[i][1]);
        }
    }
    run_backward(&p, any);
    staged_give(&p.of[0], stack, outputs, 2);
    staged_give(&p.of[1], stack + 2, outputs, 2);
}
