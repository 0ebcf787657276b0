/* How the kinds of norms differ, from the formulas in planish.h, in long double. */
#ifndef KINDS_H
#define KINDS_H

#include <math.h>
#include <stdbool.h>

#include "element.h"

/* By what a row's sums are divided. */
static inline real kind_count(const planish_norm *op, int64_t cols) {
    return op->kind == PLANISH_L2 ? 1 : (real)cols;
}

/* rstd of a row whose squares, or those of its distances from the mean, add up to m2. */
static inline real kind_rstd(const planish_norm *op, real m2, int64_t cols) {
    const real eps = (real)op->eps;
    if (op->kind != PLANISH_L2)
        return 1 / sqrtl(m2 / (real)cols + eps);
    return 1 / (sqrtl(m2) < eps ? eps : sqrtl(m2));
}

/* Whether c2 is 0: rstd, of this dtype, is that of a row divided by eps, to its own rounding and
 * four ULP of the arithmetic. */
static inline bool kind_clamps(const planish_norm *op, real rstd, element stats, bool is_double) {
    const element used = is_double ? F64 : F32;
    const real off = fmaxl(element_ulp(stats, 1) / 2, 4 * element_ulp(used, 1));
    return op->kind == PLANISH_L2 && op->eps > 0 && rstd * (real)op->eps >= 1 - off;
}

static inline const char *kind_text(planish_kind kind) {
    static const char *const names[] = {"layer", "rms", "l2"};
    return names[kind];
}

#endif
