/* Tables of the emulated cases: dense rows, by every way to share them. */
#include "tables.h"

/* Rows of 16 bits that go through shared memory in one piece: by a lane for each, or two to 32. */
void table_tiled(void) {
    static const int64_t cols[] = {6, 24, 33, 65, 100, 267, 385, 769};
    static const numbers of[] = {NORMAL, SCALE_MIXED, MEAN_1E4, SCALE_BIG, OUTLIER, CONSTANT};
    set_device(90, 2);
    for (int i = 0; i < 16; i++) {
        const int64_t n = cols[i % 8], rows = n < 30 ? 1203 : n < 70 ? 407 : 37;
        norm_case c = rows_of(PLANISH_FORWARD, i % 3 == 2 ? PLANISH_RMS : PLANISH_LAYER, rows, n,
                              i < 8 ? BF16 : F16);
        c.numbers = of[i % 6];
        c.in = i % 5 == 3 ? PADDED : i % 5 == 4 ? MISALIGNED : DENSE;
        emulate_case(c);
        c.pass = PLANISH_BACKWARD;
        if (n == 6 || n == 33 || n == 65)
            emulate_case(c);
    }
}

/* Rows of 16 bits whose lanes take runs of words: odd lengths, of which every second row begins
 * inside a word, and an even one; rows that end in the first element of a run, and in the last. */
void table_runs(void) {
    static const int64_t cols[] = {385, 769, 513, 1001, 500, 147, 387, 1023, 703, 1537};
    static const numbers of[] = {NORMAL, SCALE_MIXED, MEAN_1E4, SCALE_BIG, OUTLIER, CONSTANT};
    set_device(90, 1);
    for (int i = 0; i < 20; i++) {
        norm_case c = rows_of(PLANISH_FORWARD, i % 3 == 2 ? PLANISH_RMS : PLANISH_LAYER, 43,
                              cols[i % 10], i < 10 ? BF16 : F16);
        if (i % 4 == 1)
            c.shape[0] = 150;
        c.numbers = of[i % 6];
        c.in = i % 5 == 3 ? PADDED : i % 5 == 4 ? MISALIGNED : DENSE;
        if (i % 7 == 4)
            c.weight = c.grad = F32;
        emulate_case(c);
        c.pass = PLANISH_BACKWARD;
        emulate_case(c);
    }
}

/* Lengths that make every way to share a row: within a warp, in a block, ragged or not. */
void table_lengths(void) {
    static const int64_t cols[] = {1, 3, 24, 40, 100, 267, 512, 769, 1536, 4096};
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < sizeof cols / sizeof *cols; i++) {
            const int64_t rows = cols[i] < 100 ? 301 : cols[i] < 1000 ? 43 : 11;
            const planish_kind kind = i % 3 == 2 ? PLANISH_RMS : PLANISH_LAYER;
            /* rstd of f64 rows of 2 to 8 elements is off by up to 8 ULP (docs/guide/gpu.md). */
            const element other = cols[i] == 3 ? F32 : types[(i + 2) % 4];
            set_device(90, 2);
            emulate_case(rows_of(both[pass], kind, rows, cols[i], types[i % 3]));
            if (i % 2)
                emulate_case(rows_of(both[pass], PLANISH_LAYER, rows, cols[i], other));
        }
}

/* Rows whose weights are asked for before the statistics: in registers, in the L1, or not, where
 * they are misaligned; more rows than a block takes. */
void table_early(void) {
    static const int64_t cols[] = {1024, 640, 1536, 2048, 5120};
    static const element of[] = {BF16, F16, F32};
    set_device(90, 1);
    for (int i = 0; i < 20; i++) {
        const planish_kind kind = i % 2 ? PLANISH_RMS : PLANISH_LAYER;
        const int64_t n = cols[i / 2 % 5];
        norm_case c = rows_of(PLANISH_FORWARD, kind, n > 1024 ? 9 : 70, n, of[(i + i / 10) % 3]);
        if (i % 4 == 3)
            c.weight = F32;
        c.in = i % 7 == 4 ? MISALIGNED : DENSE;
        emulate_case(c);
    }
}

