/*
 * What a plan is told of the CPU changes speed alone, with stages around the norm, too: plans made
 * for CPUs of every kind, with caches of every size, give the same bits on this one.
 */
#include <string.h>

#include "backward_case.h"
#include "check.h"
#include "every_cpu.h"
#include "staged_case.h"

/* What is not written is not to be what was there. The tensors are dense. */
static void spoil(const DLTensor *t) {
    if (t->data)
        memset((char *)t->data + t->byte_offset, 0x3c,
               (size_t)element_count(t) * (size_t)(t->dtype.bits / 8));
}

static uint64_t forward_digest(void *context, const problem *p, const cpu_plan *plan) {
    static const stage_part written[] = {S_Y, S_SUM, S_MEAN, S_RSTD, S_MASK, S_Q, S_Y_SCALES};
    staged_run *r = context;
    for (size_t i = 0; i < sizeof written / sizeof *written; i++)
        if (r->c.has & PART(written[i]))
            spoil(staged_tensor(r, written[i]));
    run_in_workspace(p, plan, &r->tensors);
    return staged_digest(r);
}

static uint64_t gradients_digest(void *context, const problem *p, const cpu_plan *plan) {
    backward_run *r = context;
    for (stage_part s = S_X; s < STAGE_PARTS; s++)
        if (backward_is_output(s) && r->c.has & PART(s))
            spoil(backward_tensor(r, s));
    run_in_workspace(p, plan, &r->tensors);
    return backward_digest(r);
}

/* Samples of rows that are no whole number of chunks. */
enum { SAMPLES = 3, ROWS = 75, TURNS = 4 };
static const int64_t lengths[] = {40, 257, 1024, 2100};
static const element types[] = {F32, BF16, F16, F64};
#define COUNT(list) (sizeof(list) / sizeof *(list))

static void shape_of(int64_t shape[5], planish_norm *op, planish_kind kind, int64_t cols,
                     bool by_sample) {
    shape[0] = SAMPLES;
    shape[1] = ROWS;
    shape[2] = cols;
    *op = planish_last_axes_op(kind, 3, 1, 1e-5);
    op->modulation_axes = PLANISH_AXIS(2) | (by_sample ? PLANISH_AXIS(0) : 0);
}

static void forward(int way, int64_t cols, element type) {
    static const uint64_t parts[] = {
        PART(S_SCALE) | PART(S_SHIFT),
        PART(S_SCALE) | PART(S_SHIFT) | PART(S_WEIGHT) | PART(S_BIAS),
        PART(S_WEIGHT) | PART(S_GATE),
        PART(S_RESIDUAL) | PART(S_SUM) | PART(S_MASK) | PART(S_RNG) | PART(S_WEIGHT),
        PART(S_WEIGHT) | PART(S_Q) | PART(S_Y_SCALES),
    };
    staged_case c = staged_rows((planish_kind)(way % 2), SAMPLES * ROWS, cols);
    c.ndim = 3;
    shape_of(c.shape, &c.op, (planish_kind)(way % 2), cols, way % 3);
    const uint64_t stages = parts[way % (int)COUNT(parts)];
    c.has |= stages;
    c.type = c.residual = c.sum = c.y = c.params = type;
    c.op.dropout_p = stages & PART(S_MASK) ? 0.25 : 0;
    c.op.activation = way % 4 == 3 ? PLANISH_SILU : PLANISH_IDENTITY;
    if (stages & PART(S_Q)) {
        c.has &= ~PART(S_Y);
        c.q = (DLDataType){kDLFloat8_e4m3fn, 8, 1};
    }
    c.draw[0] = (uint64_t)way;
    c.draw[1] = 5;
    test_case("forward, way %d, %lld columns, %s", way, (long long)cols, element_name(type));
    staged_run r;
    staged_make(&r, &c);
    expect_same_on_every_cpu(&r.c.op, PLANISH_FORWARD, &r.tensors, forward_digest, &r);
    staged_free(&r);
}

static void backward(int way, int64_t cols, element type) {
    static const uint64_t parts[] = {
        PART(S_SCALE) | PART(S_DSCALE) | PART(S_DSHIFT) | PART(S_DX),
        PART(S_SCALE) | PART(S_SHIFT) | PART(S_WEIGHT) | PART(S_DSCALE) | PART(S_DWEIGHT) |
            PART(S_DX),
        PART(S_WEIGHT) | PART(S_GATE) | PART(S_DGATE) | PART(S_DWEIGHT) | PART(S_DX),
        PART(S_WEIGHT) | PART(S_RNG) | PART(S_DSUM) | PART(S_DRESIDUAL) | PART(S_DX) |
            PART(S_DWEIGHT),
        PART(S_COLUMN_SCALE) | PART(S_DX) | PART(S_DRESIDUAL) | PART(S_BRANCH) |
            PART(S_DCOLUMN_SCALE),
    };
    backward_case c = backward_rows((planish_kind)(way % 2), SAMPLES * ROWS, cols);
    c.ndim = 3;
    shape_of(c.shape, &c.op, (planish_kind)(way % 2), cols, way % 3);
    c.has = parts[way % (int)COUNT(parts)];
    c.op.dropout_p = c.has & PART(S_RNG) ? 0.25 : 0;
    c.x = c.dy = c.dx = c.stages = c.params = type;
    c.stats = type == F64 ? F64 : F32;
    c.draw[0] = (uint64_t)way;
    c.draw[1] = 5;
    test_case("backward, way %d, %lld columns, %s", way, (long long)cols, element_name(type));
    backward_run r;
    backward_make(&r, &c);
    expect_same_on_every_cpu(&r.c.op, PLANISH_BACKWARD, &r.tensors, gradients_digest, &r);
    backward_free(&r);
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
