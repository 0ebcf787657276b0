/* Tables of the emulated cases: rows that lie spread over memory, as a batch norm's channels do. */
#include <string.h>

#include "tables.h"

/* Over images and pixels of (images, channels, pixels), or with the channels last. */
static norm_case batch_of(planish_pass pass, planish_kind kind, const int64_t *n, bool last,
                          element type) {
    norm_case c = rows_of(pass, kind, 1, 1, type);
    c.ndim = 3;
    memcpy(c.shape, n, 3 * sizeof *n);
    c.op.reduce_axes = 5;
    c.op.affine_axes = 2;
    c.in = c.out = last ? CHANNELS_LAST : DENSE;
    return c;
}

static const planish_pass passes[] = {PLANISH_FORWARD, PLANISH_BACKWARD, PLANISH_APPLY};

/* Every way there is: a row for a block or a cluster, held or not, three kernels; channels that
 * fill the lanes of a block and that do not, one chunk and many, of 16 bytes and of an element. */
void table_batch(void) {
    static const int64_t shapes[][3] = {
        {3, 16, 64}, {5, 24, 49},  {2, 33, 20},  {7, 8, 3},     {3, 160, 40}, {4, 3, 9000},
        {9, 72, 16}, {3, 5, 6000}, {40, 130, 1}, {2, 64, 1200}, {4, 64, 49}, /* what one block holds
                                                                              */
    };
    for (int pass = 0; pass < 3; pass++)
        for (int i = 0; i < 11; i++)
            for (int last = 0; last < 2; last++) {
                norm_case c = batch_of(passes[pass], i % 4 == 3 ? PLANISH_RMS : PLANISH_LAYER,
                                       shapes[i], last, types[(i + last + pass) % 4]);
                set_device(i % 3 == 2 ? 80 : 90, 2);
                if (i == 7) /* few bytes are held, or none */
                    limits.shared_per_block = last ? 2500 : 40000;
                limits.cooperative = i % 2 == 0 || i == 9;
                if (pass == 2)
                    c.stats = F64;
                c.op.weight_offset = i == 6;
                if (i % 2 && c.x != F64)
                    c.weight = c.grad = F32;
                emulate_case(c);
            }
    /* Channels stored by pixel: too much for clusters, over all blocks of the device; in clusters,
     * one chunk more than they have threads, one channel more than lines have, hardly a pixel. */
    static const int64_t by_pixel[][3] = {{2, 32, 820}, {3, 72, 200}, {1, 136, 17}, {5, 40, 70}};
    for (int i = 0; i < 16; i++) {
        norm_case c = batch_of(both[i % 2], i % 5 ? PLANISH_LAYER : PLANISH_RMS,
                               by_pixel[i / 2 % 4], true, types[i / 6]);
        set_device(90, 2);
        limits.max_cluster = i / 2 % 4 ? 16 : 1;
        limits.multiprocessors = 132;
        limits.cooperative = true;
        if (i % 3 == 1) {
            c.op.activation = PLANISH_RELU;
            c.stats = F64;
        }
        emulate_case(c);
    }
    /* A long channel of numbers of few digits, whose sums' roundings are not to go one way. */
    norm_case few =
        batch_of(PLANISH_FORWARD, PLANISH_LAYER, (int64_t[]){33, 12, 3025}, false, BF16);
    few.weight = few.grad = F32;
    set_device(90, 2);
    limits.max_cluster = 1;
    emulate_case(few);
}

/* An activation behind, outputs that lack, other layouts and dtypes, numbers that sums suffer from.
 */
void table_batch_otherwise(void) {
    static const int64_t shapes[][3] = {{5, 16, 48}, {3, 9, 49}, {2, 40, 600}};
    static const unsigned drop[] = {HAS(BIAS), HAS(WEIGHT) | HAS(DBIAS), HAS(DX),
                                    HAS(DWEIGHT) | HAS(DBIAS), HAS(MEAN) | HAS(RSTD)};
    for (int i = 0; i < 32; i++) {
        const bool last = i / 2 % 2;
        norm_case c =
            batch_of(both[i % 2], PLANISH_LAYER, shapes[i / 4 % 3], last, types[i / 3 % 3]);
        set_device(i % 5 == 4 ? 80 : 90, 2);
        c.op.activation = activation_in_turn(i);
        c.stats = F64;
        c.numbers = i % 3 == 2 ? MEAN_1E4 : i % 3 == 1 ? MEAN_100 : NORMAL;
        emulate_case(c);
    }
    for (int i = 0; i < 20; i++) {
        norm_case c = batch_of(both[i % 2], PLANISH_LAYER, shapes[i % 3], i / 2 % 2, types[i % 3]);
        set_device(i % 5 == 4 ? 80 : 90, 2);
        c.has &= ~drop[i / 4];
        if (i % 4 == 3)
            c.in = MISALIGNED;
        if (i % 4 == 2)
            c.out = PADDED;
        if (i % 7 == 6) {
            c.y = F32;
            c.stats = F64;
        }
        emulate_case(c);
    }
    for (numbers n = MEAN_100; n < NUMBERS_COUNT; n++)
        for (int t = 0; t < 6; t++) {
            norm_case c =
                batch_of(both[n % 2], PLANISH_LAYER, shapes[t % 2 * 2], t / 3, types[t % 3]);
            set_device(t % 2 ? 80 : 90, 2);
            emulate_numbers(c, n);
        }
    /* Two axes of rows; a row of one run; f64. */
    for (int i = 0; i < 6; i++) {
        norm_case c = rows_of(both[i % 2], PLANISH_LAYER, 1, 1, i < 4 ? types[i] : F64);
        c.ndim = 4;
        memcpy(c.shape, (int64_t[]){6, 5, 7, 40}, 4 * sizeof *c.shape);
        c.op.reduce_axes = i < 4 ? 10 : 8;
        c.op.affine_axes = i < 4 ? 5 : 2;
        if (i % 2 && i >= 4)
            c.op.affine_axes = 3;
        emulate_case(c);
    }
}

