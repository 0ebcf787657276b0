#include "apart.h"

#include <stdlib.h>

#include "check.h"

static int64_t along(const staged_case *c, uint64_t axes, int64_t element) {
    int64_t index[5], at = 0;
    for (int i = c->ndim - 1; i >= 0; i--) {
        index[i] = element % c->shape[i];
        element /= c->shape[i];
    }
    for (int i = 0; i < c->ndim; i++)
        if (axes >> i & 1)
            at = at * c->shape[i] + index[i];
    return at;
}

/* s, each operation and then the sum rounded once. */
static real *sum_of(staged_run *r, int64_t count) {
    const staged_case *c = &r->c;
    const uint64_t kept = (PLANISH_AXIS(c->ndim) - 1) & ~c->op.reduce_axes;
    real *s = staged_reals(r, S_X, count, 0), *residual = staged_reals(r, S_RESIDUAL, count, 0);
    real *column = staged_reals(r, S_COLUMN_SCALE, count, 1);
    real *row = staged_reals(r, S_ROW_SCALE, count, 1);
    const bool is_double = c->type == F64 || c->residual == F64 || c->sum == F64;
    for (int64_t i = 0; i < count; i++) {
        const real by_column = column[along(c, c->op.affine_axes, i)],
                   by_row = row[along(c, kept, i)];
        if (is_double)
            s[i] = (double)((double)((double)s[i] * (double)by_column) * (double)by_row) +
                   (double)residual[i];
        else
            s[i] = (float)((float)((float)s[i] * (float)by_column) * (float)by_row) +
                   (float)residual[i];
        s[i] = element_round(c->sum, is_double ? (real)(double)s[i] : (real)(float)s[i]);
    }
    free(residual), free(column), free(row);
    return s;
}

static void expect_same(staged_run *a, staged_run *b, stage_part p, const char *what) {
    if (a->c.has & b->c.has & PART(p))
        expect(tensor_same_bits(staged_tensor(a, p), staged_tensor(b, p)), "another %s", what);
}

void expect_fused_as_apart(const staged_case *c) {
    staged_run fused, apart;
    char message[512] = "";
    staged_case norm = *c;
    norm.has &= ~(PART(S_RESIDUAL) | PART(S_SUM) | PART(S_COLUMN_SCALE) | PART(S_ROW_SCALE));
    norm.type = c->sum;
    norm.in = c->sum_over == STAGE_PARTS ? c->out : c->in;
    norm.sum_over = STAGE_PARTS;
    norm.y_over_x = false;
    staged_make(&fused, c);
    staged_make(&apart, &norm);
    const int64_t count = element_count(&fused.parts[S_X].dl);
    real *sum = sum_of(&fused, count);
    tensor_write(&apart.parts[S_X].dl, sum);
    expect(!staged_forward(&apart, NULL, message, sizeof message), "apart: %s", message);
    expect(!staged_forward(&fused, NULL, message, sizeof message), "fused: %s", message);
    if (c->has & PART(S_SUM))
        expect(tensor_same_bits(staged_tensor(&fused, S_SUM), &apart.parts[S_X].dl), "another sum");
    expect_same(&fused, &apart, S_Y, "y");
    expect_same(&fused, &apart, S_MEAN, "mean");
    expect_same(&fused, &apart, S_RSTD, "rstd");
    free(sum);
    staged_free(&fused);
    staged_free(&apart);
}
