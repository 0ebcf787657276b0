/*
 * Bad arguments of the stages around a norm: each gives the right status and a sentence that names
 * the argument, what was found and what was wanted; outputs are untouched. The same for a plan.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cases.h"
#include "check.h"

typedef void (*edit)(bundle *r);

static DLTensor *of(bundle *r, part p) {
    return &r->tensor[p].dl;
}
static void drop_part(bundle *r, part p) {
    *tensors_field(&r->tensors, p) = NULL;
}
static void put_part(bundle *r, part p, part from) {
    *tensors_field(&r->tensors, p) = of(r, from);
}

/* clang-format off */

/* ---- Edits: each spoils one thing ------------------------------------------------------------ */

static void gate_2(bundle *r) { r->test.op.gate = (planish_gate)2; }
static void gate_negative(bundle *r) { r->test.op.gate = (planish_gate)-1; }
static void rounding_2(bundle *r) { r->test.op.rounding = (planish_rounding)2; }
static void dropout_1(bundle *r) { r->test.op.dropout_p = 1; }
static void dropout_negative(bundle *r) { r->test.op.dropout_p = -.5; }
static void dropout_nan(bundle *r) { r->test.op.dropout_p = NAN; }
static void block_negative(bundle *r) { r->test.op.scale_block = -1; }
static void format_2(bundle *r) { r->test.op.scale_format = (planish_scale_format)2; }
static void least_negative(bundle *r) { r->test.op.scale_least = -1; }
static void least_infinite(bundle *r) { r->test.op.scale_least = INFINITY; }
static void most_nan(bundle *r) { r->test.op.scale_most = NAN; }
static void modulation_axis_2(bundle *r) { r->test.op.modulation_axes = PLANISH_AXIS(2); }
static void column_axis_9(bundle *r) { r->test.op.column_axes |= PLANISH_AXIS(9); }
static void no_rng(bundle *r) { drop_part(r, RNG); }
static void no_scales(bundle *r) { drop_part(r, Y_SCALES); }
static void both_scales(bundle *r) { put_part(r, Y_SCALE, AMAX); drop_part(r, AMAX); }
static void scales_without_q(bundle *r) { drop_part(r, Q); }
static void scale_without_q(bundle *r) { both_scales(r); drop_part(r, Y_SCALES); drop_part(r, Q); }
static void neither_y_nor_q(bundle *r) { drop_part(r, Y); drop_part(r, Q); drop_part(r, Y_SCALES); }
static void gate_before_residual(bundle *r) { r->test.op.gate = PLANISH_GATE_BEFORE; }
static void e8m0_of_floats(bundle *r) { of(r, Y_SCALES)->dtype = (DLDataType){kDLFloat8_e8m0fnu, 8, 1}; }
static void branch_forward(bundle *r) { put_part(r, BRANCH, RESIDUAL); }
static void dsum_forward(bundle *r) { put_part(r, DSUM, RESIDUAL); }
static void dresidual_forward(bundle *r) { put_part(r, DRESIDUAL, RESIDUAL); }
static void dscale_forward(bundle *r) { put_part(r, DSCALE, SCALE); }
static void dshift_forward(bundle *r) { put_part(r, DSHIFT, SCALE); }
static void dgate_forward(bundle *r) { put_part(r, DGATE, GATE); }
static void dcolumn_forward(bundle *r) { put_part(r, DCOLUMN_SCALE, COLUMN_SCALE); }
static void residual_rows(bundle *r) { r->tensor[RESIDUAL].shape[0] = 4; }
static void residual_i32(bundle *r) { of(r, RESIDUAL)->dtype = (DLDataType){kDLInt, 32, 1}; }
static void residual_on_gpu(bundle *r) { of(r, RESIDUAL)->device.device_type = kDLCUDA; }
static void residual_no_data(bundle *r) { of(r, RESIDUAL)->data = NULL; }
static void sum_cols(bundle *r) { r->tensor[SUM].shape[1] = 6; }
static void sum_stride_0(bundle *r) { r->tensor[SUM].strides[0] = 0; of(r, SUM)->strides = r->tensor[SUM].strides; }
static void sum_on_y(bundle *r) { put_part(r, SUM, Y); }
static void sum_on_gate(bundle *r) { put_part(r, SUM, GATE); }
static void sum_past_residual(bundle *r) { of(r, SUM)->data = of(r, RESIDUAL)->data; of(r, SUM)->byte_offset = of(r, RESIDUAL)->byte_offset + 4; }
static void row_scale_size(bundle *r) { r->tensor[ROW_SCALE].shape[0] = 7; }
static void row_scale_bool(bundle *r) { of(r, ROW_SCALE)->dtype = (DLDataType){kDLBool, 8, 1}; }
static void column_size(bundle *r) { r->tensor[COLUMN_SCALE].shape[0] = 5; }
static void column_rank(bundle *r) { of(r, COLUMN_SCALE)->ndim = 3; }
static void scale_size(bundle *r) { r->tensor[SCALE].shape[0] = 5; }
static void shift_size(bundle *r) { r->tensor[SHIFT].shape[0] = 8; }
static void shift_lanes(bundle *r) { of(r, SHIFT)->dtype.lanes = 2; }
static void gate_cols(bundle *r) { r->tensor[GATE].shape[1] = 1; }
static void rng_one(bundle *r) { r->tensor[RNG].shape[0] = 1; }
static void rng_rank(bundle *r) { of(r, RNG)->ndim = 2; r->tensor[RNG].shape[0] = 1; r->tensor[RNG].shape[1] = 2; }
static void rng_stride(bundle *r) { r->tensor[RNG].strides[0] = 2; of(r, RNG)->strides = r->tensor[RNG].strides; }
static void rng_f64(bundle *r) { of(r, RNG)->dtype = (DLDataType){kDLFloat, 64, 1}; }
static void mask_rows(bundle *r) { r->tensor[MASK].shape[0] = 6; }
static void mask_f32(bundle *r) { of(r, MASK)->dtype = (DLDataType){kDLFloat, 32, 1}; }
static void q_f32(bundle *r) { of(r, Q)->dtype = (DLDataType){kDLFloat, 32, 1}; }
static void q_u8(bundle *r) { of(r, Q)->dtype = (DLDataType){kDLUInt, 8, 1}; }
static void q_e4m3(bundle *r) { of(r, Q)->dtype = (DLDataType){kDLFloat8_e4m3, 8, 1}; }
static void q_cols(bundle *r) { r->tensor[Q].shape[1] = 8; }
static void y_scale_two(bundle *r) { both_scales(r); drop_part(r, Y_SCALES); of(r, AMAX)->ndim = 1; r->tensor[AMAX].shape[0] = 2; }
static void y_scale_f64(bundle *r) { both_scales(r); drop_part(r, Y_SCALES); of(r, AMAX)->dtype.bits = 64; }
static void y_scales_rank(bundle *r) { of(r, Y_SCALES)->ndim = 1; }
static void y_scales_blocks(bundle *r) { r->tensor[Y_SCALES].shape[1] = 3; }
static void y_scales_rows(bundle *r) { r->tensor[Y_SCALES].shape[0] = 3; }
static void y_scales_f16(bundle *r) { of(r, Y_SCALES)->dtype = (DLDataType){kDLFloat, 16, 1}; }
static void amax_row(bundle *r) { of(r, AMAX)->ndim = 1; r->tensor[AMAX].shape[0] = 5; }
static void amax_f16(bundle *r) { of(r, AMAX)->dtype.bits = 16; }
static void amax_on_scales(bundle *r) { of(r, AMAX)->data = of(r, Y_SCALES)->data; of(r, AMAX)->byte_offset = of(r, Y_SCALES)->byte_offset; }
static void amax_odd(bundle *r) { of(r, AMAX)->byte_offset += 2; }

