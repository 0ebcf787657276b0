/*
 * Two problems at once: outputs have the bits of planish_norm_run of each, for every pass, by
 * tensors and by plans; the workspace is what was asked for and no more; what is wrong with one of
 * the two is said by its name, and then nothing is written.
 */
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "check.h"

/* ---- Bits ------------------------------------------------------------------------------------ */

static void expect_kept(const bundle *b, unsigned char *const kept[PARTS], const char *which,
                        const char *how) {
    for (part p = 0; p < PARTS; p++)
        if (kept[p])
            expect(!memcmp(kept[p], b->tensor[p].memory.data, b->tensor[p].memory.bytes),
                   "%s.%s: other bits than alone, by %s", which, part_name(p), how);
}

static planish_status run_by_tensors(bundle b[2], const planish_exec *exec) {
    return planish_norm_pair_run(&b[0].test.op, b[0].test.pass, &b[0].tensors, &b[1].tensors, exec);
}

static planish_status run_by_plans(bundle b[2], const planish_exec *exec) {
    planish_plan *plan[2] = {NULL, NULL};
    planish_buffers buffers[2] = {{.struct_size = sizeof *buffers},
                                  {.struct_size = sizeof *buffers}};
    planish_status status = PLANISH_OK;
    for (int i = 0; i < 2 && !status; i++) {
        for (part p = 0; p < PARTS; p++) {
            const DLTensor *t = *tensors_field(&b[i].tensors, p);
            *buffers_field(&buffers[i], p) = t ? (char *)t->data + t->byte_offset : NULL;
        }
        status = planish_plan_create(&b[i].test.op, b[i].test.pass, &b[i].tensors, &plan[i],
                                     exec->message, exec->message_bytes);
    }
    if (!status) {
        expect(planish_plan_pair_workspace_bytes(plan[0], plan[1]) == exec->workspace_bytes,
               "the plans' workspace is another");
        status = planish_plan_pair_run(plan[0], plan[1], &buffers[0], &buffers[1], exec);
    }
    planish_plan_destroy(plan[0]);
    planish_plan_destroy(plan[1]);
    return status;
}

static void check_pair(const norm_case *first, const norm_case *second) {
    char text[512], other[512];
    test_case("%s; %s", case_text(first, text, sizeof text),
              case_text(second, other, sizeof other));
    static const struct {
        const char *name;
        planish_status (*run)(bundle b[2], const planish_exec *exec);
    } ways[] = {{"tensors", run_by_tensors}, {"plans", run_by_plans}};
    static const char *const names[] = {"first", "second"};
    bundle b[2];
    unsigned char *kept[2][PARTS];
    for (int i = 0; i < 2; i++) {
        bundle_make(&b[i], i ? second : first);
        const planish_status status = bundle_run(&b[i], NULL, text, sizeof text);
        expect(status == PLANISH_OK, "%s alone: %s", names[i], text);
        bundle_keep_outputs(&b[i], kept[i]);
    }
    planish_exec exec = {.struct_size = sizeof exec, .message = text, .message_bytes = sizeof text};
    size_t bytes = 0;
    planish_status status = planish_norm_pair_workspace_bytes(
        &b[0].test.op, first->pass, &b[0].tensors, &b[1].tensors, &bytes, &exec);
    expect(status == PLANISH_OK, "workspace: %s", text);
    guarded room = guarded_make(bytes, 256);
    exec.workspace = bytes ? room.data : NULL;
    exec.workspace_bytes = bytes;
    for (int way = 0; way < 2; way++) {
        bundle_clear_outputs(&b[0]);
        bundle_clear_outputs(&b[1]);
        if (expect(ways[way].run(b, &exec) == PLANISH_OK, "%s: %s", ways[way].name, text))
            for (int i = 0; i < 2; i++)
                expect_kept(&b[i], kept[i], names[i], ways[way].name);
    }
    guarded_free(&room);
    for (int i = 0; i < 2; i++) {
        for (part p = 0; p < PARTS; p++)
            free(kept[i][p]);
        bundle_free(&b[i]);
    }
}

