/*
 * The named entries for layers over channels: they run the operator they stand for, GroupNorm
 * without a view that the caller would have to make, and refuse what makes no sense.
 */
#include <stdio.h>
#include <string.h>

#include "cases.h"
#include "check.h"

static const planish_pass passes[] = {PLANISH_FORWARD, PLANISH_BACKWARD, PLANISH_BACKWARD_FROM_Y,
                                      PLANISH_STATISTICS, PLANISH_APPLY};

/* A pass over x (N, groups, width, H, W) with all tensors that it may have. */
static norm_case groups_case(planish_pass pass, element type, int64_t groups, int64_t width) {
    norm_case c = rows_case(pass, PLANISH_LAYER, 1, 1);
    planish_norm op = planish_group_norm_op(5, c.op.eps);
    const int64_t shape[] = {3, groups, width, 5, 7};
    c.ndim = 5;
    memcpy(c.shape, shape, sizeof shape);
    c.op.reduce_axes = op.reduce_axes;
    c.op.affine_axes = op.affine_axes;
    c.x = c.dx = c.y = c.weight = c.grad = type;
    c.stats = type == F64 ? F64 : F32;
    return c;
}

/* A tensor with two neighbouring axes seen as one. */
typedef struct merged {
    DLTensor dl;
    int64_t shape[PLANISH_MAX_NDIM], strides[PLANISH_MAX_NDIM];
} merged;

static const DLTensor *merge(merged *to, const DLTensor *t, int axis) {
    to->dl = *t;
    to->dl.ndim = t->ndim - 1;
    for (int i = 0; i < to->dl.ndim; i++) {
        int from = i < axis ? i : i + 1;
        to->shape[i] = t->shape[from] * (i == axis ? t->shape[axis] : 1);
        to->strides[i] = t->strides ? t->strides[from] : 0;
    }
    to->dl.shape = to->shape;
    to->dl.strides = t->strides ? to->strides : NULL;
    return &to->dl;
}

/* The tensors of a bundle with groups and width seen as the channels. */
static planish_tensors with_channels(bundle *b, merged storage[PARTS]) {
    static const int axis_of[PARTS] = {[X] = 1, [Y] = 1, [DY] = 1, [DX] = 1};
    planish_tensors seen = b->tensors;
    for (part p = 0; p < PARTS; p++) {
        const DLTensor **field = tensors_field(&seen, p);
        if (*field && p != MEAN && p != RSTD && p != M2)
            *field = merge(&storage[p], *field, axis_of[p]);
    }
    return seen;
}

/* planish_group_norm_run is the operator over the split tensors. */
static void groups_run(planish_pass pass, element type, int64_t groups, int64_t width, layout l,
                       planish_activation activation) {
    norm_case c = groups_case(pass, type, groups, width);
    c.op.activation = pass == PLANISH_BACKWARD_FROM_Y ? PLANISH_IDENTITY : activation;
    c.in = c.out = l;
    char text[512], message[512] = "";
    test_case("group_norm_run, layout %s: %s", layout_name(l), case_text(&c, text, sizeof text));
    bundle b;
    bundle_make(&b, &c);
    merged storage[PARTS];
    planish_tensors seen = with_channels(&b, storage);
    planish_exec exec = {
        .struct_size = sizeof exec, .message = message, .message_bytes = sizeof message};
    size_t bytes = 0, split_bytes = 1;
    planish_status status =
        planish_group_norm_workspace_bytes(groups, c.op.activation, pass, &seen, &bytes, &exec);
    expect(status == PLANISH_OK, "%s: %s", planish_status_name(status), message);
    planish_norm_workspace_bytes(&b.test.op, pass, &b.tensors, &split_bytes, &exec);
    expect(bytes == split_bytes, "workspace %zu, that of the operator %zu", bytes, split_bytes);
    b.workspace = guarded_make(bytes, 256);
    exec.workspace = b.workspace.data;
    exec.workspace_bytes = bytes;
    status = planish_group_norm_run(groups, c.op.eps, c.op.activation, pass, &seen, &exec);
    if (expect(status == PLANISH_OK, "%s: %s", planish_status_name(status), message))
        bundle_check(&b);
    bundle_free(&b);
}

