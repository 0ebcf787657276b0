/* A row of groups stored by channel. */
#ifndef PLANISH_CPU_GROUPS_ROW_H
#define PLANISH_CPU_GROUPS_ROW_H

#include "cpu/common/job.h"

/* `count` rows from `row` on, up to TOGETHER, whose elements are where `run` says and of this
 * dtype; `kept` as in group_backward_args. */
void group_rows(const cpu_job *job, dtype element, int64_t row, int count, const row_run *run,
                traffic traffic, void *kept);

#endif
