#include "cpu/job.h"

row_run row_run_at(const cpu_job *job, int64_t row, int64_t end) {
    const problem *p = &job->plan->problem;
    const axis *inner = &p->kept[p->kept_count - 1];
    int64_t index[PLANISH_MAX_NDIM], rest = row;
    for (int k = p->kept_count - 1; k >= 0; k--) {
        index[k] = rest % p->kept[k].size;
        rest /= p->kept[k].size;
    }
    row_run run;
    const int64_t left = inner->size - index[p->kept_count - 1];
    run.rows = left < end - row ? left : end - row;
    for (int r = 0; r < ROLE_COUNT; r++) {
        run.data[r] = NULL;
        run.pitch[r] = 0;
        if (!has(p, r))
            continue;
        const int bytes = dtype_bytes(p->dtypes[r]);
        int64_t offset = 0;
        for (int k = 0; k < p->kept_count; k++)
            offset += index[k] * p->kept[k].stride[r];
        run.data[r] = job->data[r] + offset * bytes;
        run.pitch[r] = inner->stride[r] * bytes;
    }
    return run;
}

row_stat run_stat(const problem *p, const row_run *run, role r) {
    return (row_stat){run->data[r], run->pitch[r], p->dtypes[r]};
}

block_space block_space_of(const cpu_job *job, int64_t block) {
    const planish_plan *plan = job->plan;
    char *at = job->workspace + (size_t)block * plan->block_bytes;
    block_space space = {.rows = at};
    at += (size_t)plan->gathered_rows * plan->row_bytes;
    const role wanted[2] = {ROLE_DWEIGHT, ROLE_DBIAS};
    for (int i = 0; i < 2; i++) {
        if (!plan->sums || !has(&plan->problem, wanted[i]))
            continue;
        space.chunk[i] = at;
        space.sum[i] = (double *)(at + plan->chunk_bytes);
        at += plan->chunk_bytes + plan->sum_bytes;
    }
    return space;
}