/* ---- The table --------------------------------------------------------------------------------- */


#define BAD(edit) #edit, edit
static const struct { const char *name; edit edit; planish_status status; const char *words[3]; } bad_calls[] = {
    {BAD(gate_2), PLANISH_ERROR_ARGUMENT, {"op->gate", "2", "PLANISH_GATE_BEFORE"}},
    {BAD(gate_negative), PLANISH_ERROR_ARGUMENT, {"op->gate", "-1"}},
    {BAD(rounding_2), PLANISH_ERROR_ARGUMENT, {"op->rounding", "2", "PLANISH_ROUND_XHAT"}},
    {BAD(dropout_1), PLANISH_ERROR_ARGUMENT, {"op->dropout_p", "1", "below 1"}},
    {BAD(dropout_negative), PLANISH_ERROR_ARGUMENT, {"op->dropout_p", "-0.5"}},
    {BAD(dropout_nan), PLANISH_ERROR_ARGUMENT, {"op->dropout_p", "nan"}},
    {BAD(block_negative), PLANISH_ERROR_ARGUMENT, {"op->scale_block", "-1"}},
    {BAD(format_2), PLANISH_ERROR_ARGUMENT, {"op->scale_format", "2", "PLANISH_SCALE_FLOAT"}},
    {BAD(least_negative), PLANISH_ERROR_ARGUMENT, {"op->scale_least", "-1"}},
    {BAD(least_infinite), PLANISH_ERROR_ARGUMENT, {"op->scale_least", "inf", "finite"}},
    {BAD(most_nan), PLANISH_ERROR_ARGUMENT, {"op->scale_most", "nan"}},
    {BAD(modulation_axis_2), PLANISH_ERROR_AXES, {"op->modulation_axes", "0x4", "2 axes"}},
    {BAD(column_axis_9), PLANISH_ERROR_AXES, {"op->column_axes", "0x202"}},
    {BAD(no_rng), PLANISH_ERROR_NULL_POINTER, {"rng", "NULL", "dropout_p 0.5"}},
    {BAD(no_scales), PLANISH_ERROR_NULL_POINTER, {"y_scale", "y_scales", "q"}},
    {BAD(both_scales), PLANISH_ERROR_ARGUMENT, {"y_scale", "y_scales", "one"}},
    {BAD(scales_without_q), PLANISH_ERROR_NULL_POINTER, {"q is NULL", "y_scales"}},
    {BAD(scale_without_q), PLANISH_ERROR_NULL_POINTER, {"q is NULL", "y_scale"}},
    {BAD(neither_y_nor_q), PLANISH_ERROR_NULL_POINTER, {"y is NULL"}},
    {BAD(gate_before_residual), PLANISH_ERROR_ARGUMENT, {"residual", "NULL", "gate"}},
    {BAD(e8m0_of_floats), PLANISH_ERROR_DTYPE, {"y_scales", "f8_e8m0", "POWER_OF_TWO"}},
    {BAD(branch_forward), PLANISH_ERROR_ARGUMENT, {"branch", "NULL", "pass"}},
    {BAD(dsum_forward), PLANISH_ERROR_ARGUMENT, {"dsum", "NULL"}},
    {BAD(dresidual_forward), PLANISH_ERROR_ARGUMENT, {"dresidual", "NULL"}},
    {BAD(dscale_forward), PLANISH_ERROR_ARGUMENT, {"dscale", "NULL"}},
    {BAD(dshift_forward), PLANISH_ERROR_ARGUMENT, {"dshift", "NULL"}},
    {BAD(dgate_forward), PLANISH_ERROR_ARGUMENT, {"dgate", "NULL"}},
    {BAD(dcolumn_forward), PLANISH_ERROR_ARGUMENT, {"dcolumn_scale", "NULL"}},
    {BAD(residual_rows), PLANISH_ERROR_SHAPE, {"residual", "4", "5"}},
    {BAD(residual_i32), PLANISH_ERROR_DTYPE, {"residual", "32", "f16, bf16, f32 or f64"}},
    {BAD(residual_on_gpu), PLANISH_ERROR_DEVICE, {"residual", "2"}},
    {BAD(residual_no_data), PLANISH_ERROR_NULL_POINTER, {"residual", "35"}},
    {BAD(sum_cols), PLANISH_ERROR_SHAPE, {"sum", "6", "7"}},
    {BAD(sum_stride_0), PLANISH_ERROR_STRIDES, {"sum"}},
    {BAD(sum_on_y), PLANISH_ERROR_OVERLAP, {"sum", "y"}},
    {BAD(sum_on_gate), PLANISH_ERROR_OVERLAP, {"sum", "gate"}},
    {BAD(sum_past_residual), PLANISH_ERROR_OVERLAP, {"sum", "residual", "same"}},
    {BAD(row_scale_size), PLANISH_ERROR_SHAPE, {"row_scale", "7", "5"}},
    {BAD(row_scale_bool), PLANISH_ERROR_DTYPE, {"row_scale", "8"}},
    {BAD(column_size), PLANISH_ERROR_SHAPE, {"column_scale", "5", "7"}},
    {BAD(column_rank), PLANISH_ERROR_SHAPE, {"column_scale", "3", "column_axes"}},
    {BAD(scale_size), PLANISH_ERROR_SHAPE, {"scale", "5", "modulation_axes"}},
    {BAD(shift_size), PLANISH_ERROR_SHAPE, {"shift", "8", "7"}},
    {BAD(shift_lanes), PLANISH_ERROR_DTYPE, {"shift", "lanes 2"}},
    {BAD(gate_cols), PLANISH_ERROR_SHAPE, {"gate", "1", "7"}},
    {BAD(rng_one), PLANISH_ERROR_SHAPE, {"rng", "1", "2"}},
    {BAD(rng_rank), PLANISH_ERROR_SHAPE, {"rng", "2 axes"}},
    {BAD(rng_stride), PLANISH_ERROR_STRIDES, {"rng", "2", "1"}},
    {BAD(rng_f64), PLANISH_ERROR_DTYPE, {"rng", "64", "u64 or i64"}},
    {BAD(mask_rows), PLANISH_ERROR_SHAPE, {"mask", "6", "5"}},
    {BAD(mask_f32), PLANISH_ERROR_DTYPE, {"mask", "32", "u8 or bool"}},
    {BAD(q_f32), PLANISH_ERROR_DTYPE, {"q", "32", "f8_e4m3fn, f8_e5m2 or i8"}},
    {BAD(q_u8), PLANISH_ERROR_DTYPE, {"q", "f8_e4m3fn"}},
    {BAD(q_e4m3), PLANISH_ERROR_DTYPE, {"q", "f8_e4m3fn"}},
    {BAD(q_cols), PLANISH_ERROR_SHAPE, {"q", "8", "7"}},
    {BAD(y_scale_two), PLANISH_ERROR_SHAPE, {"y_scale", "2", "1"}},
    {BAD(y_scale_f64), PLANISH_ERROR_DTYPE, {"y_scale", "64", "f32"}},
    {BAD(y_scales_rank), PLANISH_ERROR_SHAPE, {"y_scales", "1", "2"}},
    {BAD(y_scales_blocks), PLANISH_ERROR_SHAPE, {"y_scales", "3", "2 (blocks of 4 of 7 columns)"}},
    {BAD(y_scales_rows), PLANISH_ERROR_SHAPE, {"y_scales", "3", "5"}},
    {BAD(y_scales_f16), PLANISH_ERROR_DTYPE, {"y_scales", "16", "f32 or f8_e8m0"}},
    {BAD(amax_row), PLANISH_ERROR_SHAPE, {"amax", "5", "1"}},
    {BAD(amax_f16), PLANISH_ERROR_DTYPE, {"amax", "16", "f32"}},
    {BAD(amax_on_scales), PLANISH_ERROR_OVERLAP, {"y_scales", "amax"}},
    {BAD(amax_odd), PLANISH_ERROR_STRIDES, {"amax", "4"}},
};

