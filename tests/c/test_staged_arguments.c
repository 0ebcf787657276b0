/*
 * The backward of norms with stages around them: what is refused, with which status and which word
 * in its sentence, outputs staying as they were; and problems without elements, whose sums are 0.
 */
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "check.h"

#define A PLANISH_AXIS
#define EVERYTHING                                                                                 \
    (HAS(DX) | HAS(DSUM) | HAS(DRESIDUAL) | HAS(WEIGHT) | HAS(BIAS) | HAS(DWEIGHT) | HAS(DBIAS) |  \
     HAS(COLUMN_SCALE) | HAS(DCOLUMN_SCALE) | HAS(BRANCH) | HAS(ROW_SCALE) | HAS(SCALE) |          \
     HAS(SHIFT) | HAS(DSCALE) | HAS(DSHIFT) | HAS(GATE) | HAS(DGATE) | HAS(RNG))

static norm_case everything(int64_t rows, int64_t cols) {
    norm_case c = bare_case(PLANISH_BACKWARD, PLANISH_LAYER, rows, cols);
    c.has = EVERYTHING;
    c.op.modulation_axes = A(1);
    c.op.dropout_p = .5;
    return c;
}

static void expect_refused(bundle *r, planish_status wanted, const char *word) {
    char message[512] = "";
    const planish_status found = bundle_run(r, NULL, message, sizeof message);
    expect(found == wanted, "%s, wanted %s: %s", planish_status_name(found),
           planish_status_name(wanted), message);
    expect(strstr(message, word) != NULL, "\"%s\" has no \"%s\"", message, word);
    for (part p = 0; p < PARTS; p++)
        if ((r->test.has & HAS(p)) && part_is_output(PLANISH_BACKWARD, p))
            expect(tensor_untouched(&r->tensor[p]), "%s was written", planish_tensor_name((int)p));
}

/* Everything but these parts. */
static void without(uint64_t parts, planish_status wanted, const char *word) {
    norm_case c = everything(4, 5);
    bundle r;
    c.has &= ~parts;
    test_case("without parts 0x%llx", (unsigned long long)parts);
    bundle_make(&r, &c);
    expect_refused(&r, wanted, word);
    bundle_free(&r);
}

static void missing(void) {
    without(HAS(GATE), PLANISH_ERROR_NULL_POINTER, "gate is NULL");
    without(HAS(SCALE), PLANISH_ERROR_NULL_POINTER, "scale is NULL");
    without(HAS(COLUMN_SCALE), PLANISH_ERROR_NULL_POINTER, "column_scale is NULL");
    without(HAS(BRANCH), PLANISH_ERROR_NULL_POINTER, "branch is NULL");
    without(HAS(DCOLUMN_SCALE), PLANISH_ERROR_NULL_POINTER, "dcolumn_scale is NULL");
    without(HAS(RNG), PLANISH_ERROR_NULL_POINTER, "rng is NULL");
    /* z is not made, so nobody needs a bias. */
    without(HAS(GATE) | HAS(DGATE) | HAS(SCALE) | HAS(DSCALE), PLANISH_ERROR_ARGUMENT,
            "bias is given");
}

/* A tensor of another shape or dtype, or one that this pass has not. */
static void wrong(void) {
    static const part parts[] = {DSUM,  DRESIDUAL, BRANCH, GATE,         DGATE,
                                 SCALE, DSCALE,    DSHIFT, DCOLUMN_SCALE};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        for (int way = 0; way < 2; way++) {
            norm_case c = everything(4, 5);
            bundle r;
            const char *const name = planish_tensor_name((int)parts[i]);
            test_case("%s of another %s", name, way ? "dtype" : "shape");
            bundle_make(&r, &c);
            DLTensor *const t = &r.tensor[parts[i]].dl;
            if (way)
                t->dtype.code = kDLInt;
            else
                t->shape[t->ndim - 1] = 3;
            expect_refused(&r, way ? PLANISH_ERROR_DTYPE : PLANISH_ERROR_SHAPE, name);
            bundle_free(&r);
        }
    static const part not_here[] = {RESIDUAL, SUM, MASK, Q, Y_SCALE, AMAX};
    for (size_t i = 0; i < sizeof not_here / sizeof *not_here; i++) {
        norm_case c = everything(4, 5);
        bundle r;
        test_case("%s in backward", planish_tensor_name((int)not_here[i]));
        bundle_make(&r, &c);
        *tensors_field(&r.tensors, not_here[i]) = &r.tensor[X].dl;
        expect_refused(&r, PLANISH_ERROR_ARGUMENT, planish_tensor_name((int)not_here[i]));
        bundle_free(&r);
    }
}

