/*
 * Special values and sizes, and the mistakes of other libraries: each case is named after what
 * would be broken.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "check.h"

static const element types[] = {F32, F16, BF16, F64};
enum { TYPES = 4 };

static void set_types(norm_case *c, element all) {
    c->x = c->y = c->weight = c->grad = all;
    c->stats = all == F64 ? F64 : F32;
}

static void run(bundle *b) {
    char message[512] = "";
    planish_status status = bundle_run(b, NULL, message, sizeof message);
    expect(status == PLANISH_OK, "%s: %s", planish_status_name(status), message);
}

static real get(const bundle *b, part p, int64_t index) {
    real *values = malloc((size_t)(b->tensor[p].count + 1) * sizeof *values);
    tensor_read(&b->tensor[p].dl, values);
    real value = values[index];
    free(values);
    return value;
}

/* Element `index`, in the order of the axes. */
static void set(bundle *b, part p, int64_t index, real value) {
    tensor *t = &b->tensor[p];
    int64_t offset = 0;
    for (int i = t->dl.ndim - 1; i >= 0; i--) {
        offset += index % t->shape[i] * t->strides[i];
        index /= t->shape[i];
    }
    element_write(t->type,
                  (unsigned char *)t->dl.data + t->dl.byte_offset + offset * element_bytes(t->type),
                  value);
}

