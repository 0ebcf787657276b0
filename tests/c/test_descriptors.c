/*
 * Bad arguments: each gives the right status and a sentence that names the argument, what was found
 * and what was wanted; outputs are untouched. The same for a plan and for the workspace's size.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cases.h"
#include "check.h"

/* A bundle and how it will be run, for an edit to spoil. */
typedef struct call {
    bundle bundle;
    planish_exec exec;
    const planish_norm *op;
    const planish_tensors *tensors;
} call;

typedef void (*edit)(call *c);

/* The tensor of a part, for an edit. */
static DLTensor *part_of(call *c, part p) {
    return &c->bundle.tensor[p].dl;
}

/* One line for each mistake. */
/* clang-format off */

/* ---- Edits: each spoils one thing ----------------------------------------------------------- */

static void op_null(call *c) { c->op = NULL; }
static void tensors_null(call *c) { c->tensors = NULL; }
static void op_size_0(call *c) { c->bundle.test.op.struct_size = 0; }
static void op_size_small(call *c) { c->bundle.test.op.struct_size = 40; }
static void tensors_size_0(call *c) { c->bundle.tensors.struct_size = 0; }
static void exec_size_1(call *c) { c->exec.struct_size = 1; }
static void kind_7(call *c) { c->bundle.test.op.kind = (planish_kind)7; }
static void kind_3(call *c) { c->bundle.test.op.kind = (planish_kind)3; }
static void pass_9(call *c) { c->bundle.test.pass = (planish_pass)9; }
static void pass_negative(call *c) { c->bundle.test.pass = (planish_pass)-1; }
static void activation_7(call *c) { c->bundle.test.op.activation = (planish_activation)7; }
static void activation_negative(call *c) { c->bundle.test.op.activation = (planish_activation)-1; }
static void activation_silu(call *c) { c->bundle.test.op.activation = PLANISH_SILU; }
static void bias_given(call *c) { c->bundle.tensors.bias = c->bundle.tensors.dbias; }
static void offset_2(call *c) { c->bundle.test.op.weight_offset = 2; }
static void offset_negative(call *c) { c->bundle.test.op.weight_offset = -1; }
static void eps_nan(call *c) { c->bundle.test.op.eps = NAN; }
static void eps_infinite(call *c) { c->bundle.test.op.eps = INFINITY; }
static void reduce_nothing(call *c) { c->bundle.test.op.reduce_axes = 0; }
static void reduce_axis_2(call *c) { c->bundle.test.op.reduce_axes = PLANISH_AXIS(2); }
static void reduce_axis_63(call *c) { c->bundle.test.op.reduce_axes |= PLANISH_AXIS(63); }
static void affine_axis_5(call *c) { c->bundle.test.op.affine_axes = PLANISH_AXIS(5); }
static void normalized_too_many(call *c) { c->bundle.test.op = planish_layer_norm_op(2, 3, 1e-5); }
static void normalized_none(call *c) { c->bundle.test.op = planish_layer_norm_op(2, 0, 1e-5); }
static void normalized_negative(call *c) { c->bundle.test.op = planish_rms_norm_op(2, -1, 1e-5); }
static void ndim_too_large(call *c) { c->bundle.test.op = planish_layer_norm_op(1000, 1, 1e-5); }
static void x_missing(call *c) { c->bundle.tensors.x = NULL; }
static void y_missing(call *c) { c->bundle.tensors.y = NULL; }
static void mean_missing(call *c) { c->bundle.tensors.mean = NULL; }
static void rstd_missing(call *c) { c->bundle.tensors.rstd = NULL; }
static void m2_missing(call *c) { c->bundle.tensors.m2 = NULL; }
static void dy_missing(call *c) { c->bundle.tensors.dy = NULL; }
static void no_gradient(call *c) {
    c->bundle.tensors.dx = c->bundle.tensors.dweight = c->bundle.tensors.dbias = NULL;
}
static void dy_given(call *c) { c->bundle.tensors.dy = c->bundle.tensors.x; }
static void m2_given(call *c) { c->bundle.tensors.m2 = c->bundle.tensors.rstd; }
static void mean_given(call *c) { c->bundle.tensors.mean = c->bundle.tensors.rstd; }
static void x_no_data(call *c) { part_of(c, X)->data = NULL; }
static void y_no_data(call *c) { part_of(c, Y)->data = NULL; }
static void weight_no_data(call *c) { part_of(c, WEIGHT)->data = NULL; }
static void dbias_no_data(call *c) { part_of(c, DBIAS)->data = NULL; }
static void x_no_shape(call *c) { part_of(c, X)->shape = NULL; }
static void x_rank_3(call *c) {
    part_of(c, X)->ndim = 3;
    c->bundle.tensor[X].shape[2] = 1;
}
static void x_rank_0(call *c) { part_of(c, X)->ndim = 0; }
static void x_rank_negative(call *c) { part_of(c, X)->ndim = -3; }
static void x_rank_17(call *c) { part_of(c, X)->ndim = 17; }
static void y_rows_4(call *c) { c->bundle.tensor[Y].shape[0] = 4; }
static void x_size_negative(call *c) { c->bundle.tensor[X].shape[0] = -5; }
static void weight_size_6(call *c) { c->bundle.tensor[WEIGHT].shape[0] = 6; }
static void weight_rank_3(call *c) { part_of(c, WEIGHT)->ndim = 3; }
static void bias_size_8(call *c) { c->bundle.tensor[BIAS].shape[0] = 8; }
static void mean_size_6(call *c) { c->bundle.tensor[MEAN].shape[0] = 6; }
static void rstd_size_1(call *c) { c->bundle.tensor[RSTD].shape[0] = 1; }
static void dx_cols_6(call *c) { c->bundle.tensor[DX].shape[1] = 6; }
static void dweight_size_5(call *c) { c->bundle.tensor[DWEIGHT].shape[0] = 5; }
static void y_stride_0(call *c) {
    c->bundle.tensor[Y].strides[0] = 0;
    part_of(c, Y)->strides = c->bundle.tensor[Y].strides;
}
static void y_rows_interleaved(call *c) {
    c->bundle.tensor[Y].strides[0] = 3; /* rows of 7 that begin 3 apart */
    part_of(c, Y)->strides = c->bundle.tensor[Y].strides;
}
static void dweight_stride_0(call *c) {
    c->bundle.tensor[DWEIGHT].strides[0] = 0;
    part_of(c, DWEIGHT)->strides = c->bundle.tensor[DWEIGHT].strides;
}
static void x_stride_huge(call *c) {
    c->bundle.tensor[X].strides[0] = INT64_MAX / 2;
    part_of(c, X)->strides = c->bundle.tensor[X].strides;
}
static void x_stride_lowest(call *c) {
    c->bundle.tensor[X].strides[0] = INT64_MIN;
    part_of(c, X)->strides = c->bundle.tensor[X].strides;
}
static void sizes_huge(call *c) {
    for (part p = 0; p < PARTS; p++)
        if (c->bundle.tensor[p].dl.ndim == 2)
            c->bundle.tensor[p].shape[0] = INT64_MAX;
}
static void x_broadcast_huge(call *c) { /* 2^49 elements of 20 bytes */
    tensor *x = &c->bundle.tensor[X];
    x->shape[1] = (int64_t)1 << 49;
    x->strides[0] = 1, x->strides[1] = 0;
    part_of(c, X)->strides = x->strides;
}
static void x_int32(call *c) { part_of(c, X)->dtype = (DLDataType){kDLInt, 32, 1}; }
static void x_float8(call *c) { part_of(c, X)->dtype = (DLDataType){kDLFloat, 8, 1}; }
static void y_lanes_2(call *c) { part_of(c, Y)->dtype.lanes = 2; }
static void y_lanes_0(call *c) { part_of(c, Y)->dtype.lanes = 0; }
static void weight_complex(call *c) { part_of(c, WEIGHT)->dtype = (DLDataType){kDLComplex, 64, 1}; }
static void bias_bf32(call *c) { part_of(c, BIAS)->dtype = (DLDataType){kDLBfloat, 32, 1}; }
static void rstd_bool(call *c) { part_of(c, RSTD)->dtype = (DLDataType){kDLBool, 8, 1}; }
static void x_vulkan(call *c) { part_of(c, X)->device.device_type = kDLVulkan; }
static void weight_on_gpu(call *c) { part_of(c, WEIGHT)->device.device_type = kDLCUDA; }
static void y_on_gpu(call *c) { part_of(c, Y)->device.device_type = kDLCUDA; }
static void share(call *c, part to, part from, int64_t elements) {
    tensor *t = &c->bundle.tensor[to];
    const DLTensor *f = part_of(c, from);
    t->dl.data = f->data;
    t->dl.byte_offset = f->byte_offset + (uint64_t)(elements * element_bytes(t->type));
}
static void y_one_past_x(call *c) { share(c, Y, X, 1); }
static void y_on_weight(call *c) { share(c, Y, WEIGHT, 0); }
static void mean_on_rstd(call *c) { share(c, MEAN, RSTD, 0); }
static void rstd_on_x(call *c) { share(c, RSTD, X, 0); }
static void dx_in_dy(call *c) { share(c, DX, DY, 3); }
static void dweight_on_dbias(call *c) { share(c, DWEIGHT, DBIAS, 0); }
static void dweight_on_weight(call *c) { share(c, DWEIGHT, WEIGHT, 0); }
static void y_reversed_on_x(call *c) {
    tensor *t = &c->bundle.tensor[Y];
    share(c, Y, X, t->count - 1);
    t->strides[0] *= -1;
    t->strides[1] *= -1;
    t->dl.strides = t->strides;
}
static void x_odd_address(call *c) { part_of(c, X)->byte_offset += 1; }

