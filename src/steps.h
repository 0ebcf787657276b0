/*
 * What a problem is run as: one step or a few, each a problem of one kind, made once with the plan.
 * A backend says which (cpu/path.c, cuda/plan.c); the norms that stages leave behind are those of
 * stages.h.
 */
#ifndef PLANISH_STEPS_H
#define PLANISH_STEPS_H

#include "problem.h"

typedef enum step_kind {
    STEP_NORM,           /* with those stages around it that its kernels take */
    STEP_MODULATED_NORM, /* the plain norm whose weights are the modulation: its tensors' data moves
                            to theirs */
    STEP_MAKE_SUM,       /* what the norm of the next step reads */
    STEP_ADD_DSUM,       /* to the dx that the norm of the step before made */
} step_kind;

typedef struct step {
    step_kind kind;
    const problem *problem;
} step;

/* One of them is the norm. */
enum { MOST_STEPS = 2 };
typedef struct steps {
    int count;
    step step[MOST_STEPS];
} steps;

/* The norm with its stages. */
void steps_of_whole(steps *s, const problem *p);

/* s first, then the norm of s, which is written to *norm and has to be there as long as the steps:
 * where stages_make_sum_alone. */
void steps_of_sum(steps *s, const problem *p, problem *norm);

/* The plain backward to a dx of its own, to which dsum is then added: where stages_join_dsum_alone.
 */
void steps_of_dsum(steps *s, const problem *p, problem *norm);

/* The norm whose weights are the modulation: where stages_modulate_alone. */
void steps_of_modulation(steps *s, const problem *p, problem *norm);

/* The step that is the norm. */
static inline const step *steps_norm(const steps *s) {
    return &s->step[s->step[0].kind == STEP_MAKE_SUM];
}

/* The step beside it, element by element; NULL: there is none. */
static inline const step *steps_beside(const steps *s) {
    return s->count < 2 ? NULL : &s->step[s->step[0].kind != STEP_MAKE_SUM];
}

#endif
