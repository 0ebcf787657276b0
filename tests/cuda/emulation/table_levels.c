/*
 * Rows that two or three strides lead to, as those of heads in packed queries, keys and values: of
 * every kind of kernel that takes them, with one weight or, in slices, one for each head.
 */
#include <string.h>

#include "tables.h"

void table_levels(void) {
    static const int64_t cols[] = {64, 96, 128, 72, 256, 77, 600, 33, 1024, 385, 4096, 40};
    static const numbers of[] = {NORMAL, MEAN_1E4, SCALE_MIXED, OUTLIER, MEAN_100, SCALE_BIG};
    for (int i = 0; i < 72; i++) {
        const int64_t n = cols[i % 12];
        norm_case c = rows_of(both[i / 12 % 2], i % 3 == 1 ? PLANISH_RMS : PLANISH_LAYER, 0, n,
                              types[(i + i / 12) % (n > 1000 ? 3 : 4)]);
        const bool batch = i % 4 > 1; /* three levels, where both cannot be seen as two */
        const bool own = i / 24 == 1; /* weights of each head */
        const int64_t heads = i % 5 == 4 ? 8 : 3, tokens = n > 500 ? 5 : n > 200 ? 17 : 43;
        c.ndim = batch ? 4 : 3;
        c.shape[0] = batch ? 3 : tokens;
        c.shape[1] = heads;
        c.shape[batch ? 2 : 1] = batch ? tokens : heads;
        c.shape[c.ndim - 1] = n;
        c.op.reduce_axes = (uint64_t)1 << (c.ndim - 1);
        c.op.affine_axes = c.op.reduce_axes | (own ? 2 : 0);
        c.in = batch && i % 7 ? PACKED_HEADS : PACKED;
        c.out = i % 3 == 2 ? c.in : i % 11 == 6 ? PADDED : DENSE;
        c.numbers = of[(i + i / 12) % 6];
        if (c.x == F64)
            c.numbers = NORMAL;
        if (i % 8 == 5)
            c.weight = c.grad = F32;
        if (i % 10 == 9)
            c.has &= ~(HAS(WEIGHT) | HAS(DWEIGHT) | HAS(BIAS) | HAS(DBIAS));
        if (i % 13 == 7)
            c.has &= ~HAS(DX);
        if (i % 9 == 2) {
            c.op.activation = i % 2 ? PLANISH_GELU : PLANISH_SILU;
            c.stats = F64;
        }
        set_device(i % 6 == 5 ? 80 : 90, i % 2 ? 2 : 7);
        emulate_case(c);
    }
}