/* The entries with tensors in line. */
static void groups_in_line(int64_t groups, int64_t width, planish_activation activation) {
    char text[512];
    for (int i = 0; i < 2; i++) {
        norm_case c = groups_case(passes[i], F32, groups, width);
        c.op.activation = activation;
        test_case("group_norm_%s: %s", i ? "backward" : "forward",
                  case_text(&c, text, sizeof text));
        bundle b;
        bundle_make(&b, &c);
        merged storage[PARTS];
        planish_tensors t = with_channels(&b, storage);
        size_t bytes = 0;
        planish_group_norm_workspace_bytes(groups, c.op.activation, passes[i], &t, &bytes, NULL);
        b.workspace = guarded_make(bytes, 256);
        planish_exec exec = {
            .struct_size = sizeof exec, .workspace = b.workspace.data, .workspace_bytes = bytes};
        planish_status status =
            i ? planish_group_norm_backward(groups, c.op.activation, t.dy, t.x, t.mean, t.rstd,
                                            t.weight, t.bias, t.dx, t.dweight, t.dbias, &exec)
              : planish_group_norm_forward(groups, c.op.eps, c.op.activation, t.x, t.weight, t.bias,
                                           t.y, t.mean, t.rstd, &exec);
        if (expect(status == PLANISH_OK, "%s", planish_status_name(status)))
            bundle_check(&b);
        bundle_free(&b);
    }
}

static void channels_in_line(planish_kind kind, layout l) {
    char text[512], message[512] = "";
    for (int i = 0; i < 2; i++) {
        norm_case c = rows_case(passes[i], kind, 1, 1);
        const int64_t shape[] = {2, 19, 5, 3};
        c.ndim = 4;
        memcpy(c.shape, shape, sizeof shape);
        c.op.reduce_axes = c.op.affine_axes = PLANISH_AXIS(1);
        c.in = c.out = l;
        test_case("channel_norm_%s: %s", i ? "backward" : "forward",
                  case_text(&c, text, sizeof text));
        bundle b;
        bundle_make(&b, &c);
        const planish_tensors *t = &b.tensors;
        planish_exec exec = {
            .struct_size = sizeof exec, .message = message, .message_bytes = sizeof message};
        planish_norm_workspace_bytes(&b.test.op, passes[i], t, &exec.workspace_bytes, &exec);
        b.workspace = guarded_make(exec.workspace_bytes, 256);
        exec.workspace = b.workspace.data;
        planish_status status =
            i ? planish_channel_norm_backward(kind, t->dy, t->x, t->mean, t->rstd, t->weight, t->dx,
                                              t->dweight, t->dbias, &exec)
              : planish_channel_norm_forward(kind, c.op.eps, t->x, t->weight, t->bias, t->y,
                                             t->mean, t->rstd, &exec);
        if (expect(status == PLANISH_OK, "%s: %s", planish_status_name(status), message))
            bundle_check(&b);
        bundle_free(&b);
    }
}

/* ---- Operators ------------------------------------------------------------------------------ */

static void operators(void) {
    test_case("the operators have the axes they should");
    planish_norm group = planish_group_norm_op(5, 0.25),
                 instance = planish_instance_norm_op(4, 0.5);
    planish_norm channel = planish_channel_norm_op(PLANISH_RMS, 4, 0.125);
    expect(group.reduce_axes == 0x1c && group.affine_axes == 6 && group.eps == 0.25, "group");
    expect(instance.reduce_axes == 0xc && instance.affine_axes == 2 && instance.eps == 0.5,
           "instance");
    expect(channel.reduce_axes == 2 && channel.affine_axes == 2 && channel.kind == PLANISH_RMS,
           "channel");
    expect(planish_group_norm_op(16, 0).reduce_axes == 0xfffc, "16 axes");
    const int32_t senseless[] = {-1, 0, 1, 2, 17, 1000};
    for (int i = 0; i < 6; i++) {
        const int32_t ndim = senseless[i];
        expect(!planish_group_norm_op(ndim, 0).reduce_axes, "group of %d axes", ndim);
        expect(!planish_instance_norm_op(ndim, 0).affine_axes, "instance of %d axes", ndim);
        expect(ndim == 2 || !planish_channel_norm_op(PLANISH_LAYER, ndim, 0).reduce_axes,
               "channel of %d axes", ndim);
    }
}

