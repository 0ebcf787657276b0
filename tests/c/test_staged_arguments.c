/*
 * The backward of norms with stages around them: what is refused, with which status and which word
 * in its sentence, outputs staying as they were; and problems without elements, whose sums are 0.
 */
#include <stdlib.h>
#include <string.h>

#include "backward_case.h"
#include "check.h"

#define A PLANISH_AXIS
#define EVERYTHING                                                                                 \
    (PART(S_DX) | PART(S_DSUM) | PART(S_DRESIDUAL) | PART(S_WEIGHT) | PART(S_BIAS) |               \
     PART(S_DWEIGHT) | PART(S_DBIAS) | PART(S_COLUMN_SCALE) | PART(S_DCOLUMN_SCALE) |              \
     PART(S_BRANCH) | PART(S_ROW_SCALE) | PART(S_SCALE) | PART(S_SHIFT) | PART(S_DSCALE) |         \
     PART(S_DSHIFT) | PART(S_GATE) | PART(S_DGATE) | PART(S_RNG))

static backward_case everything(int64_t rows, int64_t cols) {
    backward_case c = backward_rows(PLANISH_LAYER, rows, cols);
    c.has = EVERYTHING;
    c.op.dropout_p = .5;
    return c;
}

static void expect_refused(backward_run *r, planish_status wanted, const char *word) {
    char message[512] = "";
    const planish_status found = backward_do(r, NULL, message, sizeof message);
    expect(found == wanted, "%s, wanted %s: %s", planish_status_name(found),
           planish_status_name(wanted), message);
    expect(strstr(message, word) != NULL, "\"%s\" has no \"%s\"", message, word);
    for (stage_part p = 0; p < STAGE_PARTS; p++)
        if ((r->c.has & PART(p)) && backward_is_output(p))
            expect(tensor_untouched(&r->parts[p]), "%s was written", planish_tensor_name((int)p));
}

/* Everything but these parts. */
static void without(uint64_t parts, planish_status wanted, const char *word) {
    backward_case c = everything(4, 5);
    backward_run r;
    c.has &= ~parts;
    test_case("without parts 0x%llx", (unsigned long long)parts);
    backward_make(&r, &c);
    expect_refused(&r, wanted, word);
    backward_free(&r);
}

static void missing(void) {
    without(PART(S_GATE), PLANISH_ERROR_NULL_POINTER, "gate is NULL");
    without(PART(S_SCALE), PLANISH_ERROR_NULL_POINTER, "scale is NULL");
    without(PART(S_COLUMN_SCALE), PLANISH_ERROR_NULL_POINTER, "column_scale is NULL");
    without(PART(S_BRANCH), PLANISH_ERROR_NULL_POINTER, "branch is NULL");
    without(PART(S_DCOLUMN_SCALE), PLANISH_ERROR_NULL_POINTER, "dcolumn_scale is NULL");
    without(PART(S_RNG), PLANISH_ERROR_NULL_POINTER, "rng is NULL");
    /* z is not made, so nobody needs a bias. */
    without(PART(S_GATE) | PART(S_DGATE) | PART(S_SCALE) | PART(S_DSCALE), PLANISH_ERROR_ARGUMENT,
            "bias is given");
}

/* A tensor of another shape or dtype, or one that this pass has not. */
static void wrong(void) {
    static const stage_part parts[] = {S_DSUM,  S_DRESIDUAL, S_BRANCH, S_GATE,         S_DGATE,
                                       S_SCALE, S_DSCALE,    S_DSHIFT, S_DCOLUMN_SCALE};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        for (int way = 0; way < 2; way++) {
            backward_case c = everything(4, 5);
            backward_run r;
            const char *const name = planish_tensor_name((int)parts[i]);
            test_case("%s of another %s", name, way ? "dtype" : "shape");
            backward_make(&r, &c);
            DLTensor *const t = &r.parts[parts[i]].dl;
            if (way)
                t->dtype.code = kDLInt;
            else
                t->shape[t->ndim - 1] = 3;
            expect_refused(&r, way ? PLANISH_ERROR_DTYPE : PLANISH_ERROR_SHAPE, name);
            backward_free(&r);
        }
    static const stage_part not_here[] = {S_RESIDUAL, S_SUM, S_MASK, S_Q, S_Y_SCALE, S_AMAX};
    for (size_t i = 0; i < sizeof not_here / sizeof *not_here; i++) {
        backward_case c = everything(4, 5);
        backward_run r;
        test_case("%s in backward", planish_tensor_name((int)not_here[i]));
        backward_make(&r, &c);
        *staged_field(&r.tensors, not_here[i]) = &r.parts[S_X].dl;
        expect_refused(&r, PLANISH_ERROR_ARGUMENT, planish_tensor_name((int)not_here[i]));
        backward_free(&r);
    }
}

/* Outputs in one place, and in that of an input they may not be in. */
static void shared(void) {
    static const stage_part pairs[][2] = {{S_DRESIDUAL, S_DX},
                                          {S_DGATE, S_DX},
                                          {S_DGATE, S_DSUM},
                                          {S_DRESIDUAL, S_BRANCH},
                                          {S_DSCALE, S_SCALE},
                                          {S_DSHIFT, S_DSCALE},
                                          {S_DCOLUMN_SCALE, S_COLUMN_SCALE}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        backward_case c = everything(4, 5);
        backward_run r;
        test_case("%s in the place of %s", planish_tensor_name((int)pairs[i][0]),
                  planish_tensor_name((int)pairs[i][1]));
        backward_make(&r, &c);
        *staged_field(&r.tensors, pairs[i][0]) = &r.parts[pairs[i][1]].dl;
        char message[512] = "";
        const planish_status found = backward_do(&r, NULL, message, sizeof message);
        expect(found == PLANISH_ERROR_OVERLAP, "%s: %s", planish_status_name(found), message);
        backward_free(&r);
    }
}

static void workspace(void) {
    backward_case c = everything(70, 33);
    backward_run r;
    size_t bytes = 0;
    char message[512] = "";
    test_case("a workspace of one byte less");
    backward_make(&r, &c);
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
    backward_free(&r);
}

static void empty(void) {
    static const int64_t sizes[][2] = {{0, 6}, {5, 0}, {0, 0}};
    for (int i = 0; i < 3; i++)
        for (int by_row = 0; by_row < 2; by_row++) {
            backward_case c = everything(sizes[i][0], sizes[i][1]);
            backward_run r;
            char message[512] = "";
            c.op.modulation_axes = by_row ? A(0) : A(1);
            test_case("%lld x %lld, modulated by axis %d", (long long)sizes[i][0],
                      (long long)sizes[i][1], !by_row);
            backward_make(&r, &c);
            expect(!backward_do(&r, NULL, message, sizeof message), "%s", message);
            for (stage_part p = 0; p < STAGE_PARTS; p++) {
                if (!(r.c.has & PART(p)) || !backward_is_output(p))
                    continue;
                real *values = backward_reals(&r, p, 1);
                for (int64_t k = 0, count = backward_count(&c, p); k < count; k++)
                    expect(values[k] == 0, "%s[%lld] is %Lg", planish_tensor_name((int)p),
                           (long long)k, values[k]);
                free(values);
            }
            backward_free(&r);
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
