/* The formulas of planish.h for a norm with stages around it, forward, written to be read. */
#ifndef STAGED_REFERENCE_H
#define STAGED_REFERENCE_H

#include "reference.h"
#include "staged_case.h"

/* Elements in row-major order of x's axes. */
typedef struct staged_reference {
    int64_t elements;
    bool exact_sum; /* s is what the library must have, bit by bit: no silu is in it */
    real *s;        /* rounded as planish.h has it, in the compute type in between */
    real *y;        /* before it is rounded */
    real *bound;    /* how far from y the library may be, before it rounds */
    unsigned char *mask;
} staged_reference;

/* Before the run, which may write over x. */
staged_reference staged_reference_of(staged_run *r);
/* y again, of the sum that the run wrote. */
void staged_reference_of_sum(staged_reference *f, staged_run *r);
void staged_reference_free(staged_reference *f);

/* One number of a quantised type nearest to `value` (|value| not beyond the type's largest), of the
 * two nearest the even one; and its value. By search through all 256. */
unsigned char quantised_nearest(DLDataType type, real value);
real quantised_value(DLDataType type, unsigned char bits);
real quantised_largest(DLDataType type);

#endif
