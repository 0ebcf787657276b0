/* Tables of the emulated cases: the general kernels, over any axes and layouts. */
#include <string.h>

#include "tables.h"

/* The passes but FORWARD and BACKWARD alone; of dense rows others take all but that from y
 * (table_parts.c). */
void table_other_passes(void) {
    static const int64_t shapes[][2] = {{37, 100}, {5, 1030}, {67, 5}};
    set_device(90, 2);
    for (planish_pass pass = PLANISH_BACKWARD_FROM_Y; pass <= PLANISH_BACKWARD_STATISTICS; pass++)
        for (int i = 0; i < 6; i++) {
            norm_case c = rows_of(pass, i % 2 ? PLANISH_RMS : PLANISH_LAYER, shapes[i % 3][0],
                                  shapes[i % 3][1], types[i % 4]);
            if (pass >= PLANISH_STATISTICS) {
                c.stats = F64;
                c.in = c.out = INNER_STRIDE_2;
            }
            if (pass == PLANISH_BACKWARD_STATISTICS) {
                c.given = SHIFTED;
                c.distance = .5;
            }
            c.op.weight_offset = i == 4;
            emulate_case(c);
            if (pass != PLANISH_BACKWARD_STATISTICS)
                continue;
            c.pass = PLANISH_BACKWARD; /* the other half */
            c.has |= HAS(C1) | HAS(C2);
            emulate_case(c);
        }
}

void table_any_layout(void) {
    static const layout in[] = {INNER_STRIDE_2, PERMUTED,      REVERSED,
                                BROADCAST_LAST, BROADCAST_ALL, CHANNELS_LAST};
    set_device(90, 2);
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < 6; i++) {
            norm_case c = rows_of(both[pass], PLANISH_LAYER, 12, 70, types[i % 3]);
            c.ndim = 3;
            c.shape[2] = 9;
            c.op.reduce_axes = c.op.affine_axes = i % 2 ? 6 : 4;
            c.in = in[i];
            c.out = in[i % 3];
            c.params = i == 2 ? REVERSED : DENSE;
            emulate_case(c);
        }
}

/* Channels, groups, instances, weights; affine axes inside the row, outside, both and none. */
void table_any_axes(void) {
    static const struct {
        int ndim;
        int64_t shape[5];
        uint64_t reduce, affine;
    } problems[] = {
        {4, {4, 24, 5, 6}, 2, 2}, {5, {4, 3, 8, 5, 6}, 28, 6}, {4, {4, 6, 9, 11}, 12, 2},
        {3, {33, 7, 40}, 5, 7},   {4, {5, 6, 7, 8}, 10, 5},    {2, {40, 300}, 1, 2},
        {3, {4, 50, 60}, 4, 0},   {3, {6, 1, 41}, 6, 4},       {2, {5, 0}, 2, 2},
        {2, {5, 0}, 2, 1},        {3, {0, 4, 8}, 4, 2},        {5, {4, 2, 3, 40, 2}, 24, 14},
    };
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
        for (planish_pass pass = PLANISH_FORWARD; pass <= PLANISH_BACKWARD_FROM_Y; pass++) {
            norm_case c = rows_of(pass, i % 4 == 3 ? PLANISH_RMS : PLANISH_LAYER, 1, 1,
                                  types[(i + pass) % 4]);
            c.ndim = problems[i].ndim;
            memcpy(c.shape, problems[i].shape, sizeof problems[i].shape);
            c.op.reduce_axes = problems[i].reduce;
            c.op.affine_axes = problems[i].affine;
            c.in = c.out = i % 3 == 1 ? CHANNELS_LAST : DENSE;
            c.full_rank = i % 2;
            if (i == 3 || i == 5) {
                c.weight = F32;
                c.grad = F64;
                c.y = F32;
            }
            set_device(90, i == 3 ? 20 : 2);
            emulate_case(c);
        }
    /* Saved means that were rounded by much: one of seven runs in each share of the cases. */
    set_device(90, 2);
    for (int i = 0; i < 7; i++) {
        norm_case c = rows_of(PLANISH_BACKWARD, PLANISH_LAYER, 1, 1, F32);
        c.ndim = 4;
        memcpy(c.shape, (int64_t[]){2 + i, 6, 7, 8}, 4 * sizeof *c.shape);
        c.op.reduce_axes = 10;
        c.op.affine_axes = 5;
        c.in = c.out = INNER_STRIDE_2;
        c.numbers = MEAN_1E4;
        emulate_case(c);
    }
}
