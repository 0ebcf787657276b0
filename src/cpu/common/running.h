/* Statistics that are kept over many calls (planish.h): how a row's are read and brought up to
 * date. */
#ifndef PLANISH_CPU_RUNNING_H
#define PLANISH_CPU_RUNNING_H

#include "cpu/common/job.h"

/* rstd of a variance that was kept. */
double running_rstd(double variance, double eps);

/* Of row `r` of a run, whose own mean and sum of squared deviations these are; what is absent is
 * passed over. */
void running_update(const problem *p, const row_run *run, int64_t r, double mean, double m2);

#endif
