/* Tables of the emulated cases: norms over the channels of images. */
#include "tables.h"

/* Images taken whole by a block or a cluster, and by tiles; odd numbers of everything. */
void table_channels(void) {
    static const int64_t shapes[][3] = {
        {5, 24, 64}, {3, 17, 49},   {2, 96, 320}, {2, 33, 1025}, {6, 40, 7},  {1, 320, 256},
        {9, 8, 3},   {2, 520, 196}, {4, 3, 4096}, {3, 1000, 49}, {5, 2, 100}, {2, 130, 272},
    };
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            norm_case c = channels_of(both[pass], i % 4 == 3 ? PLANISH_RMS : PLANISH_LAYER,
                                      shapes[i][0], shapes[i][1], shapes[i][2], types[i % 3]);
            set_device(i % 5 == 4 ? 80 : 90, 2);
            c.op.weight_offset = i == 6;
            if (i % 2)
                c.weight = c.grad = F32;
            emulate_case(c);
            if (pass == 0) {
                c.out = CHANNELS_LAST;
                emulate_case(c);
            }
        }
}

/* Images over clusters: lines of four channels and of two, blocks that have less than the others,
 * tiles that a cluster shares, with a ring and without. */
void table_channels_in_clusters(void) {
    static const struct {
        int64_t images, channels, pixels;
        element type;
    } shapes[] = {
        {3, 1024, 49, F16},   {2, 1200, 196, F16}, {1, 1216, 196, F32}, {1, 2056, 196, F32},
        {1, 1056, 272, BF16}, {2, 700, 196, F16},  {3, 640, 198, BF16}, {1, 1056, 272, F32},
    };
    set_device(90, 2);
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            norm_case c =
                channels_of(both[pass], i == 4 ? PLANISH_RMS : PLANISH_LAYER, shapes[i].images,
                            shapes[i].channels, shapes[i].pixels, shapes[i].type);
            c.numbers = i % 2 ? OUTLIER : MEAN_100;
            if (i % 3 == 1)
                c.weight = c.grad = F32;
            emulate_case(c);
            if (pass == 0) {
                c.out = CHANNELS_LAST;
                emulate_case(c);
            }
        }
}

/* Tiles of an odd number of pixels, which begin elsewhere within 16 bytes in every channel. */
void table_channels_shifted(void) {
    static const int64_t shapes[][3] = {{2, 33, 1025}, {3, 40, 641},   {1, 256, 777},
                                        {2, 9, 2063},  {1, 1100, 521}, {5, 17, 579}};
    static const numbers of[] = {NORMAL, MEAN_1E4, OUTLIER, MEAN_100, CONSTANT};
    static const layout outs[] = {DENSE, MISALIGNED, DENSE,        PADDED,
                                  DENSE, MISALIGNED, CHANNELS_LAST};
    set_device(90, 2);
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < 6; i++)
            for (int t = 0; t < 2; t++) {
                norm_case c = channels_of(both[pass], i % 4 == 3 ? PLANISH_RMS : PLANISH_LAYER,
                                          shapes[i][0], shapes[i][1], shapes[i][2], types[t]);
                c.numbers = of[(i + t) % 5];
                c.out = outs[(i + 2 * t) % (pass ? 6 : 7)];
                c.in = i % 3 == 2 || c.out == CHANNELS_LAST ? MISALIGNED : c.out;
                if ((i + t) % 2)
                    c.weight = c.grad = F32;
                if (i == 5)
                    c.has &= ~(t ? HAS(DX) : HAS(DWEIGHT) | HAS(DBIAS));
                emulate_case(c);
            }
    norm_case mixed = channels_of(PLANISH_BACKWARD, PLANISH_LAYER, 2, 33, 1025, F16);
    mixed.y = F32;
    emulate_case(mixed);
    mixed.pass = PLANISH_FORWARD;
    emulate_case(mixed);
}

/* Tiles whose output has the channels of a pixel side by side: pixels that fill lines, half lines
 * and neither, chunks of every size, tiles that end early. */
