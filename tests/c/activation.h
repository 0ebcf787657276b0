/* The activations in long double, as planish.h has them; for every reference. */
#ifndef ACTIVATION_H
#define ACTIVATION_H

#include "element.h"

real activated(planish_activation f, real z);
real activated_slope(planish_activation f, real z);

/* Of gates too. */
real silu(real z);
real silu_slope(real z);

#endif
