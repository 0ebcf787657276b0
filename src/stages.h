/*
 * What stands around the norm, as problem_make sees it: the checks of its arguments, and how its
 * tensors lie. Knows nothing of how it is run.
 */
#ifndef PLANISH_STAGES_H
#define PLANISH_STAGES_H

#include "problem.h"

static inline bool has_column(const problem *p) {
    return has(p, ROLE_COLUMN_SCALE) || has(p, ROLE_DCOLUMN_SCALE);
}
static inline bool has_modulation(const problem *p) {
    return p->present & (ROLE_BIT(ROLE_SCALE) | ROLE_BIT(ROLE_SHIFT) | ROLE_BIT(ROLE_DSCALE) |
                         ROLE_BIT(ROLE_DSHIFT));
}

/* Whether s is anything but x: what the norm reads has to be made. */
static inline bool has_prologue(const problem *p) {
    return has(p, ROLE_RESIDUAL) || has(p, ROLE_SUM) || has(p, ROLE_ROW_SCALE) ||
           has(p, ROLE_COLUMN_SCALE) || p->around.dropout_p > 0 || has(p, ROLE_MASK) ||
           (has(p, ROLE_GATE) && p->around.gate == PLANISH_GATE_BEFORE);
}

/* Checks op's stages, once p->present and the dtypes are known, and fills p->around but for what
 * depends on sizes. */
planish_status stages_check(problem *p, const planish_norm *op, message error);

/* Matches a tensor of one element, of a pair or of blocks to x's axes, of which `kept` are not
 * reduced; `strides` are its own. Writes the index of its axis for each of x's, or -1. */
planish_status stages_match(problem *p, role r, const DLTensor *t, const DLTensor *x, uint64_t kept,
                            const int64_t strides[], int of_axis[], message error);

#endif
