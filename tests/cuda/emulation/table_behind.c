/* Tables of the emulated cases: activations behind a norm, forward and backward. */
#include "tables.h"

/* An activation behind groups, in every way they go; behind other layers, in the general one. */
void table_activations(void) {
    static const int64_t twice[] = {2, 3, 11, 16};
    static const int64_t shapes[][4] = {
        {3, 2, 8, 64}, {2, 3, 5, 49}, {1, 16, 10, 901}, {2, 7, 3, 2}, {2, 2, 40, 1600}};
    static const numbers of[] = {NORMAL, MEAN_1E4, MEAN_100};
    set_device(90, 2);
    for (int i = 0; i < 60; i++) {
        const bool last = i / 10 % 2;
        norm_case c = groups_of(both[i / 5 % 2], i % 7 == 6 ? PLANISH_RMS : PLANISH_LAYER,
                                shapes[i % 5], last, types[(i + i / 5) % 3]);
        c.op.activation = activation_in_turn(i);
        c.stats = i % 9 == 8 ? F32 : F64; /* of f32 the general way, backward */
        c.numbers = of[(i + i / 10) % 3];
        c.op.weight_offset = i % 8 == 5;
        if (i % 6 == 4)
            c.weight = c.grad = F32;
        if (i % 11 == 10)
            c.has &= ~(i % 2 ? HAS(BIAS) : HAS(WEIGHT) | HAS(DWEIGHT));
        emulate_case(c);
    }
    for (int i = 0; i < 8; i++) {
        norm_case c = i % 2 ? channels_of(both[i / 2 % 2], PLANISH_LAYER, 2, 24, 20, types[i % 4])
                            : rows_of(both[i / 2 % 2], PLANISH_LAYER, 9, 200, types[i / 2]);
        c.op.activation = i % 3 ? PLANISH_SILU : PLANISH_RELU;
        emulate_case(c);
    }
    /* z of some hundreds, of either sign. */
    for (int i = 0; i < 8; i++) {
        norm_case c = groups_of(both[i % 2], PLANISH_LAYER, shapes[4], i / 2 % 2, types[i / 4]);
        c.op.activation = PLANISH_SILU;
        c.stats = F64;
        c.numbers = OUTLIER;
        emulate_case(c);
    }
    /* dy behind SiLU that f16 does not hold, or only as subnormal numbers. */
    static const struct {
        numbers x;
        double center, spread;
    } dys[] = {
        {SCALE_TINY, 0, 1e-6}, {SCALE_BIG, 6.2e4, 500}, {NORMAL, 0, 1e-6}, {OUTLIER, 0, 1e-7}};
    for (int i = 0; i < 8; i++) {
        norm_case c = groups_of(PLANISH_BACKWARD, PLANISH_LAYER, shapes[i % 2 * 4], false, F16);
        c.op.activation = PLANISH_SILU;
        c.stats = F64;
        c.numbers = dys[i / 2].x;
        c.op.eps = c.numbers == SCALE_TINY ? 0 : 1e-5;
        c.dy_center = dys[i / 2].center;
        c.dy_spread = dys[i / 2].spread;
        emulate_case(c);
    }
    limits.shared_per_block = 1280; /* no block holds a row */
    limits.max_cluster = 1;
    for (int t = 0; t < 2; t++) {
        norm_case c = groups_of(PLANISH_BACKWARD, PLANISH_LAYER, twice, false, F16);
        c.numbers = OUTLIER; /* whose rstd is far from 1 */
        c.op.activation = PLANISH_SILU;
        c.stats = F64;
        if (t)
            c.weight = c.grad = F32;
        emulate_case(c);
    }
}

/* Each of them in turn, in cases that repeat what else they are at other distances. */
static planish_activation activation_of(int i) {
    static const planish_activation all[] = {PLANISH_SILU, PLANISH_GELU, PLANISH_RELU,
                                             PLANISH_GELU_TANH, PLANISH_SILU};
    return all[i % 5];
}

/* Activations behind rows, backward: within a warp, in a block, in clusters, by every dtype; with a
 * mean that was rounded and one that was not, and far from 0, which z shows. */
