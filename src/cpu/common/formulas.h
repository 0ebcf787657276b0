/* The activations of one number in f64, for what is rare. */
#ifndef PLANISH_CPU_FORMULAS_H
#define PLANISH_CPU_FORMULAS_H

#include "planish.h"

#include <math.h>

static inline double sigmoid(double z) {
    return 1 / (1 + exp(-z));
}

/* z not below, nor above; NaN stays. */
static inline double between(double z, double least, double most) {
    return z < least ? least : z > most ? most : z;
}

/* The logistic function's argument in GELU's tanh form, and its derivative. */
static inline double gelu_argument(double z) {
    return z * (1.5957691216057308 + .071354816272600249 * z * z);
}
static inline double gelu_argument_slope(double z) {
    return 1.5957691216057308 + 3 * .071354816272600249 * z * z;
}

/* What follows the norm, and its slope; z not past where exp leaves the range. */
static inline double activated_value(planish_activation f, double z) {
    switch (f) {
    case PLANISH_SILU:
        return between(z, -708, INFINITY) * sigmoid(z);
    case PLANISH_RELU:
        return z <= 0 ? 0 : z;
    case PLANISH_GELU:
        z = between(z, -37.5, INFINITY);
        return z * .5 * erfc(z * -.70710678118654752);
    case PLANISH_GELU_TANH:
        z = between(z, -21.1, INFINITY);
        return z * sigmoid(gelu_argument(z));
    case PLANISH_RELU6:
        return between(z, 0, 6);
    case PLANISH_HARDSWISH:
        z = between(z, -3, INFINITY);
        return z * (between(z + 3, 0, 6) / 6);
    default:
        return z;
    }
}
static inline double activated_slope(planish_activation f, double z) {
    double near, s;
    switch (f) {
    case PLANISH_SILU:
        near = between(z, -708, INFINITY);
        return sigmoid(near) * (1 + near * sigmoid(-near));
    case PLANISH_RELU:
        return !(z <= 0);
    case PLANISH_GELU:
        near = between(z, -37.5, 37.5);
        return .5 * erfc(near * -.70710678118654752) +
               near * exp(-.5 * near * near) * .3989422804014327;
    case PLANISH_GELU_TANH:
        near = between(z, -21.1, 21.1);
        s = gelu_argument(near);
        return sigmoid(s) * (1 + near * gelu_argument_slope(near) * sigmoid(-s));
    case PLANISH_RELU6:
        return !(z <= 0 || z >= 6);
    case PLANISH_HARDSWISH:
        return z <= -3 ? 0 : z < 3 ? z / 3 + .5 : 1;
    default:
        return 1;
    }
}

#endif