/* ---- The table ------------------------------------------------------------------------------ */

typedef struct bad_call {
    const char *name;
    planish_pass pass;
    planish_kind kind;
    edit edit;
    planish_status status;
    const char *words[3]; /* what the sentence must hold */
} bad_call;

#define L PLANISH_LAYER
#define R PLANISH_RMS

static const bad_call bad_calls[] = {
    {"op NULL", PLANISH_FORWARD, L, op_null, PLANISH_ERROR_NULL_POINTER, {"op", "NULL"}},
    {"tensors NULL", PLANISH_FORWARD, L, tensors_null, PLANISH_ERROR_NULL_POINTER, {"tensors"}},
    {"op size unset", PLANISH_FORWARD, L, op_size_0, PLANISH_ERROR_STRUCT_SIZE, {"op", "is 0"}},
    {"op older than all", PLANISH_FORWARD, L, op_size_small, PLANISH_ERROR_STRUCT_SIZE, {"op"}},
    {"tensors size", PLANISH_APPLY, L, tensors_size_0, PLANISH_ERROR_STRUCT_SIZE, {"tensors"}},
    {"exec size", PLANISH_FORWARD, L, exec_size_1, PLANISH_ERROR_STRUCT_SIZE, {NULL}},
    {"kind 7", PLANISH_FORWARD, L, kind_7, PLANISH_ERROR_ARGUMENT, {"kind", "7", "LAYER"}},
    {"pass 9", PLANISH_FORWARD, L, pass_9, PLANISH_ERROR_ARGUMENT, {"pass", "9"}},
    {"pass -1", PLANISH_FORWARD, L, pass_negative, PLANISH_ERROR_ARGUMENT, {"pass", "-1"}},
    {"activation 7", PLANISH_FORWARD, L, activation_7, PLANISH_ERROR_ARGUMENT, {"activation", "7"}},
    {"activation -1", PLANISH_FORWARD, L, activation_negative, PLANISH_ERROR_ARGUMENT, {"activation", "-1"}},
    {"SiLU from y", PLANISH_BACKWARD_FROM_Y, L, activation_silu, PLANISH_ERROR_ARGUMENT, {"activation", "PLANISH_IDENTITY"}},
    {"bias in backward", PLANISH_BACKWARD, L, bias_given, PLANISH_ERROR_ARGUMENT, {"bias"}},
    {"offset 2", PLANISH_FORWARD, L, offset_2, PLANISH_ERROR_ARGUMENT, {"weight_offset", "2"}},
    {"offset -1", PLANISH_FORWARD, R, offset_negative, PLANISH_ERROR_ARGUMENT,
     {"weight_offset", "-1"}},
    {"eps nan", PLANISH_FORWARD, L, eps_nan, PLANISH_ERROR_ARGUMENT, {"eps", "nan", "finite"}},
    {"eps inf", PLANISH_STATISTICS, R, eps_infinite, PLANISH_ERROR_ARGUMENT, {"eps", "inf"}},
    {"no reduce axis", PLANISH_FORWARD, L, reduce_nothing, PLANISH_ERROR_AXES, {"reduce_axes"}},
    {"axis 2 of 2", PLANISH_FORWARD, L, reduce_axis_2, PLANISH_ERROR_AXES, {"reduce_axes", "4"}},
    {"axis 63", PLANISH_BACKWARD, L, reduce_axis_63, PLANISH_ERROR_AXES, {"reduce_axes"}},
    {"affine axis 5", PLANISH_FORWARD, L, affine_axis_5, PLANISH_ERROR_AXES, {"affine_axes"}},
    {"3 of 2 axes", PLANISH_FORWARD, L, normalized_too_many, PLANISH_ERROR_AXES, {"reduce_axes"}},
    {"0 of 2 axes", PLANISH_FORWARD, L, normalized_none, PLANISH_ERROR_AXES, {"reduce_axes"}},
    {"-1 axes", PLANISH_FORWARD, R, normalized_negative, PLANISH_ERROR_AXES, {"reduce_axes"}},
    {"1000 axes", PLANISH_FORWARD, L, ndim_too_large, PLANISH_ERROR_AXES, {"reduce_axes"}},
    {"no x", PLANISH_FORWARD, L, x_missing, PLANISH_ERROR_NULL_POINTER, {"x", "NULL"}},
    {"no y", PLANISH_FORWARD, R, y_missing, PLANISH_ERROR_NULL_POINTER, {"y", "NULL"}},
    {"no mean", PLANISH_BACKWARD, L, mean_missing, PLANISH_ERROR_NULL_POINTER, {"mean"}},
    {"no mean", PLANISH_APPLY, L, mean_missing, PLANISH_ERROR_NULL_POINTER, {"mean"}},
    {"no rstd", PLANISH_BACKWARD, R, rstd_missing, PLANISH_ERROR_NULL_POINTER, {"rstd"}},
    {"no rstd", PLANISH_BACKWARD_FROM_Y, L, rstd_missing, PLANISH_ERROR_NULL_POINTER, {"rstd"}},
    {"no m2", PLANISH_STATISTICS, L, m2_missing, PLANISH_ERROR_NULL_POINTER, {"m2"}},
    {"no dy", PLANISH_BACKWARD, L, dy_missing, PLANISH_ERROR_NULL_POINTER, {"dy"}},
    {"no dy", PLANISH_BACKWARD_FROM_Y, L, dy_missing, PLANISH_ERROR_NULL_POINTER, {"dy"}},
    {"no y to read", PLANISH_BACKWARD_FROM_Y, L, y_missing, PLANISH_ERROR_NULL_POINTER, {"y"}},
    {"no gradient", PLANISH_BACKWARD, L, no_gradient, PLANISH_ERROR_NULL_POINTER, {"dx"}},
    {"dy in forward", PLANISH_FORWARD, L, dy_given, PLANISH_ERROR_ARGUMENT, {"dy"}},
    {"m2 in forward", PLANISH_FORWARD, L, m2_given, PLANISH_ERROR_ARGUMENT, {"m2"}},
    {"mean for rms", PLANISH_FORWARD, R, mean_given, PLANISH_ERROR_ARGUMENT, {"mean"}},
    {"mean for rms", PLANISH_BACKWARD, R, mean_given, PLANISH_ERROR_ARGUMENT, {"mean"}},
    {"x data NULL", PLANISH_FORWARD, L, x_no_data, PLANISH_ERROR_NULL_POINTER, {"x", "35"}},
    {"y data NULL", PLANISH_FORWARD, L, y_no_data, PLANISH_ERROR_NULL_POINTER, {"y", "35"}},
    {"w data NULL", PLANISH_APPLY, L, weight_no_data, PLANISH_ERROR_NULL_POINTER, {"weight", "7"}},
    {"db data NULL", PLANISH_BACKWARD, L, dbias_no_data, PLANISH_ERROR_NULL_POINTER, {"dbias"}},
    {"x shape NULL", PLANISH_FORWARD, L, x_no_shape, PLANISH_ERROR_NULL_POINTER, {"x", "shape"}},
    {"x rank 3", PLANISH_FORWARD, L, x_rank_3, PLANISH_ERROR_SHAPE, {"y", "2", "3"}},
    {"x rank 0", PLANISH_FORWARD, L, x_rank_0, PLANISH_ERROR_AXES, {"reduce_axes", "0"}},
    {"x rank -3", PLANISH_FORWARD, L, x_rank_negative, PLANISH_ERROR_SHAPE, {"x", "-3"}},
    {"x rank 17", PLANISH_FORWARD, L, x_rank_17, PLANISH_ERROR_SHAPE, {"x", "17", "16"}},
    {"y rows", PLANISH_FORWARD, L, y_rows_4, PLANISH_ERROR_SHAPE, {"y", "4", "5"}},
    {"x size -5", PLANISH_FORWARD, L, x_size_negative, PLANISH_ERROR_SHAPE, {"x", "-5"}},
    {"weight size", PLANISH_FORWARD, L, weight_size_6, PLANISH_ERROR_SHAPE, {"weight", "6", "7"}},
    {"weight rank", PLANISH_FORWARD, L, weight_rank_3, PLANISH_ERROR_SHAPE, {"weight", "3", "1"}},
    {"bias size", PLANISH_APPLY, L, bias_size_8, PLANISH_ERROR_SHAPE, {"bias", "8", "7"}},
    {"mean size", PLANISH_BACKWARD, L, mean_size_6, PLANISH_ERROR_SHAPE, {"mean", "6", "5"}},
    {"rstd size", PLANISH_FORWARD, R, rstd_size_1, PLANISH_ERROR_SHAPE, {"rstd", "1", "5"}},
    {"dx size", PLANISH_BACKWARD, R, dx_cols_6, PLANISH_ERROR_SHAPE, {"dx", "6", "7"}},
    {"dw size", PLANISH_BACKWARD, R, dweight_size_5, PLANISH_ERROR_SHAPE, {"dweight", "5", "7"}},
    {"y stride 0", PLANISH_FORWARD, L, y_stride_0, PLANISH_ERROR_STRIDES, {"y"}},
    {"y interleaved", PLANISH_APPLY, R, y_rows_interleaved, PLANISH_ERROR_STRIDES, {"y"}},
    {"dw stride 0", PLANISH_BACKWARD, L, dweight_stride_0, PLANISH_ERROR_STRIDES, {"dweight"}},
    {"x stride 2^62", PLANISH_FORWARD, L, x_stride_huge, PLANISH_ERROR_STRIDES, {"x"}},
    {"x stride -2^63", PLANISH_FORWARD, L, x_stride_lowest, PLANISH_ERROR_STRIDES, {"x"}},
    {"2^63 rows", PLANISH_FORWARD, L, sizes_huge, PLANISH_ERROR_STRIDES, {"x"}},
    {"2^49 columns", PLANISH_STATISTICS, L, x_broadcast_huge, PLANISH_ERROR_SHAPE, {"x", "2^48"}},
    {"x i32", PLANISH_FORWARD, L, x_int32, PLANISH_ERROR_DTYPE, {"x", "32", "f16"}},
    {"x f8", PLANISH_FORWARD, L, x_float8, PLANISH_ERROR_DTYPE, {"x", "8", "f16"}},
    {"y lanes 2", PLANISH_FORWARD, L, y_lanes_2, PLANISH_ERROR_DTYPE, {"y", "2"}},
    {"y lanes 0", PLANISH_FORWARD, L, y_lanes_0, PLANISH_ERROR_DTYPE, {"y", "0"}},
    {"w complex", PLANISH_FORWARD, L, weight_complex, PLANISH_ERROR_DTYPE, {"weight", "64"}},
    {"b bf32", PLANISH_FORWARD, L, bias_bf32, PLANISH_ERROR_DTYPE, {"bias", "32"}},
    {"rstd bool", PLANISH_BACKWARD, L, rstd_bool, PLANISH_ERROR_DTYPE, {"rstd", "8"}},
    {"x on Vulkan", PLANISH_FORWARD, L, x_vulkan, PLANISH_ERROR_DEVICE, {"x", "7"}},
    {"w on GPU", PLANISH_FORWARD, L, weight_on_gpu, PLANISH_ERROR_DEVICE, {"weight", "2"}},
    {"y on GPU", PLANISH_FORWARD, R, y_on_gpu, PLANISH_ERROR_DEVICE, {"y", "2", "1"}},
    {"y 1 past x", PLANISH_FORWARD, L, y_one_past_x, PLANISH_ERROR_OVERLAP, {"y", "x"}},
    {"y on weight", PLANISH_APPLY, L, y_on_weight, PLANISH_ERROR_OVERLAP, {"y", "weight"}},
    {"y reversed x", PLANISH_FORWARD, L, y_reversed_on_x, PLANISH_ERROR_OVERLAP, {"y", "x"}},
    {"mean is rstd", PLANISH_FORWARD, L, mean_on_rstd, PLANISH_ERROR_OVERLAP, {"mean", "rstd"}},
    {"rstd is x", PLANISH_FORWARD, R, rstd_on_x, PLANISH_ERROR_OVERLAP, {"rstd", "x"}},
    {"dx in dy", PLANISH_BACKWARD, L, dx_in_dy, PLANISH_ERROR_OVERLAP, {"dx", "dy"}},
    {"dw is db", PLANISH_BACKWARD, L, dweight_on_dbias, PLANISH_ERROR_OVERLAP, {"dweight"}},
    {"dw is w", PLANISH_BACKWARD, R, dweight_on_weight, PLANISH_ERROR_OVERLAP, {"dweight"}},
    {"x at odd address", PLANISH_FORWARD, L, x_odd_address, PLANISH_ERROR_STRIDES, {"x"}},
    {"mean for L2", PLANISH_FORWARD, PLANISH_L2, mean_given, PLANISH_ERROR_ARGUMENT, {"mean", "L2"}},
    {"kind 3", PLANISH_FORWARD, L, kind_3, PLANISH_ERROR_ARGUMENT, {"kind", "3", "PLANISH_L2"}},
};

