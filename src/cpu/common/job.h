/* A problem and its plan with their data: where each row and each block of rows finds what is its
 * own. */
#ifndef PLANISH_CPU_JOB_H
#define PLANISH_CPU_JOB_H

#include <stdatomic.h>

#include "cpu/common/cut.h"

typedef struct cpu_job {
    const problem *problem;
    const cpu_plan *plan;
    char *data[ROLE_COUNT];
    char *workspace;
    _Atomic(uint64_t) taken; /* slots in use, a bit each */
    /* Makes x of rows that are read next; NULL: it is there. */
    void (*make_x)(const struct cpu_job *job, int64_t row, int64_t rows);
    const void *maker; /* its own */
} cpu_job;

/* Before rows are read. */
static inline void job_make_x(const cpu_job *job, int64_t row, int64_t rows) {
    if (job->make_x)
        job->make_x(job, row, rows);
}

/* Consecutive rows with one pitch. */
typedef struct row_run {
    int64_t rows;
    char *data[ROLE_COUNT]; /* of the first row; NULL: absent */
    int64_t pitch[ROLE_COUNT];
} row_run;

/* The longest run that starts at `row` and ends before `end`. */
row_run row_run_at(const cpu_job *job, int64_t row, int64_t end);

row_stat run_stat(const problem *p, const row_run *run, role r);

/* Where a block keeps its parts of the workspace. */
typedef struct block_space {
    char *rows;     /* plan->slices.gathered_bytes of them */
    char *chunk[2]; /* chunk sums of dweight and dbias, in the compute type; NULL: not wanted */
    double *sum[2]; /* block sums */
} block_space;

block_space block_space_of(const cpu_job *job, int64_t block);

/* Which of the slots of the workspace is for the calling thread, until it is given back. The lowest
 * that is free: few of them are ever touched. */
int slot_take(cpu_job *job);
void slot_return(cpu_job *job, int slot);
char *slot_data(const cpu_job *job, const thread_slots *slots, int slot);

#endif