/* Outputs in one place, and in that of an input they may not be in. */
static void shared(void) {
    static const part pairs[][2] = {{DRESIDUAL, DX},
                                    {DGATE, DX},
                                    {DGATE, DSUM},
                                    {DRESIDUAL, BRANCH},
                                    {DSCALE, SCALE},
                                    {DSHIFT, DSCALE},
                                    {DCOLUMN_SCALE, COLUMN_SCALE}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        norm_case c = everything(4, 5);
        bundle r;
        test_case("%s in the place of %s", planish_tensor_name((int)pairs[i][0]),
                  planish_tensor_name((int)pairs[i][1]));
        bundle_make(&r, &c);
        *tensors_field(&r.tensors, pairs[i][0]) = &r.tensor[pairs[i][1]].dl;
        char message[512] = "";
        const planish_status found = bundle_run(&r, NULL, message, sizeof message);
        expect(found == PLANISH_ERROR_OVERLAP, "%s: %s", planish_status_name(found), message);
        bundle_free(&r);
    }
}

static void workspace(void) {
    norm_case c = everything(70, 33);
    bundle r;
    size_t bytes = 0;
    char message[512] = "";
    test_case("a workspace of one byte less");
    bundle_make(&r, &c);
    planish_exec exec = {
        .struct_size = sizeof exec, .message = message, .message_bytes = sizeof message};
    expect(!planish_norm_workspace_bytes(&c.op, PLANISH_BACKWARD, &r.tensors, &bytes, &exec) &&
               bytes,
           "%zu bytes: %s", bytes, message);
    exec.workspace = aligned_alloc(64, (bytes + 63) / 64 * 64);
    exec.workspace_bytes = bytes - 1;
    const planish_status found = planish_norm_run(&c.op, PLANISH_BACKWARD, &r.tensors, &exec);
    expect(found == PLANISH_ERROR_WORKSPACE, "%s", planish_status_name(found));
    free(exec.workspace);
    bundle_free(&r);
}

static void empty(void) {
    static const int64_t sizes[][2] = {{0, 6}, {5, 0}, {0, 0}};
    for (int i = 0; i < 3; i++)
        for (int by_row = 0; by_row < 2; by_row++) {
            norm_case c = everything(sizes[i][0], sizes[i][1]);
            bundle r;
            char message[512] = "";
            c.op.modulation_axes = by_row ? A(0) : A(1);
            test_case("%lld x %lld, modulated by axis %d", (long long)sizes[i][0],
                      (long long)sizes[i][1], !by_row);
            bundle_make(&r, &c);
            expect(!bundle_run(&r, NULL, message, sizeof message), "%s", message);
            for (part p = 0; p < PARTS; p++) {
                if (!(r.test.has & HAS(p)) || !part_is_output(PLANISH_BACKWARD, p))
                    continue;
                real *values = bundle_reals(&r, p, 1);
                for (int64_t k = 0, count = bundle_count(&r, p); k < count; k++)
                    expect(values[k] == 0, "%s[%lld] is %Lg", planish_tensor_name((int)p),
                           (long long)k, values[k]);
                free(values);
            }
            bundle_free(&r);
        }
}

int main(void) {
    missing();
    wrong();
    shared();
    workspace();
    empty();
    return test_finish("staged_arguments");
}