/* clang-format on */

/* ---- Running it ----------------------------------------------------------------------------- */

static bool outputs_untouched(const call *c, planish_pass pass) {
    for (part p = 0; p < PARTS; p++)
        if (c->bundle.tensor[p].memory.mapping && part_is_output(pass, p) &&
            !tensor_untouched(&c->bundle.tensor[p]))
            return false;
    return true;
}

static void call_make(call *c, planish_pass pass, planish_kind kind) {
    memset(c, 0, sizeof *c);
    norm_case base = rows_case(pass, kind, 5, 7);
    bundle_make(&c->bundle, &base);
    /* More than any pass over 35 elements needs, so that only the edit can be at fault. */
    c->bundle.workspace = guarded_make(1 << 20, 256);
    c->exec = (planish_exec){.struct_size = sizeof c->exec,
                             .workspace = c->bundle.workspace.data,
                             .workspace_bytes = c->bundle.workspace.bytes};
    c->op = &c->bundle.test.op;
    c->tensors = &c->bundle.tensors;
}

static void expect_sentence(const bad_call *bad, planish_status status, const char *message) {
    expect(status == bad->status, "%s, wanted %s: %s", planish_status_name(status),
           planish_status_name(bad->status), message);
    for (size_t i = 0; i < sizeof bad->words / sizeof *bad->words && bad->words[i]; i++)
        expect(strstr(message, bad->words[i]), "the message lacks '%s': %s", bad->words[i],
               message);
    /* Of an exec of another size not even the message can be relied on. */
    expect(bad->edit == exec_size_1 || strstr(message, "want") || strstr(message, "need"),
           "the message does not say what was wanted: %s", message);
}

