/*
 * Special values and sizes: NaN, infinity, rows of no variance, and empty ones. Each case is named
 * after what would be broken. test_special [--share=K]
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "activation.h"
#include "check.h"
#include "values.h"

static const element types[] = {F32, F16, BF16, F64};
enum { TYPES = 4 };

/* Of the cases of poison and of constant images every so many: --share=K, for a slow build. */
static long long share = 1, number;

static bool is_chosen(void) {
    return number++ % share == 0;
}

/* ---- Not a number, infinity, zero variance -------------------------------------------------- */

/*
 * A NaN or infinity in a row: that row's y and dx are NaN (from an infinite dy: not finite), other
 * rows keep their bits.
 */
static void poisoned_row(planish_pass pass, part input, planish_kind kind, element type,
                         int64_t cols, real poison) {
    enum { ROWS = 6, POISONED = 2 };
    part output = pass == PLANISH_BACKWARD ? DX : Y;
    norm_case c = rows_case(pass, kind, ROWS, cols);
    case_set_types(&c, type);
    c.has &= ~(HAS(DWEIGHT) | HAS(DBIAS));
    char text[512];
    if (!is_chosen())
        return;
    test_case("%Lg in a row of %s leaves other rows alone: %s", poison, part_name(input),
              case_text(&c, text, sizeof text));
    bundle clean, poisoned;
    bundle_make(&clean, &c);
    bundle_make(&poisoned, &c);
    bundle_set(&poisoned, input, POISONED * cols + cols / 2, poison);
    bundle_run_well(&clean);
    bundle_run_well(&poisoned);
    size_t row = (size_t)(cols * element_bytes(type));
    const unsigned char *a = clean.tensor[output].memory.data;
    const unsigned char *b = poisoned.tensor[output].memory.data;
    for (int r = 0; r < ROWS; r++)
        if (r != POISONED)
            expect(!memcmp(a + (size_t)r * row, b + (size_t)r * row, row), "row %d changed", r);
    for (int64_t i = 0; i < cols; i++) {
        real got = element_read(type, b + POISONED * row + (size_t)(i * element_bytes(type)));
        bool right = input == DY && isinf(poison) ? !isfinite(got) : isnan(got);
        if (!expect(right, "element %lld of the row is %Lg", (long long)i, got))
            break;
    }
    bundle_free(&clean);
    bundle_free(&poisoned);
}

static void poisoned_rows(void) {
    static const int64_t cols[] = {2, 7, 64, 1000};
    static const real poisons[] = {NAN, INFINITY, -INFINITY};
    for (int t = 0; t < TYPES; t++)
        for (size_t n = 0; n < sizeof cols / sizeof *cols; n++)
            for (int p = 0; p < 3; p++)
                for (planish_kind kind = PLANISH_LAYER; kind <= PLANISH_RMS; kind++) {
                    poisoned_row(PLANISH_FORWARD, X, kind, types[t], cols[n], poisons[p]);
                    poisoned_row(PLANISH_BACKWARD, X, kind, types[t], cols[n], poisons[p]);
                    poisoned_row(PLANISH_BACKWARD, DY, kind, types[t], cols[n], poisons[p]);
                }
}

/* The same where rows are pixels or groups of an image. */
static void poisoned_image(planish_pass pass, part input, image_layer layer, layout l, element type,
                           planish_activation activation, real poison) {
    norm_case c = image_case(pass, PLANISH_LAYER, layer, 2, 40, 5, 9, 4);
    c.in = c.out = l;
    c.op.activation = activation;
    case_set_types(&c, type);
    part output = pass == PLANISH_BACKWARD ? DX : Y;
    char text[512];
    if (!is_chosen())
        return;
    test_case("%Lg in a row of %s leaves other rows alone: %s", poison, part_name(input),
              case_text(&c, text, sizeof text));
    bundle clean, poisoned;
    bundle_make(&clean, &c);
    bundle_make(&poisoned, &c);
    const int64_t count = clean.tensor[X].count, at = count / 2 + 17;
    bundle_set(&poisoned, input, at, poison);
    bundle_run_well(&clean);
    bundle_run_well(&poisoned);
    geometry g = geometry_make(c.ndim, c.shape, c.op.reduce_axes, c.op.affine_axes);
    real *a = malloc((size_t)count * sizeof *a), *b = malloc((size_t)count * sizeof *b);
    tensor_read(&clean.tensor[output].dl, a);
    tensor_read(&poisoned.tensor[output].dl, b);
    int64_t wrong = 0;
    for (int64_t e = 0; e < count; e++)
        wrong += g.row[e] == g.row[at]
                     ? (input == DY && isinf(poison) ? isfinite(b[e]) : !isnan(b[e]))
                     : a[e] != b[e];
    expect(!wrong, "%lld elements are not as they should be", (long long)wrong);
    free(a);
    free(b);
    geometry_free(&g);
    bundle_free(&clean);
    bundle_free(&poisoned);
}