void table_behind_rows(void) {
    static const int64_t cols[] = {3, 24, 100, 267, 768, 1536, 4096, 8200};
    static const numbers of[] = {NORMAL, MEAN_100, OUTLIER, MEAN_1E4, CONSTANT};
    for (int i = 0; i < 32; i++) {
        const int64_t n = cols[i % 8], rows = n < 100 ? 301 : n < 1000 ? 43 : 7;
        norm_case c = rows_of(PLANISH_BACKWARD, i % 5 == 4 ? PLANISH_RMS : PLANISH_LAYER, rows, n,
                              types[(i + i / 8) % (n == 3 || n == 8200 ? 3 : 4)]);
        set_device(i % 7 == 6 ? 80 : 90, n > 4096 ? 16 : 2);
        c.op.activation = activation_of(i);
        c.numbers = of[i % 5];
        if (i % 4 == 1)
            c.stats = F64;
        if (i % 6 == 3)
            c.weight = c.grad = F32;
        if (i % 8 == 5)
            c.in = c.out = i % 16 == 5 ? PADDED : MISALIGNED;
        if (i % 11 == 7)
            c.has &= ~(HAS(BIAS) | HAS(DBIAS));
        if (i % 11 == 8)
            c.has &= ~HAS(DX);
        c.op.weight_offset = i == 10;
        emulate_case(c);
    }
    /* Too long for one read: the general kernels. */
    norm_case c = rows_of(PLANISH_BACKWARD, PLANISH_LAYER, 2, 20000, F32);
    set_device(80, 2);
    c.op.activation = PLANISH_SILU;
    emulate_case(c);
}

/* Activations behind norms over channels: whole images, tiles, odd ones, clusters; f32 with a mean
 * in f64. */
void table_behind_channels(void) {
    static const int64_t shapes[][3] = {{5, 24, 64},   {3, 17, 49},   {2, 96, 320},   {2, 33, 1025},
                                        {2, 520, 196}, {2, 1024, 49}, {2, 1216, 196}, {9, 8, 3}};
    for (int i = 0; i < 16; i++) {
        norm_case c =
            channels_of(PLANISH_FORWARD, i % 4 == 3 ? PLANISH_RMS : PLANISH_LAYER, shapes[i % 8][0],
                        shapes[i % 8][1], shapes[i % 8][2], types[(i + i / 8) % 3]);
        set_device(i % 5 == 4 ? 80 : 90, 2);
        c.op.activation = activation_of(i);
        if (i % 2)
            c.weight = F32;
        if (i % 7 == 5)
            c.has &= ~HAS(BIAS);
        if (i % 3 == 1)
            c.out = CHANNELS_LAST;
        emulate_case(c);
        c.pass = PLANISH_BACKWARD;
        c.out = DENSE;
        c.grad = c.weight;
        c.numbers = i % 4 == 1 ? MEAN_100 : i % 4 == 2 ? MEAN_1E4 : NORMAL;
        if (c.x == F32 || i % 2)
            c.stats = F64;
        emulate_case(c);
    }
}

/* ReLU of 16 bits far from 0, backward: its slope jumps, so that what a mean lost shows there, too.
 */
void table_behind_relu(void) {
    set_device(90, 2);
    for (int i = 0; i < 6; i++) {
        norm_case c = rows_of(PLANISH_BACKWARD, PLANISH_LAYER, i % 3 ? 43 : 301,
                              (int64_t[]){96, 768, 2304}[i % 3], i % 2 ? BF16 : F16);
        c.op.activation = PLANISH_RELU;
        c.numbers = MEAN_1E4;
        c.stats = i == 4 ? F64 : F32;
        emulate_case(c);
    }
    for (int i = 0; i < 2; i++) {
        norm_case c = channels_of(PLANISH_BACKWARD, PLANISH_LAYER, 2, 520, 196, F16);
        c.op.activation = PLANISH_RELU;
        c.numbers = MEAN_1E4;
        c.stats = i ? F64 : F32;
        emulate_case(c);
    }
}