/* Images of few pixels by channel, some channels together: the last slab smaller than the others,
 * chunks of 16 bytes and less, threads that are left over, one block and clusters, all held and
 * some; outputs that lack, what is behind, other dtypes and alignments, rows out of float's range.
 */
void table_batch_slabs(void) {
    static const int64_t shapes[][3] = {
        {6, 24, 49}, {40, 16, 49}, {21, 20, 49}, {19, 24, 25}, {64, 40, 9}, {5, 6, 196},
        {9, 8, 225}, {33, 136, 9}, {300, 8, 49}, {300, 70, 3}, {30, 48, 4}, {50, 20, 16},
    };
    enum { SHAPES = sizeof shapes / sizeof *shapes };
    for (int pass = 0; pass < 3; pass++)
        for (int i = 0; i < SHAPES; i++) {
            norm_case c = batch_of(passes[pass], i % 4 == 3 ? PLANISH_RMS : PLANISH_LAYER,
                                   shapes[i], false, types[(i + pass) % 4]);
            set_device(i % 3 == 2 ? 80 : 90, 2);
            if (i % 3 == 1) /* less is held */
                limits.shared_per_block = 50000;
            if (pass == 2)
                c.stats = F64;
            c.op.weight_offset = i == 6;
            if (i % 2 && c.x != F64)
                c.weight = c.grad = F32;
            if (i % 5 == 3)
                c.in = MISALIGNED;
            if (i % 5 == 4)
                c.out = MISALIGNED;
            emulate_case(c);
        }
    static const unsigned drop[] = {HAS(BIAS), HAS(WEIGHT) | HAS(DBIAS), HAS(DX),
                                    HAS(DWEIGHT) | HAS(DBIAS), HAS(MEAN) | HAS(RSTD)};
    for (int i = 0; i < 20; i++) {
        norm_case c = batch_of(both[i % 2], PLANISH_LAYER, shapes[i % 5], false, types[i % 3]);
        set_device(i % 5 == 4 ? 80 : 90, 2);
        c.op.activation = i % 3 == 0 ? PLANISH_IDENTITY : i % 3 == 1 ? PLANISH_RELU : PLANISH_SILU;
        c.stats = c.op.activation ? F64 : F32;
        if (!c.op.activation || !(drop[i / 4] & HAS(BIAS)))
            c.has &= ~drop[i / 4];
        if (i % 7 == 6) {
            c.y = F32;
            c.stats = F64;
        }
        emulate_case(c);
    }
    for (numbers n = MEAN_100; n < NUMBERS_COUNT; n++)
        for (int t = 0; t < 3; t++) {
            norm_case c = batch_of(both[n % 2], PLANISH_LAYER, shapes[t], false, types[t]);
            set_device(90, 2);
            emulate_numbers(c, n);
        }
}

/* Each image by itself, channels last, or a batch: statistics alone, given ones, halves of a
 * backward, and sums of a weight for each channel and image. */
void table_batch_parts(void) {
    static const int64_t shapes[][3] = {
        {3, 16, 64}, {5, 24, 49}, {2, 136, 20}, {7, 8, 3}, {2, 64, 700}};
    static const planish_pass parts[] = {PLANISH_STATISTICS, PLANISH_APPLY, PLANISH_BACKWARD,
                                         PLANISH_BACKWARD};
    for (int i = 0; i < 40; i++) {
        const bool half = i % 4 == 2;
        norm_case c = batch_of(parts[i % 4], i % 3 ? PLANISH_RMS : PLANISH_LAYER, shapes[i / 4 % 5],
                               i % 7 != 6, types[i / 2 % 4]);
        set_device(i % 5 == 4 ? 80 : 90, 2);
        limits.cooperative = i % 2;
        if (i < 20) { /* the images are kept, too */
            c.op.reduce_axes = 4;
            c.op.affine_axes = i % 4 == 3 ? 3 : 2;
        }
        if (half)
            c.has |= HAS(C1) | HAS(C2);
        if (half || (i < 20 && i % 4 != 3))
            c.has &= ~(HAS(DWEIGHT) | HAS(DBIAS));
        if (i % 4 == 3)
            c.has &= ~HAS(DX);
        c.numbers = i % 4 == 0 && c.x != F16 && i % 8 ? SCALE_BIG : NORMAL;
        c.stats = F64;
        emulate_case(c);
    }
}