static void poisoned_images(void) {
    static const real poisons[] = {NAN, INFINITY};
    for (int t = 0; t < TYPES; t++)
        for (image_layer layer = CHANNEL_NORM; layer < IMAGE_LAYERS; layer++)
            for (int p = 0; p < 8; p++) {
                const layout l = p % 2 ? CHANNELS_LAST : DENSE;
                const real poison = poisons[p / 2 % 2];
                const planish_activation f = p / 4 ? PLANISH_SILU : PLANISH_IDENTITY;
                poisoned_image(PLANISH_FORWARD, X, layer, l, types[t], f, poison);
                poisoned_image(PLANISH_BACKWARD, X, layer, l, types[t], f, poison);
                poisoned_image(PLANISH_BACKWARD, DY, layer, l, types[t], f, poison);
            }
}

static void constant_images(void) {
    static const real values[] = {0, -3, 0.1L, 12345.678L, 1e-20L, 6e4L};
    for (int t = 0; t < TYPES; t++)
        for (size_t v = 0; v < sizeof values / sizeof *values; v++)
            for (image_layer layer = CHANNEL_NORM; layer < IMAGE_LAYERS; layer++) {
                norm_case c = image_case(PLANISH_FORWARD, PLANISH_LAYER, layer, 2, 1200, 7, 7, 4);
                case_set_types(&c, types[t]);
                c.in = c.out = v % 2 ? CHANNELS_LAST : DENSE;
                if (!is_chosen())
                    continue;
                test_case(
                    "a constant image of %Lg in %s gives y = bias, bit for bit (layer %d, %s)",
                    values[v], element_name(types[t]), layer, layout_name(c.in));
                bundle b;
                bundle_make(&b, &c);
                bundle_set_all(&b, X, values[v]);
                for (int k = 0; k < 1200; k += 2) /* where y is to be 0, no difference is lost */
                    bundle_set(&b, BIAS, k, 0);
                bundle_run_well(&b);
                int64_t wrong = 0;
                for (int64_t e = 0; e < b.tensor[Y].count; e += 211)
                    wrong += bundle_get(&b, Y, e) != bundle_get(&b, BIAS, e / 49 % 1200);
                expect(!wrong, "%lld elements differ from bias", (long long)wrong);
                bundle_free(&b);
            }
}

/* z is the bias alone: activations of numbers small and large, of 0 and of what is no number. */
static void activated_numbers(void) {
    static const real numbers[] = {0,    -0.0L, 1e-20L, -1e-20L, 1,   -1,        -1.27846454L, 5,
                                   -5,   20,    -20,    50,      -50, 86.5L,     -86.5L,       100,
                                   -100, 1e4L,  -1e4L,  1e30L,   NAN, -INFINITY, INFINITY,     -3};
    enum { COUNT = sizeof numbers / sizeof *numbers };
    for (int t = 0; t < TYPES; t++)
        for (int f = PLANISH_SILU; f <= PLANISH_HARDSWISH; f++) {
            norm_case c =
                image_case(PLANISH_FORWARD, PLANISH_LAYER, INSTANCE_NORM, 1, COUNT, 3, 7, 1);
            case_set_types(&c, types[t]);
            c.op.activation = (planish_activation)f;
            char text[512];
            test_case("activations of numbers: %s", case_text(&c, text, sizeof text));
            bundle b;
            bundle_make(&b, &c);
            bundle_set_all(&b, X, 1);
            for (int i = 0; i < COUNT; i++)
                bundle_set(&b, BIAS, i, numbers[i]);
            bundle_run_well(&b);
            for (int i = 0; i < COUNT; i++) {
                const real z = bundle_get(&b, BIAS, i), got = bundle_get(&b, Y, i * 21 + 20);
                const real want = activated((planish_activation)f, z);
                /* 3 ULP, and what is left where SiLU stops falling (planish.h). The exponents of
                 * GELU are products: one of 80 is off by 80 roundings of f32 or f64. */
                const bool is_long = element_bytes(types[t]) > 2 && f >= PLANISH_GELU && z < 0;
                const real off = is_long ? 80 : 3;
                const real near = off * fabsl((real)element_ulp(types[t], fabsl(want))) + 2e-36L;
                expect(isnan(z)                ? isnan(got)
                       : z < -100              ? fabsl(got) < 2e-36L
                       : isinf(z) || want == z ? got == want
                                               : fabsl(got - want) <= near,
                       "f(%Lg) is %Lg; wanted %Lg", z, got, want);
            }
            bundle_free(&b);
        }
}

