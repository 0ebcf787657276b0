/*
 * Scratch of the backward: some rows of s, of dz and of ds, and one row of everything else that the
 * stages of this problem need. For cpu/stages/backward.c and backward_plan.c.
 */
#ifndef PLANISH_CPU_STAGES_BACKWARD_ROWS_H
#define PLANISH_CPU_STAGES_BACKWARD_ROWS_H

#include "problem.h"

/* Those there are for each row of a batch, and those that are one for all. */
enum { BATCH_S, BATCH_DZ, BATCH_DS, BATCH_KINDS };
typedef enum scratch_row {
    ROW_WEIGHT,
    ROW_BIAS,
    ROW_SCALE,
    ROW_SHIFT,
    ROW_COLUMN,
    ROW_GATE,
    ROW_XHAT,
    ROW_X,
    ROW_BRANCH,
    ROW_KEEP,
    ROW_DSUM,
    ROW_ADDEND,
    ROW_Y,
    ROW_DX,
    ROW_DGATE,
    ROW_DADDEND,
    SCRATCH_ROWS
} scratch_row;

static inline bool gate_is_before(const problem *p) {
    return has(p, ROLE_GATE) && p->stages.gate == PLANISH_GATE_BEFORE;
}
static inline bool gate_is_after(const problem *p) {
    return has(p, ROLE_GATE) && p->stages.gate == PLANISH_GATE_AFTER;
}

/* Whether anything stands between dy and the gradient of what the norm returns. */
static inline bool has_behind(const problem *p) {
    return p->activation != PLANISH_IDENTITY || gate_is_after(p) || has(p, ROLE_SCALE) ||
           has(p, ROLE_DSHIFT) || has(p, ROLE_DADDEND);
}

/* Whether that needs what the norm returned. */
static inline bool needs_z(const problem *p) {
    return (p->activation != PLANISH_IDENTITY && !problem_masks_by_y(p)) || gate_is_after(p) ||
           has(p, ROLE_DSCALE);
}

/* Whether x was multiplied by anything. */
static inline bool has_factors(const problem *p) {
    return gate_is_before(p) || has(p, ROLE_COLUMN_SCALE) || has(p, ROLE_ROW_SCALE) ||
           p->stages.dropout_p > 0;
}

/* Whether ds is wanted for itself or for what is made of it. */
static inline bool wants_ds(const problem *p) {
    return has(p, ROLE_DX) || has(p, ROLE_DRESIDUAL) || has(p, ROLE_DCOLUMN_SCALE) ||
           (gate_is_before(p) && has(p, ROLE_DGATE));
}

/* A set of scratch_row. */
static inline unsigned scratch_rows_of(const problem *p) {
    unsigned rows = 0;
#define WANTED(row, condition) rows |= (unsigned)(condition) << (row)
    WANTED(ROW_WEIGHT, has(p, ROLE_WEIGHT));
    WANTED(ROW_BIAS, has(p, ROLE_BIAS));
    WANTED(ROW_SCALE, has(p, ROLE_SCALE));
    WANTED(ROW_SHIFT, has(p, ROLE_SHIFT));
    WANTED(ROW_COLUMN, has(p, ROLE_COLUMN_SCALE));
    WANTED(ROW_GATE, has(p, ROLE_GATE));
    WANTED(ROW_XHAT, needs_z(p) || problem_is_given(p));
    WANTED(ROW_X, gate_is_before(p));
    WANTED(ROW_BRANCH, has(p, ROLE_BRANCH));
    WANTED(ROW_KEEP, p->stages.dropout_p > 0);
    WANTED(ROW_DSUM, has(p, ROLE_DSUM));
    WANTED(ROW_ADDEND, has(p, ROLE_ADDEND));
    WANTED(ROW_Y, has(p, ROLE_Y));
    WANTED(ROW_DX, has_factors(p));
    WANTED(ROW_DGATE, has(p, ROLE_DGATE));
    WANTED(ROW_DADDEND, has(p, ROLE_DADDEND));
#undef WANTED
    return rows;
}

#endif