/* clang-format on */

/* ---- Running it ------------------------------------------------------------------------------ */

/* Everything that forward can have at once; gates behind the norm. */
static norm_case everything(void) {
    norm_case c = bare_case(PLANISH_FORWARD, PLANISH_LAYER, 5, 7);
    static const part parts[] = {WEIGHT, BIAS, MEAN, RESIDUAL, SUM, ROW_SCALE, COLUMN_SCALE, SCALE,
                                 SHIFT,  GATE, RNG,  MASK,     Q,   Y_SCALES,  AMAX};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        c.has |= HAS(parts[i]);
    c.op.modulation_axes = c.op.column_axes = PLANISH_AXIS(1);
    c.op.dropout_p = .5;
    c.op.scale_block = 4;
    c.q = (DLDataType){kDLFloat8_e4m3fn, 8, 1};
    return c;
}

static bool outputs_untouched(const bundle *r) {
    static const part outputs[] = {Y, MEAN, RSTD, SUM, MASK, Q, Y_SCALES, AMAX};
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++)
        if (!tensor_untouched(&r->tensor[outputs[i]]))
            return false;
    return true;
}

static void expect_sentence(size_t i, planish_status status, const char *message) {
    expect(status == bad_calls[i].status, "%s, wanted %s: %s", planish_status_name(status),
           planish_status_name(bad_calls[i].status), message);
    for (size_t w = 0; w < 3 && bad_calls[i].words[w]; w++)
        expect(strstr(message, bad_calls[i].words[w]), "the message lacks '%s': %s",
               bad_calls[i].words[w], message);
    expect(strstr(message, "want") || strstr(message, "need"),
           "the message does not say what was wanted: %s", message);
}

