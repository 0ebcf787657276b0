/*
 * What a kind of norms makes of a row's sums: rstd of the sum of squares, and c2 of the sum of
 * g * xhat. Kernels know two kinds, with a mean and without one; by its rule an L2 norm is one
 * without a mean. The rule is made with the problem, once.
 */
#ifndef PLANISH_NORM_RULE_H
#define PLANISH_NORM_RULE_H

#include <math.h>
#include <stdbool.h>

typedef struct norm_rule {
    double count;   /* what sums are divided by: a row's elements; of L2 1 */
    double inverse; /* 1 / count */
    double eps;     /* added to what the squares make then; of L2 0 */
    double least;   /* what a row is divided by, at least; -INFINITY: anything */
    double clamped; /* a row whose rstd is this or more was divided by `least`: its c2 is 0. NAN: no
                       row is such */
} norm_rule;

/* Whether it is an L2 norm's. */
static inline bool rule_is_l2(const norm_rule *rule) {
    return rule->least > -INFINITY;
}

/* 1 / `length`, the root of what eps was added to. NaN stays. */
static inline double rule_rstd(const norm_rule *rule, double length) {
    return 1 / (length < rule->least ? rule->least : length);
}

/* c2 of a row, from what its sum and this rstd make of it. */
static inline double rule_c2(const norm_rule *rule, double c2, double rstd) {
    return rstd >= rule->clamped ? 0 : c2;
}

#endif
