#include "cpu/batch/batch_numbers.h"
#include "cpu/common/running.h"

static size_t real_bytes(const cpu_job *job) {
    return job->plan->is_double ? sizeof(double) : sizeof(float);
}

static batch_numbers numbers_in(double *at, double *records, int64_t rows, size_t real) {
    batch_numbers n = {0};
    double **const doubles[] = {&n.mean, &n.rstd, &n.c1, &n.c2, &n.dweight, &n.dbias};
    for (int k = 0; k < RECORDS; k++)
        n.record[k] = records + k * rows;
    for (int k = 0; k < 6; k++, at += rows)
        *doubles[k] = at;
    char *reals = (char *)at;
    const size_t bytes = (size_t)rows * real;
    n.weight = reals;
    n.bias = reals + bytes;
    for (int k = 0; k < BATCH_FACTORS; k++)
        n.factor[k] = reals + (size_t)(k + 2) * bytes;
    n.wide = (unsigned char *)reals + (BATCH_FACTORS + 2) * bytes;
    return n;
}

batch_numbers batch_numbers_of_all(const cpu_job *job) {
    const batch_cut *cut = &job->plan->cut.batch;
    char *const at = job->workspace;
    return numbers_in((double *)(at + cut->numbers_offset), (double *)at, job->problem->rows,
                      real_bytes(job));
}

batch_numbers batch_numbers_of_tile(batch_tile_room *room) {
    return numbers_in(room->doubles[RECORDS], room->doubles[0], BATCH_TILE_CHANNELS,
                      sizeof(double));
}

batch_numbers batch_numbers_at(const cpu_job *job, const batch_numbers *all, int64_t first) {
    const size_t real = real_bytes(job);
    batch_numbers n = *all;
    double **const doubles[] = {&n.mean, &n.rstd, &n.c1, &n.c2, &n.dweight, &n.dbias};
    for (int k = 0; k < RECORDS; k++)
        n.record[k] += first;
    for (int k = 0; k < 6; k++)
        *doubles[k] += first;
    n.weight += (size_t)first * real;
    n.bias += (size_t)first * real;
    for (int k = 0; k < BATCH_FACTORS; k++)
        n.factor[k] += (size_t)first * real;
    n.wide += first;
    return n;
}

static void load_reals(const cpu_job *job, const row_run *run, role r, char *to) {
    const row_stat from = run_stat(job->problem, run, r);
    for (int64_t i = 0; from.data && i < run->rows; i++)
        if (job->plan->is_double)
            ((double *)to)[i] = stat_load(&from, i);
        else
            ((float *)to)[i] = (float)stat_load(&from, i);
}

static void load_stats(const problem *p, const row_run *run, role r, double to[]) {
    const row_stat from = run_stat(p, run, r);
    if (from.data)
        stat_load_rows(&from, 0, (int)run->rows, to);
}

void batch_load_rows(const cpu_job *job, const row_run *run, const batch_numbers *n) {
    const problem *p = job->problem;
    load_reals(job, run, ROLE_WEIGHT, n->weight);
    load_reals(job, run, ROLE_BIAS, n->bias);
    load_stats(p, run, ROLE_C1, n->c1);
    load_stats(p, run, ROLE_C2, n->c2);
    if (!batch_is_backward(p) && p->pass != PLANISH_APPLY)
        return;
    load_stats(p, run, ROLE_MEAN, n->mean);
    load_stats(p, run, ROLE_RSTD, n->rstd);
    if (!has(p, ROLE_RUNNING_MEAN))
        return;
    load_stats(p, run, ROLE_RUNNING_MEAN, n->mean);
    load_stats(p, run, ROLE_RUNNING_VAR, n->rstd);
    for (int64_t i = 0; i < run->rows; i++)
        n->rstd[i] = running_rstd(n->rstd[i], p->rule.eps);
}

void batch_store_rows(const problem *p, const row_run *run, const batch_numbers *n) {
    const struct {
        role r;
        const double *values;
    } stored[2][3] = {{{ROLE_MEAN, n->mean}, {ROLE_RSTD, n->rstd}, {ROLE_M2, n->record[RECORD_M2]}},
                      {{ROLE_DWEIGHT, n->dweight}, {ROLE_DBIAS, n->dbias}, {ROLE_COUNT, NULL}}};
    if (p->pass == PLANISH_APPLY)
        return;
    for (int k = 0; k < 3 && stored[batch_is_backward(p)][k].values; k++) {
        const row_stat to = run_stat(p, run, stored[batch_is_backward(p)][k].r);
        stat_store_rows(&to, 0, (int)run->rows, stored[batch_is_backward(p)][k].values);
    }
    for (int64_t i = 0; p->pass == PLANISH_FORWARD && i < run->rows; i++)
        running_update(p, run, i, n->mean[i], n->record[RECORD_M2][i]);
}
