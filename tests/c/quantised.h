/* Quantised results of a norm: the numbers of their types, and what a run of rows must come to. */
#ifndef QUANTISED_H
#define QUANTISED_H

#include "cases.h"

/* The value of a type's number, and the largest of all. */
real quantised_value(DLDataType type, unsigned char bits);
real quantised_largest(DLDataType type);

/* A number as it is quantised: nearest, of the two nearest the even one, saturated, NaN kept. By
 * search through all 256. */
unsigned char quantised_of(DLDataType type, real value);
bool quantised_same(DLDataType type, unsigned char a, unsigned char b);

/* q, y_scales and amax, if there are, of rows of a run with y beside them, in the type that the
 * norm computes with: they are exact. */
void quantised_check(bundle *b);

#endif