/* ---- Mistakes ------------------------------------------------------------------------------- */

/* Merged tensors, for an edit to spoil. */
typedef struct call {
    bundle bundle;
    merged storage[PARTS];
    planish_tensors tensors;
    int64_t groups;
    planish_activation activation;
    bool no_tensors, no_workspace;
} call;

/* clang-format off */
static void activation_9(call *c) { c->activation = (planish_activation)9; }
static void groups_0(call *c) { c->groups = 0; }
static void groups_negative(call *c) { c->groups = -2; }
static void groups_4(call *c) { c->groups = 4; }
static void x_rank_1(call *c) { c->storage[X].dl.ndim = 1; }
static void x_rank_16(call *c) { c->storage[X].dl.ndim = 16; }
static void x_rank_negative(call *c) { c->storage[X].dl.ndim = -1; }
static void x_no_shape(call *c) { c->storage[X].dl.shape = NULL; }
static void x_missing(call *c) { c->tensors.x = NULL; }
static void y_channels_8(call *c) { c->storage[Y].shape[1] = 8; }
static void y_rank_3(call *c) { c->storage[Y].dl.ndim = 3; }
static void weight_size_5(call *c) { c->storage[WEIGHT].shape[0] = 5; }
static void weight_size_8(call *c) { c->storage[WEIGHT].shape[0] = 8; }
static void weight_rank_0(call *c) { c->storage[WEIGHT].dl.ndim = 0; }
static void mean_groups_3(call *c) { c->bundle.tensor[MEAN].shape[1] = 3; }
static void tensors_null(call *c) { c->no_tensors = true; }
static void tensors_size_0(call *c) { c->tensors.struct_size = 0; }
static void no_workspace(call *c) { c->no_workspace = true; }
static void x_stride_huge(call *c) {
    c->storage[X].strides[1] = INT64_MAX / 2;
    c->storage[X].dl.strides = c->storage[X].strides;
}

static const struct {
    const char *name;
    void (*edit)(call *c);
    planish_status status;
    const char *words; /* in the sentence */
} mistakes[] = {
    {"an activation that is none", activation_9, PLANISH_ERROR_ARGUMENT, "activation is 9"},
    {"no groups", groups_0, PLANISH_ERROR_ARGUMENT, "groups is 0"},
    {"negative groups", groups_negative, PLANISH_ERROR_ARGUMENT, "groups is -2"},
    {"groups that do not divide", groups_4, PLANISH_ERROR_ARGUMENT, "a divisor of the 6 channels of x"},
    {"x of one axis", x_rank_1, PLANISH_ERROR_SHAPE, "x has 1 axes; wanted 2 to 15"},
    {"x of 16 axes", x_rank_16, PLANISH_ERROR_SHAPE, "x has 16 axes"},
    {"x of -1 axes", x_rank_negative, PLANISH_ERROR_SHAPE, "x has -1 axes"},
    {"x without sizes", x_no_shape, PLANISH_ERROR_NULL_POINTER, "x->shape"},
    {"x missing", x_missing, PLANISH_ERROR_NULL_POINTER, "x is NULL"},
    {"y of other channels", y_channels_8, PLANISH_ERROR_SHAPE, "y has size 4 on axis 2; wanted 3"},
    {"y of another rank", y_rank_3, PLANISH_ERROR_SHAPE, "y has 4 axes"},
    {"weight that groups do not divide", weight_size_5, PLANISH_ERROR_ARGUMENT, "5 channels of weight"},
    {"weight of another size", weight_size_8, PLANISH_ERROR_SHAPE, "weight has size 4"},
    {"weight of no axes", weight_rank_0, PLANISH_ERROR_SHAPE, "weight has 0 axes; wanted 1"},
    {"mean of other groups", mean_groups_3, PLANISH_ERROR_SHAPE, "mean has size 3"},
    {"tensors missing", tensors_null, PLANISH_ERROR_NULL_POINTER, "tensors is NULL"},
    {"tensors of size 0", tensors_size_0, PLANISH_ERROR_STRUCT_SIZE, "struct_size"},
    {"stride past 64 bits", x_stride_huge, PLANISH_ERROR_STRIDES, "x has stride"},
    {"workspace missing", no_workspace, PLANISH_ERROR_WORKSPACE, "exec->workspace"},
};
/* clang-format on */

