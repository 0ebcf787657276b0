/*
 * What a saved mean lacks of its row's own, which backward finds beside its other sums. It is
 * mended where it can be what the mean lost when it was rounded; a mean that is further away is not
 * the row's own (frozen or shared statistics, another row's) and is used as it was given. The row
 * alone decides, in f64: alike on every tier and path.
 */
#ifndef PLANISH_CPU_SAVED_MEAN_H
#define PLANISH_CPU_SAVED_MEAN_H

#include "cpu/common/kernels.h"

#include <math.h>

/* One ULP of 1, and the smallest normal number; 0 where there is no mean, whose delta is 0. */
static inline double ulp_at_one(dtype type) {
    static const double ulp[] = {[DTYPE_F32] = 0x1p-23,
                                 [DTYPE_F16] = 0x1p-10,
                                 [DTYPE_BF16] = 0x1p-7,
                                 [DTYPE_F64] = 0x1p-52,
                                 [DTYPE_NONE] = 0};
    return ulp[type];
}
static inline double least_normal(dtype type) {
    static const double least[] = {[DTYPE_F32] = 0x1p-126,
                                   [DTYPE_F16] = 0x1p-14,
                                   [DTYPE_BF16] = 0x1p-126,
                                   [DTYPE_F64] = 0x1p-1022,
                                   [DTYPE_NONE] = 0};
    return least[type];
}

/* The largest number that becomes 0 when it is rounded to this. */
static inline double rounds_to_zero(dtype type) {
    static const double most[] = {[DTYPE_F32] = 0,
                                  [DTYPE_F16] = 0x1p-25,
                                  [DTYPE_BF16] = 0x1p-134,
                                  [DTYPE_F64] = 0,
                                  [DTYPE_NONE] = 0};
    return most[type];
}

/* A mean is rounded once at the end, and may have lost more before: torch's are off by up to two
 * ULP, but those of long images stored by pixel. */
enum { SAVED_MEAN_ULPS = 4 };

/* The distance that may be a rounding: ulps * (|mean| + least). */
typedef struct mean_reach {
    double ulps, least;
    bool is_exact; /* the mean has digits beyond those of the arithmetic: nothing is to be mended */
} mean_reach;

static inline mean_reach mean_reach_of(dtype type, bool is_double) {
    return (mean_reach){SAVED_MEAN_ULPS * ulp_at_one(type), least_normal(type),
                        type == DTYPE_F64 && !is_double};
}

/* What is mended: all of `delta`, the mean of (x - mean) * rstd over the row, or nothing. NaN
 * stays, for that row is to become NaN. */
static inline double mended(const mean_reach *reach, double delta, double mean, double rstd) {
    return fabs(delta) > reach->ulps * (fabs(mean) + reach->least) * rstd ? 0 : delta;
}

/* The same where the arithmetic has `near` in place of the mean: f32, the digits of f64 left out.
 */
static inline double rest_of_mean(const mean_reach *reach, const row_stat *stat, int64_t row,
                                  double delta, double near, double rstd) {
    if (reach->is_exact)
        return (stat_load(stat, row) - near) * rstd;
    return mended(reach, delta, near, rstd);
}

#endif
