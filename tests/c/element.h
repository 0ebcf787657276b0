/*
 * Element types: reading, writing and rounding one f32, f16, bf16 or f64, and the size of a unit in
 * its last place. Shares nothing with the library, so that a mistake there cannot hide here.
 */
#ifndef ELEMENT_H
#define ELEMENT_H

#include <stdint.h>

#include "planish.h"

/* What the reference computes in: 64 bits of significand on x86, 113 on aarch64. */
typedef long double real;

typedef enum element { F32, F16, BF16, F64, ELEMENT_COUNT } element;

const char *element_name(element type);
int element_bytes(element type);
DLDataType element_dtype(element type);
element element_of(DLDataType dtype);

/* Bits of significand, the leading one included. */
int element_digits(element type);

/* The largest finite value. */
real element_max(element type);

real element_read(element type, const void *from);

/* Writes `value` rounded once, to nearest even; too large becomes infinite. */
void element_write(element type, void *to, real value);

/* `value` rounded once to the type. */
real element_round(element type, real value);

/* One unit in the last place of the type for numbers of this magnitude. */
real element_ulp(element type, real magnitude);

/* How many values of the type lie between a and b, both of the type and finite or infinite. */
int64_t element_steps(element type, real a, real b);

#endif
