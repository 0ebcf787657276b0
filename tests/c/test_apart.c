/*
 * GroupNorm, InstanceNorm and norms over channels with a sum before them, or with a gradient that
 * joins dx, have the bits of the steps one after the other: s by the processor's own operations and
 * then planish's norm of it; planish's backward and then an addition. Stored by channel, by pixel
 * and otherwise, with and without a sum that is kept, with activations.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "apart.h"
#include "cases.h"
#include "check.h"

#define A PLANISH_AXIS

typedef struct shape {
    const char *name;
    int ndim;
    int64_t sizes[5];
    uint64_t reduce, affine;
    planish_kind kind;
} shape;

static const shape shapes[] = {
    {"groups", 5, {2, 4, 6, 5, 7}, A(2) | A(3) | A(4), A(1) | A(2), PLANISH_LAYER},
    {"groups of long channels",
     5,
     {1, 2, 3, 40, 41},
     A(2) | A(3) | A(4),
     A(1) | A(2),
     PLANISH_LAYER},
    {"many groups of few pixels",
     5,
     {9, 16, 2, 2, 2},
     A(2) | A(3) | A(4),
     A(1) | A(2),
     PLANISH_LAYER},
    {"one group", 5, {3, 1, 12, 9, 8}, A(2) | A(3) | A(4), A(1) | A(2), PLANISH_LAYER},
    {"instances", 4, {3, 17, 6, 8}, A(2) | A(3), A(1), PLANISH_LAYER},
    {"channels", 4, {2, 24, 9, 16}, A(1), A(1), PLANISH_LAYER},
    {"many channels", 4, {1, 1100, 3, 4}, A(1), A(1), PLANISH_RMS},
    {"channels of many pixels", 4, {1, 5, 70, 64}, A(1), A(1), PLANISH_RMS},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* x, residual, sum, y, parameters. */
static const element types[][5] = {
    {F32, F32, F32, F32, F32}, {BF16, BF16, BF16, BF16, BF16}, {F16, F16, F16, F16, F32},
    {F64, F64, F64, F64, F64}, {BF16, F32, F32, F32, F32},     {BF16, F32, F32, BF16, F32},
    {F16, F32, F16, F16, F16},
};
enum { TYPES = sizeof types / sizeof *types };

/* Of what is read, of what is written. */
static const layout layouts[][2] = {{DENSE, DENSE},         {CHANNELS_LAST, CHANNELS_LAST},
                                    {PADDED, PADDED},       {MISALIGNED, DENSE},
                                    {DENSE, CHANNELS_LAST}, {CHANNELS_LAST, DENSE},
                                    {REVERSED, REVERSED},   {BROADCAST_FIRST, DENSE}};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

static uint64_t bits(uint64_t has, part p) {
    return has & HAS(p);
}

/* ---- Forward --------------------------------------------------------------------------------- */

static void forwards(void) {
    int turn = 0;
    for (int s = 0; s < SHAPES; s++)
        for (int t = 0; t < TYPES; t++)
            for (int l = 0; l < LAYOUTS; l++)
                for (int k = 0; k < 3; k++, turn++) {
                    const shape *of = &shapes[s];
                    norm_case c = bare_case(PLANISH_FORWARD, of->kind, 1, 1);
                    c.ndim = of->ndim;
                    memcpy(c.shape, of->sizes, sizeof of->sizes);
                    c.op = planish_norm_op(of->kind, of->reduce, of->affine, 1e-5);
                    c.has |= HAS(RESIDUAL);
                    if (k != 1)
                        c.has |= HAS(SUM);
                    if (turn % 5)
                        c.has |= HAS(WEIGHT) | (turn % 3 ? HAS(BIAS) : 0);
                    if (of->kind == PLANISH_LAYER)
                        c.has |= HAS(MEAN);
                    if (turn % 7 == 1)
                        c.has |= HAS(COLUMN_SCALE) | HAS(ROW_SCALE);
                    c.op.activation = (planish_activation)(turn % 5);
                    c.x = types[t][0], c.residual = types[t][1];
                    c.sum = k == 1 ? c.residual : types[t][2];
                    c.y = types[t][3], c.weight = types[t][4];
                    c.stats = c.x == F64 ? F64 : F32;
                    c.in = layouts[l][0], c.out = layouts[l][1];
                    c.seed = (uint64_t)turn + 1;
                    c.x_spread = turn % 11 == 10 && c.x != F16 && c.sum != F16 ? 1e25 : 1;
                    const bool same = c.x == c.sum && c.residual == c.sum && l < 3;
                    if (same && k == 2)
                        c.over[0] = (over){SUM, turn % 2 ? X : RESIDUAL};
                    const bool y_over_x = same && k == 1 && c.y == c.x && turn % 2;
                    if (y_over_x)
                        c.over[1] = (over){Y, X};
                    test_case("%s, turn %d, %s + %s = %s, y %s, activation %d, %s, %s, %s%s",
                              of->name, turn, element_name(c.x), element_name(c.residual),
                              element_name(c.sum), element_name(c.y), (int)c.op.activation,
                              layout_name(c.in), layout_name(c.out), k == 1 ? "no sum" : "sum",
                              y_over_x ? ", y over x" : "");
                    expect_fused_as_apart(&c);
                }
}