/* Of a pass that needs a workspace whatever kernel runs it: backward, from y. */
static void mistake(size_t i) {
    test_case("group_norm refuses: %s", mistakes[i].name);
    const planish_pass pass =
        mistakes[i].edit == no_workspace ? PLANISH_BACKWARD_FROM_Y : PLANISH_FORWARD;
    norm_case test = groups_case(pass, F32, 2, 3);
    call c = {.groups = 2};
    bundle_make(&c.bundle, &test);
    c.tensors = with_channels(&c.bundle, c.storage);
    mistakes[i].edit(&c);
    char message[512] = "";
    planish_exec exec = {
        .struct_size = sizeof exec, .message = message, .message_bytes = sizeof message};
    const planish_tensors *tensors = c.no_tensors ? NULL : &c.tensors;
    size_t bytes = 12345;
    planish_status status =
        planish_group_norm_workspace_bytes(c.groups, c.activation, pass, tensors, &bytes, &exec);
    expect(c.no_workspace || status == mistakes[i].status, "workspace_bytes: %s",
           planish_status_name(status));
    expect(c.no_workspace == (bytes != 12345), "bytes is %zu", bytes);
    c.bundle.workspace = guarded_make(1 << 20, 256);
    exec.workspace = c.no_workspace ? NULL : c.bundle.workspace.data;
    exec.workspace_bytes = 1 << 20;
    status = planish_group_norm_run(c.groups, 1e-5, c.activation, pass, tensors, &exec);
    expect(status == mistakes[i].status, "%s", planish_status_name(status));
    expect(strstr(message, mistakes[i].words), "the sentence is: %s", message);
    for (part p = 0; p < PARTS; p++)
        if (part_is_output(pass, p) && c.bundle.tensor[p].memory.mapping)
            expect(tensor_untouched(&c.bundle.tensor[p]), "%s was written to", part_name(p));
    bundle_free(&c.bundle);
}

int main(void) {
    operators();
    /* Groups of one channel, one group of all, and some. */
    static const int64_t groups[][2] = {{1, 12}, {4, 3}, {12, 1}, {1, 1}};
    static const layout layouts[] = {DENSE, EXPLICIT, PADDED, INNER_STRIDE_2, REVERSED, MISALIGNED};
    static const element types[] = {F32, F64, BF16, F16};
    for (int g = 0; g < 4; g++)
        for (int p = 0; p < 5; p++) {
            for (int l = 0; l < 6; l++)
                groups_run(passes[p], F32, groups[g][0], groups[g][1], layouts[l],
                           (planish_activation)(l % 3));
            for (int t = 1; t < 4; t++)
                groups_run(passes[p], types[t], groups[g][0], groups[g][1], DENSE,
                           (planish_activation)((t + g) % 3));
        }
    for (int g = 0; g < 4; g++)
        groups_in_line(groups[g][0], groups[g][1], (planish_activation)(g % 3));
    static const layout channel_layouts[] = {DENSE, CHANNELS_LAST, PADDED, PERMUTED};
    for (int l = 0; l < 4; l++) {
        channels_in_line(PLANISH_LAYER, channel_layouts[l]);
        channels_in_line(PLANISH_RMS, channel_layouts[l]);
    }
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++)
        mistake(i);
    return test_finish("channels");
}
