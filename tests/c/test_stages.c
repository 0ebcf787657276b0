/*
 * Bad arguments of the stages around a norm: each gives the right status and a sentence that names
 * the argument, what was found and what was wanted; outputs are untouched. The same for a plan.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "staged_case.h"

typedef void (*edit)(staged_run *r);

static DLTensor *of(staged_run *r, stage_part p) {
    return &r->parts[p].dl;
}
static void drop_part(staged_run *r, stage_part p) {
    *staged_field(&r->tensors, p) = NULL;
}
static void put_part(staged_run *r, stage_part p, stage_part from) {
    *staged_field(&r->tensors, p) = of(r, from);
}

/* clang-format off */

/* ---- Edits: each spoils one thing ------------------------------------------------------------ */

static void gate_2(staged_run *r) { r->c.op.gate = (planish_gate)2; }
static void gate_negative(staged_run *r) { r->c.op.gate = (planish_gate)-1; }
static void rounding_2(staged_run *r) { r->c.op.rounding = (planish_rounding)2; }
static void dropout_1(staged_run *r) { r->c.op.dropout_p = 1; }
static void dropout_negative(staged_run *r) { r->c.op.dropout_p = -.5; }
static void dropout_nan(staged_run *r) { r->c.op.dropout_p = NAN; }
static void block_negative(staged_run *r) { r->c.op.scale_block = -1; }
static void format_2(staged_run *r) { r->c.op.scale_format = (planish_scale_format)2; }
static void least_negative(staged_run *r) { r->c.op.scale_least = -1; }
static void least_infinite(staged_run *r) { r->c.op.scale_least = INFINITY; }
static void most_nan(staged_run *r) { r->c.op.scale_most = NAN; }
static void modulation_axis_2(staged_run *r) { r->c.op.modulation_axes = PLANISH_AXIS(2); }
static void column_axis_9(staged_run *r) { r->c.op.column_axes |= PLANISH_AXIS(9); }
static void no_rng(staged_run *r) { drop_part(r, S_RNG); }
static void no_scales(staged_run *r) { drop_part(r, S_Y_SCALES); }
static void both_scales(staged_run *r) { put_part(r, S_Y_SCALE, S_AMAX); drop_part(r, S_AMAX); }
static void scales_without_q(staged_run *r) { drop_part(r, S_Q); }
static void scale_without_q(staged_run *r) { both_scales(r); drop_part(r, S_Y_SCALES); drop_part(r, S_Q); }
static void neither_y_nor_q(staged_run *r) { drop_part(r, S_Y); drop_part(r, S_Q); drop_part(r, S_Y_SCALES); }
static void gate_before_residual(staged_run *r) { r->c.op.gate = PLANISH_GATE_BEFORE; }
static void e8m0_of_floats(staged_run *r) { of(r, S_Y_SCALES)->dtype = (DLDataType){kDLFloat8_e8m0fnu, 8, 1}; }
static void branch_forward(staged_run *r) { put_part(r, S_BRANCH, S_RESIDUAL); }
static void dsum_forward(staged_run *r) { put_part(r, S_DSUM, S_RESIDUAL); }
static void dresidual_forward(staged_run *r) { put_part(r, S_DRESIDUAL, S_RESIDUAL); }
static void dscale_forward(staged_run *r) { put_part(r, S_DSCALE, S_SCALE); }
static void dshift_forward(staged_run *r) { put_part(r, S_DSHIFT, S_SCALE); }
static void dgate_forward(staged_run *r) { put_part(r, S_DGATE, S_GATE); }
static void dcolumn_forward(staged_run *r) { put_part(r, S_DCOLUMN_SCALE, S_COLUMN_SCALE); }
static void residual_rows(staged_run *r) { r->parts[S_RESIDUAL].shape[0] = 4; }
static void residual_i32(staged_run *r) { of(r, S_RESIDUAL)->dtype = (DLDataType){kDLInt, 32, 1}; }
static void residual_on_gpu(staged_run *r) { of(r, S_RESIDUAL)->device.device_type = kDLCUDA; }
static void residual_no_data(staged_run *r) { of(r, S_RESIDUAL)->data = NULL; }
static void sum_cols(staged_run *r) { r->parts[S_SUM].shape[1] = 6; }
static void sum_stride_0(staged_run *r) { r->parts[S_SUM].strides[0] = 0; of(r, S_SUM)->strides = r->parts[S_SUM].strides; }
static void sum_on_y(staged_run *r) { put_part(r, S_SUM, S_Y); }
static void sum_on_gate(staged_run *r) { put_part(r, S_SUM, S_GATE); }
static void sum_past_residual(staged_run *r) { of(r, S_SUM)->data = of(r, S_RESIDUAL)->data; of(r, S_SUM)->byte_offset = of(r, S_RESIDUAL)->byte_offset + 4; }
static void row_scale_size(staged_run *r) { r->parts[S_ROW_SCALE].shape[0] = 7; }
static void row_scale_bool(staged_run *r) { of(r, S_ROW_SCALE)->dtype = (DLDataType){kDLBool, 8, 1}; }
static void column_size(staged_run *r) { r->parts[S_COLUMN_SCALE].shape[0] = 5; }
static void column_rank(staged_run *r) { of(r, S_COLUMN_SCALE)->ndim = 3; }
static void scale_size(staged_run *r) { r->parts[S_SCALE].shape[0] = 5; }
static void shift_size(staged_run *r) { r->parts[S_SHIFT].shape[0] = 8; }
static void shift_lanes(staged_run *r) { of(r, S_SHIFT)->dtype.lanes = 2; }
static void gate_cols(staged_run *r) { r->parts[S_GATE].shape[1] = 1; }
static void rng_one(staged_run *r) { r->parts[S_RNG].shape[0] = 1; }
static void rng_rank(staged_run *r) { of(r, S_RNG)->ndim = 2; r->parts[S_RNG].shape[0] = 1; r->parts[S_RNG].shape[1] = 2; }
static void rng_stride(staged_run *r) { r->parts[S_RNG].strides[0] = 2; of(r, S_RNG)->strides = r->parts[S_RNG].strides; }
static void rng_f64(staged_run *r) { of(r, S_RNG)->dtype = (DLDataType){kDLFloat, 64, 1}; }
static void mask_rows(staged_run *r) { r->parts[S_MASK].shape[0] = 6; }
static void mask_f32(staged_run *r) { of(r, S_MASK)->dtype = (DLDataType){kDLFloat, 32, 1}; }
static void q_f32(staged_run *r) { of(r, S_Q)->dtype = (DLDataType){kDLFloat, 32, 1}; }
static void q_u8(staged_run *r) { of(r, S_Q)->dtype = (DLDataType){kDLUInt, 8, 1}; }
static void q_e4m3(staged_run *r) { of(r, S_Q)->dtype = (DLDataType){kDLFloat8_e4m3, 8, 1}; }
static void q_cols(staged_run *r) { r->parts[S_Q].shape[1] = 8; }
static void y_scale_two(staged_run *r) { both_scales(r); drop_part(r, S_Y_SCALES); of(r, S_AMAX)->ndim = 1; r->parts[S_AMAX].shape[0] = 2; }
static void y_scale_f64(staged_run *r) { both_scales(r); drop_part(r, S_Y_SCALES); of(r, S_AMAX)->dtype.bits = 64; }
static void y_scales_rank(staged_run *r) { of(r, S_Y_SCALES)->ndim = 1; }
static void y_scales_blocks(staged_run *r) { r->parts[S_Y_SCALES].shape[1] = 3; }
static void y_scales_rows(staged_run *r) { r->parts[S_Y_SCALES].shape[0] = 3; }
static void y_scales_f16(staged_run *r) { of(r, S_Y_SCALES)->dtype = (DLDataType){kDLFloat, 16, 1}; }
static void amax_row(staged_run *r) { of(r, S_AMAX)->ndim = 1; r->parts[S_AMAX].shape[0] = 5; }
static void amax_f16(staged_run *r) { of(r, S_AMAX)->dtype.bits = 16; }
static void amax_on_scales(staged_run *r) { of(r, S_AMAX)->data = of(r, S_Y_SCALES)->data; of(r, S_AMAX)->byte_offset = of(r, S_Y_SCALES)->byte_offset; }
static void amax_odd(staged_run *r) { of(r, S_AMAX)->byte_offset += 2; }

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
static staged_case everything(void) {
    staged_case c = staged_rows(PLANISH_LAYER, 5, 7);
    static const stage_part parts[] = {S_WEIGHT,    S_BIAS,         S_MEAN,  S_RESIDUAL, S_SUM,
                                       S_ROW_SCALE, S_COLUMN_SCALE, S_SCALE, S_SHIFT,    S_GATE,
                                       S_RNG,       S_MASK,         S_Q,     S_Y_SCALES, S_AMAX};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        c.has |= PART(parts[i]);
    c.op.modulation_axes = c.op.column_axes = PLANISH_AXIS(1);
    c.op.dropout_p = .5;
    c.op.scale_block = 4;
    c.q = (DLDataType){kDLFloat8_e4m3fn, 8, 1};
    return c;
}