/* ---- Backward -------------------------------------------------------------------------------- */

/* dweight and dbias of the plain backward. */
static void same_sums(bundle *fused, norm_case plain) {
    bundle apart;
    char message[512] = "";
    plain.dx = plain.x;
    bundle_make(&apart, &plain);
    expect(!bundle_run(&apart, NULL, message, sizeof message), "apart: %s", message);
    for (part p = DWEIGHT; p <= DBIAS; p++)
        if (bits(plain.has, p))
            expect(tensor_same_bits(bundle_tensor(fused, p), bundle_tensor(&apart, p)),
                   "another %s", planish_tensor_name((int)p));
    bundle_free(&apart);
}

/* dx of the plain backward, before it is rounded; dsum; and their sum as it should be. */
static void gradient_apart(const norm_case *c) {
    bundle fused, apart;
    char message[512] = "";
    norm_case plain = *c;
    plain.has &= ~HAS(DSUM);
    plain.dx = c->x == F64 ? F64 : F32;
    memset(plain.over, 0, sizeof plain.over);
    bundle_make(&fused, c);
    bundle_make(&apart, &plain);
    const int64_t count = bundle_count(&fused, DX);
    real *dsum = bundle_reals(&fused, DSUM, 0);
    expect(!bundle_run(&apart, NULL, message, sizeof message), "apart: %s", message);
    expect(!bundle_run(&fused, NULL, message, sizeof message), "fused: %s", message);
    real *found = bundle_reals(&fused, DX, 0), *dx = bundle_reals(&apart, DX, 0);
    int64_t wrong = 0;
    for (int64_t i = 0; i < count; i++) {
        const real wanted = c->x == F64 ? (real)((double)dx[i] + (double)dsum[i])
                                        : (real)((float)dx[i] + (float)dsum[i]);
        wrong += found[i] != element_round(c->dx, wanted);
    }
    expect(!wrong, "%lld elements of dx are others", (long long)wrong);
    same_sums(&fused, plain);
    free(dsum), free(found), free(dx);
    bundle_free(&fused);
    bundle_free(&apart);
}

/* Whether an activation goes with dsum by kernels that have both: not in rows, dense or of any
 * strides, which pass through scratch then. */
static bool has_kernels(const shape *of, layout l) {
    return !(of->reduce == A(1) && (l == CHANNELS_LAST || l == REVERSED));
}

static void backwards(void) {
    int turn = 0;
    for (int s = 0; s < SHAPES; s++)
        for (element t = F32; t < ELEMENT_COUNT; t++)
            for (int l = 0; l < LAYOUTS; l++)
                for (int k = 0; k < 4; k++, turn++) {
                    if (layouts[l][0] != layouts[l][1] && layouts[l][0] != MISALIGNED)
                        continue; /* they lie as one in all that is read */
                    if (layouts[l][0] == PADDED)
                        continue; /* rows of any strides, which pass through scratch */
                    const shape *of = &shapes[s];
                    norm_case c = bare_case(PLANISH_BACKWARD, of->kind, 1, 1);
                    c.ndim = of->ndim;
                    memcpy(c.shape, of->sizes, sizeof of->sizes);
                    c.op = planish_norm_op(of->kind, of->reduce, of->affine, 1e-5);
                    c.has = HAS(DX) | HAS(DSUM);
                    if (turn % 5)
                        c.has |= HAS(WEIGHT) | HAS(DWEIGHT) | HAS(DBIAS);
                    c.op.activation = k && has_kernels(of, layouts[l][0])
                                          ? (planish_activation)(turn % 5)
                                          : PLANISH_IDENTITY;
                    if (c.op.activation && turn % 5)
                        c.has |= HAS(BIAS);
                    case_set_types(&c, t);
                    c.weight = c.grad = turn % 3 && t != F64 ? F32 : t;
                    c.in = layouts[l][0], c.out = layouts[l][1];
                    c.seed = (uint64_t)turn + 1;
                    if (layouts[l][0] == layouts[l][1] && k > 1)
                        c.over[0] = (over){DX, k == 2 ? DSUM : turn % 2 ? X : DY};
                    test_case("backward, %s, turn %d, %s, activation %d, %s, %s, dx over %d",
                              of->name, turn, element_name(t), (int)c.op.activation,
                              layout_name(c.in), layout_name(c.out), (int)c.over[0].input);
                    gradient_apart(&c);
                }
}

int main(void) {
    forwards();
    backwards();
    return test_finish("apart");
}