void table_channels_to_last(void) {
    static const struct {
        int64_t images, channels, pixels;
        element x, y;
    } shapes[] = {
        {2, 136, 336, F16, F16}, {1, 1024, 320, F16, F16}, {2, 72, 304, BF16, F32},
        {2, 45, 336, F32, F32},  {1, 40, 1041, F32, F16},  {1, 256, 784, BF16, BF16},
        {1, 600, 272, F32, F32},
    };
    set_device(90, 2);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        norm_case c =
            channels_of(PLANISH_FORWARD, i == 4 ? PLANISH_RMS : PLANISH_LAYER, shapes[i].images,
                        shapes[i].channels, shapes[i].pixels, shapes[i].x);
        c.y = shapes[i].y;
        c.numbers = i % 2 ? MEAN_1E4 : OUTLIER;
        c.out = CHANNELS_LAST;
        if (i % 3 == 1)
            c.has &= ~HAS(BIAS);
        emulate_case(c);
    }
}

void table_channels_otherwise(void) {
    set_device(90, 2);
    for (int pass = 0; pass < 2; pass++) {
        static const unsigned drop[] = {HAS(WEIGHT) | HAS(BIAS) | HAS(MEAN) | HAS(RSTD), HAS(BIAS),
                                        HAS(WEIGHT) | HAS(DBIAS), HAS(DX),
                                        HAS(DWEIGHT) | HAS(DBIAS)};
        for (size_t i = 0; i < sizeof drop / sizeof *drop; i++) {
            norm_case c = channels_of(both[pass], PLANISH_LAYER, 3, 40, 96, types[i % 3]);
            c.has &= ~drop[i];
            if (both[pass] == PLANISH_BACKWARD || i < 3)
                emulate_case(c);
        }
        for (int i = 0; i < 3; i++) {
            norm_case c =
                channels_of(both[pass], PLANISH_LAYER, 3, 48, i == 1 ? 49 : 320, types[i]);
            c.in = c.out = i == 2 ? PADDED : MISALIGNED;
            emulate_case(c);
        }
        norm_case c = channels_of(both[pass], PLANISH_LAYER, 4, 72, 256, BF16);
        c.y = F32;
        c.stats = F64;
        emulate_case(c);
    }
    for (numbers n = MEAN_100; n < NUMBERS_COUNT; n++)
        for (int t = 0; t < 3; t++) {
            norm_case c = channels_of(n % 2 ? PLANISH_FORWARD : PLANISH_BACKWARD, PLANISH_LAYER, 2,
                                      t == 1 ? 520 : 96, t == 1 ? 49 : 80, types[t]);
            emulate_numbers(c, n);
        }
}

/* Tiles that go on in the next image, with room between images and without, the last of them cut;
 * and lines that the blocks of a cluster share. */
void table_channels_spanning(void) {
    static const int64_t shapes[][3] = {
        {3, 136, 336}, {2, 260, 784}, {5, 33, 272}, {1, 130, 304}, {2, 512, 336}};
    static const layout outs[] = {DENSE, PADDED};
    set_device(90, 2);
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < 5; i++)
            for (int t = 0; t < 3; t++) {
                norm_case c = channels_of(both[pass], i == 2 ? PLANISH_RMS : PLANISH_LAYER,
                                          shapes[i][0], shapes[i][1], shapes[i][2], types[t]);
                c.numbers = (i + t) % 2 ? MEAN_100 : OUTLIER;
                c.in = c.out = outs[(i + t) % 2];
                if (t == 1)
                    c.weight = c.grad = F32;
                if (i == 3)
                    c.stats = F64;
                emulate_case(c);
            }
}

/* Lines of several channels that one block has all of (backward), and rows over two blocks
 * (forward). */
void table_lines_and_halves(void) {
    static const struct {
        int64_t channels, pixels;
        element type;
    } shapes[] = {
        {256, 49, F16},  {512, 49, BF16}, {256, 25, F32},  {128, 81, F16},
        {64, 121, BF16}, {512, 9, F32},   {128, 98, BF16}, {32, 225, F16},
    };
    set_device(90, 2);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        norm_case c = channels_of(PLANISH_BACKWARD, i == 6 ? PLANISH_RMS : PLANISH_LAYER, 11,
                                  shapes[i].channels, shapes[i].pixels, shapes[i].type);
        if (i % 3 == 1)
            c.weight = c.grad = F32;
        c.numbers = i % 2 ? OUTLIER : NORMAL;
        emulate_case(c);
    }
    for (int i = 0; i < 4; i++) {
        norm_case c = rows_of(PLANISH_FORWARD, i == 1 ? PLANISH_RMS : PLANISH_LAYER, i == 3 ? 1 : 5,
                              i == 2 ? 26632 : 32768, i % 2 ? BF16 : F16);
        emulate_case(c);
    }
}
