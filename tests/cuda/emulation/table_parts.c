/* Tables of the emulated cases: the passes over dense rows of which each device has a part. */
#include "tables.h"

/* A case's four passes: statistics, what they are applied to, and the halves of a backward. */
static void in_four_passes(norm_case c, int i) {
    static const numbers of[] = {NORMAL,   MEAN_1E4,    SCALE_BIG, OUTLIER,
                                 CONSTANT, SCALE_MIXED, MEAN_100,  SCALE_TINY};
    const unsigned weights = HAS(WEIGHT) | HAS(DWEIGHT), bias = HAS(BIAS) | HAS(DBIAS);
    for (planish_pass pass = PLANISH_STATISTICS; pass <= PLANISH_BACKWARD_STATISTICS; pass++) {
        norm_case now = rows_of(pass, c.op.kind, c.shape[0], c.shape[1], c.x);
        now.weight = now.grad = c.weight;
        now.op.weight_offset = c.op.weight_offset;
        now.in = c.in;
        now.out = c.out;
        now.numbers = c.x == F64 ? NORMAL : of[i % 8];
        now.stats = F64;
        if (pass != PLANISH_STATISTICS)
            now.has &= ~(i % 5 == 2   ? weights
                         : i % 5 == 3 ? bias
                         : i % 5 == 4 ? weights | bias
                                      : 0);
        if (pass == PLANISH_BACKWARD_STATISTICS && i % 3 == 1) {
            now.given = SHIFTED;
            now.distance = .5;
        }
        emulate_case(now);
        if (pass != PLANISH_BACKWARD_STATISTICS)
            continue;
        now.pass = PLANISH_BACKWARD;
        now.has |= HAS(C1) | HAS(C2) | HAS(DX);
        if (i % 2)
            now.has &= ~(HAS(DWEIGHT) | HAS(DBIAS));
        emulate_case(now);
    }
}

/* Lengths that make every way to share a row, of whole chunks and of odd ones. */
void table_parts(void) {
    static const struct {
        int64_t rows, cols;
        element type;
    } works[] = {
        {37, 100, BF16}, {43, 1000, F16},  {5, 4097, BF16}, {11, 4096, BF16}, {301, 24, F32},
        {1, 8192, F16},  {403, 65, F16},   {70, 512, BF16}, {19, 1024, F32},  {9, 8200, BF16},
        {43, 267, F64},  {300, 1, F32},    {8, 1536, F16},  {7, 5632, F16},   {3, 8195, F32},
        {64, 2048, F16}, {1003, 24, BF16}, {2, 40008, F16}, {0, 24, F16},     {5, 769, F32},
    };
    for (int i = 0; i < 20; i++) {
        norm_case c = rows_of(PLANISH_FORWARD, i % 2 ? PLANISH_RMS : PLANISH_LAYER, works[i].rows,
                              works[i].cols, works[i].type);
        set_device(i % 6 == 5 ? 80 : 90, i % 3 == 0 ? 2 : i % 3 == 1 ? 1 : 16);
        c.in = c.out = i % 7 == 3 ? PADDED : i % 7 == 5 ? MISALIGNED : DENSE;
        if (i % 4 == 1 && c.x != F64)
            c.weight = F32;
        c.op.weight_offset = i % 9 == 4;
        in_four_passes(c, i + i / 8);
    }
}

/* Statistics that are given with fewer digits, and weights of other dtypes. */
void table_parts_otherwise(void) {
    static const element stats[] = {F32, F32, BF16, F64};
    static const planish_pass passes[] = {PLANISH_STATISTICS, PLANISH_APPLY,
                                          PLANISH_BACKWARD_STATISTICS, PLANISH_BACKWARD};
    set_device(90, 2);
    for (int i = 0; i < 12; i++) {
        norm_case c = rows_of(passes[i % 4], PLANISH_LAYER, 13, i % 3 ? 1000 : 90, types[i / 4]);
        c.stats = stats[i % 4 ? i / 4 : 3];
        c.given = i % 4 ? RANDOM : OWN;
        c.weight = types[(i / 4 + 1) % 3];
        if (i % 4 == 3)
            c.has |= HAS(C1) | HAS(C2);
        emulate_case(c);
    }
}
