/* Rows of the tables of norms with stages around them. */
#ifndef STAGE_SETS_H
#define STAGE_SETS_H

#include "cases.h"

/* What stands around the norm, without dtypes and shapes. */
typedef struct stage_set {
    const char *name;
    uint64_t has;
    planish_activation f;
    double p; /* of dropout */
    planish_gate gate;
} stage_set;

/* A shape and what of it is reduced, weighted and modulated. */
typedef struct stage_axes {
    const char *name;
    int ndim;
    int64_t shape[5];
    uint64_t reduce, affine, column, modulation;
} stage_axes;

/* A case over these axes without stages; every third weight has an offset, every fifth case is of
 * full rank. */
norm_case case_over(planish_pass pass, planish_kind kind, const stage_axes *s, uint64_t seed);

void put_stages(norm_case *c, const stage_set *a);

/* By turns: the layouts of a case, a way to run it, and of an L2 case a length. */
void put_layouts(norm_case *c, uint64_t turn);
planish_exec exec_by_turns(uint64_t turn);

#endif
