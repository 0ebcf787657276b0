/*
 * Plans and workspaces: what a plan's run refuses, that it gives what the one call gives, a
 * workspace that is too small, and the small functions beside them.
 */
#include <stdio.h>
#include <string.h>

#include "cases.h"
#include "check.h"

static void workspace(void) {
    for (planish_kind kind = PLANISH_LAYER; kind <= PLANISH_RMS; kind++) {
        norm_case base = rows_case(PLANISH_BACKWARD, kind, 300, 1000);
        bundle b;
        bundle_make(&b, &base);
        size_t needed = 0;
        test_case("workspace of one byte too few, misaligned or missing is refused");
        expect(planish_norm_workspace_bytes(&b.op, PLANISH_BACKWARD, &b.tensors, &needed, NULL) ==
                   PLANISH_OK,
               "no size");
        b.workspace = guarded_make(needed + 512, 256);
        char message[512];
        planish_exec exec = {
            .struct_size = sizeof exec, .message = message, .message_bytes = sizeof message};
        const struct {
            size_t offset, bytes;
            bool null;
        } wrong[] = {{0, needed - 1, false}, {8, needed, false}, {0, 0, false}, {0, needed, true}};
        for (size_t i = 0; needed && i < sizeof wrong / sizeof *wrong; i++) {
            message[0] = 0;
            exec.workspace = wrong[i].null ? NULL : b.workspace.data + wrong[i].offset;
            exec.workspace_bytes = wrong[i].bytes;
            planish_status status = planish_norm_run(&b.op, PLANISH_BACKWARD, &b.tensors, &exec);
            expect(status == PLANISH_ERROR_WORKSPACE, "%zu: %s", i, planish_status_name(status));
            expect(strstr(message, "workspace"), "%zu: the message is '%s'", i, message);
            for (part p = DX; p <= DBIAS; p++)
                expect(tensor_untouched(&b.tensor[p]), "%zu: %s touched", i, part_name(p));
        }
        expect(needed > 0, "a backward with dweight over 300 rows needs no workspace");
        bundle_free(&b);
    }
}

static void plan_buffers(void) {
    norm_case base = rows_case(PLANISH_FORWARD, PLANISH_LAYER, 5, 7);
    bundle b;
    bundle_make(&b, &base);
    char message[512] = "";
    planish_exec exec = {
        .struct_size = sizeof exec, .message = message, .message_bytes = sizeof message};
    planish_plan *plan = NULL;
    test_case("plan_create makes a plan");
    expect(planish_plan_create(&b.op, PLANISH_FORWARD, &b.tensors, &plan, NULL, 0) == PLANISH_OK &&
               plan,
           "no plan");
    planish_buffers good = {.struct_size = sizeof good};
    void **fields[] = {&good.x,  &good.weight, &good.bias, &good.y,       &good.mean, &good.rstd,
                       &good.m2, &good.dy,     &good.dx,   &good.dweight, &good.dbias};
    for (part p = 0; p < PARTS; p++)
        if (b.tensor[p].memory.mapping)
            *fields[p] = b.tensor[p].memory.data;
    const struct {
        const char *name;
        planish_status status;
        void **field;
        void *value;
        const char *word;
    } wrong[] = {
        {"x NULL", PLANISH_ERROR_NULL_POINTER, &good.x, NULL, "x"},
        {"rstd NULL", PLANISH_ERROR_NULL_POINTER, &good.rstd, NULL, "rstd"},
        {"y on weight", PLANISH_ERROR_OVERLAP, &good.y, good.weight, "y"},
        {"y inside x", PLANISH_ERROR_OVERLAP, &good.y, (char *)good.x + 4, "x"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        test_case("plan_run refuses: %s", wrong[i].name);
        void *kept = *wrong[i].field;
        *wrong[i].field = wrong[i].value;
        message[0] = 0;
        planish_status status = planish_plan_run(plan, &good, &exec);
        expect(status == wrong[i].status, "%s: %s", planish_status_name(status), message);
        expect(strstr(message, wrong[i].word), "the message is '%s'", message);
        expect(tensor_untouched(&b.tensor[Y]), "y was written to");
        *wrong[i].field = kept;
    }
    test_case("plan_run refuses: plan NULL, buffers NULL, sizes unset");
    expect(planish_plan_run(NULL, &good, &exec) == PLANISH_ERROR_NULL_POINTER, "plan NULL");
    expect(planish_plan_run(plan, NULL, &exec) == PLANISH_ERROR_NULL_POINTER, "buffers NULL");
    planish_buffers unset = good;
    unset.struct_size = 0;
    expect(planish_plan_run(plan, &unset, &exec) == PLANISH_ERROR_STRUCT_SIZE, "buffers size 0");
    planish_exec old = exec;
    old.struct_size = 4;
    expect(planish_plan_run(plan, &good, &old) == PLANISH_ERROR_STRUCT_SIZE, "exec size 4");

    test_case("plan_run gives what norm_run gives");
    expect(planish_plan_run(plan, &good, NULL) == PLANISH_OK, "a run with exec NULL");
    bundle_check(&b);
    uint64_t digest = bundle_digest(&b);
    expect(bundle_run(&b, NULL, message, sizeof message) == PLANISH_OK, "%s", message);
    expect(digest == bundle_digest(&b), "other bits");

    test_case("plan_describe writes the whole line, or as much as there is room for");
    char line[256], cut[5];
    int length = planish_plan_describe(plan, line, sizeof line);
    expect(length > 0 && (size_t)length == strlen(line), "length %d of '%s'", length, line);
    expect(planish_plan_describe(plan, cut, sizeof cut) == length && !strncmp(cut, line, 4) &&
               !cut[4],
           "cut to '%s'", cut);
    expect(planish_plan_describe(plan, NULL, 0) == length, "no room");
    planish_plan_destroy(plan);
    planish_plan_destroy(NULL);
    expect(planish_plan_workspace_bytes(NULL) == 0, "workspace of no plan");
    bundle_free(&b);
}

static void versions(void) {
    test_case("version, status names and tier");
    expect(planish_version() == PLANISH_VERSION, "version %d", planish_version());
    for (int s = PLANISH_OK; s <= PLANISH_ERROR_DRIVER; s++)
        expect(!strncmp(planish_status_name((planish_status)s), "PLANISH_", 8), "status %d", s);
    expect(planish_status_name((planish_status)-1) && planish_status_name((planish_status)99),
           "an unknown status has no name");
    expect(strlen(planish_cpu_tier()) > 3, "tier '%s'", planish_cpu_tier());
}

int main(void) {
    workspace();
    plan_buffers();
    versions();
    return test_finish("plan");
}
