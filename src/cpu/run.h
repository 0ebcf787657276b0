/* Runs a plan on the CPU: cuts it into work items, hands them to the caller's threads, adds up. */
#ifndef PLANISH_CPU_RUN_H
#define PLANISH_CPU_RUN_H

#include "plan.h"

/* Everything is checked: this cannot fail. */
void cpu_run(const planish_plan *plan, void *const buffers[ROLE_COUNT], const planish_exec *exec);

/* ---- Shared by the files of this folder that run blocks ---- */

typedef struct cpu_job {
    const planish_plan *plan;
    char *data[ROLE_COUNT];
    char *workspace;
} cpu_job;

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
    char *rows;     /* plan->gathered_rows rows of plan->row_bytes */
    char *chunk[2]; /* chunk sums of dweight and dbias, in the compute type; NULL: not wanted */
    double *sum[2]; /* block sums */
} block_space;

block_space block_space_of(const cpu_job *job, int64_t block);

/* Work items of the gathered path: blocks [begin, end). A planish_task. */
void gathered_blocks(void *job, int64_t begin, int64_t end);

/* dweight and dbias from the block sums. A planish_task over tiles of affine elements. */
enum { SUM_TILE = 4096 };
void sum_tiles(void *job, int64_t begin, int64_t end);

/* Adds a chunk sum to a block sum and clears it. */
void flush_dense(const planish_plan *plan, void *chunk, double *sum);

/* y, mean, rstd, dweight and dbias of a problem without elements. */
void fill_empty(const cpu_job *job);

#endif
