/*
 * The grid: every pass against the reference over tables of lengths, dtypes, optional tensors,
 * layouts, axes and numbers, with the bounds of docs/guide/reproducibility.md.
 *
 *     test_grid [--full] [--table=NAME] [--share=K] [--only=SEED] [--guard=start]
 *
 * --full takes the whole of each table, where the default takes what is done in seconds. --share=K
 * takes every Kth case, --only=SEED the one whose failure printed that seed: the tables before it
 * are counted too, so with the same --full and --table. --guard=start puts the unmapped page before
 * each buffer in place of after.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "values.h"

static bool full;
static int64_t share = 1, only, made;
static planish_kind first_kind = PLANISH_LAYER, last_kind = PLANISH_RMS;

static const element types[] = {F32, F16, BF16, F64};

/* Runs a case if it is this share's turn; half of the cases with a callback of the test's own. */
static void grid_case(norm_case c) {
    if (only ? ++made != only : made++ % share)
        return;
    c.seed = (uint64_t)made;
    if (c.op.kind == PLANISH_L2 && made / share % 4 < 2 && c.op.eps == 1e-5)
        case_set_length(&c);
    planish_exec exec = exec_backwards();
    run_case(&c, made / share % 2 ? &exec : NULL);
}

/* The passes of both kinds, `each` called for every one. */
static void every_pass(int64_t rows, int64_t cols, void (*each)(norm_case)) {
    for (planish_pass pass = PLANISH_FORWARD; pass <= PLANISH_APPLY; pass++)
        for (planish_kind kind = first_kind; kind <= last_kind; kind++)
            each(rows_case(pass, kind, rows, cols));
}

/* ---- Tables --------------------------------------------------------------------------------- */

static void each_type(norm_case c) {
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        case_set_types(&c, types[i]);
        grid_case(c);
    }
}

static void lengths(void) {
    for (int64_t cols = 1; cols <= 67; cols++)
        every_pass(5, cols, each_type);
    for (int64_t power = 128; power <= (full ? 1 << 18 : 1 << 11); power *= 2)
        for (int64_t cols = power - 1; cols <= power + 1; cols++)
            every_pass(power > 1 << 14 ? 2 : 3, cols, each_type);
    static const int64_t odd[] = {96, 513, 769, 3584, 12288, 15872};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++)
        if (full || odd[i] < 4096)
            every_pass(3, odd[i], each_type);
}

static void each_few_types(norm_case c) {
    for (int i = 0; i < 2; i++) {
        case_set_types(&c, i ? BF16 : F32);
        grid_case(c);
    }
}

static void rows(void) {
    static const int64_t counts[] = {0, 1, 3, 64, 257, 4099, 65535, 65536, 1 << 20};
    static const int64_t cols[] = {1, 3, 8, 33};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (size_t j = 0; j < sizeof cols / sizeof *cols; j++)
            if (full || counts[i] * cols[j] < 1 << 16)
                every_pass(counts[i], cols[j], each_few_types);
}

static void each_mix(norm_case c) {
    for (int mix = 0; mix < 4 * 4 * 4 * 4 * 4; mix++) {
        /* The whole product is for the full run; this step meets every pair. */
        if (!full && mix % 5)
            continue;
        c.x = c.dx = types[mix % 4];
        c.y = types[mix / 4 % 4];
        c.weight = types[mix / 16 % 4];
        c.grad = types[mix / 64 % 4];
        c.stats = types[mix / 256 % 4];
        grid_case(c);
    }
}

static void dtypes(void) {
    every_pass(3, 21, each_mix);
    if (full)
        every_pass(37, 200, each_mix);
}

static void each_subset(norm_case c) {
    static const part optional[] = {WEIGHT, BIAS, MEAN, RSTD, DX, DWEIGHT, DBIAS};
    for (unsigned bits = 0; bits < 1u << 7; bits++) {
        c.has = 0;
        for (int i = 0; i < 7; i++)
            if (bits >> i & 1)
                c.has |= HAS(optional[i]);
        bool backward = c.pass == PLANISH_BACKWARD || c.pass == PLANISH_BACKWARD_FROM_Y;
        if (backward && !(c.has & (HAS(DX) | HAS(DWEIGHT) | HAS(DBIAS))))
            continue;
        for (c.op.weight_offset = 0; c.op.weight_offset <= 1; c.op.weight_offset++)
            grid_case(c);
    }
}

