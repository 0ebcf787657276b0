#include "cpu/common/job.h"

row_run row_run_at(const cpu_job *job, int64_t row, int64_t end) {
    const problem *p = job->problem;
    const int64_t *pitch = job->plan->pitch;
    const axis *inner = &p->kept[p->kept_count - 1];
    row_run run = {0};
    /* A tensor without elements may have no data and any strides. */
    role_set roles = p->cols ? p->present : p->present & ~(FULL_ROLES | AFFINE_ROLES);
    if (p->kept_count == 1) {
        run.rows = end - row;
        for (; roles; roles &= roles - 1) {
            const role r = first_role(roles);
            run.data[r] = job->data[r] + row * pitch[r];
            run.pitch[r] = pitch[r];
        }
        return run;
    }
    int64_t index[PLANISH_MAX_NDIM], rest = row;
    for (int k = p->kept_count - 1; k > 0; k--) {
        index[k] = rest % p->kept[k].size;
        rest /= p->kept[k].size;
    }
    index[0] = rest;
    const int64_t left = inner->size - index[p->kept_count - 1];
    run.rows = left < end - row ? left : end - row;
    for (; roles; roles &= roles - 1) {
        const role r = first_role(roles);
        const int bytes = dtype_bytes(p->dtypes[r]);
        int64_t offset = 0;
        for (int k = 0; k < p->kept_count; k++)
            offset += index[k] * kept_stride(p, k, r);
        run.data[r] = job->data[r] + offset * bytes;
        run.pitch[r] = pitch[r];
    }
    return run;
}

row_stat run_stat(const problem *p, const row_run *run, role r) {
    return (row_stat){run->data[r], run->pitch[r], p->dtypes[r]};
}

block_space block_space_of(const cpu_job *job, int64_t block) {
    const block_slices *slices = &job->plan->slices;
    char *at = job->workspace + (size_t)block * slices->bytes;
    block_space space = {.rows = at};
    at += slices->gathered_bytes;
    const role wanted[2] = {ROLE_DWEIGHT, ROLE_DBIAS};
    for (int i = 0; i < 2; i++) {
        if (!job->plan->sums || !has(job->problem, wanted[i]))
            continue;
        space.chunk[i] = at;
        space.sum[i] = (double *)(at + slices->chunk_bytes);
        at += slices->chunk_bytes + slices->sum_bytes;
    }
    return space;
}

int slot_take(cpu_job *job) {
    uint64_t taken = atomic_load_explicit(&job->taken, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&job->taken, &taken, taken | (taken + 1),
                                                  memory_order_acquire, memory_order_relaxed)) {
    }
    return __builtin_ctzll(~taken);
}

void slot_return(cpu_job *job, int slot) {
    atomic_fetch_and_explicit(&job->taken, ~((uint64_t)1 << slot), memory_order_release);
}

char *slot_data(const cpu_job *job, const thread_slots *slots, int slot) {
    return job->workspace + slots->offset + (size_t)slot * slots->bytes;
}