/* Short rows of groups that non-temporal stores take where they are dense, and lie there apart by
 * no whole lines: the same bits. */
static void rows_apart(planish_pass pass) {
    enum { ROWS = 9000, CHANNELS = 4, SPAN = 64, COLS = CHANNELS * SPAN, APART = COLS + 1 };
    test_case("groups that lie apart by no whole lines (pass %d)", pass);
    const planish_norm op = {.struct_size = sizeof op,
                             .reduce_axes = 6,
                             .affine_axes = 2,
                             .eps = 1e-5,
                             .activation = PLANISH_RELU};
    const bool backward = pass == PLANISH_BACKWARD;
    int64_t shape[] = {ROWS, CHANNELS, SPAN}, strides[] = {APART, SPAN, 1};
    int64_t rows = ROWS, channels = CHANNELS;
    const size_t bytes = ((size_t)ROWS * APART * sizeof(float) + 63) / 64 * 64;
    float *x = aligned_alloc(64, bytes), *dense = aligned_alloc(64, bytes),
          *apart = aligned_alloc(64, bytes);
    float *stats = malloc(2 * ROWS * sizeof *stats), weights[2 * CHANNELS];
    random_state r = {5};
    for (size_t i = 0; i < (size_t)ROWS * APART; i++)
        x[i] = (float)random_normal(&r);
    for (int i = 0; i < 2 * CHANNELS; i++)
        weights[i] = (float)random_normal(&r);
    for (int i = 0; i < ROWS; i++)
        stats[i] = 0.01f, stats[ROWS + i] = 1.5f;
    const DLDataType f32 = {kDLFloat, 32, 1};
    const DLDevice cpu = {kDLCPU, 0};
    DLTensor in = {x, cpu, 3, f32, shape, strides, 0}, out = in;
    DLTensor weight = {weights, cpu, 1, f32, &channels, NULL, 0}, bias = weight;
    DLTensor mean = {stats, cpu, 1, f32, &rows, NULL, 0}, rstd = mean;
    bias.data = weights + CHANNELS;
    rstd.data = stats + ROWS;
    const planish_tensors tensors = {.struct_size = sizeof tensors,
                                     .x = &in,
                                     .weight = &weight,
                                     .bias = &bias,
                                     .y = backward ? NULL : &out,
                                     .mean = backward ? &mean : NULL,
                                     .rstd = backward ? &rstd : NULL,
                                     .dy = backward ? &in : NULL,
                                     .dx = backward ? &out : NULL};
    planish_exec exec = {.struct_size = sizeof exec};
    int64_t dense_strides[] = {COLS, SPAN, 1};
    for (int turn = 0; turn < 2; turn++) {
        out.data = turn ? apart : dense;
        out.strides = turn ? strides : dense_strides;
        planish_norm_workspace_bytes(&op, pass, &tensors, &exec.workspace_bytes, NULL);
        exec.workspace = aligned_alloc(64, (exec.workspace_bytes + 63) / 64 * 64 + 64);
        const planish_status status = planish_norm_run(&op, pass, &tensors, &exec);
        expect(status == PLANISH_OK, "%s", planish_status_name(status));
        free(exec.workspace);
    }
    int wrong = 0;
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLS; j++)
            wrong += apart[(size_t)i * APART + j] != dense[(size_t)i * COLS + j];
    expect(!wrong, "%d elements differ", wrong);
    free(x);
    free(dense);
    free(apart);
    free(stats);
}

