/*
 * planish's operators for the passes of a norm, between which its statistics are at hand
 * (planish.h, PLANISH_STATISTICS to PLANISH_BACKWARD_STATISTICS): those of rows of which a tensor
 * has a part, whose parts exchange them (python/planish/operators/parts.py, sync_batch.py), and
 * those that are kept over many calls, such as a batch norm's in inference (batch.py). Axes and
 * options are those of options.h; of these OPTION_RMS, OPTION_L2, OPTION_DENSE,
 * OPTION_RUNNING, the activation, the weight's offset, dtypes and what is wanted.
 *
 *     norm_part_statistics(x, int axes, int options) -> (mean, m2)
 *     norm_part_message(x, int axes, int options, int ranks) -> (sent, room)
 *     norm_apply(x, spread, mean?, addend?, weight?, bias?, int axes, int options, float eps) -> y
 *     norm_backward_statistics(dy, x, rstd, mean?, weight?, int axes, int options, int ranks,
 *                              float eps) -> (sent, room, dweight, dbias)
 *     norm_backward_apply(dy, x, spread, mean?, c1?, c2?, y?, addend?, weight?, bias?, int axes,
 *                         int options, float eps) -> (dx, daddend, dweight, dbias)
 *
 * sent is what norm_merge.c takes of a part, a row of f64: the number of elements of its rows, the
 * means of all rows and their m2, 0 where there are no elements; or c1 and c2 of all rows. room is
 * for what so many ranks send, a row of each, where ranks is not 0.
 *
 * spread is rstd, and mean the mean, of x or of all the parts that x is one of; with OPTION_RUNNING
 * they are the running variance and mean, which do not depend on x. c1 and c2 are what all parts
 * make together. y stands in for addend and bias where the activation is a ReLU. What is wanted:
 * the bits of the four gradients in their order, and one more: dweight and dbias are not rounded to
 * the dtype of their parameters.
 *
 * What is not there or not wanted is undefined. Statistics that are made are f64, with x's rank, 1
 * on every reduced axis; y, dx and daddend are laid out as torch.empty_like(x), daddend in addend's
 * dtype or x's; dweight and dbias are dense, of their parameter's dtype, or the weight's, or x's.
 */
#include "norm_call.h"

#include "calls.h"
#include "kernels.h"
#include "run.h"

enum {
    WANTS_DX = 1,
    WANTS_DADDEND = 2,
    WANTS_DWEIGHT = 4,
    WANTS_DBIAS = 8,
    WANTS_SUMS = 16, /* not rounded */
};

static int wanted_in(const norm_call *c) {
    return option_field(c->options, WANTED_AT, BYTE_BITS);
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
        norm_call_make_statistic(&c, outputs[i]);
    norm_call_run(&c, PLANISH_STATISTICS, false);
    norm_call_give(&c, stack, outputs, 2);
}

/* What is sent: room for `head` numbers and these statistics, of which an RMS norm has the last;
 * and room for what `ranks` of them send. */
typedef struct messages {
    new_tensor sent, room;
    double *data;
} messages;

static void free_messages(messages *m) {
    free_new_tensor(&m->sent);
    free_new_tensor(&m->room);
}

#define MESSAGES __attribute__((cleanup(free_messages))) messages

static void make_messages(messages *m, norm_call *c, int64_t head, const role statistics[2],
                          stack_value ranks) {
    const int count = c->op.kind == PLANISH_LAYER ? 2 : 1;
    const DLTensor *x = &c->view[ROLE_X];
    int64_t sizes[2] = {1, head + count * norm_call_rows(c)}, strides[2];
    DLTensor view;
    m->sent = new_dense_tensor(x, 2, sizes, torch.f64, strides, &view);
    m->data = view.data;
    sizes[0] = (int64_t)ranks;
    if (sizes[0] > 0)
        m->room = new_dense_tensor(x, 2, sizes, torch.f64, strides, &view);
    norm_call_place(c, statistics + 2 - count, count, m->data + head);
}

static void give_messages(messages *m, stack_value *stack) {
    const returned_tensors given = {{give_tensor(&m->room), give_tensor(&m->sent), NULL}};
    give_returned(stack, &given, 2);
}

void norm_part_message(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    INSIDE call = call_enter(NORM_PART_MESSAGE, BOXED);
    static const role inputs[1] = {ROLE_X}, outputs[2] = {ROLE_MEAN, ROLE_M2};
    layout rooms[ROLE_COUNT];
    NORM_CALL c = {.op = op_of(stack[1], stack[2]), .options = stack[2], .rooms = rooms};
    norm_call_take(&c, stack, inputs, 1, 1);
    norm_call_view(&c, 0);
    const DLTensor *x = &c.view[ROLE_X];
    MESSAGES m = {.data = NULL};
    make_messages(&m, &c, 1, outputs, stack[3]);
    int64_t elements = 1;
    for (int32_t i = 0; i < x->ndim; i++)
        if (!(norm_call_kept_axes(&c) & PLANISH_AXIS(i)))
            elements *= x->shape[i];
    const int64_t size = 1 + norm_call_rows(&c) * (c.op.kind == PLANISH_LAYER ? 2 : 1);
    const merge_args head = {
        .second = m.data, .eps = (double)elements, .rows = elements ? 1 : size};
    run_merge(&head, x->device);
    if (elements)
        norm_call_run(&c, PLANISH_STATISTICS, false);
    give_messages(&m, stack);
}

