/* Tables of the emulated cases: groups of channels, stored by channel and by pixel. */
#include "tables.h"

void table_groups(void) {
    static const int64_t shapes[][4] = {
        {3, 4, 8, 64},   {2, 32, 2, 196}, {2, 3, 5, 49},   {1, 1, 24, 100},
        {5, 40, 1, 81},  {3, 2, 12, 1},   {2, 2, 64, 400}, {4, 7, 3, 2},
        {2, 1, 9, 8192}, {6, 6, 1, 320},  {2, 5, 100, 9},  {2, 2, 8, 3136},
    };
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            for (int last = 0; last < 2; last++) {
                norm_case c = groups_of(both[pass], i % 4 == 3 ? PLANISH_RMS : PLANISH_LAYER,
                                        shapes[i], last, types[(i + (size_t)last) % 3]);
                set_device(i % 5 == 4 ? 80 : 90, 2);
                c.op.weight_offset = i == 6;
                if (i % 2)
                    c.weight = c.grad = F32;
                emulate_case(c);
            }
}

void table_groups_otherwise(void) {
    static const int64_t small[] = {5, 3, 8, 96}, odd[] = {5, 3, 5, 49}, large[] = {2, 2, 40, 1600};
    static const int64_t fifths[] = {1, 2, 5, 6000};
    set_device(90, 2);
    for (int last = 0; last < 2; last++) {
        for (int pass = 0; pass < 2; pass++) {
            static const unsigned drop[] = {HAS(BIAS), HAS(WEIGHT) | HAS(DBIAS), HAS(DX),
                                            HAS(DWEIGHT) | HAS(DBIAS), HAS(MEAN) | HAS(RSTD)};
            for (size_t i = 0; i < sizeof drop / sizeof *drop; i++) {
                norm_case c = groups_of(both[pass], PLANISH_LAYER, small, last, types[i % 3]);
                c.has &= ~drop[i];
                emulate_case(c);
            }
            for (int i = 0; i < 3; i++) {
                norm_case c = groups_of(both[pass], PLANISH_LAYER, i ? odd : small, last, types[i]);
                c.in = c.out = i == 2 ? PADDED : MISALIGNED;
                emulate_case(c);
            }
            norm_case c = groups_of(both[pass], PLANISH_LAYER, small, last, F16);
            c.y = F32;
            c.stats = F64;
            emulate_case(c);
            c = groups_of(both[pass], PLANISH_LAYER, large, last, F32);
            emulate_case(c);
            c = groups_of(both[pass], PLANISH_LAYER, fifths, last, F32);
            emulate_case(c);
        }
        for (numbers n = MEAN_100; n < NUMBERS_COUNT; n++)
            for (int t = 0; t < 3; t++) {
                norm_case c = groups_of(n % 2 ? PLANISH_FORWARD : PLANISH_BACKWARD, PLANISH_LAYER,
                                        t == 1 ? odd : small, last, types[t]);
                emulate_numbers(c, n);
            }
    }
    /* Groups of many channels in two reads, of few pieces and of many. */
    static const int64_t wide[][4] = {{2, 2, 40, 3000}, {1, 2, 75, 4099}, {1, 1, 33, 40000}};
    for (int i = 0; i < 6; i++) {
        set_device(80, 2);
        norm_case c = groups_of(PLANISH_BACKWARD, PLANISH_LAYER, wide[i / 2], i % 2, types[i % 3]);
        c.numbers = i == 3 ? MEAN_100 : NORMAL;
        emulate_case(c);
    }
}

/* Rows in tiles: an odd number of pixels and an even one, of which no chunks are whole; a row for a
 * block, several, or a cluster for a row, whose last block may have less. */
void table_group_tiles(void) {
    static const int64_t shapes[][4] = {
        {5, 6, 8, 49},    {7, 40, 1, 196}, {4, 3, 40, 225}, {4, 2, 10, 3025},
        {5, 2, 125, 225}, {270, 5, 3, 9},  {4, 64, 1, 15},  {4, 4, 5, 98},
        {4, 1, 7, 6001},  {5, 7, 2, 2},    {4, 3, 4, 13},
    };
    static const numbers of[] = {NORMAL,   MEAN_1E4,  OUTLIER,   MEAN_100,
                                 CONSTANT, SCALE_BIG, SCALE_TINY};
    static const layout outs[] = {DENSE, MISALIGNED, DENSE, PADDED, MISALIGNED};
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < 11; i++)
            for (int t = 0; t < 3; t++) {
                norm_case c = groups_of(both[pass], i % 4 == 3 ? PLANISH_RMS : PLANISH_LAYER,
                                        shapes[i], false, types[t]);
                set_device(i % 5 == 2 ? 80 : 90, 2);
                c.numbers = of[(i + t) % (pass ? 5 : 7)];
                c.op.eps = c.numbers == SCALE_TINY ? 0 : 1e-5;
                c.out = outs[(i + t) % 5];
                c.in = i % 4 == 3 ? DENSE : c.out; /* x and the output need not lie alike */
                c.op.weight_offset = i == 6;
                if ((i + t) % 2)
                    c.weight = c.grad = F32;
                if (i % 5 == 4)
                    c.has &= ~(t == 0   ? HAS(DX) | HAS(BIAS)
                               : t == 1 ? HAS(WEIGHT) | HAS(DWEIGHT)
                                        : HAS(DBIAS));
                emulate_case(c);
            }
}

/* Rows stored by channel that no cluster holds, over blocks anywhere (backward): whole channels or
 * parts of one, of which the last has less; several rows at once or one, blocks that take some one
 * after the other. */
void table_groups_anywhere(void) {
    static const large_groups works[] = {
        {{3, 4, 4, 3000}, 16, 30000}, {{2, 5, 8, 1040}, 16, 30000},  {{3, 3, 1, 9008}, 10, 30000},
        {{4, 2, 2, 8208}, 16, 36000}, {{2, 6, 12, 1600}, 24, 40000}, {{7, 1, 3, 2568}, 12, 30000},
    };
    static const numbers of[] = {NORMAL, MEAN_1E4, OUTLIER, MEAN_100, CONSTANT};
    enum { WORKS = sizeof works / sizeof *works };
    for (int i = 0; i < 3 * WORKS; i++) {
        const int which = i % WORKS;
        norm_case c = groups_of(PLANISH_BACKWARD, i % 7 == 6 ? PLANISH_RMS : PLANISH_LAYER,
                                works[which].shape, false, types[(i + i / WORKS) % 3]);
        set_device_of(&works[which]);
        c.numbers = of[i % 5];
        vary_groups(&c, i);
        if (i % 5 == 3)
            c.in = c.out = i % 2 ? PADDED : MISALIGNED;
        if (i % 11 == 5)
            c.has &= ~HAS(DX);
        if (i % 11 == 9)
            c.has &= ~(HAS(DWEIGHT) | HAS(DBIAS));
        emulate_case(c);
    }
}
