/* What the files of the reference share: the inputs of a pass as numbers, and its steps. */
#ifndef REFERENCE_STEPS_H
#define REFERENCE_STEPS_H

#include <math.h>
#include <stdlib.h>

#include "reference.h"

/* The numbers of a tensor and, but for those of x's shape, which of them each element of x has. */
typedef struct operand {
    real *values; /* NULL: `otherwise` everywhere */
    const int64_t *place;
    real otherwise;
} operand;

typedef struct inputs {
    const planish_norm *op;
    planish_tensors tensors;
    geometry geometry, column, modulation; /* those along other axes than A: channel */
    operand of[PARTS];
    uint64_t rng[2];
} inputs;

/* Of what `pass` reads. */
inputs inputs_make(const planish_norm *op, planish_pass pass, const planish_tensors *t);
void inputs_free(inputs *in);

static inline bool has(const inputs *in, part p) {
    return *tensors_field((planish_tensors *)&in->tensors, p) != NULL;
}

/* What element e of x has of a part. */
static inline real at(const inputs *in, part p, int64_t e) {
    const operand *o = &in->of[p];
    return o->values ? o->values[o->place ? o->place[e] : e] : o->otherwise;
}

/* weight_offset + weight */
static inline real weight_at(const inputs *in, int64_t e) {
    return in->op->weight_offset + at(in, WEIGHT, e);
}

static inline bool gate_before(const inputs *in) {
    return has(in, GATE) && in->op->gate == PLANISH_GATE_BEFORE;
}
static inline bool gate_after(const inputs *in) {
    return has(in, GATE) && in->op->gate == PLANISH_GATE_AFTER;
}
static inline bool modulated(const inputs *in) {
    return has(in, SCALE) || has(in, SHIFT);
}

static inline real *zeros(int64_t count) {
    return calloc((size_t)count + 1, sizeof(real));
}

static inline void raise_to(real *largest, real value) {
    if (fabsl(value) > *largest)
        *largest = fabsl(value);
}

/* The factor of dropout for element e: 0, or 1 / (1 - p); 1 where there is none. */
real dropout_factor(const inputs *in, int64_t e);

/* The norm's s for a forward, or a backward whose gate is before it; with the mask. */
void reference_sum(reference *r, const inputs *in);

/* y of s, by these statistics. */
void reference_apply(reference *r, const inputs *in, const real *s, const real *mean,
                     const real *rstd);

/* The gradients of xhat. */
void reference_backward(reference *r, const inputs *in, planish_pass pass, const real *xhat);

#endif
