/*
 * What the passes of a backward over a block of rows share (backward.c): its rows in scratch, in
 * the compute type. A tensor whose rows are so already is read and written in place.
 */
#ifndef PLANISH_CPU_STAGES_BACKWARD_BLOCK_H
#define PLANISH_CPU_STAGES_BACKWARD_BLOCK_H

#include "cpu/common/job.h"
#include "cpu/stages/backward_kernels.h"
#include "cpu/stages/backward_rows.h"
#include "cpu/stages/backward_sums.h"
#include "cpu/stages/stages_path.h"

typedef struct stages_block {
    const cpu_job *job;
    size_t row_bytes;
    role_set direct; /* roles whose rows are as scratch is: they are read and written in place */
    char *batch[BATCH_KINDS];
    char *rows[SCRATCH_ROWS];           /* NULL: not needed */
    const char *gathered[SCRATCH_ROWS]; /* what is in them that rows may share */
    block_sum *sums[ROLE_COUNT];        /* by output; NULL: not wanted */
    philox draw;
} stages_block;

static inline const stages_backward_kernels *kernels_of(const cpu_plan *plan) {
    return plan->kernels->stages_backward[plan->is_double];
}

/* A number rounded to the compute type. */
static inline double rounded(const cpu_plan *plan, double value) {
    return plan->is_double ? value : (double)(float)value;
}

/* A run's data from its row `r` on. */
static inline char *data_at(const row_run *run, role of, int64_t r) {
    return run->data[of] ? run->data[of] + r * run->pitch[of] : NULL;
}

/* Dense in the compute type; of the results, those that do not go past the cache. */
static inline role_set direct_roles(const cpu_job *job) {
    const problem *p = job->problem;
    const bool streams = job->plan->traffic == TRAFFIC_STREAM && !job->plan->is_double;
    const dtype real = job->plan->is_double ? DTYPE_F64 : DTYPE_F32;
    role_set roles = 0;
    for (role_set rest = streams ? p->present & ~p->outputs : p->present;
         rest && p->reduced_count == 1; rest &= rest - 1) {
        const role r = first_role(rest);
        if (p->dtypes[r] == real && (reduced_stride(p, 0, r) == 1 || p->cols == 1))
            roles |= ROLE_BIT(r);
    }
    return roles;
}

static inline bool is_direct(const stages_block *b, role r) {
    return b->direct & ROLE_BIT(r);
}

/* The row of a tensor, in scratch unless it is so already; NULL where there is none. */
static inline void *gather(const stages_block *b, role of, const char *data, scratch_row to) {
    if (!data)
        return NULL;
    if (is_direct(b, of))
        return (char *)data;
    stages_gather(b->job, of, data, b->rows[to]);
    return b->rows[to];
}

/* The same of what many rows share: not again where it is there. */
static inline void *gather_shared(stages_block *b, role of, const char *data, scratch_row to) {
    if (data && !is_direct(b, of) && b->gathered[to] == data)
        return b->rows[to];
    b->gathered[to] = data;
    return gather(b, of, data, to);
}

/* Where a row of results is made, and its way to its tensor. */
static inline void *place(const stages_block *b, role of, char *data, scratch_row otherwise) {
    return !data ? NULL : is_direct(b, of) ? data : b->rows[otherwise];
}
static inline void bring(const stages_block *b, role of, char *data, const void *row) {
    if (data && row != data)
        stages_scatter(b->job, of, data, row);
}

static inline char *batch_row(const stages_block *b, int kind, int64_t i) {
    return b->batch[kind] + (size_t)i * b->row_bytes;
}

/* Whether the batch of s, or of dz, is the tensor's own rows. */
static inline bool is_own_s(const stages_block *b) {
    return is_direct(b, ROLE_X) && !gate_is_before(b->job->problem);
}
static inline bool is_own_dz(const stages_block *b) {
    return is_direct(b, ROLE_DY) && !has_behind(b->job->problem);
}

static inline void *chunk_of(const stages_block *b, role output) {
    return b->sums[output] ? b->sums[output]->chunk : NULL;
}

static inline void count_row(const stages_block *b, role output, int64_t row) {
    if (b->sums[output])
        block_sum_row(b->job, b->sums[output], row);
}

#endif