static void subsets(void) {
    every_pass(4, 50, each_subset);
    if (full)
        every_pass(131, 1000, each_subset);
}

static void each_layout(norm_case c) {
    for (layout in = 0; in < LAYOUT_COUNT; in++)
        for (layout out = 0; out < BROADCAST_FIRST; out++) {
            c.in = in;
            c.out = out;
            c.params = (layout)((in + 5 * out) % LAYOUT_COUNT);
            c.full_rank = (in + out) % 2;
            c.numbers = in == BROADCAST_LAST || in == BROADCAST_ALL ? CONSTANT : NORMAL;
            case_set_types(&c, types[(in + 3 * out) % 4]);
            grid_case(c);
        }
}

static void each_layout_of_4(norm_case c) {
    static const int64_t shape[] = {3, 6, 4, 5};
    static const struct {
        uint64_t reduce, affine;
    } views[] = {
        {0x8, 0x8}, /* LayerNorm over the last axis */
        {0xc, 0xc}, /* ... over the last two */
        {0xe, 0xe}, /* ... over all but the first */
        {0x2, 0x2}, /* channel LayerNorm */
        {0xc, 0x2}, /* InstanceNorm */
        {0xc, 0x6}, /* GroupNorm: (N, G, C/G, HW) */
        {0xe, 0x0}, /* weight standardization */
    };
    c.ndim = 4;
    memcpy(c.shape, shape, sizeof shape);
    for (size_t i = 0; i < sizeof views / sizeof *views; i++) {
        c.op.reduce_axes = views[i].reduce;
        c.op.affine_axes = views[i].affine;
        each_layout(c);
    }
}

static void layouts(void) {
    every_pass(7, 40, each_layout);
    every_pass(3, 6, each_layout_of_4);
    if (full)
        every_pass(150, 1031, each_layout);
}

static void each_axes(norm_case c) {
    static const int64_t shape[] = {3, 2, 5, 4};
    c.ndim = 4;
    memcpy(c.shape, shape, sizeof shape);
    for (c.op.reduce_axes = 1; c.op.reduce_axes < 16; c.op.reduce_axes++)
        for (c.op.affine_axes = 0; c.op.affine_axes < 16; c.op.affine_axes++) {
            case_set_types(&c, types[(c.op.reduce_axes + c.op.affine_axes) % 4]);
            grid_case(c);
        }
}

static void axes(void) {
    every_pass(3, 2, each_axes);
}

static void each_number(norm_case c) {
    static const double epsilons[] = {0, 1e-12, 1e-5, 0.3, -0.1};
    for (c.numbers = 0; c.numbers < NUMBERS_COUNT; c.numbers++)
        for (size_t e = 0; e < sizeof epsilons / sizeof *epsilons; e++) {
            c.op.eps = epsilons[e];
            /* No variance and no eps: the formula divides by 0. */
            bool flat = c.numbers == CONSTANT || c.shape[1] == 1 || c.numbers == SUBNORMAL;
            if (flat && c.op.eps <= 0)
                continue;
            /* The variance of a few numbers may come close to -eps: no digit of the sum is left. */
            if (c.op.eps < 0 && c.shape[1] < 33)
                continue;
            /* The mean of subnormal f64 has no digits that f64 could hold. */
            for (int t = 0; t < (c.numbers == SUBNORMAL ? 3 : 4); t++) {
                case_set_types(&c, types[t]);
                grid_case(c);
            }
        }
}

static void numbers_table(void) {
    static const int64_t cols[] = {1, 2, 5, 8, 33, 67, 256, 1000, 1025, 4096, 65536};
    for (size_t i = 0; i < sizeof cols / sizeof *cols; i++)
        if (full || cols[i] < 1024)
            every_pass(cols[i] < 100 ? 9 : 3, cols[i], each_number);
}

