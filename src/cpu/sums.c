/*
 * dweight and dbias: what the blocks summed, added in the order of the blocks and written out; and
 * the values of a problem that has no elements.
 */
#include "cpu/sums.h"

#include <math.h>

void flush_dense(const planish_plan *plan, void *chunk, double *sum) {
    const int64_t n = plan->problem.cols;
    if (plan->is_double) {
        const double *values = chunk;
        for (int64_t i = 0; i < n; i++)
            sum[i] += values[i];
    } else {
        const float *values = chunk;
        for (int64_t i = 0; i < n; i++)
            sum[i] += (double)values[i];
    }
    memset(chunk, 0, plan->chunk_bytes);
}

char *affine_element(const cpu_job *job, role r, int64_t i) {
    const problem *p = &job->plan->problem;
    int64_t offset = 0;
    for (int k = p->reduced_count - 1; k >= 0; k--)
        if (p->reduced[k].affine) {
            offset += i % p->reduced[k].size * p->reduced[k].stride[r];
            i /= p->reduced[k].size;
        }
    for (int k = p->kept_count - 1; k >= 0; k--)
        if (p->kept[k].affine) {
            offset += i % p->kept[k].size * p->kept[k].stride[r];
            i /= p->kept[k].size;
        }
    return job->data[r] + offset * dtype_bytes(p->dtypes[r]);
}

/* In vectors, through f32. */
static void store_dense(const cpu_kernels *kernels, char *data, dtype type, int64_t first,
                        const double total[], int64_t count) {
    float rounded[SUM_TILE];
    for (int64_t i = 0; i < count; i++)
        rounded[i] = (float)total[i];
    if (type == DTYPE_F64)
        memcpy((double *)data + first, total, (size_t)count * sizeof *total);
    else
        kernels->narrow[type](data + first * dtype_bytes(type), rounded, count);
}

static bool continues(const axis *a, role r, int64_t *span) {
    if (!a->affine)
        return true;
    const bool next = a->stride[r] == *span;
    *span *= a->size;
    return next;
}

bool affine_is_dense(const problem *p, role r) {
    int64_t span = 1;
    bool dense = true;
    for (int k = p->reduced_count - 1; k >= 0; k--)
        dense &= continues(&p->reduced[k], r, &span);
    for (int k = p->kept_count - 1; k >= 0; k--)
        dense &= continues(&p->kept[k], r, &span);
    return dense;
}

void store_sums(const cpu_job *job, role r, const double total[]) {
    const planish_plan *plan = job->plan;
    const problem *p = &plan->problem;
    const bool dense = !plan->is_double && affine_is_dense(p, r);
    for (int64_t first = 0; dense && first < p->affine; first += SUM_TILE)
        store_dense(plan->kernels, job->data[r], p->dtypes[r], first, total + first,
                    p->affine - first < SUM_TILE ? p->affine - first : SUM_TILE);
    for (int64_t i = 0; !dense && i < p->affine; i++)
        element_store(affine_element(job, r, i), p->dtypes[r], total[i]);
}

/* Adds elements of a block's sums, dweight's (0) or dbias's (1). */
static void add_block(const cpu_job *job, int64_t block, int which, int64_t first, int64_t count,
                      double total[]) {
    const planish_plan *plan = job->plan;
    const block_space space = block_space_of(job, block);
    if (blocks_are_chunks(plan) && !plan->is_double) {
        const float *chunk = (const float *)space.chunk[which] + first;
        for (int64_t i = 0; i < count; i++)
            total[i] += (double)chunk[i];
        return;
    }
    const double *sum =
        blocks_are_chunks(plan) ? (const double *)space.chunk[which] : space.sum[which];
    for (int64_t i = 0; i < count; i++)
        total[i] += sum[first + i];
}

void sum_tiles(void *data, int64_t begin, int64_t end) {
    const cpu_job *job = data;
    const planish_plan *plan = job->plan;
    const problem *p = &plan->problem;
    const role outputs[2] = {ROLE_DWEIGHT, ROLE_DBIAS};
    const bool dense = plan->path == PATH_ROWS; /* the row path has no others */
    double total[SUM_TILE];
    for (int64_t tile = begin; tile < end; tile++) {
        const int64_t first = tile * SUM_TILE;
        const int64_t count = p->affine - first < SUM_TILE ? p->affine - first : SUM_TILE;
        for (int o = 0; o < 2; o++) {
            const role output = outputs[o];
            if (!has(p, output))
                continue;
            memset(total, 0, (size_t)count * sizeof *total);
            for (int64_t block = 0; block < plan->blocks; block++)
                add_block(job, block, o, first, count, total);
            if (dense && !plan->is_double)
                store_dense(plan->kernels, job->data[output], p->dtypes[output], first, total,
                            count);
            else
                for (int64_t i = 0; i < count; i++)
                    element_store(affine_element(job, output, first + i), p->dtypes[output],
                                  total[i]);
        }
    }
}

void fill_empty(const cpu_job *job) {
    const problem *p = &job->plan->problem;
    const role sums[2] = {ROLE_DWEIGHT, ROLE_DBIAS};
    for (int o = 0; o < 2; o++)
        for (int64_t i = 0; has(p, sums[o]) && i < p->affine; i++)
            element_store(affine_element(job, sums[o], i), p->dtypes[sums[o]], 0);
    if (p->pass != PLANISH_FORWARD && p->pass != PLANISH_STATISTICS)
        return;
    for (int64_t row = 0; row < p->rows;) {
        const row_run run = row_run_at(job, row, p->rows);
        const row_stat mean = run_stat(p, &run, ROLE_MEAN), rstd = run_stat(p, &run, ROLE_RSTD);
        const row_stat m2 = run_stat(p, &run, ROLE_M2);
        for (int64_t i = 0; i < run.rows; i++) {
            stat_store(&mean, i, NAN);
            stat_store(&rstd, i, NAN);
            stat_store(&m2, i, 0);
        }
        row += run.rows;
    }
}
