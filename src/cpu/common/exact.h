/*
 * Sums in f64 that keep what their roundings lost (Knuth's TwoSum): what many segments, channels or
 * rows add up to is as good as one addition. The total is sum + rest.
 */
#ifndef PLANISH_CPU_EXACT_H
#define PLANISH_CPU_EXACT_H

static inline void exact_add(double *sum, double *rest, double value) {
    const double next = *sum + value, added = next - *sum;
    *rest += (*sum - (next - added)) + (value - added);
    *sum = next;
}

#endif