static void set_all(bundle *b, part p, real value) {
    for (int64_t i = 0; i < b->tensor[p].count; i++)
        set(b, p, i, value);
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
    set_types(&c, type);
    c.has &= ~(HAS(DWEIGHT) | HAS(DBIAS));
    char text[512];
    test_case("%Lg in a row of %s leaves other rows alone: %s", poison, part_name(input),
              case_text(&c, text, sizeof text));
    bundle clean, poisoned;
    bundle_make(&clean, &c);
    bundle_make(&poisoned, &c);
    set(&poisoned, input, POISONED * cols + cols / 2, poison);
    run(&clean);
    run(&poisoned);
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
    c.activation = activation;
    set_types(&c, type);
    part output = pass == PLANISH_BACKWARD ? DX : Y;
    char text[512];
    test_case("%Lg in a row of %s leaves other rows alone: %s", poison, part_name(input),
              case_text(&c, text, sizeof text));
    bundle clean, poisoned;
    bundle_make(&clean, &c);
    bundle_make(&poisoned, &c);
    const int64_t count = clean.tensor[X].count, at = count / 2 + 17;
    set(&poisoned, input, at, poison);
    run(&clean);
    run(&poisoned);
    geometry g = geometry_make(c.ndim, c.shape, c.reduce_axes, c.affine_axes);
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
                set_types(&c, types[t]);
                c.in = c.out = v % 2 ? CHANNELS_LAST : DENSE;
                test_case(
                    "a constant image of %Lg in %s gives y = bias, bit for bit (layer %d, %s)",
                    values[v], element_name(types[t]), layer, layout_name(c.in));
                bundle b;
                bundle_make(&b, &c);
                set_all(&b, X, values[v]);
                for (int k = 0; k < 1200; k += 2) /* where y is to be 0, no difference is lost */
                    set(&b, BIAS, k, 0);
                run(&b);
                int64_t wrong = 0;
                for (int64_t e = 0; e < b.tensor[Y].count; e += 211)
                    wrong += get(&b, Y, e) != get(&b, BIAS, e / 49 % 1200);
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
        for (int f = PLANISH_SILU; f <= PLANISH_GELU_TANH; f++) {
            norm_case c =
                image_case(PLANISH_FORWARD, PLANISH_LAYER, INSTANCE_NORM, 1, COUNT, 3, 7, 1);
            set_types(&c, types[t]);
            c.activation = (planish_activation)f;
            char text[512];
            test_case("activations of numbers: %s", case_text(&c, text, sizeof text));
            bundle b;
            bundle_make(&b, &c);
            set_all(&b, X, 1);
            for (int i = 0; i < COUNT; i++)
                set(&b, BIAS, i, numbers[i]);
            run(&b);
            for (int i = 0; i < COUNT; i++) {
                const real z = get(&b, BIAS, i), got = get(&b, Y, i * 21 + 20);
                const real t3 = sqrtl(8 / acosl(-1)) * (z + .044715L * z * z * z);
                const real want = f == PLANISH_RELU   ? (z <= 0 ? 0 : z)
                                  : f == PLANISH_SILU ? z / (1 + expl(-z))
                                  : f == PLANISH_GELU ? z * erfcl(-z * sqrtl(.5L)) / 2
                                                      : z / (1 + expl(-t3));
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
                set_types(&c, types[t]);
                bundle b;
                bundle_make(&b, &c);
                set_all(&b, X, values[v]);
                run(&b);
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
    c.eps = -0.5;
    bundle b;
    bundle_make(&b, &c);
    for (int i = 0; i < 50; i++)
        set(&b, X, 50 + i, i % 2 ? 0.1L : -0.1L);
    run(&b);
    bundle_check(&b);
    expect(isnan(get(&b, Y, 50)) && isnan(get(&b, Y, 99)), "row 1 is not NaN");
    expect(!isnan(get(&b, Y, 49)) && !isnan(get(&b, Y, 100)), "another row is NaN");
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
                run(&b);
                for (part p = 0; p < PARTS; p++) {
                    if (!b.tensor[p].memory.mapping || !part_is_output(pass, p))
                        continue;
                    for (int64_t i = 0; i < b.tensor[p].count; i++) {
                        real value = get(&b, p, i);
                        bool nan = p == MEAN || p == RSTD;
                        expect(nan ? isnan(value) : value == 0, "%s[%lld] is %Lg", part_name(p),
                               (long long)i, value);
                    }
                }
                bundle_free(&b);
            }
}

/* ---- What others got wrong ------------------------------------------------------------------ */

static void one_column(void) {
    for (int t = 0; t < TYPES; t++) {
        test_case("N = 1 gives a zero weight gradient and dx (%s)", element_name(types[t]));
        norm_case c = rows_case(PLANISH_BACKWARD, PLANISH_LAYER, 100, 1);
        set_types(&c, types[t]);
        bundle b;
        bundle_make(&b, &c);
        run(&b);
        expect(get(&b, DWEIGHT, 0) == 0, "dweight is %Lg", get(&b, DWEIGHT, 0));
        for (int i = 0; i < 100; i++)
            expect(get(&b, DX, i) == 0, "dx is %Lg", get(&b, DX, i));
        bundle_free(&b);
    }
}

static void gradient_sums(void) {
    for (int t = 0; t < TYPES; t++)
        for (int64_t rows = 4096; rows <= 32768; rows *= 8) {
            test_case("dbias of %lld rows of ones in %s is the number of rows, not what 16 bits "
                      "add up to",
                      (long long)rows, element_name(types[t]));
            norm_case c = rows_case(PLANISH_BACKWARD, PLANISH_LAYER, rows, 5);
            set_types(&c, types[t]);
            bundle b;
            bundle_make(&b, &c);
            set_all(&b, DY, 1);
            run(&b);
            for (int i = 0; i < 5; i++)
                expect(get(&b, DBIAS, i) == rows, "dbias is %Lg", get(&b, DBIAS, i));
            bundle_free(&b);
        }
}

typedef struct named_case {
    const char *name;
    norm_case test;
} named_case;

/* Each is checked against the reference and for bytes written outside its outputs. */
static void regressions(void) {
    norm_case base[] = {
        rows_case(PLANISH_FORWARD, PLANISH_LAYER, 1, 1),
        rows_case(PLANISH_FORWARD, PLANISH_RMS, 1, 1),
        rows_case(PLANISH_BACKWARD, PLANISH_LAYER, 1, 1),
        rows_case(PLANISH_BACKWARD, PLANISH_RMS, 1, 1),
        rows_case(PLANISH_BACKWARD_FROM_Y, PLANISH_LAYER, 1, 1),
    };
    for (size_t i = 0; i < sizeof base / sizeof *base; i++) {
        norm_case c = base[i];
        c.seed = 100 + i;
        named_case table[] = {
            {"N = 769 writes into the next row", c},
            {"more than 65535 rows", c},
            {"a misaligned offset", c},
            {"an expanded gradient", c},
            {"rank above 3", c},
            {"rank 16", c},
            {"rank 1: no rows at all", c},
            {"a mean of 1e4 standard deviations", c},
            {"values of 1e30, whose squares overflow", c},
            {"values of 1e-30, whose squares vanish", c},
            {"f16 whose squares overflow", c},
            {"bf16 with f32 weights", c},
            {"a large M of tiny rows", c},
        };
        norm_case *t = &table[0].test;
        t->x = t->y = F16;
        t->shape[0] = 7;
        t->shape[1] = 769;
        t->out = PADDED;
        t = &table[1].test;
        t->shape[0] = 65537;
        t->shape[1] = 6;
        t = &table[2].test;
        t->shape[0] = 9;
        t->shape[1] = 515;
        t->in = t->out = t->params = MISALIGNED;
        t = &table[3].test;
        t->shape[0] = 12;
        t->shape[1] = 100;
        t->in = c.pass == PLANISH_BACKWARD ? BROADCAST_FIRST : DENSE;
        t = &table[4].test;
        t->ndim = 6;
        memcpy(t->shape, (int64_t[]){2, 3, 2, 2, 3, 5}, 6 * sizeof(int64_t));
        t->reduce_axes = t->affine_axes = 0x38;
        t = &table[5].test;
        t->ndim = 16;
        for (int k = 0; k < 16; k++)
            t->shape[k] = k % 3 ? 1 : 2;
        t->reduce_axes = 0xff00;
        t->affine_axes = 0xa5a0;
        t->in = t->out = t->params = REVERSED;
        t = &table[6].test;
        t->ndim = 1;
        t->shape[0] = 300;
        t->reduce_axes = t->affine_axes = 1;
        t = &table[7].test;
        t->shape[0] = 20;
        t->shape[1] = 1024;
        t->numbers = MEAN_1E4;
        t = &table[8].test;
        t->shape[0] = 20;
        t->shape[1] = 1000;
        t->numbers = SCALE_BIG;
        t = &table[9].test;
        t->shape[0] = 20;
        t->shape[1] = 1000;
        t->numbers = SCALE_TINY;
        t->eps = 0;
        t = &table[10].test;
        t->shape[0] = 20;
        t->shape[1] = 1000;
        t->x = t->y = F16;
        t->numbers = SCALE_BIG;
        t = &table[11].test;
        t->shape[0] = 33;
        t->shape[1] = 768;
        t->x = t->y = BF16;
        t = &table[12].test;
        t->shape[0] = 300000;
        t->shape[1] = 2;
        t->eps = 0.1;
        for (size_t k = 0; k < sizeof table / sizeof *table; k++) {
            char text[512];
            test_case("%s: %s", table[k].name, case_text(&table[k].test, text, sizeof text));
            bundle b;
            bundle_make(&b, &table[k].test);
            run(&b);
            bundle_check(&b);
            bundle_free(&b);
        }
    }
}

/* y small in magnitude though x is not: |weight| near 0 holds no digit of xhat in y. */
static void from_y_without_weight(void) {
    test_case("backward from y where weight is 0 or lost beside bias takes xhat as 0");
    norm_case c = rows_case(PLANISH_BACKWARD_FROM_Y, PLANISH_LAYER, 20, 40);
    bundle b;
    bundle_make(&b, &c);
    set(&b, WEIGHT, 3, 0);
    set(&b, WEIGHT, 7, 0x1p-26L);
    set(&b, BIAS, 7, 1);
    set(&b, WEIGHT, 9, 0);
    set(&b, BIAS, 9, 0);
    set(&b, WEIGHT, 11, 1e-30L);
    set(&b, BIAS, 11, 0);
    run(&b);
    bundle_check(&b);
    expect(get(&b, DWEIGHT, 3) == 0 && get(&b, DWEIGHT, 7) == 0 && get(&b, DWEIGHT, 9) == 0,
           "a dweight is not 0");
    bundle_free(&b);
}

/* Sums in one long chain: the errors of numbers that are all alike add up. */
static void all_alike(void) {
    static const planish_pass passes[] = {PLANISH_FORWARD, PLANISH_BACKWARD,
                                          PLANISH_BACKWARD_FROM_Y};
    for (int p = 0; p < 3; p++)
        for (planish_kind kind = PLANISH_LAYER; kind <= PLANISH_RMS; kind++)
            for (uint64_t seed = 1; seed <= 40; seed++) {
                norm_case c = rows_case(passes[p], kind, 3, 1031);
                c.numbers = CONSTANT;
                c.in = BROADCAST_ALL;
                c.params = BROADCAST_LAST;
                c.seed = seed;
                set_types(&c, seed % 2 ? F32 : F64);
                run_case(&c, NULL);
            }
}

/* 256 segments merged by plain additions, and f32 rows of three elements from y, by f32 alone. */
static void many_segments_and_few_elements(void) {
    norm_case c = rows_case(PLANISH_FORWARD, PLANISH_LAYER, 2, 262145);
    c.seed = 4084;
    set_types(&c, F64);
    run_case(&c, NULL);
    c = rows_case(PLANISH_BACKWARD_FROM_Y, PLANISH_LAYER, 65535, 3);
    c.seed = 509;
    run_case(&c, NULL);
}

int main(void) {
    poisoned_rows();
    poisoned_images();
    constant_images();
    activated_numbers();
    rows_apart(PLANISH_FORWARD);
    rows_apart(PLANISH_BACKWARD);
    constant_rows();
    negative_eps();
    empty();
    one_column();
    gradient_sums();
    regressions();
    from_y_without_weight();
    all_alike();
    many_segments_and_few_elements();
    report_accuracy();
    return test_finish("special");
}