void norm_apply(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    INSIDE call = call_enter(NORM_APPLY, BOXED);
    enum { INPUTS = 6 };
    static const role own[INPUTS] = {ROLE_X,      ROLE_RSTD,   ROLE_MEAN,
                                     ROLE_ADDEND, ROLE_WEIGHT, ROLE_BIAS};
    static const role running[INPUTS] = {ROLE_X,      ROLE_RUNNING_VAR, ROLE_RUNNING_MEAN,
                                         ROLE_ADDEND, ROLE_WEIGHT,      ROLE_BIAS};
    static const role outputs[1] = {ROLE_Y};
    layout rooms[ROLE_COUNT];
    NORM_CALL c = {.op = op_of(stack[6], stack[7]), .options = stack[7], .rooms = rooms};
    c.op.eps = take_double(stack[8]);
    norm_call_take(&c, stack, c.options & OPTION_RUNNING ? running : own, INPUTS, 2);
    norm_call_view(&c, 0);
    norm_call_make_full(&c, ROLE_Y, norm_call_dtype(&c, DTYPE_AT), c.options & OPTION_DENSE);
    norm_call_run(&c, PLANISH_APPLY, false);
    norm_call_give(&c, stack, outputs, 1);
}

/* A parameter's gradient, where it is wanted. */
static void make_gradient(norm_call *c, role gradient, role parameter, int wants) {
    const int wanted = wanted_in(c);
    const role r = c->given[parameter] ? parameter : c->given[ROLE_WEIGHT] ? ROLE_WEIGHT : ROLE_X;
    const int32_t wide = norm_call_is_double(c) ? torch.f64 : torch.f32;
    if (wanted & wants)
        norm_call_make_dense(c, gradient, c->op.affine_axes, false,
                             wanted & WANTS_SUMS ? wide : view_dtype(&c->view[r]));
}

void norm_backward_statistics(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    INSIDE call = call_enter(NORM_BACKWARD_STATISTICS, BOXED);
    static const role inputs[5] = {ROLE_DY, ROLE_X, ROLE_RSTD, ROLE_MEAN, ROLE_WEIGHT};
    static const role sums[2] = {ROLE_C1, ROLE_C2}, gradients[2] = {ROLE_DWEIGHT, ROLE_DBIAS};
    layout rooms[ROLE_COUNT];
    NORM_CALL c = {.op = op_of(stack[5], stack[6]), .options = stack[6], .rooms = rooms};
    c.op.eps = take_double(stack[8]); /* of L2: which rows have no gradient by their length */
    norm_call_take(&c, stack, inputs, 5, 3);
    norm_call_view(&c, 0);
    MESSAGES m = {.data = NULL};
    make_messages(&m, &c, 0, sums, stack[7]);
    make_gradient(&c, ROLE_DWEIGHT, ROLE_WEIGHT, WANTS_DWEIGHT);
    make_gradient(&c, ROLE_DBIAS, ROLE_BIAS, WANTS_DBIAS);
    norm_call_run(&c, PLANISH_BACKWARD_STATISTICS, false);
    give_messages(&m, stack);
    norm_call_give(&c, stack + 2, gradients, 2);
}

void norm_backward_apply(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    (void)argument_count, (void)return_count;
    INSIDE call = call_enter(NORM_BACKWARD_APPLY, BOXED);
    enum { INPUTS = 10, OUTPUTS = 4 };
    static const role own[INPUTS] = {ROLE_DY, ROLE_X, ROLE_RSTD,   ROLE_MEAN,   ROLE_C1,
                                     ROLE_C2, ROLE_Y, ROLE_ADDEND, ROLE_WEIGHT, ROLE_BIAS};
    static const role running[INPUTS] = {ROLE_DY,     ROLE_X,   ROLE_RUNNING_VAR, ROLE_RUNNING_MEAN,
                                         ROLE_C1,     ROLE_C2,  ROLE_Y,           ROLE_ADDEND,
                                         ROLE_WEIGHT, ROLE_BIAS};
    static const role outputs[OUTPUTS] = {ROLE_DX, ROLE_DADDEND, ROLE_DWEIGHT, ROLE_DBIAS};
    layout rooms[ROLE_COUNT];
    NORM_CALL c = {.op = op_of(stack[10], stack[11]), .options = stack[11], .rooms = rooms};
    c.op.eps = take_double(stack[12]);
    norm_call_take(&c, stack, c.options & OPTION_RUNNING ? running : own, INPUTS, 3);
    norm_call_view(&c, 0);
    const int wanted = wanted_in(&c);
    if (wanted & WANTS_DX)
        norm_call_make_full(&c, ROLE_DX, norm_call_dtype(&c, DTYPE_AT), false);
    if (wanted & WANTS_DADDEND)
        norm_call_make_full(&c, ROLE_DADDEND,
                            view_dtype(&c.view[c.given[ROLE_ADDEND] ? ROLE_ADDEND : ROLE_X]),
                            false);
    make_gradient(&c, ROLE_DWEIGHT, ROLE_WEIGHT, WANTS_DWEIGHT);
    make_gradient(&c, ROLE_DBIAS, ROLE_BIAS, WANTS_DBIAS);
    if (wanted)
        norm_call_run(&c, PLANISH_BACKWARD, false);
    norm_call_give(&c, stack, outputs, OUTPUTS);
}