/* Every layer over images, of every dtype; y and dy as x, or channels last beside it. */
static void each_image(image_layer layer, int64_t batch, int64_t channels, int64_t height,
                       int64_t width, int64_t groups) {
    static const layout layouts[][2] = {{DENSE, DENSE},         {CHANNELS_LAST, CHANNELS_LAST},
                                        {DENSE, CHANNELS_LAST}, {CHANNELS_LAST, DENSE},
                                        {PADDED, MISALIGNED},   {CHANNELS_LAST, CHANNELS_LAST}};
    for (planish_pass pass = PLANISH_FORWARD; pass <= PLANISH_APPLY; pass++)
        for (planish_kind kind = first_kind; kind <= last_kind; kind++)
            for (int t = 0; t < 4; t++) {
                if (pass == PLANISH_BACKWARD_FROM_Y) /* no kernels of its own */
                    continue;
                const int64_t turn = made / 3;
                norm_case c = image_case(pass, kind, layer, batch, channels, height, width, groups);
                case_set_types(&c, types[t]);
                if (turn % 5 == 4)
                    c.weight = c.grad = types[t] == F64 ? F64 : F32;
                c.in = layouts[turn % 6][0];
                c.out = layouts[turn % 6][1];
                c.op.weight_offset = turn / 2 % 2;
                grid_case(c);
                c.in = c.out = turn / 2 % 2 ? CHANNELS_LAST : DENSE;
                c.numbers = (numbers)(turn % NUMBERS_COUNT);
                if (types[t] == F64 && c.numbers == SUBNORMAL)
                    c.numbers = NORMAL;
                /* m2 of a constant row is what is left of sums that cancel: it is held to nothing.
                 */
                if (pass == PLANISH_STATISTICS && c.numbers == CONSTANT)
                    c.numbers = NORMAL;
                c.op.eps = c.numbers == SCALE_TINY ? 0 : 1e-5;
                c.has &= ~(turn % 3 ? 0 : HAS(WEIGHT) | HAS(DBIAS));
                grid_case(c);
            }
}

static void images(void) {
    static const int64_t channels[] = {1, 2, 3, 24, 33, 96, 1030, 4096};
    static const int64_t sides[][2] = {{1, 1}, {1, 2}, {2, 2},   {5, 3},
                                       {7, 7}, {8, 8}, {14, 14}, {17, 31}};
    for (size_t i = 0; i < sizeof channels / sizeof *channels; i++)
        for (size_t j = 0; j < sizeof sides / sizeof *sides; j++) {
            const int64_t c = channels[i], h = sides[j][0], w = sides[j][1];
            if (!full && c * h * w > 6000)
                continue;
            each_image(CHANNEL_NORM, 2, c, h, w, 1);
            each_image(INSTANCE_NORM, 2, c, h, w, 1);
            each_image(GROUP_NORM, 2, c, h, w, 1);
            each_image(GROUP_NORM, 2, c, h, w, c);
            each_image(GROUP_NORM, 3, 2 * c, h, w, 2);
        }
    each_image(CHANNEL_NORM, 0, 8, 4, 4, 1);
    each_image(GROUP_NORM, 0, 8, 4, 4, 2);
    each_image(CHANNEL_NORM, 1, 40, 20, 30, 1);
    each_image(GROUP_NORM, 1, 64, 20, 30, 4);
    /* Beyond a core's own cache, pixels of some lines and no whole number of fours. */
    each_image(GROUP_NORM, 1, 136, 31, 27, 2);
}

/* What an activation follows: layers that have kernels for it, and what goes the general way. */
static void each_of(norm_case c, planish_activation first, planish_activation last) {
    static const layout layouts[][2] = {{DENSE, DENSE},
                                        {CHANNELS_LAST, CHANNELS_LAST},
                                        {DENSE, CHANNELS_LAST},
                                        {PADDED, MISALIGNED}};
    for (planish_kind kind = first_kind; kind <= last_kind; kind++)
        for (c.op.activation = first; c.op.activation <= last; c.op.activation++)
            for (int t = 0; t < 4; t++) {
                const int64_t turn = made / 2;
                c.op.kind = kind;
                case_set_types(&c, types[t]);
                if (turn % 5 == 4)
                    c.weight = c.grad = types[t] == F64 ? F64 : F32;
                c.in = layouts[turn % 4][0];
                c.out = layouts[turn % 4][1];
                c.op.weight_offset = turn / 2 % 2;
                c.numbers = NORMAL;
                c.stats = turn % 3 ? c.stats : F64;
                grid_case(c);
                /* Subnormal f64, and what of m2 cancels, as in each_image. */
                c.numbers = (numbers)(turn % SUBNORMAL);
                /* One number has no variance. */
                c.op.eps = c.numbers == SCALE_TINY && c.shape[c.ndim - 1] > 1 ? 0 : 1e-5;
                c.has = rows_case(c.pass, kind, 1, 1).has;
                c.has &= ~(turn % 3 ? 0 : turn % 2 ? HAS(WEIGHT) | HAS(BIAS) : HAS(BIAS) | HAS(DX));
                grid_case(c);
            }
}