/* Heads of one part of a packed tensor: (tokens, heads, cols). */
static norm_case heads_case(planish_pass pass, planish_kind kind, int64_t heads, int64_t cols,
                            bool own, element type) {
    norm_case c = rows_case(pass, kind, 0, cols);
    c.ndim = 3;
    c.shape[0] = 19;
    c.shape[1] = heads;
    c.shape[2] = cols;
    c.op.reduce_axes = 4;
    c.op.affine_axes = own ? 6 : 4;
    c.x = c.dx = c.y = c.weight = c.grad = type;
    c.stats = type == F64 ? F64 : F32;
    c.in = PACKED;
    c.seed = (uint64_t)(1 + heads * cols);
    return c;
}

static void check_bits(void) {
    static const planish_pass passes[] = {PLANISH_FORWARD, PLANISH_BACKWARD,
                                          PLANISH_BACKWARD_FROM_Y, PLANISH_STATISTICS,
                                          PLANISH_APPLY};
    static const element types[] = {F16, BF16, F32, F64};
    static const int64_t cols[] = {64, 128, 77};
    for (int pass = 0; pass < 5; pass++)
        for (int type = 0; type < 4; type++)
            for (int i = 0; i < 6; i++) {
                const planish_kind kind = i % 2 ? PLANISH_RMS : PLANISH_LAYER;
                if (passes[pass] == PLANISH_STATISTICS && kind == PLANISH_RMS)
                    continue;
                const norm_case q =
                    heads_case(passes[pass], kind, 8, cols[i % 3], i > 2, types[type]);
                const norm_case k = heads_case(passes[pass], kind, 2, cols[(i + (i == 4)) % 3],
                                               i > 2, types[(type + (i == 5)) % 4]);
                check_pair(&q, &k);
            }
    /* Long rows, whose backward has a workspace that is no multiple of 256 bytes. */
    norm_case first = rows_case(PLANISH_BACKWARD, PLANISH_LAYER, 300, 1001);
    norm_case second = rows_case(PLANISH_BACKWARD, PLANISH_LAYER, 500, 77);
    check_pair(&first, &second);
    check_pair(&second, &first);
    second.shape[0] = 0; /* only sums are written */
    check_pair(&first, &second);
    check_pair(&second, &first);
}

/* ---- Errors ---------------------------------------------------------------------------------- */

typedef void (*edit)(bundle b[2], planish_exec *exec);

static void no_x(bundle b[2], planish_exec *exec) {
    (void)exec;
    b[1].tensors.x = NULL;
}
static void integers(bundle b[2], planish_exec *exec) {
    (void)exec;
    b[0].tensor[X].dl.dtype = (DLDataType){kDLInt, 32, 1};
}
static void short_weight(bundle b[2], planish_exec *exec) {
    (void)exec;
    b[1].tensor[WEIGHT].dl.shape[0] = 3;
}
static void no_data(bundle b[2], planish_exec *exec) {
    (void)exec;
    b[1].tensor[DY].dl.data = NULL;
}
static void shared(bundle b[2], planish_exec *exec) {
    (void)exec;
    b[1].tensors.dbias = b[1].tensors.dweight;
}
static void old_struct(bundle b[2], planish_exec *exec) {
    (void)exec;
    b[1].tensors.struct_size = 3;
}
static void odd_kind(bundle b[2], planish_exec *exec) {
    (void)exec;
    b[0].test.op.kind = (planish_kind)7;
}
static void little_workspace(bundle b[2], planish_exec *exec) {
    (void)b;
    exec->workspace_bytes--;
}
static void skewed_workspace(bundle b[2], planish_exec *exec) {
    (void)b;
    exec->workspace = (char *)exec->workspace + 4;
}