static void bad_run(const bad_call *bad) {
    test_case("run refuses: %s", bad->name);
    call c;
    char message[512] = "";
    call_make(&c, bad->pass, bad->kind);
    bad->edit(&c);
    c.exec.message = message;
    c.exec.message_bytes = sizeof message;
    planish_status status = planish_norm_run(c.op, c.bundle.test.pass, c.tensors, &c.exec);
    expect_sentence(bad, status, message);
    expect(outputs_untouched(&c, bad->pass), "an output was written to");

    /* The sentence is cut to the room there is, and may be left out. */
    char small[8] = "ABCDEFG";
    c.exec.message = small;
    c.exec.message_bytes = 5;
    planish_norm_run(c.op, c.bundle.test.pass, c.tensors, &c.exec);
    if (bad->edit != exec_size_1)
        expect(!memcmp(small, message, 4) && !memcmp(small + 4, "\0FG", 4), "cut to '%s'", small);
    c.exec.message_bytes = 0;
    small[0] = '?';
    planish_norm_run(c.op, c.bundle.test.pass, c.tensors, &c.exec);
    expect(small[0] == '?', "written to a message of 0 bytes");
    c.exec.message = NULL;
    c.exec.message_bytes = 100;
    expect(planish_norm_run(c.op, c.bundle.test.pass, c.tensors, &c.exec) == bad->status,
           "another status without a message");
    bundle_free(&c.bundle);
}

