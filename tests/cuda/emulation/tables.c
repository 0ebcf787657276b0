#include "tables.h"

#include "../../c/values.h"

norm_case rows_of(planish_pass pass, planish_kind kind, int64_t rows, int64_t cols, element type) {
    norm_case c = rows_case(pass, kind, rows, cols);
    case_set_types(&c, type);
    return c;
}

norm_case channels_of(planish_pass pass, planish_kind kind, int64_t images, int64_t channels,
                      int64_t pixels, element type) {
    norm_case c = rows_of(pass, kind, 1, 1, type);
    c.ndim = 3;
    c.shape[0] = images;
    c.shape[1] = channels;
    c.shape[2] = pixels;
    c.op.reduce_axes = c.op.affine_axes = 2;
    return c;
}

norm_case groups_of(planish_pass pass, planish_kind kind, const int64_t *n, bool last,
                    element type) {
    norm_case c = rows_of(pass, kind, 1, 1, type);
    c.ndim = 4;
    for (int i = 0; i < 4; i++)
        c.shape[i] = n[i];
    if (last) {
        c.shape[1] = n[3];
        c.shape[2] = n[1];
        c.shape[3] = n[2];
    }
    c.op.reduce_axes = last ? 10 : 12;
    c.op.affine_axes = last ? 12 : 6;
    return c;
}

void set_device_of(const large_groups *work) {
    set_device(90, work->multiprocessors);
    limits.cooperative = limits.max_cluster = 1;
    limits.shared_per_block = work->shared;
}

planish_activation activation_in_turn(int i) {
    static const planish_activation turn[] = {PLANISH_SILU,      PLANISH_RELU6, PLANISH_GELU,
                                              PLANISH_RELU,      PLANISH_SILU,  PLANISH_GELU_TANH,
                                              PLANISH_HARDSWISH, PLANISH_RELU};
    return turn[i % 8];
}

void vary_groups(norm_case *c, int i) {
    c->op.weight_offset = i == 4;
    if (i % 3 == 1)
        c->weight = c->grad = F32;
    if (i % 4 == 2) {
        c->op.activation = i % 8 == 2 ? PLANISH_SILU : PLANISH_RELU;
        c->stats = F64;
    }
}

norm_case beyond_range_of(const int64_t *shape, int i) {
    norm_case c = groups_of(PLANISH_FORWARD, PLANISH_LAYER, shape, true, i % 2 ? F32 : BF16);
    c.numbers = i < 2 ? SCALE_MIXED : i == 2 ? SCALE_BIG : SCALE_TINY;
    c.op.eps = c.numbers == SCALE_TINY ? 0 : 1e-5;
    return c;
}
