/*
 * A norm with a residual has the bits of an addition that is rounded and planish's own norm of that
 * sum: rows of many lengths, dtypes, kinds, layouts; and an activation, casting by
 * PLANISH_ROUND_XHAT and a modulation have those of the same formula element by element.
 * PLANISH_CPU_TIER picks the tier.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "apart.h"
#include "cases.h"
#include "check.h"

static const uint64_t added = HAS(RESIDUAL) | HAS(SUM);

static void residuals(void) {
    static const int64_t lengths[] = {1,   2,   3,   5,    8,    15,   16,   24,   31,   48,
                                      63,  64,  65,  96,   100,  128,  160,  192,  255,  257,
                                      320, 512, 768, 1000, 1024, 1025, 2048, 3000, 4096, 5000};
    static const layout layouts[] = {DENSE, PADDED, MISALIGNED, DENSE};
    static const element types[][3] = {{F32, F32, F32},  {BF16, BF16, BF16}, {F16, F16, F16},
                                       {F64, F64, F64},  {BF16, F32, F32},   {F16, F32, F16},
                                       {BF16, BF16, F32}};
    int turn = 0;
    for (size_t n = 0; n < sizeof lengths / sizeof *lengths; n++)
        for (size_t t = 0; t < sizeof types / sizeof *types; t++)
            for (int k = 0; k < 6; k++, turn++) {
                const int64_t rows = lengths[n] > 1000 ? 9 : 45;
                norm_case c = bare_case(PLANISH_FORWARD, (planish_kind)(k % 2), rows, lengths[n]);
                c.has |= added | HAS(WEIGHT);
                if (k % 2 == 0)
                    c.has |= HAS(BIAS) | HAS(MEAN);
                if (k == 3)
                    c.has &= ~(HAS(SUM) | HAS(WEIGHT));
                c.op.activation = k == 4 ? PLANISH_SILU : PLANISH_IDENTITY;
                c.x = types[t][0], c.residual = types[t][1], c.sum = types[t][2];
                c.y = types[t][2];
                c.weight = turn % 3 && c.x != F64 ? F32 : types[t][0];
                c.stats = c.x == F64 ? F64 : F32;
                c.in = c.out = layouts[turn % 4];
                if (k == 3)
                    c.sum = c.residual;
                /* Squares leave the range of f32: the row is done again in f64. */
                c.x_spread = k == 5 && c.x != F16 && c.sum != F16 ? 1e25 : 1;
                const bool same = c.x == c.sum && c.residual == c.sum;
                if (same && k % 3 == 2)
                    c.over[0] = (over){SUM, turn % 2 ? X : RESIDUAL};
                test_case("%dx%lld, kind %d, turn %d, %s + %s = %s, parameters %s", (int)rows,
                          (long long)lengths[n], k % 2, turn, element_name(c.x),
                          element_name(c.residual), element_name(c.sum), element_name(c.weight));
                expect_fused_as_apart(&c);
            }
}

/* Layouts that are no rows go by scratch on both sides. */
static void strided(void) {
    for (int way = 0; way < 8; way++) {
        norm_case c = bare_case(PLANISH_FORWARD, (planish_kind)(way % 2), 21, 40);
        c.has |= added | HAS(WEIGHT);
        c.in = way & 2 ? INNER_STRIDE_2 : REVERSED;
        c.out = way & 4 ? INNER_STRIDE_2 : REVERSED;
        test_case("strided, way %d", way);
        expect_fused_as_apart(&c);
    }
}

/* xhat from a norm without weights into f32, and then the formula by the processor. */
static void element_by_element(element type, planish_kind kind, bool rounds, bool modulates) {
    test_case("%s, kind %d, rounded xhat %d, modulation %d", element_name(type), kind, rounds,
              modulates);
    norm_case c = bare_case(PLANISH_FORWARD, kind, 13, 300), plain = c;
    c.has |= HAS(WEIGHT) | (rounds ? 0 : HAS(BIAS));
    c.op.weight_offset = plain.op.weight_offset = rounds && kind == PLANISH_RMS;
    c.op.rounding = rounds ? PLANISH_ROUND_XHAT : PLANISH_ROUND_ONCE;
    c.op.modulation_axes = PLANISH_AXIS(1);
    if (modulates)
        c.has |= HAS(SCALE) | HAS(SHIFT);
    c.x = plain.x = type;
    c.y = type, plain.y = F32;
    if (!rounds)
        plain.has |= HAS(WEIGHT) | HAS(BIAS);
    bundle fused, apart;
    char message[512] = "";
    bundle_make(&fused, &c);
    bundle_make(&apart, &plain);
    expect(!bundle_run(&fused, NULL, message, sizeof message), "fused: %s", message);
    expect(!bundle_run(&apart, NULL, message, sizeof message), "apart: %s", message);
    real *z = bundle_reals(&apart, Y, 0), *weight = bundle_reals(&fused, WEIGHT, 1);
    real *scale = bundle_reals(&fused, SCALE, 0), *shift = bundle_reals(&fused, SHIFT, 0);
    real *y = bundle_reals(&fused, Y, 0);
    int64_t wrong = 0;
    for (int64_t i = 0; i < 13 * 300; i++) {
        float v = (float)z[i];
        if (rounds) {
            const float w = (float)weight[i % 300] + (float)c.op.weight_offset;
            v = (float)element_round(type, (real)((float)element_round(type, v) * w));
        }
        if (modulates)
            v = fmaf(v, 1 + (float)scale[i % 300], (float)shift[i % 300]);
        wrong += y[i] != element_round(type, v);
    }
    expect(!wrong, "%lld elements of y are others", (long long)wrong);
    free(z), free(weight), free(scale), free(shift), free(y);
    bundle_free(&fused);
    bundle_free(&apart);
}

int main(void) {
    residuals();
    strided();
    for (element t = F32; t < F64; t++)
        for (int way = 0; way < 8; way++)
            if (way & 3)
                element_by_element(t, (planish_kind)(way >> 2), (way & 1) && t != F32, way & 2);
    return test_finish("staged_bits");
}