static void check_errors(void) {
    static const struct {
        edit spoil;
        planish_status status;
        const char *begin;
    } wrong[] = {
        {no_x, PLANISH_ERROR_NULL_POINTER, "second.x is NULL; this pass needs it"},
        {integers, PLANISH_ERROR_DTYPE, "first.x has dtype code 0"},
        {short_weight, PLANISH_ERROR_SHAPE, "second.weight has size 3 on axis 0; wanted 64"},
        {no_data, PLANISH_ERROR_NULL_POINTER, "second.dy has no data; wanted"},
        {shared, PLANISH_ERROR_OVERLAP, "second.dweight shares memory with dbias"},
        {old_struct, PLANISH_ERROR_STRUCT_SIZE, "second->struct_size is 3; wanted"},
        {odd_kind, PLANISH_ERROR_ARGUMENT, "op->kind is 7; wanted"},
        {little_workspace, PLANISH_ERROR_WORKSPACE, "exec->workspace has"},
        {skewed_workspace, PLANISH_ERROR_WORKSPACE, "exec->workspace is at an address"},
    };
    const norm_case q = heads_case(PLANISH_BACKWARD, PLANISH_LAYER, 8, 64, false, F32);
    const norm_case k = heads_case(PLANISH_BACKWARD, PLANISH_LAYER, 2, 64, false, F32);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        test_case("an error: %s", wrong[i].begin);
        bundle b[2];
        unsigned char *kept[2][PARTS];
        char text[512] = "";
        bundle_make(&b[0], &q);
        bundle_make(&b[1], &k);
        for (int j = 0; j < 2; j++)
            bundle_keep_outputs(&b[j], kept[j]);
        planish_exec exec = {
            .struct_size = sizeof exec, .message = text, .message_bytes = sizeof text};
        planish_norm_pair_workspace_bytes(&b[0].test.op, PLANISH_BACKWARD, &b[0].tensors,
                                          &b[1].tensors, &exec.workspace_bytes, &exec);
        expect(exec.workspace_bytes > 0, "no workspace to ask for");
        char *const room = aligned_alloc(256, (exec.workspace_bytes + 511) / 256 * 256);
        exec.workspace = room;
        wrong[i].spoil(b, &exec);
        const planish_status status = run_by_tensors(b, &exec);
        expect(status == wrong[i].status, "found %s", planish_status_name(status));
        expect(!strncmp(text, wrong[i].begin, strlen(wrong[i].begin)), "found: %s", text);
        for (int j = 0; j < 2; j++) {
            expect_kept(&b[j], kept[j], j ? "second" : "first", "a call that failed");
            for (part p = 0; p < PARTS; p++)
                free(kept[j][p]);
            bundle_free(&b[j]);
        }
        free(room);
    }
    test_case("an error: NULL in place of what has to be there");
    char text[512] = "";
    planish_exec exec = {.struct_size = sizeof exec, .message = text, .message_bytes = sizeof text};
    bundle b;
    size_t bytes;
    bundle_make(&b, &q);
    expect(planish_norm_pair_run(&b.test.op, q.pass, &b.tensors, NULL, &exec) ==
                   PLANISH_ERROR_NULL_POINTER &&
               !strcmp(text, "second is NULL; wanted a planish_tensors"),
           "found: %s", text);
    expect(planish_norm_pair_run(NULL, q.pass, &b.tensors, &b.tensors, &exec) ==
                   PLANISH_ERROR_NULL_POINTER &&
               !strcmp(text, "op is NULL; wanted a planish_norm"),
           "found: %s", text);
    expect(planish_norm_pair_workspace_bytes(&b.test.op, q.pass, &b.tensors, &b.tensors, NULL,
                                             &exec) == PLANISH_ERROR_NULL_POINTER &&
               !strncmp(text, "bytes is NULL", 13),
           "found: %s", text);
    expect(planish_norm_pair_workspace_bytes(&b.test.op, q.pass, NULL, &b.tensors, &bytes, &exec) ==
                   PLANISH_ERROR_NULL_POINTER &&
               !strncmp(text, "first is NULL", 13),
           "found: %s", text);
    expect(planish_plan_pair_run(NULL, NULL, NULL, NULL, &exec) == PLANISH_ERROR_NULL_POINTER &&
               !strcmp(text, "first is NULL; wanted a planish_plan"),
           "found: %s", text);
    expect(planish_plan_pair_workspace_bytes(NULL, NULL) == 0, "a workspace of no plans");
    bundle_free(&b);
}

int main(void) {
    check_bits();
    check_errors();
    return test_finish("test_pair");
}
