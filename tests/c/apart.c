#include "apart.h"

#include <string.h>

#include "check.h"

static void expect_same(bundle *a, bundle *b, part p, const char *what) {
    if (a->test.has & b->test.has & HAS(p))
        expect(tensor_same_bits(bundle_tensor(a, p), bundle_tensor(b, p)), "another %s", what);
}

static bool has_sum_over(const norm_case *c) {
    return c->over[0].output == SUM || c->over[1].output == SUM;
}

void expect_fused_as_apart(const norm_case *c) {
    bundle fused, apart;
    char message[512] = "";
    norm_case norm = *c;
    norm.has &= ~(HAS(RESIDUAL) | HAS(SUM) | HAS(COLUMN_SCALE) | HAS(ROW_SCALE));
    norm.x = c->sum;
    norm.in = has_sum_over(c) ? c->in : c->out;
    memset(norm.over, 0, sizeof norm.over);
    bundle_make(&fused, c);
    bundle_make(&apart, &norm);
    /* s, each operation and then the sum rounded once. */
    reference exact = bundle_reference(&fused);
    tensor_write(&apart.tensor[X].dl, exact.value[SUM]);
    expect(!bundle_run(&apart, NULL, message, sizeof message), "apart: %s", message);
    expect(!bundle_run(&fused, NULL, message, sizeof message), "fused: %s", message);
    if (c->has & HAS(SUM))
        expect(tensor_same_bits(bundle_tensor(&fused, SUM), &apart.tensor[X].dl), "another sum");
    expect_same(&fused, &apart, Y, "y");
    expect_same(&fused, &apart, MEAN, "mean");
    expect_same(&fused, &apart, RSTD, "rstd");
    reference_free(&exact);
    bundle_free(&fused);
    bundle_free(&apart);
}
