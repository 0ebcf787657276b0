/*
 * Statistics that are given and are not x's own (frozen, shared, of another row) are used as they
 * are: backward and apply with them against the reference, on every path and in every dtype. And
 * means that are x's own, off by no more than their rounding and an ULP or three, are mended.
 *
 *     test_given_statistics [--share=K]    all of it, or every Kth case
 */
#include <stdlib.h>

#include "cases.h"
#include "check.h"

static const element types[] = {F32, F16, BF16, F64};
static int64_t share = 1, made;

static const struct {
    statistics given;
    double distance;
    numbers numbers;
} kinds[] = {
    {RANDOM, 0, NORMAL},         {FROZEN, 0, NORMAL},           {SHIFTED, 1e-3, NORMAL},
    {SHIFTED, 1, NORMAL},        {SHIFTED, 100, NORMAL},        {OFF_BY_ULPS, 1, MEAN_100},
    {OFF_BY_ULPS, -2, MEAN_1E4}, {OFF_BY_ULPS, 3, MEAN_100},    {OFF_BY_ULPS, 40, MEAN_1E4},
    {SHIFTED, .1, MEAN_100},     {RANDOM, 0, SCALE_BIG},        {FROZEN, 0, SCALE_BIG},
    {FROZEN, 0, SCALE_TINY},     {OFF_BY_ULPS, 2, SCALE_MIXED}, {SHIFTED, 1, MEAN_1E4},
    {FROZEN, 0, BEGINNING},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static void run_one(norm_case c) {
    if (made++ % share)
        return;
    c.seed = (uint64_t)made;
    planish_exec exec = exec_backwards();
    run_case(&c, made / share % 2 ? &exec : NULL);
}

/* One of the kinds, another one with each call. */
static void next_kind(norm_case c) {
    const int64_t turn = made;
    c.given = kinds[turn % KINDS].given;
    c.distance = kinds[turn % KINDS].distance;
    c.numbers = kinds[turn % KINDS].numbers;
    /* A mean of 16 bits is off by standard deviations where it is 100 of them: more than f32 has
     * digits for. And 1e30 is beyond f16. */
    const bool wide = c.stats == F32 || c.stats == F64;
    if (!wide && (c.numbers == MEAN_100 || c.numbers == MEAN_1E4))
        c.numbers = NORMAL;
    if (c.stats == F16 && (c.numbers == SCALE_BIG || c.numbers == SCALE_MIXED))
        c.numbers = NORMAL;
    /* Else rstd would be infinite. */
    c.op.eps =
        c.numbers == SCALE_TINY && wide && c.shape[1] > 1 && c.shape[c.ndim - 1] > 1 ? 0 : 1e-5;
    c.op.weight_offset = turn / 3 % 2;
    run_one(c);
}

/* Every dtype of x beside every one of the statistics, and some of kinds. */
static void each_dtype(norm_case c, int count) {
    for (int t = 0; t < 4; t++)
        for (int s = 0; s < 4; s++)
            for (int k = 0; k < count; k++) {
                c.x = c.dx = c.y = c.weight = c.grad = types[t];
                c.stats = types[s];
                c.has = rows_case(c.pass, c.op.kind, 1, 1).has;
                if (made % 7 == 3)
                    c.weight = c.grad = types[t] == F64 ? F64 : F32;
                if (made % 11 == 5)
                    c.has &= ~HAS(WEIGHT);
                if (made % 13 == 4)
                    c.has &= ~(made % 2 ? HAS(DX) : HAS(DWEIGHT) | HAS(DBIAS));
                next_kind(c);
            }
}

/* Rows in steps, short rows, alone, in groups, of several segments. */
static void rows(void) {
    static const int64_t cols[] = {1,  2,   5,   8,   16,  17,  24,  32,   33,   40,   64,  96,
                                   97, 128, 200, 256, 257, 500, 512, 1000, 1024, 1500, 5000};
    for (size_t i = 0; i < sizeof cols / sizeof *cols; i++) {
        each_dtype(rows_case(PLANISH_BACKWARD, PLANISH_LAYER, 37, cols[i]), 3);
        each_dtype(rows_case(PLANISH_BACKWARD, PLANISH_LAYER, 3, cols[i]), 1);
        each_dtype(rows_case(PLANISH_APPLY, PLANISH_LAYER, 5, cols[i]), 1);
    }
}

/* Gathered: of every dtype pair, layout, and with an activation. */
static void gathered(void) {
    static const layout layouts[] = {INNER_STRIDE_2, REVERSED, PERMUTED, PADDED, BROADCAST_FIRST};
    for (int i = 0; i < 5; i++)
        for (int f = PLANISH_IDENTITY; f <= PLANISH_GELU_TANH; f++) {
            norm_case c = rows_case(PLANISH_BACKWARD, PLANISH_LAYER, 7, i % 2 ? 130 : 1100);
            c.op.activation = (planish_activation)f;
            c.in = layouts[i];
            c.out = DENSE;
            each_dtype(c, 1);
        }
    for (int t = 0; t < 4; t++) { /* y and dy are not of x's dtype */
        norm_case c = rows_case(PLANISH_BACKWARD, PLANISH_LAYER, 9, 77);
        c.x = c.dx = types[t];
        c.y = c.weight = types[(t + 1) % 4];
        c.grad = types[(t + 2) % 4];
        for (int k = 0; k < KINDS; k++)
            next_kind(c);
    }
}

/* Channels, groups of channels and of one, stored by channel, by pixel, and one of either. */
static void images(void) {
    static const layout layouts[][2] = {{DENSE, DENSE},
                                        {CHANNELS_LAST, CHANNELS_LAST},
                                        {DENSE, CHANNELS_LAST},
                                        {CHANNELS_LAST, DENSE}};
    static const int64_t sides[][2] = {{1, 1}, {2, 2}, {5, 3}, {4, 7}, {17, 31}};
    for (int s = 0; s < 5; s++)
        for (image_layer layer = CHANNEL_NORM; layer < IMAGE_LAYERS; layer++)
            for (int l = 0; l < 4; l++)
                for (int f = PLANISH_IDENTITY; f <= PLANISH_GELU_TANH; f++) {
                    norm_case c = image_case(PLANISH_BACKWARD, PLANISH_LAYER, layer, 2,
                                             s % 2 ? 12 : 36, sides[s][0], sides[s][1], 4);
                    c.op.activation = (planish_activation)f;
                    c.in = layouts[l][0];
                    c.out = layouts[l][1];
                    each_dtype(c, 1);
                    if (f == PLANISH_IDENTITY && l < 2) {
                        c.pass = PLANISH_APPLY;
                        each_dtype(c, 1);
                    }
                }
}

/* Activations whose slope jumps elsewhere than at 0. */
static void jumps(void) {
    for (int f = PLANISH_RELU6; f <= PLANISH_HARDSWISH; f++)
        for (image_layer layer = CHANNEL_NORM; layer < IMAGE_LAYERS; layer++)
            for (int last = 0; last < 2; last++) {
                norm_case c = rows_case(PLANISH_BACKWARD, PLANISH_LAYER, 7, last ? 130 : 1100);
                c.op.activation = (planish_activation)f;
                each_dtype(c, 1);
                c = image_case(PLANISH_BACKWARD, PLANISH_LAYER, layer, 2, 12, 5, 3, 4);
                c.op.activation = (planish_activation)f;
                c.in = c.out = last ? CHANNELS_LAST : DENSE;
                each_dtype(c, 1);
            }
}

/* Beyond the caches, where rows go other ways. */
static void large(void) {
    for (int k = 0; k < KINDS; k += 5) {
        norm_case c = rows_case(PLANISH_BACKWARD, PLANISH_LAYER, 70000, 24);
        c.given = kinds[k].given;
        c.distance = kinds[k].distance;
        c.numbers = kinds[k].numbers;
        run_one(c);
        c.shape[0] = 12000, c.shape[1] = 256;
        run_one(c);
        c.shape[0] = 3000, c.shape[1] = 1024;
        run_one(c);
    }
}

int main(int argc, char **argv) {
    share = atoll(argument(argc, argv, "share", "1"));
    rows();
    gathered();
    images();
    large();
    jumps();
    report_accuracy();
    return test_finish("given statistics");
}