/* Rows that fill a cluster, or pass through shared memory, or are read twice. */
void table_long_rows(void) {
    set_device(90, 16);
    emulate_case(rows_of(PLANISH_FORWARD, PLANISH_LAYER, 5, 32768, F32));
    emulate_case(rows_of(PLANISH_FORWARD, PLANISH_LAYER, 5, 40008, F16));
    emulate_case(rows_of(PLANISH_BACKWARD, PLANISH_LAYER, 9, 8200, BF16));
    emulate_case(rows_of(PLANISH_BACKWARD, PLANISH_LAYER, 24, 5632, F16));   /* clusters of three */
    emulate_case(rows_of(PLANISH_BACKWARD, PLANISH_LAYER, 12, 18440, BF16)); /* read twice */
    emulate_case(rows_of(PLANISH_BACKWARD, PLANISH_RMS, 10, 28680, F16));
    norm_case misaligned = rows_of(PLANISH_BACKWARD, PLANISH_LAYER, 5, 18440, F16);
    misaligned.in = MISALIGNED;
    emulate_case(misaligned);
    emulate_case(rows_of(PLANISH_BACKWARD, PLANISH_RMS, 7, 8192, F32));
    emulate_case(rows_of(PLANISH_BACKWARD, PLANISH_LAYER, 5, 8193, F64));
    set_device(80, 2); /* no clusters */
    emulate_case(rows_of(PLANISH_FORWARD, PLANISH_LAYER, 5, 40960, F16));
    emulate_case(rows_of(PLANISH_FORWARD, PLANISH_RMS, 4, 90000, F32));
    emulate_case(rows_of(PLANISH_BACKWARD, PLANISH_LAYER, 5, 20000, F16));
    emulate_case(rows_of(PLANISH_BACKWARD, PLANISH_RMS, 4, 8195, F32));
}

/* Rows over groups of blocks anywhere on the device, as planned. */
void table_rows_cooperative(void) {
    set_device(90, 12);
    limits.cooperative = 1;
    emulate_case(rows_of(PLANISH_FORWARD, PLANISH_LAYER, 7, 20000, F32));
    emulate_case(rows_of(PLANISH_FORWARD, PLANISH_RMS, 9, 33800, BF16));
    emulate_case(rows_of(PLANISH_BACKWARD, PLANISH_LAYER, 7, 65540, F32)); /* one group */
    set_device(90, 34);
    limits.cooperative = 1;
    norm_case c = rows_of(PLANISH_BACKWARD, PLANISH_LAYER, 9, 131080, F16); /* two groups */
    c.numbers = MEAN_100;
    emulate_case(c);
}

/* The same of shorter rows, as no plan has them: rings and delays of every kind, more members than
 * a warp has lanes, one group and several, fewer rows than a ring holds. */
void table_rows_shared(void) {
    static const struct {
        sharing how;
        int chunks, groups;
    } works[] = {
        {{5, 64, 2, 3, 1}, 325, 2},   {{3, 96, 3, 4, 2}, 850, 3},   {{40, 64, 1, 4, 3}, 2531, 1},
        {{33, 64, 1, 6, 3}, 2112, 2}, {{70, 64, 1, 4, 1}, 4420, 1}, {{2, 160, 2, 5, 4}, 640, 1},
    };
    static const numbers of[] = {NORMAL, MEAN_1E4, SCALE_BIG, SCALE_MIXED, MEAN_100, CONSTANT};
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < 18; i++) {
            const element type = types[(i + i / 6) % 3];
            const int w = i % 6, width = type == F32 ? 4 : 8;
            norm_case c = rows_of(both[pass], i % 5 == 3 ? PLANISH_RMS : PLANISH_LAYER,
                                  i % 7 == 2 ? 2 : 11 + i, (int64_t)works[w].chunks * width, type);
            set_device(i % 4 == 1 ? 80 : 90, works[w].how.group * works[w].groups);
            sharing_of_rows = works[w].how;
            c.numbers = of[(i + pass) % 6];
            if (i % 8 == 5)
                c.in = c.out = i % 2 ? PADDED : MISALIGNED;
            if (i % 9 == 4)
                c.has &= ~(pass ? HAS(DBIAS) : HAS(BIAS));
            if (i % 6 == 1)
                c.weight = c.grad = F32;
            emulate_case(c);
        }
    sharing_of_rows.group = 0;
}

/* An outlier in a row's first chunk, in rows of every way to share them. */
void table_outliers(void) {
    static const int64_t cols[] = {64, 100, 264, 512, 768, 1096, 2048, 4096, 8192, 16384};
    set_device(90, 2);
    for (size_t i = 0; i < sizeof cols / sizeof *cols; i++) {
        norm_case c = rows_of(PLANISH_FORWARD, PLANISH_LAYER, 5, cols[i], types[i % 2]);
        c.numbers = OUTLIER;
        emulate_case(c);
    }
}

