/* Groups of images stored by pixel. */
#ifndef PLANISH_CPU_GROUPS_STRIP_H
#define PLANISH_CPU_GROUPS_STRIP_H

#include "cpu/common/job.h"

/* `rows` rows from `row` on, which are groups beside each other, in the thread's slot. */
void group_strip(const cpu_job *job, int slot, int64_t row, int64_t rows);

#endif
