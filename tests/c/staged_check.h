/* What a run of a norm with stages around it must come to: the formulas, within bounds. */
#ifndef STAGED_CHECK_H
#define STAGED_CHECK_H

#include "backward_case.h"
#include "staged_reference.h"

/* The sum, y and the mask of a run that went well, and that no byte between elements changed. */
void staged_check(staged_run *r, staged_reference *f);

/* All outputs of such a backward, likewise. */
void backward_check(backward_run *r, const backward_reference *f);

/* A number as it is quantised: nearest, saturated, NaN kept. */
unsigned char quantised_of(DLDataType type, real v);
bool quantised_same(DLDataType type, unsigned char a, unsigned char b);

/* q, y_scales and amax, if there are, of rows of a run with y beside them, in the type that the
 * norm computes with: they are exact. */
void quantised_check(staged_run *r);

#endif