static void bad_run(size_t i) {
    test_case("run refuses: %s", bad_calls[i].name);
    const norm_case c = everything();
    bundle r;
    char message[512] = "";
    bundle_make(&r, &c);
    bad_calls[i].edit(&r);
    const planish_exec own = {.struct_size = sizeof own,
                              .workspace = (r.workspace = guarded_make(1 << 20, 64)).data,
                              .workspace_bytes = 1 << 20,
                              .message = message,
                              .message_bytes = sizeof message};
    expect_sentence(i, planish_norm_run(&r.test.op, PLANISH_FORWARD, &r.tensors, &own), message);
    expect(outputs_untouched(&r), "an output was written to");
    bundle_free(&r);
}

/* Data is not looked at. */
static void bad_plan(size_t i) {
    const edit e = bad_calls[i].edit;
    if (bad_calls[i].status == PLANISH_ERROR_OVERLAP || e == residual_no_data || e == amax_odd)
        return;
    test_case("plan refuses: %s", bad_calls[i].name);
    const norm_case c = everything();
    bundle r;
    char message[512] = "";
    bundle_make(&r, &c);
    e(&r);
    planish_plan *plan = NULL;
    expect_sentence(i,
                    planish_plan_create(&r.test.op, PLANISH_FORWARD, &r.tensors, &plan, message,
                                        sizeof message),
                    message);
    expect(!plan, "a plan was made");
    bundle_free(&r);
}

