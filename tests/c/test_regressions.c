/*
 * The mistakes of other libraries, and ours of before: each case is named after what would be
 * broken.
 */
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "values.h"

static const element types[] = {F32, F16, BF16, F64};
enum { TYPES = 4 };

static void one_column(void) {
    for (int t = 0; t < TYPES; t++) {
        test_case("N = 1 gives a zero weight gradient and dx (%s)", element_name(types[t]));
        norm_case c = rows_case(PLANISH_BACKWARD, PLANISH_LAYER, 100, 1);
        case_set_types(&c, types[t]);
        bundle b;
        bundle_make(&b, &c);
        bundle_run_well(&b);
        expect(bundle_get(&b, DWEIGHT, 0) == 0, "dweight is %Lg", bundle_get(&b, DWEIGHT, 0));
        for (int i = 0; i < 100; i++)
            expect(bundle_get(&b, DX, i) == 0, "dx is %Lg", bundle_get(&b, DX, i));
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
            case_set_types(&c, types[t]);
            bundle b;
            bundle_make(&b, &c);
            bundle_set_all(&b, DY, 1);
            bundle_run_well(&b);
            for (int i = 0; i < 5; i++)
                expect(bundle_get(&b, DBIAS, i) == rows, "dbias is %Lg", bundle_get(&b, DBIAS, i));
            bundle_free(&b);
        }
}

typedef struct named_case {
    const char *name;
    norm_case test;
} named_case;

static norm_case *with_shape(named_case *c, int64_t rows, int64_t cols) {
    c->test.shape[0] = rows;
    c->test.shape[1] = cols;
    return &c->test;
}

static void check_named(const named_case *c) {
    char text[512];
    test_case("%s: %s", c->name, case_text(&c->test, text, sizeof text));
    bundle b;
    bundle_make(&b, &c->test);
    bundle_run_well(&b);
    bundle_check(&b);
    bundle_free(&b);
}

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
        norm_case *t = with_shape(&table[0], 7, 769);
        t->x = t->dx = t->y = F16;
        t->out = PADDED;
        with_shape(&table[1], 65537, 6);
        t = with_shape(&table[2], 9, 515);
        t->in = t->out = t->params = MISALIGNED;
        t = with_shape(&table[3], 12, 100);
        t->in = c.pass == PLANISH_BACKWARD ? BROADCAST_FIRST : DENSE;
        t = &table[4].test;
        t->ndim = 6;
        memcpy(t->shape, (int64_t[]){2, 3, 2, 2, 3, 5}, 6 * sizeof(int64_t));
        t->op.reduce_axes = t->op.affine_axes = 0x38;
        t = &table[5].test;
        t->ndim = 16;
        for (int k = 0; k < 16; k++)
            t->shape[k] = k % 3 ? 1 : 2;
        t->op.reduce_axes = 0xff00;
        t->op.affine_axes = 0xa5a0;
        t->in = t->out = t->params = REVERSED;
        t = &table[6].test;
        t->ndim = 1;
        t->shape[0] = 300;
        t->op.reduce_axes = t->op.affine_axes = 1;
        t = with_shape(&table[7], 20, 1024);
        t->numbers = MEAN_1E4;
        t = with_shape(&table[8], 20, 1000);
        t->numbers = SCALE_BIG;
        t = with_shape(&table[9], 20, 1000);
        t->numbers = SCALE_TINY;
        t->op.eps = 0;
        t = with_shape(&table[10], 20, 1000);
        t->x = t->dx = t->y = F16;
        t->numbers = SCALE_BIG;
        t = with_shape(&table[11], 33, 768);
        t->x = t->dx = t->y = BF16;
        t = with_shape(&table[12], 300000, 2);
        t->op.eps = 0.1;
        for (size_t k = 0; k < sizeof table / sizeof *table; k++)
            check_named(&table[k]);
    }
}

