/* Tables of the emulated cases: groups stored by pixel, in strips over one block or several. */
#include "tables.h"

/* Channels last, in strips over clusters: whole and part chunks of a group, a last strip that is
 * cut, a block without its last pixels. */
void table_strips(void) {
    static const int64_t shapes[][4] = {
        {1, 16, 10, 1601}, {1, 40, 2, 2499}, {3, 3, 40, 700}, {1, 48, 1, 2000}, {2, 1, 96, 901},
    };
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            for (int t = 0; t < 2; t++) {
                norm_case c = groups_of(both[pass], i == 2 ? PLANISH_RMS : PLANISH_LAYER, shapes[i],
                                        true, types[(i + (size_t)t) % 3]);
                set_device(90, 2);
                c.numbers = i % 2 ? OUTLIER : MEAN_100;
                if (t)
                    c.weight = c.grad = F32;
                emulate_case(c);
            }
    /* Rows beyond float's range beside others, so that a strip is summed again. */
    norm_case c = groups_of(PLANISH_FORWARD, PLANISH_LAYER, shapes[1], true, BF16);
    c.numbers = SCALE_BIG;
    emulate_case(c);
    c.numbers = SCALE_TINY;
    c.op.eps = 0;
    emulate_case(c);
}

/* Strips that one block holds, or a few where groups are many: small images, groups of a few
 * channels of which a chunk has several or parts, last strips that are cut, few pixels. */
void table_strips_over_few(void) {
    static const int64_t shapes[][4] = {
        {3, 32, 8, 49}, {5, 48, 1, 49},  {2, 32, 3, 100},  {2, 24, 5, 60},  {2, 37, 8, 33},
        {7, 16, 2, 4},  {2, 134, 1, 30}, {1, 96, 1, 1900}, {3, 3, 128, 30}, {4, 300, 1, 9},
    };
    static const numbers of[] = {NORMAL, OUTLIER, MEAN_1E4, MEAN_100};
    for (int i = 0; i < 40; i++) {
        norm_case c = groups_of(both[i / 20], i % 7 == 6 ? PLANISH_RMS : PLANISH_LAYER,
                                shapes[i % 10], true, types[(i + i / 10) % 3]);
        set_device(i % 10 == 2 ? 80 : 90, 2);
        c.numbers = of[i % 4];
        vary_groups(&c, i);
        if (i % 11 == 5)
            c.has &= ~(HAS(BIAS) | HAS(DBIAS));
        if (i % 9 == 7)
            c.in = c.out = i % 2 ? PADDED : MISALIGNED;
        emulate_case(c);
    }
    for (int i = 0; i < 4; i++)
        emulate_case(beyond_range_of(shapes[i], i));
    static const int64_t many[] = {300, 128, 1, 4}; /* rows, of which some err more than most */
    for (int i = 0; i < 2; i++) {
        norm_case c = groups_of(PLANISH_FORWARD, PLANISH_LAYER, many, true, F32);
        c.op.activation = i ? PLANISH_SILU : PLANISH_IDENTITY;
        c.stats = F64;
        emulate_case(c);
    }
}

void table_strips_without_clusters(void) {
    without_clusters = true;
    table_strips();
    without_clusters = false;
}

/* A device that has room for strips over blocks anywhere, which few images do not need: slices are
 * in a cluster then. */
void table_strips_as_planned(void) {
    static const struct {
        int64_t shape[4];
        planish_pass pass;
        element type;
        int multiprocessors;
    } works[] = {
        {{5, 8, 8, 1901}, PLANISH_BACKWARD, F16, 16}, {{9, 4, 8, 1901}, PLANISH_BACKWARD, F32, 16},
        {{5, 4, 8, 3701}, PLANISH_FORWARD, F32, 16},  {{1, 8, 8, 7500}, PLANISH_BACKWARD, BF16, 64},
        {{1, 8, 10, 3001}, PLANISH_FORWARD, F16, 16}, {{9, 8, 10, 2905}, PLANISH_BACKWARD, F16, 32},
    };
    for (size_t i = 0; i < sizeof works / sizeof *works; i++) {
        norm_case c = groups_of(works[i].pass, PLANISH_LAYER, works[i].shape, true, works[i].type);
        set_device(90, works[i].multiprocessors);
        limits.cooperative = 1;
        c.weight = c.grad = F32;
        c.numbers = MEAN_100;
        emulate_case(c);
    }
}

