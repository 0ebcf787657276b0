/*
 * What a plan is told of the CPU changes speed alone, with stages around the norm, too: plans made
 * for CPUs of every kind, with caches of every size, give the same bits on this one.
 */
#include <string.h>

#include "cases.h"
#include "check.h"
#include "every_cpu.h"

/* What is not written is not to be what was there. The tensors are dense. */
static void spoil(const DLTensor *t) {
    if (t->data)
        memset((char *)t->data + t->byte_offset, 0x3c,
               (size_t)element_count(t) * (size_t)(t->dtype.bits / 8));
}

static uint64_t forward_digest(void *context, const problem *p, const cpu_plan *plan) {
    static const part written[] = {Y, SUM, MEAN, RSTD, MASK, Q, Y_SCALES};
    bundle *r = context;
    for (size_t i = 0; i < sizeof written / sizeof *written; i++)
        if (r->test.has & HAS(written[i]))
            spoil(bundle_tensor(r, written[i]));
    run_in_workspace(p, plan, &r->tensors);
    return bundle_digest(r);
}

static uint64_t gradients_digest(void *context, const problem *p, const cpu_plan *plan) {
    bundle *r = context;
    for (part s = X; s < PARTS; s++)
        if (part_is_output(PLANISH_BACKWARD, s) && r->test.has & HAS(s))
            spoil(bundle_tensor(r, s));
    run_in_workspace(p, plan, &r->tensors);
    return bundle_digest(r);
}

/* Samples of rows that are no whole number of chunks. */
enum { SAMPLES = 3, ROWS = 75, TURNS = 4 };
static const int64_t lengths[] = {40, 257, 1024, 2100};
static const element types[] = {F32, BF16, F16, F64};
#define COUNT(list) (sizeof(list) / sizeof *(list))

static void shape_of(int64_t shape[PLANISH_MAX_NDIM], planish_norm *op, planish_kind kind,
                     int64_t cols, bool by_sample) {
    shape[0] = SAMPLES;
    shape[1] = ROWS;
    shape[2] = cols;
    *op = planish_last_axes_op(kind, 3, 1, 1e-5);
    op->modulation_axes = PLANISH_AXIS(2) | (by_sample ? PLANISH_AXIS(0) : 0);
}

static void forward(int way, int64_t cols, element type) {
    static const uint64_t parts[] = {
        HAS(SCALE) | HAS(SHIFT),
        HAS(SCALE) | HAS(SHIFT) | HAS(WEIGHT) | HAS(BIAS),
        HAS(WEIGHT) | HAS(GATE),
        HAS(RESIDUAL) | HAS(SUM) | HAS(MASK) | HAS(RNG) | HAS(WEIGHT),
        HAS(WEIGHT) | HAS(Q) | HAS(Y_SCALES),
    };
    norm_case c = bare_case(PLANISH_FORWARD, (planish_kind)(way % 2), SAMPLES * ROWS, cols);
    c.ndim = 3;
    shape_of(c.shape, &c.op, (planish_kind)(way % 2), cols, way % 3);
    const uint64_t stages = parts[way % (int)COUNT(parts)];
    c.has |= stages;
    case_set_types(&c, type);
    c.op.dropout_p = stages & HAS(MASK) ? 0.25 : 0;
    c.op.activation = way % 4 == 3 ? PLANISH_SILU : PLANISH_IDENTITY;
    if (stages & HAS(Q)) {
        c.has &= ~HAS(Y);
        c.q = (DLDataType){kDLFloat8_e4m3fn, 8, 1};
    }
    c.draw[0] = (uint64_t)way;
    c.draw[1] = 5;
    test_case("forward, way %d, %lld columns, %s", way, (long long)cols, element_name(type));
    bundle r;
    bundle_make(&r, &c);
    expect_same_on_every_cpu(&r.test.op, PLANISH_FORWARD, &r.tensors, forward_digest, &r);
    bundle_free(&r);
}

static void backward(int way, int64_t cols, element type) {
    static const uint64_t parts[] = {
        HAS(SCALE) | HAS(DSCALE) | HAS(DSHIFT) | HAS(DX),
        HAS(SCALE) | HAS(SHIFT) | HAS(WEIGHT) | HAS(DSCALE) | HAS(DWEIGHT) | HAS(DX),
        HAS(WEIGHT) | HAS(GATE) | HAS(DGATE) | HAS(DWEIGHT) | HAS(DX),
        HAS(WEIGHT) | HAS(RNG) | HAS(DSUM) | HAS(DRESIDUAL) | HAS(DX) | HAS(DWEIGHT),
        HAS(COLUMN_SCALE) | HAS(DX) | HAS(DRESIDUAL) | HAS(BRANCH) | HAS(DCOLUMN_SCALE),
    };
    norm_case c = bare_case(PLANISH_BACKWARD, (planish_kind)(way % 2), SAMPLES * ROWS, cols);
    c.ndim = 3;
    shape_of(c.shape, &c.op, (planish_kind)(way % 2), cols, way % 3);
    c.has = parts[way % (int)COUNT(parts)];
    c.op.dropout_p = c.has & HAS(RNG) ? 0.25 : 0;
    case_set_types(&c, type);
    c.draw[0] = (uint64_t)way;
    c.draw[1] = 5;
    test_case("backward, way %d, %lld columns, %s", way, (long long)cols, element_name(type));
    bundle r;
    bundle_make(&r, &c);
    expect_same_on_every_cpu(&r.test.op, PLANISH_BACKWARD, &r.tensors, gradients_digest, &r);
    bundle_free(&r);
}

int main(void) {
    int way = 0;
    for (size_t n = 0; n < COUNT(lengths); n++)
        for (size_t t = 0; t < COUNT(types); t++)
            for (int turn = 0; turn < TURNS; turn++, way++) {
                forward(way, lengths[n], types[t]);
                backward(way, lengths[n], types[t]);
            }
    return test_finish("staged_limits");
}