/* Whether a mistake shows without the data and the way to run. */
static bool is_of_the_descriptor(const bad_call *bad) {
    return bad->status != PLANISH_ERROR_OVERLAP && bad->edit != exec_size_1 &&
           bad->edit != x_no_data && bad->edit != y_no_data && bad->edit != weight_no_data &&
           bad->edit != dbias_no_data && bad->edit != x_odd_address;
}

static void bad_plan(const bad_call *bad) {
    if (!is_of_the_descriptor(bad))
        return;
    test_case("plan refuses: %s", bad->name);
    call c;
    char message[512] = "";
    call_make(&c, bad->pass, bad->kind);
    bad->edit(&c);
    planish_plan *const none = (planish_plan *)&c, *plan = none;
    planish_status status =
        planish_plan_create(c.op, c.bundle.test.pass, c.tensors, &plan, message, sizeof message);
    expect_sentence(bad, status, message);
    expect(plan == none, "*plan was written to");

    test_case("workspace_bytes refuses: %s", bad->name);
    c.exec.message = message;
    c.exec.message_bytes = sizeof message;
    message[0] = 0;
    size_t bytes = 12345;
    status = planish_norm_workspace_bytes(c.op, c.bundle.test.pass, c.tensors, &bytes, &c.exec);
    expect_sentence(bad, status, message);
    expect(bytes == 12345, "*bytes was written to");
    bundle_free(&c.bundle);
}

/* exec->apart lets an overlap through, and nothing else. Of the overlaps only these two stay within
 * the tensors' own memory. */
static void run_apart(const bad_call *bad) {
    const bool overlaps = bad->edit == mean_on_rstd || bad->edit == dweight_on_dbias;
    if (bad->status == PLANISH_ERROR_OVERLAP && !overlaps)
        return;
    test_case("apart: %s", bad->name);
    call c;
    call_make(&c, bad->pass, bad->kind);
    bad->edit(&c);
    c.exec.apart = 1;
    planish_status status = planish_norm_run(c.op, c.bundle.test.pass, c.tensors, &c.exec);
    expect(status == (overlaps ? PLANISH_OK : bad->status), "%s", planish_status_name(status));
    bundle_free(&c.bundle);
}

int main(void) {
    for (size_t i = 0; i < sizeof bad_calls / sizeof *bad_calls; i++) {
        bad_run(&bad_calls[i]);
        bad_plan(&bad_calls[i]);
        run_apart(&bad_calls[i]);
    }
    return test_finish("descriptors");
}
