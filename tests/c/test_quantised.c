/*
 * Quantised results of a norm: scales and every number against the formulas in planish.h, of all
 * types, with one scale for all, for a row, for blocks of a row; ties, saturation, NaN, subnormals,
 * a row of zeros; and amax.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "quantised.h"

static const DLDataType kinds[] = {
    {kDLFloat8_e4m3fn, 8, 1}, {kDLFloat8_e5m2, 8, 1}, {kDLInt, 8, 1}};
static const char *const kind_names[] = {"e4m3fn", "e5m2", "i8"};

/* ---- Every number of a type ------------------------------------------------------------------ */

/*
 * y is made what is wanted by a modulation: x is 0, so that y = shift. As one row: every number of
 * the type, the places halfway between two and right beside them, beyond the largest, NaN.
 */
static void every_number(int kind, element real_type) {
    const DLDataType type = kinds[kind];
    real values[256 * 4 + 16];
    int count = 0;
    const double beside = real_type == F64 ? 0x1p-50 : 0x1p-22;
    for (int i = 0; i < 256; i++) {
        const real v = quantised_value(type, (unsigned char)i);
        const real next = quantised_value(type, (unsigned char)(i + 1));
        if (!isfinite(v))
            continue;
        values[count++] = v;
        if (!isfinite(next) || fabsl(next - v) > fabsl(v) + 1)
            continue;
        values[count++] = (v + next) / 2;
        values[count++] = (v + next) / 2 * (1 + (real)beside);
        values[count++] = (v + next) / 2 * (1 - (real)beside);
    }
    const real most = quantised_largest(type);
    const real more[] = {most * 1.01L, -most * 1.5L, 1e30L,     -1e30L,
                         NAN,          INFINITY,     -INFINITY, 1e-30L};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        values[count++] = more[i];
    for (int with_scale = 0; with_scale < 2; with_scale++) {
        test_case("every %s from %s, y_scale %s", kind_names[kind], element_name(real_type),
                  with_scale ? ".03" : "1");
        norm_case c = bare_case(PLANISH_FORWARD, PLANISH_LAYER, 1, count);
        c.has = HAS(X) | HAS(SHIFT) | HAS(Q) | HAS(Y_SCALE) | HAS(AMAX);
        c.op.modulation_axes = PLANISH_AXIS(1);
        case_set_types(&c, real_type);
        c.q = type;
        bundle r;
        char message[512] = "";
        bundle_make(&r, &c);
        memset(r.tensor[X].memory.data, 0, r.tensor[X].memory.bytes);
        tensor_write(&r.tensor[SHIFT].dl, values);
        const float scale = with_scale ? .03f : 1;
        memcpy(r.tensor[Y_SCALE].memory.data, &scale, sizeof scale);
        expect(!bundle_run(&r, NULL, message, sizeof message), "%s", message);
        unsigned char *q = bundle_bytes(&r, Q);
        real *shift = bundle_reals(&r, SHIFT, 0);
        for (int i = 0; i < count; i++) {
            const real v = real_type == F64 ? (real)((double)shift[i] / (double)scale)
                                            : (real)((float)shift[i] / scale);
            const unsigned char wanted = quantised_of(type, v + 0); /* y is 0 where shift is -0 */
            expect(quantised_same(type, q[i], wanted), "%Lg became %02x, wanted %02x", v, q[i],
                   wanted);
        }
        float amax;
        memcpy(&amax, r.tensor[AMAX].memory.data, sizeof amax);
        expect(isinf(amax), "amax is %g: NaN is passed over, infinity is not", amax);
        free(q), free(shift);
        bundle_free(&r);
    }
}

/* ---- Scales ---------------------------------------------------------------------------------- */

typedef struct scaled {
    int64_t rows, cols, block;
    planish_scale_format format;
    bool e8m0;
    double least, most;
    int zeros; /* rows of zeros at the beginning */
} scaled;