/* The other passes have none of it. */
static void other_passes(void) {
    for (int pass = PLANISH_BACKWARD_FROM_Y; pass <= PLANISH_APPLY; pass++) {
        test_case("pass %d has no residual", pass);
        norm_case c = bare_case(PLANISH_FORWARD, PLANISH_LAYER, 5, 7);
        c.has |= HAS(MEAN) | HAS(RESIDUAL);
        bundle r;
        char message[512] = "";
        bundle_make(&r, &c);
        if (pass == PLANISH_BACKWARD_FROM_Y) {
            r.tensors.dy = r.tensors.dx = r.tensors.x;
            r.tensors.x = r.tensors.mean = NULL;
        } else if (pass == PLANISH_STATISTICS) {
            r.tensors.y = NULL, r.tensors.m2 = r.tensors.rstd, r.tensors.rstd = NULL;
        }
        const planish_exec own = {
            .struct_size = sizeof own, .message = message, .message_bytes = sizeof message};
        expect(planish_norm_run(&c.op, (planish_pass)pass, &r.tensors, &own) ==
                       PLANISH_ERROR_ARGUMENT &&
                   strstr(message, "residual is given"),
               "%s", message);
        bundle_free(&r);
    }
}

/* What the plan says of itself, and what it asks for. */
static void plans(void) {
    const norm_case c = everything();
    bundle r;
    char message[512] = "", text[512] = "";
    planish_plan *plan = NULL;
    bundle_make(&r, &c);
    test_case("the plan of everything");
    expect(!planish_plan_create(&r.test.op, PLANISH_FORWARD, &r.tensors, &plan, message,
                                sizeof message),
           "%s", message);
    planish_plan_describe(plan, text, sizeof text);
    expect(strstr(text, "column_scale+row_scale+dropout+residual+layer+modulation+gate+f8_e4m3fn"),
           "it is called %s", text);
    expect(!planish_plan_is_general(plan), "dense rows are called general");
    expect(!planish_norm_supports(&r.test.op, PLANISH_FORWARD, &r.tensors, message, sizeof message),
           "%s", message);
    planish_buffers none = {.struct_size = sizeof none};
    const planish_exec own = {
        .struct_size = sizeof own, .message = message, .message_bytes = sizeof message};
    expect(planish_plan_run(plan, &none, &own) == PLANISH_ERROR_NULL_POINTER, "runs without data");
    planish_plan_destroy(plan);
    test_case("no workspace");
    expect(planish_norm_run(&r.test.op, PLANISH_FORWARD, &r.tensors, &own) ==
               PLANISH_ERROR_WORKSPACE,
           "%s", message);
    expect(outputs_untouched(&r), "an output was written to");
    bundle_free(&r);
    test_case("the plan of strided rows");
    norm_case strided = c;
    strided.in = PERMUTED;
    bundle_make(&r, &strided);
    expect(!planish_plan_create(&r.test.op, PLANISH_FORWARD, &r.tensors, &plan, message,
                                sizeof message),
           "%s", message);
    expect(planish_plan_is_general(plan), "strided rows are not called general");
    const planish_status found =
        planish_norm_supports(&r.test.op, PLANISH_FORWARD, &r.tensors, message, sizeof message);
    expect(found == PLANISH_ERROR_NO_FAST_KERNEL && strstr(message, "neighbours"), "%s: %s",
           planish_status_name(found), message);
    planish_plan_destroy(plan);
    bundle_free(&r);
}

int main(void) {
    for (size_t i = 0; i < sizeof bad_calls / sizeof *bad_calls; i++) {
        bad_run(i);
        bad_plan(i);
    }
    other_passes();
    plans();
    return test_finish("stages");
}
