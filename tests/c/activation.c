/* See activation.h. */
#include "activation.h"

#include <math.h>

static real sigmoid(real z) {
    return 1 / (1 + expl(-z));
}

real silu(real z) {
    return z * sigmoid(z);
}

real silu_slope(real z) {
    return sigmoid(z) * (1 + z * sigmoid(-z));
}

/* P(X <= z) of the standard normal distribution. */
static real normal(real z) {
    return erfcl(-z * sqrtl(.5L)) / 2;
}

/* (1 + tanh(t)) / 2 is sigmoid(2 t): with t of GELU's tanh form, and its derivative. */
static real twice_tanhs(real z) {
    return sqrtl(8 / acosl(-1)) * (z + .044715L * z * z * z);
}
static real twice_tanhs_slope(real z) {
    return sqrtl(8 / acosl(-1)) * (1 + 3 * .044715L * z * z);
}

real activated(planish_activation f, real z) {
    if (f == PLANISH_IDENTITY || isnan(z))
        return z;
    if (f == PLANISH_RELU6)
        return fminl(fmaxl(z, 0), 6);
    if (f == PLANISH_RELU || isinf(z))
        return z <= 0 ? 0 : z;
    if (f == PLANISH_HARDSWISH)
        return z * fminl(fmaxl(z + 3, 0), 6) / 6;
    if (f == PLANISH_SILU)
        return silu(z);
    return z * (f == PLANISH_GELU ? normal(z) : sigmoid(twice_tanhs(z)));
}

real activated_slope(planish_activation f, real z) {
    const real t = twice_tanhs(z);
    switch (f) {
    case PLANISH_SILU:
        return silu_slope(z);
    case PLANISH_RELU:
        return !(z <= 0);
    case PLANISH_GELU:
        return normal(z) + z * expl(-z * z / 2) / sqrtl(2 * acosl(-1));
    case PLANISH_GELU_TANH:
        return sigmoid(t) * (1 + z * twice_tanhs_slope(z) * sigmoid(-t));
    case PLANISH_RELU6:
        return !(z <= 0 || z >= 6);
    case PLANISH_HARDSWISH:
        return z <= -3 ? 0 : z < 3 ? z / 3 + .5L : 1;
    default:
        return 1;
    }
}