/* An outlier among the few pixels of a strip, whose pivot is far from all others'. */
void table_strips_outliers(void) {
    static const int64_t shapes[][4] = {
        {5, 48, 1, 49}, {5, 48, 1, 196}, {5, 8, 4, 49}, {4, 3, 16, 25}, {2, 32, 8, 81}};
    set_device(90, 2);
    for (int i = 0; i < 5; i++)
        for (int t = 0; t < 3; t++)
            for (int again = 0; again < 4; again++) {
                norm_case c = groups_of(PLANISH_FORWARD, PLANISH_LAYER, shapes[i], true, types[t]);
                c.numbers = OUTLIER;
                emulate_case(c);
            }
}

/* Images of which no cluster holds a strip, over all of a device: all steps of a thread in shared
 * memory or some, one strip at a time or several, blocks that a warp looks at more than once, a
 * last strip that is cut, images that take their turns. */
void table_strips_large(void) {
    static const large_groups works[] = {
        {{1, 8, 4, 3001}, 3, 90000},  {{3, 16, 1, 1900}, 2, 70000}, {{2, 6, 10, 1501}, 2, 90000},
        {{5, 4, 8, 1301}, 4, 60000},  {{1, 24, 2, 2300}, 5, 80000}, {{2, 1, 40, 1103}, 2, 90000},
        {{1, 8, 4, 6001}, 40, 13000}, {{4, 3, 16, 1277}, 4, 44000},
    };
    static const numbers of[] = {NORMAL, MEAN_1E4, OUTLIER, MEAN_100, CONSTANT};
    enum { WORKS = sizeof works / sizeof *works };
    for (int i = 0; i < 3 * WORKS; i++)
        for (int pass = 0; pass < 2; pass++) {
            const int which = i % WORKS;
            norm_case c = groups_of(both[pass], i % 7 == 6 ? PLANISH_RMS : PLANISH_LAYER,
                                    works[which].shape, true, types[(i + i / WORKS + pass) % 3]);
            set_device_of(&works[which]);
            c.numbers = of[(i + pass) % 5];
            vary_groups(&c, i);
            if (i % 5 == 3)
                c.in = c.out = i % 2 ? PADDED : MISALIGNED;
            if (i % 11 == 5)
                c.has &= ~(pass ? HAS(DX) : HAS(WEIGHT) | HAS(BIAS));
            if (i % 11 == 9)
                c.has &= ~(HAS(BIAS) | HAS(DBIAS));
            emulate_case(c);
        }
    for (int i = 0; i < 4; i++) {
        set_device_of(&works[i]);
        emulate_case(beyond_range_of(works[i].shape, i));
    }
    /* Words of mail behind the sums of an odd number of channels and pieces. */
    static const large_groups odd = {{3, 31, 1, 3001}, 4, 100000};
    for (int pass = 0; pass < 2; pass++) {
        set_device_of(&odd);
        emulate_case(groups_of(both[pass], PLANISH_LAYER, odd.shape, true, F32));
    }
}

/* Of strips that a block takes one after the other most is summed before the one in front of it is
 * written: parts of all numbers, all held or not, an activation whose gradient is kept or not. */
void table_strips_ahead(void) {
    static const large_groups works[] = {
        {{2, 16, 4, 2600}, 2, 180000}, {{2, 12, 1, 3000}, 2, 100000}, {{2, 3, 20, 1700}, 2, 70000},
        {{3, 8, 4, 4001}, 3, 120000},  {{1, 40, 2, 1499}, 2, 160000},
    };
    static const numbers of[] = {NORMAL, MEAN_1E4, OUTLIER, MEAN_100};
    enum { WORKS = sizeof works / sizeof *works };
    summed_ahead = true;
    for (int i = 0; i < 3 * WORKS; i++)
        for (int pass = 0; pass < 2; pass++) {
            const int which = i % WORKS;
            norm_case c = groups_of(both[pass], i % 7 == 6 ? PLANISH_RMS : PLANISH_LAYER,
                                    works[which].shape, true, types[(i / WORKS + i + pass) % 3]);
            set_device_of(&works[which]);
            c.numbers = of[i % 4];
            if (i % 3 == 1)
                c.weight = c.grad = F32;
            if (i % 4 == 1) {
                c.op.activation = i % 8 == 1 ? PLANISH_SILU : PLANISH_GELU;
                c.stats = F64;
            }
            emulate_case(c);
        }
    norm_case c = groups_of(PLANISH_FORWARD, PLANISH_LAYER, works[0].shape, true, BF16);
    c.numbers = SCALE_MIXED;
    emulate_case(c);
    without_clusters = true;
    table_strips_as_planned();
    without_clusters = summed_ahead = false;
}