static bool outputs_untouched(const staged_run *r) {
    static const stage_part outputs[] = {S_Y,    S_MEAN, S_RSTD,     S_SUM,
                                         S_MASK, S_Q,    S_Y_SCALES, S_AMAX};
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++)
        if (!tensor_untouched(&r->parts[outputs[i]]))
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
    const staged_case c = everything();
    staged_run r;
    char message[512] = "";
    staged_make(&r, &c);
    bad_calls[i].edit(&r);
    const planish_exec own = {.struct_size = sizeof own,
                              .workspace = (r.workspace = guarded_make(1 << 20, 64)).data,
                              .workspace_bytes = 1 << 20,
                              .message = message,
                              .message_bytes = sizeof message};
    expect_sentence(i, planish_norm_run(&r.c.op, PLANISH_FORWARD, &r.tensors, &own), message);
    expect(outputs_untouched(&r), "an output was written to");
    staged_free(&r);
}

/* Data is not looked at. */
static void bad_plan(size_t i) {
    const edit e = bad_calls[i].edit;
    if (bad_calls[i].status == PLANISH_ERROR_OVERLAP || e == residual_no_data || e == amax_odd)
        return;
    test_case("plan refuses: %s", bad_calls[i].name);
    const staged_case c = everything();
    staged_run r;
    char message[512] = "";
    staged_make(&r, &c);
    e(&r);
    planish_plan *plan = NULL;
    expect_sentence(
        i,
        planish_plan_create(&r.c.op, PLANISH_FORWARD, &r.tensors, &plan, message, sizeof message),
        message);
    expect(!plan, "a plan was made");
    staged_free(&r);
}