/* Few rows on a large device, which load weight and bias early; and many on a small one. */
void table_row_counts(void) {
    for (int pass = 0; pass < 2; pass++) {
        set_device(90, 132);
        emulate_case(rows_of(both[pass], PLANISH_LAYER, 1, 1024, F16));
        emulate_case(rows_of(both[pass], PLANISH_LAYER, 5, 40, F32));
        set_device(90, 1);
        emulate_case(rows_of(both[pass], PLANISH_LAYER, 64, 2048, BF16));
        emulate_case(rows_of(both[pass], PLANISH_LAYER, 2000, 24, F16));
        emulate_case(rows_of(both[pass], PLANISH_LAYER, 0, 24, F16));
    }
    /* More rows than blocks: a ring of rows to come. */
    set_device(90, 1);
    emulate_case(rows_of(PLANISH_FORWARD, PLANISH_LAYER, 300, 512, F16));
    emulate_case(rows_of(PLANISH_FORWARD, PLANISH_LAYER, 13, 8192, F32));
    emulate_case(rows_of(PLANISH_FORWARD, PLANISH_RMS, 9, 16400, F16));
    set_device(80, 1);
    emulate_case(rows_of(PLANISH_FORWARD, PLANISH_LAYER, 12, 4096, F32));
}

/* Rows of 16 bits within warps, so many that a lane takes several, and a rest. */
void table_centred(void) {
    static const int64_t cols[] = {24, 72, 100, 200, 511, 512};
    static const numbers of[] = {NORMAL, MEAN_1E4, OUTLIER, CONSTANT, MEAN_100, SCALE_BIG};
    set_device(90, 1);
    for (int i = 0; i < 12; i++) {
        const int64_t n = cols[i % 6], rows = n < 50 ? 1003 : n < 101 ? 403 : 107;
        norm_case c = rows_of(PLANISH_FORWARD, i % 4 == 2 ? PLANISH_RMS : PLANISH_LAYER, rows, n,
                              i < 6 ? F16 : BF16);
        c.numbers = i < 6 ? of[i] : SCALE_MIXED;
        c.in = i % 5 == 3 ? PADDED : i % 5 == 4 ? MISALIGNED : DENSE;
        if (i == 8)
            c.y = F32;
        emulate_case(c);
    }
}

void table_outputs_and_dtypes(void) {
    set_device(90, 2);
    for (int pass = 0; pass < 2; pass++) {
        const unsigned all = rows_case(both[pass], PLANISH_LAYER, 1, 1).has;
        static const unsigned drop[] = {HAS(WEIGHT) | HAS(BIAS) | HAS(MEAN) | HAS(RSTD), HAS(BIAS),
                                        HAS(WEIGHT) | HAS(DBIAS), HAS(DX),
                                        HAS(DWEIGHT) | HAS(DBIAS)};
        for (size_t i = 0; i < sizeof drop / sizeof *drop; i++) {
            norm_case c = rows_of(both[pass], PLANISH_LAYER, 29, 96, F16);
            c.has = all & ~drop[i];
            if (both[pass] == PLANISH_FORWARD && i > 2)
                continue;
            emulate_case(c);
        }
        norm_case c = rows_of(both[pass], PLANISH_LAYER, 29, 200, BF16);
        c.weight = c.grad = F32;
        c.op.weight_offset = 1;
        emulate_case(c);
        c = rows_of(both[pass], PLANISH_LAYER, 13, 1024, F16);
        c.y = F32;
        c.stats = F64;
        emulate_case(c);
        c = rows_of(both[pass], PLANISH_RMS, 13, 768, F32);
        c.y = BF16;
        c.stats = BF16;
        c.weight = F64;
        emulate_case(c);
    }
}

/* Alignments of 2 to 16 bytes, and gaps between rows. */
void table_layouts(void) {
    static const layout in[] = {MISALIGNED, PADDED, BROADCAST_FIRST};
    set_device(90, 2);
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < 3; i++)
            for (int t = 0; t < 2; t++) {
                norm_case c = rows_of(both[pass], PLANISH_LAYER, 17, i ? 520 : 1032, types[2 * t]);
                c.in = in[i];
                c.out = in[(i + 1) % 2];
                c.params = i == 2 ? MISALIGNED : DENSE;
                emulate_case(c);
            }
}

void table_all_numbers(void) {
    set_device(90, 2);
    for (numbers n = MEAN_100; n < NUMBERS_COUNT; n++)
        for (int t = 0; t < 3; t++) {
            norm_case c = rows_of(n % 2 ? PLANISH_FORWARD : PLANISH_BACKWARD, PLANISH_LAYER, 9,
                                  t == 1 ? 96 : 1024, types[t]);
            c.numbers = n;
            c.op.eps = n == SCALE_TINY
                           ? 0
                           : 1e-5; /* rstd of subnormal rows is no float (docs/guide/gpu.md) */
            emulate_case(c);
            if (n == SCALE_BIG || n == SCALE_TINY || n == MEAN_1E4) {
                c.pass = PLANISH_FORWARD;
                emulate_case(c);
            }
        }
}
