#include "cpu/common/running.h"

#include <math.h>

double running_rstd(double variance, double eps) {
    return 1 / sqrt(variance + eps);
}

/* The sum of both products is rounded once, that a row that stays as it is keeps its digits. */
static void update(const problem *p, const row_run *run, int64_t r, role which, double made) {
    const row_stat kept = run_stat(p, run, which);
    if (kept.data)
        stat_store(&kept, r, fma(1 - p->momentum, stat_load(&kept, r), p->momentum * made));
}

void running_update(const problem *p, const row_run *run, int64_t r, double mean, double m2) {
    update(p, run, r, ROLE_RUNNING_MEAN, mean);
    update(p, run, r, ROLE_RUNNING_VAR, m2 / (double)(p->cols - 1));
}