static void scales(const scaled *s, int kind, element type, layout out, int threads) {
    test_case("%s of %s, %lldx%lld, blocks of %lld, format %d, e8m0 %d, %g to %g, %s",
              kind_names[kind], element_name(type), (long long)s->rows, (long long)s->cols,
              (long long)s->block, s->format, s->e8m0, s->least, s->most, layout_name(out));
    norm_case c =
        bare_case(PLANISH_FORWARD, kind % 2 ? PLANISH_RMS : PLANISH_LAYER, s->rows, s->cols);
    c.has |= HAS(Q) | HAS(Y_SCALES) | HAS(AMAX) | HAS(WEIGHT) | HAS(RESIDUAL) | HAS(SUM);
    case_set_types(&c, type);
    c.y = type == F64 ? F64 : F32;
    c.weight = F32;
    c.q = kinds[kind];
    c.e8m0 = s->e8m0;
    c.out = out;
    c.op.scale_block = s->block;
    c.op.scale_format = s->format;
    c.op.scale_least = s->least;
    c.op.scale_most = s->most;
    bundle r;
    char message[512] = "";
    bundle_make(&r, &c);
    for (part p = X; s->zeros && p <= RESIDUAL; p += RESIDUAL - X) {
        real *x = bundle_reals(&r, p, 0);
        for (int64_t i = 0; i < s->zeros * s->cols; i++)
            x[i] = 0;
        x[s->rows * s->cols - 1] = NAN; /* of a row whose scale is then that of 0 */
        tensor_write(&r.tensor[p].dl, x);
        free(x);
    }
    const planish_exec many = exec_threads(&threads);
    expect(!bundle_run(&r, threads ? &many : NULL, message, sizeof message), "%s", message);
    quantised_check(&r);
    bundle_free(&r);
}

/* Nothing has a scale all the same: that of 0. */
static void empty(int64_t rows, int64_t cols, int64_t block, double least) {
    test_case("no elements: %lldx%lld, blocks of %lld", (long long)rows, (long long)cols,
              (long long)block);
    norm_case c = bare_case(PLANISH_FORWARD, PLANISH_RMS, rows, cols);
    c.has |= HAS(Q) | HAS(Y_SCALES) | HAS(AMAX) | HAS(RESIDUAL) | HAS(SUM);
    c.q = kinds[0];
    c.op.scale_block = block;
    c.op.scale_least = least;
    bundle r;
    char message[512] = "";
    bundle_make(&r, &c);
    expect(!bundle_run(&r, NULL, message, sizeof message), "%s", message);
    float amax = 1;
    memcpy(&amax, r.tensor[AMAX].memory.data, sizeof amax);
    expect(amax == 0, "amax is %g", amax);
    real *scale = bundle_reals(&r, Y_SCALES, 0);
    for (int64_t i = 0; i < rows; i++)
        expect(scale[i] == (least > 0 ? (real)(float)least : 1), "scale %Lg", scale[i]);
    free(scale);
    bundle_free(&r);
}

int main(void) {
    static const scaled cases[] = {
        {.rows = 33, .cols = 200},
        {.rows = 5, .cols = 1},
        {.rows = 20, .cols = 300, .least = .004},
        {.rows = 20, .cols = 300, .most = .001},
        {.rows = 20, .cols = 300, .least = .01, .most = .002, .zeros = 2},
        {.rows = 9, .cols = 300, .zeros = 3},
        {.rows = 9, .cols = 300, .block = 128, .zeros = 3},
        {.rows = 9, .cols = 256, .block = 64},
        {.rows = 9, .cols = 100, .block = 32, .format = PLANISH_SCALE_POWER_OF_TWO},
        {.rows = 9, .cols = 96, .block = 32, .format = PLANISH_SCALE_POWER_OF_TWO, .e8m0 = true},
        {.rows = 4, .cols = 7, .block = 3},
        {.rows = 4, .cols = 40, .block = 64, .format = PLANISH_SCALE_POWER_OF_TWO, .zeros = 1},
        {.rows = 4,
         .cols = 40,
         .format = PLANISH_SCALE_POWER_OF_TWO,
         .e8m0 = true,
         .least = 0x1p-149,
         .zeros = 4},
    };
    static const layout outs[] = {DENSE, PADDED, PERMUTED};
    for (int kind = 0; kind < 3; kind++) {
        every_number(kind, F32);
        every_number(kind, F64);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            for (element t = F32; t < ELEMENT_COUNT; t++)
                scales(&cases[i], kind, t, outs[(i + (size_t)t) % 3], (int)(i % 2) * 3);
    }
    empty(0, 5, 0, 0);
    empty(3, 0, 0, 0);
    empty(3, 0, 2, .25);
    return test_finish("quantised");
}
