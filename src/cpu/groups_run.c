/*
 * Work items of PATH_GROUPS, and the sums over rows. What is done with a row is cpu/groups.h. The
 * workspace holds weight and bias in the compute type, the sums of dweight and dbias, and each
 * row's own sums of its channels.
 */
#include "cpu/groups_run.h"
#include "cpu/affine.h"

static int64_t channels_of(const problem *p) {
    return p->cols / p->reduced[p->reduced_count - 1].size;
}

/* The affine element of a row's first channel. */
static int64_t first_affine(const problem *p, int64_t row) {
    const bool vary = p->reduced_count == 2 && p->reduced[0].affine;
    int64_t span = vary ? p->reduced[0].size : 1, first = 0;
    for (int k = p->kept_count - 1; k >= 0; k--) {
        if (p->kept[k].affine) {
            first += row % p->kept[k].size * span;
            span *= p->kept[k].size;
        }
        row /= p->kept[k].size;
    }
    return first;
}

static size_t real_bytes(const planish_plan *plan) {
    return plan->is_double ? sizeof(double) : sizeof(float);
}

/* weight (which = 0) or bias (1) of all affine elements; NULL: absent. */
static char *dense_weights(const cpu_job *job, int which) {
    const planish_plan *plan = job->plan;
    const bool there = has(&plan->problem, which ? ROLE_BIAS : ROLE_WEIGHT);
    return there ? job->workspace + (size_t)which * plan->weight_bytes : NULL;
}

static double *total_sums(const cpu_job *job, int which) {
    const planish_plan *plan = job->plan;
    return (double *)(job->workspace + 2 * plan->weight_bytes + (size_t)which * plan->sum_bytes);
}

static double *row_sums(const cpu_job *job, int which, int64_t row) {
    const planish_plan *plan = job->plan;
    const size_t rows = (size_t)plan->problem.rows;
    char *at = job->workspace + 2 * (plan->weight_bytes + plan->sum_bytes);
    return (double *)(at + ((size_t)which * rows + (size_t)row) * plan->row_sum_bytes);
}

void group_weights(const cpu_job *job) {
    for (int which = 0; which < 2; which++)
        if (dense_weights(job, which))
            load_affine(job, which ? ROLE_BIAS : ROLE_WEIGHT, dense_weights(job, which));
}

static const void *weights_at(const cpu_job *job, int which, int64_t first) {
    const char *weights = dense_weights(job, which);
    return weights ? weights + (size_t)first * real_bytes(job->plan) : NULL;
}

static void forward_row(const cpu_job *job, int64_t row) {
    const planish_plan *plan = job->plan;
    const problem *p = &plan->problem;
    const row_run run = row_run_at(job, row, row + 1);
    const int64_t first = first_affine(p, row);
    const group_forward_args args = {
        .channels = channels_of(p),
        .span = p->reduced[p->reduced_count - 1].size,
        .x = run.data[ROLE_X],
        .y = run.data[ROLE_Y],
        .weight = weights_at(job, 0, first),
        .bias = weights_at(job, 1, first),
        .weight_offset = p->weight_offset,
        .eps = p->eps,
        .mean = run_stat(p, &run, ROLE_MEAN),
        .rstd = run_stat(p, &run, ROLE_RSTD),
        .m2 = run_stat(p, &run, ROLE_M2),
        .given = p->pass == PLANISH_APPLY,
        .traffic = plan->traffic,
    };
    plan->kernels->groups[p->dtypes[ROLE_X]].forward[p->kind](&args);
}

static void backward_row(const cpu_job *job, int64_t row) {
    const planish_plan *plan = job->plan;
    const problem *p = &plan->problem;
    const row_run run = row_run_at(job, row, row + 1);
    const group_backward_args args = {
        .channels = channels_of(p),
        .span = p->reduced[p->reduced_count - 1].size,
        .dy = run.data[ROLE_DY],
        .x = run.data[ROLE_X],
        .dx = run.data[ROLE_DX],
        .weight = weights_at(job, 0, first_affine(p, row)),
        .weight_offset = p->weight_offset,
        .mean = run_stat(p, &run, ROLE_MEAN),
        .rstd = run_stat(p, &run, ROLE_RSTD),
        .traffic = plan->traffic,
        .dweight = row_sums(job, 0, row),
        .dbias = row_sums(job, 1, row),
    };
    plan->kernels->groups[p->dtypes[ROLE_X]].backward[p->kind](&args);
}

void group_blocks(void *data, int64_t begin, int64_t end) {
    const cpu_job *job = data;
    const planish_plan *plan = job->plan;
    const problem *p = &plan->problem;
    const int64_t last = end * plan->block_rows < p->rows ? end * plan->block_rows : p->rows;
    for (int64_t row = begin * plan->block_rows; row < last; row++)
        if (p->pass == PLANISH_BACKWARD)
            backward_row(job, row);
        else
            forward_row(job, row);
}

void group_sums(const cpu_job *job) {
    const planish_plan *plan = job->plan;
    const problem *p = &plan->problem;
    const role outputs[2] = {ROLE_DWEIGHT, ROLE_DBIAS};
    const int64_t channels = channels_of(p);
    /* All channels of a row may share one affine element. */
    const int64_t step = p->reduced_count == 2 && p->reduced[0].affine ? 1 : 0;
    for (int which = 0; which < 2; which++) {
        if (!has(p, outputs[which]))
            continue;
        double *total = total_sums(job, which);
        memset(total, 0, plan->sum_bytes);
        for (int64_t row = 0; row < p->rows; row++) {
            double *to = total + first_affine(p, row);
            const double *sums = row_sums(job, which, row);
            for (int64_t c = 0; c < channels; c++)
                to[c * step] += sums[c];
        }
        const bool dense = affine_is_dense(p, outputs[which]);
        for (int64_t first = 0; first < p->affine; first += SUM_TILE) {
            const int64_t count = p->affine - first < SUM_TILE ? p->affine - first : SUM_TILE;
            store_affine(job, outputs[which], first, count, total + first, dense);
        }
    }
}