/* y small in magnitude though x is not: |weight| near 0 holds no digit of xhat in y. */
static void from_y_without_weight(void) {
    test_case("backward from y where weight is 0 or lost beside bias takes xhat as 0");
    norm_case c = rows_case(PLANISH_BACKWARD_FROM_Y, PLANISH_LAYER, 20, 40);
    bundle b;
    bundle_make(&b, &c);
    bundle_set(&b, WEIGHT, 3, 0);
    bundle_set(&b, WEIGHT, 7, 0x1p-26L);
    bundle_set(&b, BIAS, 7, 1);
    bundle_set(&b, WEIGHT, 9, 0);
    bundle_set(&b, BIAS, 9, 0);
    bundle_set(&b, WEIGHT, 11, 1e-30L);
    bundle_set(&b, BIAS, 11, 0);
    bundle_run_well(&b);
    bundle_check(&b);
    expect(bundle_get(&b, DWEIGHT, 3) == 0 && bundle_get(&b, DWEIGHT, 7) == 0 &&
               bundle_get(&b, DWEIGHT, 9) == 0,
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
                case_set_types(&c, seed % 2 ? F32 : F64);
                run_case(&c, NULL);
            }
}

/* 256 segments merged by plain additions, and f32 rows of three elements from y, by f32 alone. */
static void many_segments_and_few_elements(void) {
    norm_case c = rows_case(PLANISH_FORWARD, PLANISH_LAYER, 2, 262145);
    c.seed = 4084;
    case_set_types(&c, F64);
    run_case(&c, NULL);
    c = rows_case(PLANISH_BACKWARD_FROM_Y, PLANISH_LAYER, 65535, 3);
    c.seed = 509;
    run_case(&c, NULL);
}

/* In f64 nothing wider holds what the mean, rstd and an activation round on the way. */
static void last_digits_of_double(void) {
    static const struct {
        double x[2], weight, bias;
    } rows[] = {
        {{-1.6248175100239966687e30, 1.3036607954730642444e29}, 1.7863604403038260138, 0},
        {{-2.1345151927054364371, .063586411245735274811},
         1.888403578212098699,
         -.47396889730884383951},
    };
    static const planish_activation all[] = {PLANISH_IDENTITY, PLANISH_SILU,      PLANISH_RELU,
                                             PLANISH_GELU,     PLANISH_GELU_TANH, PLANISH_RELU6};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t f = 0; f < sizeof all / sizeof *all; f++) {
            test_case("a row of two in f64 within 4 ULP: row %d, activation %d", (int)i,
                      (int)all[f]);
            norm_case c = rows_case(PLANISH_FORWARD, PLANISH_LAYER, 1, 2);
            case_set_types(&c, F64);
            c.op.activation = all[f];
            bundle b;
            bundle_make(&b, &c);
            for (int k = 0; k < 2; k++) { /* the second is the row's largest */
                bundle_set(&b, X, k, rows[i].x[k]);
                bundle_set(&b, WEIGHT, k, k * rows[i].weight);
                bundle_set(&b, BIAS, k, k * rows[i].bias);
            }
            bundle_run_well(&b);
            bundle_check(&b);
            bundle_free(&b);
        }
}

/* Roundings of equal numbers go one way: chains of channels or of blocks of pixels lose digits that
 * nothing hides in f64. */
static void all_alike_by_pixel(void) {
    static const int64_t shapes[][2] = {{1030, 15}, {512, 64}, {4, 20000}};
    static const planish_kind kinds[] = {PLANISH_LAYER, PLANISH_RMS, PLANISH_L2};
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3; k++)
            for (int backward = 0; backward < 2; backward++) {
                const int64_t depth = shapes[i][0], pixels = shapes[i][1];
                test_case("f64 groups of equal numbers, %lld channels of %lld pixels, kind %d%s",
                          (long long)depth, (long long)pixels, (int)kinds[k],
                          backward ? ", backward" : "");
                norm_case c = image_case(backward ? PLANISH_BACKWARD : PLANISH_FORWARD, kinds[k],
                                         GROUP_NORM, 1, 2 * depth, pixels, 1, 2);
                case_set_types(&c, F64);
                c.in = c.out = CHANNELS_LAST;
                c.numbers = backward ? NORMAL : CONSTANT;
                bundle b;
                bundle_make(&b, &c);
                if (backward) {
                    bundle_set_all(&b, DY, .3L);
                    bundle_set_all(&b, WEIGHT, 1);
                }
                bundle_run_well(&b);
                bundle_check(&b);
                bundle_free(&b);
            }
}

int main(void) {
    one_column();
    gradient_sums();
    regressions();
    from_y_without_weight();
    all_alike();
    all_alike_by_pixel();
    many_segments_and_few_elements();
    last_digits_of_double();
    report_accuracy();
    return test_finish("regressions");
}
