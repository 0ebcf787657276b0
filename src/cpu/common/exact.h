/*
 * Sums in f64 that keep what their roundings lost (Knuth's TwoSum): what many segments, channels or
 * rows add up to is as good as one addition. The total is sum + rest.
 */
#ifndef PLANISH_CPU_EXACT_H
#define PLANISH_CPU_EXACT_H

#include <math.h>

static inline void exact_add(double *sum, double *rest, double value) {
    const double next = *sum + value, added = next - *sum;
    *rest += (*sum - (next - added)) + (value - added);
    *sum = next;
}

/*
 * How far a + b, rounded to `sum`, is above itself. b is the smaller and has roundings of its own,
 * beside which nothing counts: elements that are all alike have a mean without a rest.
 */
static inline double sum_excess(double sum, double a, double b) {
    const double above = (sum - a) - b;
    return fabs(above) > fabs(b) * 0x1p-50 ? above : 0;
}

/*
 * rstd, which is 1 / sqrt(v) after two roundings, after about half of one: a step of Newton's from
 * a residual that loses nothing. Where there is none, for v is 0 or infinite, as it was.
 */
static inline double mended_rstd(double v, double rstd) {
    const double root = v * rstd, rest = __builtin_fma(v, rstd, -root);
    const double error = __builtin_fma(-root, rstd, 1) - rest * rstd;
    return fabs(error) < 1 ? __builtin_fma(rstd, error / 2, rstd) : rstd;
}

#endif