/* The other passes have none of it. */
static void other_passes(void) {
    for (int pass = PLANISH_BACKWARD_FROM_Y; pass <= PLANISH_APPLY; pass++) {
        test_case("pass %d has no residual", pass);
        staged_case c = staged_rows(PLANISH_LAYER, 5, 7);
        c.has |= PART(S_MEAN) | PART(S_RESIDUAL);
        staged_run r;
        char message[512] = "";
        staged_make(&r, &c);
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
        staged_free(&r);
    }
}

/* What the plan says of itself, and what it asks for. */
static void plans(void) {
    const staged_case c = everything();
    staged_run r;
    char message[512] = "", text[512] = "";
    planish_plan *plan = NULL;
    staged_make(&r, &c);
    test_case("the plan of everything");
    expect(
        !planish_plan_create(&r.c.op, PLANISH_FORWARD, &r.tensors, &plan, message, sizeof message),
        "%s", message);
    planish_plan_describe(plan, text, sizeof text);
    expect(strstr(text, "column_scale+row_scale+dropout+residual+layer+modulation+gate+f8_e4m3fn"),
           "it is called %s", text);
    expect(!planish_plan_is_general(plan), "dense rows are called general");
    expect(!planish_norm_supports(&r.c.op, PLANISH_FORWARD, &r.tensors, message, sizeof message),
           "%s", message);
    planish_buffers none = {.struct_size = sizeof none};
    const planish_exec own = {
        .struct_size = sizeof own, .message = message, .message_bytes = sizeof message};
    expect(planish_plan_run(plan, &none, &own) == PLANISH_ERROR_NULL_POINTER, "runs without data");
    planish_plan_destroy(plan);
    test_case("no workspace");
    expect(planish_norm_run(&r.c.op, PLANISH_FORWARD, &r.tensors, &own) == PLANISH_ERROR_WORKSPACE,
           "%s", message);
    expect(outputs_untouched(&r), "an output was written to");
    staged_free(&r);
    test_case("the plan of strided rows");
    staged_case strided = c;
    strided.in = PERMUTED;
    staged_make(&r, &strided);
    expect(
        !planish_plan_create(&r.c.op, PLANISH_FORWARD, &r.tensors, &plan, message, sizeof message),
        "%s", message);
    expect(planish_plan_is_general(plan), "strided rows are not called general");
    const planish_status found =
        planish_norm_supports(&r.c.op, PLANISH_FORWARD, &r.tensors, message, sizeof message);
    expect(found == PLANISH_ERROR_NO_FAST_KERNEL && strstr(message, "neighbours"), "%s: %s",
           planish_status_name(found), message);
    planish_plan_destroy(plan);
    staged_free(&r);
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