/* Over images. */
static void activated_images(planish_activation first, planish_activation last) {
    static const planish_pass passes[] = {PLANISH_FORWARD, PLANISH_BACKWARD, PLANISH_APPLY};
    static const int64_t channels[] = {1, 2, 12, 40, 1030};
    static const int64_t sides[][2] = {{1, 1}, {2, 2}, {5, 3}, {7, 7}, {17, 31}};
    for (int p = 0; p < 3; p++)
        for (size_t i = 0; i < sizeof channels / sizeof *channels; i++)
            for (size_t j = 0; j < sizeof sides / sizeof *sides; j++)
                for (image_layer layer = CHANNEL_NORM; layer < IMAGE_LAYERS; layer++) {
                    const int64_t c = channels[i], h = sides[j][0], w = sides[j][1];
                    if (!full && c * h * w > 3000)
                        continue;
                    each_of(
                        image_case(passes[p], PLANISH_LAYER, layer, 2, 2 * c, h, w, j % 2 ? 2 : c),
                        first, last);
                }
    each_of(image_case(PLANISH_BACKWARD, PLANISH_LAYER, GROUP_NORM, 1, 136, 31, 27, 2), first,
            last);
}

/* Over rows: of one segment and several, and longer than what backward keeps. */
static void activated_rows(planish_activation first, planish_activation last) {
    static const planish_pass passes[] = {PLANISH_FORWARD, PLANISH_BACKWARD, PLANISH_APPLY};
    static const int64_t cols[] = {1, 2, 24, 33, 257, 1000, 4097, 9001};
    for (int p = 0; p < 3; p++)
        for (size_t i = 0; i < sizeof cols / sizeof *cols; i++)
            each_of(rows_case(passes[p], PLANISH_LAYER, cols[i] < 300 ? 39 : 7, cols[i]), first,
                    last);
}

static void activations(void) {
    activated_images(PLANISH_SILU, PLANISH_RELU);
    activated_rows(PLANISH_SILU, PLANISH_GELU_TANH);
    activated_images(PLANISH_GELU, PLANISH_GELU_TANH);
    activated_rows(PLANISH_RELU6, PLANISH_HARDSWISH);
    activated_images(PLANISH_RELU6, PLANISH_HARDSWISH);
}

/* L2 norms, over a part of every table before this one. */
static void l2_norms(void) {
    static void (*const all[])(void) = {lengths, rows,          dtypes, subsets,    layouts,
                                        axes,    numbers_table, images, activations};
    const int64_t every = share;
    first_kind = last_kind = PLANISH_L2;
    share = full ? share : share * 3;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        all[i]();
    share = every;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } tables[] = {
        {"lengths", lengths},       {"rows", rows},       {"dtypes", dtypes},
        {"subsets", subsets},       {"layouts", layouts}, {"axes", axes},
        {"numbers", numbers_table}, {"images", images},   {"activations", activations},
        {"l2", l2_norms},
    };
    full = flag(argc, argv, "full");
    share = atoll(argument(argc, argv, "share", "1"));
    if (!strcmp(argument(argc, argv, "guard", "end"), "start"))
        guard_side = GUARD_START;
    only = atoll(argument(argc, argv, "only", "0"));
    const char *table = argument(argc, argv, "table", "");
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (!*table || !strcmp(table, tables[i].name))
            tables[i].run();
    report_accuracy();
    return test_finish("grid");
}
