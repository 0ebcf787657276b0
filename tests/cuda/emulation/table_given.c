/* Tables of the emulated cases: backward and apply with statistics that are given. */
#include "tables.h"

/* A backward with statistics that are not x's own, in f32 and in another dtype; and with means that
 * are, off by an ULP or three. */
static void with_given(norm_case c) {
    static const struct {
        statistics given;
        double distance;
        numbers numbers;
    } kinds[] = {
        {RANDOM, 0, NORMAL}, {OFF_BY_ULPS, 3, MEAN_100},  {SHIFTED, 1, MEAN_100},
        {FROZEN, 0, NORMAL}, {OFF_BY_ULPS, -2, MEAN_1E4}, {SHIFTED, 100, NORMAL},
    };
    static const element others[] = {F64, BF16, F64, F16};
    static int turn;
    c.pass = PLANISH_BACKWARD;
    for (int i = 0; i < 4; i++) {
        const int k = i == 3 ? turn % 6 : turn % 2 * 3 + i;
        c.given = kinds[k].given;
        c.distance = kinds[k].distance;
        c.numbers = kinds[k].numbers;
        /* Where all results have 16 bits nothing is mended, and rows that are nearly constant show
         * it. */
        if (c.x != F64 && (turn % 3 || c.given == OFF_BY_ULPS))
            c.weight = c.grad = F32;
        if (i == 3)
            c.stats = others[turn % 4];
        /* 3 ULP of such a mean in 16 bits are more than f32 has digits for. */
        if (c.stats != F32 && c.stats != F64)
            c.numbers = NORMAL;
        emulate_case(c);
    }
    turn++;
}

void table_given_rows(void) {
    static const struct {
        int64_t rows, cols;
        element type;
    } works[] = {
        {407, 24, BF16}, {407, 65, F16},   {37, 385, BF16},  {37, 500, F16},  {43, 100, F32},
        {43, 512, F32},  {11, 1536, BF16}, {11, 4096, F32},  {301, 1, F32},   {43, 267, F64},
        {9, 8200, BF16}, {12, 5632, F16},  {6, 18440, BF16}, {5, 20000, F16},
    };
    enum { WORKS = sizeof works / sizeof *works };
    for (int i = 0; i < WORKS; i++) {
        set_device(i == WORKS - 1 ? 80 : 90, i < 10 ? 2 : 16);
        with_given(
            rows_of(PLANISH_BACKWARD, PLANISH_LAYER, works[i].rows, works[i].cols, works[i].type));
    }
    set_device(90, 10);
    sharing_of_rows = (sharing){5, 64, 2, 3, 1};
    with_given(rows_of(PLANISH_BACKWARD, PLANISH_LAYER, 13, 1300, F32));
    sharing_of_rows.group = 0;
}

void table_given_images(void) {
    static const int64_t channels_shapes[][3] = {{5, 24, 64},   {3, 17, 49},   {2, 1024, 49},
                                                 {2, 700, 196}, {2, 130, 304}, {11, 256, 49}};
    static const int64_t groups_shapes[][4] = {{3, 4, 8, 64},   {2, 3, 5, 49},    {2, 2, 64, 400},
                                               {2, 1, 9, 8192}, {4, 3, 40, 225},  {270, 5, 3, 9},
                                               {4, 7, 3, 2},    {1, 16, 10, 1601}};
    for (int i = 0; i < 6; i++) {
        set_device(i == 4 ? 80 : 90, 2);
        with_given(channels_of(PLANISH_BACKWARD, PLANISH_LAYER, channels_shapes[i][0],
                               channels_shapes[i][1], channels_shapes[i][2], types[i % 3]));
    }
    for (int i = 0; i < 16; i++) {
        set_device(i % 5 == 4 ? 80 : 90, 2);
        norm_case c = groups_of(PLANISH_BACKWARD, PLANISH_LAYER, groups_shapes[i / 2], i % 2,
                                types[(i + i / 2) % 3]);
        with_given(c);
        if (i % 3 == 1) {
            c.op.activation = i % 2 ? PLANISH_SILU : PLANISH_RELU;
            c.stats = F64;
            with_given(c);
        }
    }
    set_device(90, 16);
    limits.cooperative = 1; /* strips over blocks anywhere */
    with_given(groups_of(PLANISH_BACKWARD, PLANISH_LAYER, (int64_t[]){5, 8, 8, 1901}, true, F16));
    limits.max_cluster = 1;
    limits.shared_per_block = 36000;
    for (int i = 0; i < 4; i++) {
        norm_case c =
            groups_of(PLANISH_BACKWARD, PLANISH_LAYER,
                      (int64_t[]){2, 3, 2 << i % 2 * 2, 4800 >> i % 2 * 2}, false, types[i % 3]);
        c.op.activation = i == 3 ? PLANISH_SILU : PLANISH_IDENTITY;
        with_given(c);
    }
}

void table_given_otherwise(void) {
    set_device(90, 2);
    for (int i = 0; i < 4; i++) {
        norm_case c = rows_of(PLANISH_BACKWARD, PLANISH_LAYER, 9, 77, types[i]);
        c.in = c.out = INNER_STRIDE_2;
        c.op.activation = i % 2 ? PLANISH_SILU : PLANISH_IDENTITY;
        with_given(c);
        c.pass = PLANISH_APPLY;
        c.given = RANDOM;
        emulate_case(c);
    }
}
