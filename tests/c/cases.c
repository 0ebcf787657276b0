/* Cases of the tables, not yet made into tensors; see cases.h. */
#include "cases.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kinds.h"

static const char *const numbers_names[NUMBERS_COUNT] = {
    "normal",   "mean 100", "mean 1e4",  "scale big",   "scale tiny",
    "constant", "outlier",  "subnormal", "scale mixed", "beginning",
};
static const char *const statistics_names[STATISTICS_COUNT] = {
    "own", "own by f32", "random", "frozen", "shifted", "off by ULP", "own, whole",
};
static const char *const pass_names[] = {
    "forward", "backward", "backward from y", "statistics", "apply", "backward statistics",
};

const char *numbers_name(numbers n) {
    return numbers_names[n];
}

norm_case bare_case(planish_pass pass, planish_kind kind, int64_t rows, int64_t cols) {
    return (norm_case){
        .pass = pass,
        .op = planish_last_axes_op(kind, 2, 1, 1e-5),
        .ndim = 2,
        .shape = {rows, cols},
        .has = HAS(Y) | HAS(RSTD),
        .weight_spread = 1,
        .given = OWN_WHOLE,
        .seed = 1,
    };
}

norm_case rows_case(planish_pass pass, planish_kind kind, int64_t rows, int64_t cols) {
    norm_case c = bare_case(pass, kind, rows, cols);
    c.weight_spread = 0;
    c.given = OWN;
    c.one_draw = true;
    c.has |= HAS(WEIGHT) | HAS(BIAS) | HAS(MEAN) | HAS(DX) | HAS(DWEIGHT) | HAS(DBIAS);
    return c;
}

norm_case image_case(planish_pass pass, planish_kind kind, image_layer layer, int64_t batch,
                     int64_t channels, int64_t height, int64_t width, int64_t groups) {
    norm_case c = rows_case(pass, kind, 1, 1);
    const bool grouped = layer == GROUP_NORM;
    const int64_t image[] = {batch, channels, height, width};
    const int64_t view[] = {batch, groups, channels / groups, height, width};
    c.ndim = grouped ? 5 : 4;
    memcpy(c.shape, grouped ? view : image, (size_t)c.ndim * sizeof *c.shape);
    c.op.reduce_axes = layer == CHANNEL_NORM ? 0x2 : grouped ? 0x1c : 0xc;
    c.op.affine_axes = grouped ? 0x6 : 0x2;
    return c;
}

void case_set_length(norm_case *c) {
    double cols = 1;
    for (int i = 0; i < c->ndim; i++)
        cols *= c->op.reduce_axes >> i & 1 ? (double)c->shape[i] : 1;
    c->op.eps = sqrt(cols);
}

void case_set_types(norm_case *c, element all) {
    c->x = c->dx = c->y = c->residual = c->sum = c->stages = c->weight = c->grad = all;
    c->stats = all == F64 ? F64 : F32;
}

element part_type(const norm_case *c, part p) {
    switch (p) {
    case X:
        return c->x;
    case DX:
    case DRESIDUAL:
        return c->dx;
    case Y:
    case DY:
        return c->y;
    case RESIDUAL:
        return c->residual;
    case SUM:
        return c->sum;
    case GATE:
    case DGATE:
    case DSUM:
    case BRANCH:
        return c->stages;
    case DWEIGHT:
    case DBIAS:
    case DSCALE:
    case DSHIFT:
    case DCOLUMN_SCALE:
        return c->grad;
    case MEAN:
    case RSTD:
    case M2:
    case C1:
    case C2:
        return c->stats;
    case Y_SCALE:
    case Y_SCALES:
    case AMAX:
        return F32;
    default:
        return c->weight;
    }
}

const char *case_text(const norm_case *c, char *text, size_t bytes) {
    static const char *const activations[] = {"",           "+silu",  "+relu",     "+gelu",
                                              "+gelu_tanh", "+relu6", "+hardswish"};
    size_t n = (size_t)snprintf(text, bytes, "%s %s%s", pass_names[c->pass], kind_text(c->op.kind),
                                activations[c->op.activation]);
    for (int i = 0; i < c->ndim && n < bytes; i++)
        n += (size_t)snprintf(text + n, bytes - n, "%s%lld", i ? "x" : " ", (long long)c->shape[i]);
    if (n < bytes)
        snprintf(text + n, bytes - n,
                 " R=%llx A=%llx eps=%g offset=%d x=%s y=%s w=%s dw=%s stats=%s has=%llx in=%s "
                 "out=%s params=%s%s numbers=%s given=%s %g dy=%g+-%g seed=%llu",
                 (unsigned long long)c->op.reduce_axes, (unsigned long long)c->op.affine_axes,
                 c->op.eps, c->op.weight_offset, element_name(c->x), element_name(c->y),
                 element_name(c->weight), element_name(c->grad), element_name(c->stats),
                 (unsigned long long)c->has, layout_name(c->in), layout_name(c->out),
                 layout_name(c->params), c->full_rank ? " full rank" : "", numbers_name(c->numbers),
                 statistics_names[c->given], c->distance, c->dy_center, c->dy_spread,
                 (unsigned long long)c->seed);
    return text;
}