static void constant_rows(void) {
    static const real values[] = {0, 1, -3, 0.1L, 12345.678L, 1e-20L, 6e4L, 1e30L};
    static const int64_t cols[] = {1, 2, 3, 24, 33, 1000, 5000, 70000};
    for (int t = 0; t < TYPES; t++)
        for (size_t v = 0; v < sizeof values / sizeof *values; v++)
            for (size_t n = 0; n < sizeof cols / sizeof *cols; n++) {
                if (types[t] == F16 && values[v] > 6.1e4L)
                    continue;
                test_case("a row of %lld times %Lg in %s gives y = bias, bit for bit",
                          (long long)cols[n], values[v], element_name(types[t]));
                norm_case c = rows_case(PLANISH_FORWARD, PLANISH_LAYER, 2, cols[n]);
                case_set_types(&c, types[t]);
                bundle b;
                bundle_make(&b, &c);
                bundle_set_all(&b, X, values[v]);
                bundle_run_well(&b);
                size_t bytes = b.tensor[BIAS].memory.bytes;
                for (int row = 0; row < 2; row++)
                    expect(!memcmp(b.tensor[Y].memory.data + (size_t)row * bytes,
                                   b.tensor[BIAS].memory.data, bytes),
                           "row %d differs from bias", row);
                bundle_free(&b);
            }
}

static void negative_eps(void) {
    test_case("eps below minus the variance makes that row NaN, and no other");
    norm_case c = rows_case(PLANISH_FORWARD, PLANISH_LAYER, 3, 50);
    c.op.eps = -0.5;
    bundle b;
    bundle_make(&b, &c);
    for (int i = 0; i < 50; i++)
        bundle_set(&b, X, 50 + i, i % 2 ? 0.1L : -0.1L);
    bundle_run_well(&b);
    bundle_check(&b);
    expect(isnan(bundle_get(&b, Y, 50)) && isnan(bundle_get(&b, Y, 99)), "row 1 is not NaN");
    expect(!isnan(bundle_get(&b, Y, 49)) && !isnan(bundle_get(&b, Y, 100)), "another row is NaN");
    bundle_free(&b);
}

/* ---- Empty ---------------------------------------------------------------------------------- */

static void empty(void) {
    static const struct {
        int64_t rows, cols;
    } sizes[] = {{0, 5}, {4, 0}, {0, 0}};
    for (planish_pass pass = PLANISH_FORWARD; pass <= PLANISH_APPLY; pass++)
        for (planish_kind kind = PLANISH_LAYER; kind <= PLANISH_RMS; kind++)
            for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
                test_case("%lld rows of %lld elements with NULL data (pass %d kind %d)",
                          (long long)sizes[s].rows, (long long)sizes[s].cols, pass, kind);
                norm_case c = rows_case(pass, kind, sizes[s].rows, sizes[s].cols);
                bundle b;
                bundle_make(&b, &c);
                for (part p = 0; p < PARTS; p++)
                    if (b.tensor[p].memory.mapping && !b.tensor[p].count) {
                        b.tensor[p].dl.data = NULL;
                        b.tensor[p].dl.byte_offset = 0;
                    }
                bundle_run_well(&b);
                for (part p = 0; p < PARTS; p++) {
                    if (!b.tensor[p].memory.mapping || !part_is_output(pass, p))
                        continue;
                    for (int64_t i = 0; i < b.tensor[p].count; i++) {
                        real value = bundle_get(&b, p, i);
                        bool nan = p == MEAN || p == RSTD;
                        expect(nan ? isnan(value) : value == 0, "%s[%lld] is %Lg", part_name(p),
                               (long long)i, value);
                    }
                }
                bundle_free(&b);
            }
}

int main(int argc, char **argv) {
    share = atoll(argument(argc, argv, "share", "1"));
    poisoned_rows();
    poisoned_images();
    constant_images();
    activated_numbers();
    rows_apart(PLANISH_FORWARD);
    rows_apart(PLANISH_BACKWARD);
    constant_rows();
    negative_eps();
    empty();
    report_accuracy();
    return test_finish("special");
}
