/* The tensors of a pass; see parts.h. */
#include "parts.h"

#include <stddef.h>

const char *part_name(part p) {
    return planish_tensor_name((int)p);
}

const DLTensor **tensors_field(planish_tensors *t, part p) {
    char *first = (char *)t + offsetof(planish_tensors, x);
    return (const DLTensor **)(void *)first + p;
}

void **buffers_field(planish_buffers *b, part p) {
    char *first = (char *)b + offsetof(planish_buffers, x);
    return (void **)(void *)first + p;
}

/* ---- Shapes --------------------------------------------------------------------------------- */

static const uint64_t full_parts = HAS(X) | HAS(Y) | HAS(DY) | HAS(DX) | HAS(RESIDUAL) | HAS(SUM) |
                                   HAS(GATE) | HAS(MASK) | HAS(Q) | HAS(BRANCH) | HAS(DSUM) |
                                   HAS(DRESIDUAL) | HAS(DGATE) | HAS(ADDEND) | HAS(DADDEND);

bool part_is_full(part p) {
    return full_parts & HAS(p);
}

uint64_t part_axes(const planish_norm *op, int ndim, part p) {
    const uint64_t all = PLANISH_AXIS(ndim) - 1;
    switch (p) {
    case WEIGHT:
    case BIAS:
    case DWEIGHT:
    case DBIAS:
        return op->affine_axes;
    case COLUMN_SCALE:
    case DCOLUMN_SCALE:
        return op->column_axes ? op->column_axes : op->affine_axes;
    case SCALE:
    case SHIFT:
    case DSCALE:
    case DSHIFT:
        return op->modulation_axes;
    case MEAN:
    case RSTD:
    case M2:
    case C1:
    case C2:
    case ROW_SCALE:
    case Y_SCALES:
        return all & ~op->reduce_axes;
    default:
        return part_is_full(p) ? all : 0;
    }
}

int64_t part_count(const planish_norm *op, int ndim, const int64_t shape[], part p) {
    const uint64_t axes = part_axes(op, ndim, p);
    int64_t count = 1;
    for (int i = 0; i < ndim; i++)
        count *= axes >> i & 1 ? shape[i] : 1;
    return count;
}

/* ---- Passes --------------------------------------------------------------------------------- */

static const uint64_t gradients = HAS(DX) | HAS(DWEIGHT) | HAS(DBIAS);
static const uint64_t stages_of_both =
    HAS(ROW_SCALE) | HAS(COLUMN_SCALE) | HAS(SCALE) | HAS(SHIFT) | HAS(GATE) | HAS(RNG);
static const uint64_t stage_gradients =
    HAS(DRESIDUAL) | HAS(DSCALE) | HAS(DSHIFT) | HAS(DGATE) | HAS(DCOLUMN_SCALE);

/* Which parts a pass must have and may have. */
typedef struct signature {
    uint64_t required, optional;
} signature;

static signature forward_signature(uint64_t mean, uint64_t asked) {
    const uint64_t y = asked & HAS(Q) ? 0 : HAS(Y);
    return (signature){HAS(X) | y, HAS(Y) | HAS(WEIGHT) | HAS(BIAS) | mean | HAS(RSTD) |
                                       stages_of_both | HAS(RESIDUAL) | HAS(SUM) | HAS(MASK) |
                                       HAS(Q) | HAS(Y_SCALE) | HAS(Y_SCALES) | HAS(AMAX)};
}

static signature backward_signature(const planish_norm *op, uint64_t mean, uint64_t means,
                                    uint64_t asked) {
    const uint64_t stages = stages_of_both | stage_gradients | HAS(BRANCH) | HAS(DSUM);
    const bool takes_bias = op->activation || (asked & stages);
    return (signature){HAS(DY) | HAS(X) | mean | HAS(RSTD),
                       HAS(WEIGHT) | (takes_bias ? HAS(BIAS) : 0) | gradients | means | stages};
}

static signature signature_of(const planish_norm *op, planish_pass pass, uint64_t asked) {
    const uint64_t mean = op->kind == PLANISH_LAYER ? HAS(MEAN) : 0;
    const uint64_t means = (mean ? HAS(C1) : 0) | HAS(C2);
    switch (pass) {
    case PLANISH_FORWARD:
        return forward_signature(mean, asked);
    case PLANISH_BACKWARD:
        return backward_signature(op, mean, means, asked);
    case PLANISH_BACKWARD_FROM_Y:
        return (signature){HAS(DY) | HAS(Y) | HAS(RSTD), HAS(WEIGHT) | HAS(BIAS) | gradients};
    case PLANISH_STATISTICS:
        return (signature){HAS(X) | mean | HAS(M2), 0};
    case PLANISH_BACKWARD_STATISTICS:
        return (signature){HAS(DY) | HAS(X) | mean | HAS(RSTD) | means,
                           HAS(WEIGHT) | HAS(DWEIGHT) | HAS(DBIAS)};
    default:
        return (signature){HAS(X) | mean | HAS(RSTD) | HAS(Y), HAS(WEIGHT) | HAS(BIAS)};
    }
}

uint64_t parts_of(const planish_norm *op, planish_pass pass, uint64_t asked) {
    const signature s = signature_of(op, pass, asked);
    return s.required | (s.optional & asked);
}

uint64_t parts_written(planish_pass pass) {
    switch (pass) {
    case PLANISH_FORWARD:
        return HAS(Y) | HAS(MEAN) | HAS(RSTD) | HAS(SUM) | HAS(MASK) | HAS(Q) | HAS(Y_SCALES) |
               HAS(AMAX);
    case PLANISH_BACKWARD:
        return gradients | stage_gradients;
    case PLANISH_BACKWARD_FROM_Y:
        return gradients;
    case PLANISH_STATISTICS:
        return HAS(MEAN) | HAS(M2);
    case PLANISH_BACKWARD_STATISTICS:
        return HAS(C1) | HAS(C2) | HAS(DWEIGHT) | HAS(DBIAS);
    default:
        return HAS(Y);
    }
}
