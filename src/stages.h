/*
 * Which part of a problem is the stages, which a plain norm; and the plain norm as a problem of its
 * own, with how its tensors lie. Knows nothing of how a problem is made, nor of how it is run.
 */
#ifndef PLANISH_STAGES_H
#define PLANISH_STAGES_H

#include "problem.h"

/* Whether s is anything but x: what the norm reads has to be made. */
static inline bool has_prologue(const problem *p) {
    return has(p, ROLE_RESIDUAL) || has(p, ROLE_SUM) || has(p, ROLE_ROW_SCALE) ||
           has(p, ROLE_COLUMN_SCALE) || p->stages.dropout_p > 0 || has(p, ROLE_MASK) ||
           (has(p, ROLE_GATE) && p->stages.gate == PLANISH_GATE_BEFORE);
}

/*
 * Whether stages make s, which is rounded, and nothing stands behind the norm that it has not by
 * itself: an element-wise pass that makes s and then the plain norm of it are all there is to do.
 */
bool stages_make_sum_alone(const problem *p);

/* Where s is in the meantime: in sum; in y, which the norm makes in place; or in memory of its own,
 * dense in the order in which y's elements lie. */
typedef enum sum_place { SUM_IN_SUM, SUM_IN_Y, SUM_IN_WORKSPACE } sum_place;
sum_place stages_sum_place(const problem *p);

/* The plain norm of s, which is its x; and the strides that s has along p's axes, in elements. */
void stages_norm_of_sum(const problem *p, problem *norm);
void stages_sum_strides(const problem *p, int64_t kept[PLANISH_MAX_NDIM],
                        int64_t reduced[PLANISH_MAX_NDIM]);

/*
 * Whether a gradient that joins dx is all there is around a backward; the plain backward to dx in
 * the type of the arithmetic, to which dsum is then added; and the strides that this has along p's
 * axes: dense in the order in which dx's elements lie.
 */
bool stages_join_dsum_alone(const problem *p);
void stages_norm_before_dsum(const problem *p, problem *norm);
void stages_dx_strides(const problem *p, int64_t kept[PLANISH_MAX_NDIM],
                       int64_t reduced[PLANISH_MAX_NDIM]);
/* The same backward to a dx that lies as a tensor with all of x's axes does, and has its dtype. */
void stages_norm_lying_as(const problem *p, role like, problem *norm);

/*
 * Whether a modulation is all that stands around the norm, and there are no weights; the plain norm
 * whose weights, 1 + scale and shift, are those; which role's memory has a role of it; and tensors'
 * data, moved to where it has them.
 */
bool stages_modulate_alone(const problem *p);
void stages_norm_of_modulation(const problem *p, problem *norm);
role stages_role_of_modulation(role r);
void stages_move_modulation(char *data[ROLE_COUNT]);

#endif
