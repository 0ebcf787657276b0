/*
 * A batch norm with what only it has: statistics that are kept and given, an addend behind the
 * norm, masks by y. Its tensors are made with their numbers, what a pass should write is known in
 * long double (batch_reference.c), and results are held to bounds.
 */
#ifndef BATCH_RUN_H
#define BATCH_RUN_H

#include "cases.h"

typedef struct batch_shape {
    int ndim;
    int64_t size[4];
    uint64_t reduce, affine;
} batch_shape;

/* Which tensors a run has beside x, and how they are made. */
typedef struct wanted {
    const char *name;
    planish_pass pass;
    planish_activation f;
    bool addend, daddend, running, given_sums, mask, saves;
} wanted;

typedef enum slot {
    T_X,
    T_WEIGHT,
    T_BIAS,
    T_Y,
    T_MEAN,
    T_RSTD,
    T_DY,
    T_DX,
    T_DWEIGHT,
    T_DBIAS,
    T_ADDEND,
    T_DADDEND,
    T_C1,
    T_C2,
    T_RUNNING_MEAN,
    T_RUNNING_VAR,
    SLOTS
} slot;

typedef struct batch_run {
    const wanted *w;
    const batch_shape *s;
    planish_norm op;
    element type;
    geometry g;
    tensor t[SLOTS];
    bool has[SLOTS];
    real *v[SLOTS]; /* before the run; of outputs what is wanted */
    real *bound[SLOTS];
} batch_run;

/* Makes the tensors and the numbers of all inputs, which depend on the seed alone. */
void run_begin(batch_run *r, const wanted *w, const batch_shape *s, element type, element weight,
               element stats, layout l, uint64_t seed);

/* Finds what the run should write, and how far from it results may be. Gradients whose mask is not
 * sure become 0. */
void want_all(batch_run *r);

planish_tensors tensors_of(batch_run *r);

/* Runs, and expects that it goes well. */
bool run_do(batch_run *r, planish_exec exec);

/* Expects that every output is as wanted, and nothing beside them was written. */
void run_check(batch_run *r);

/* A hash of all bits of the outputs. */
uint64_t run_digest(const batch_run *r);
void run_end(batch_run *r);

#endif
