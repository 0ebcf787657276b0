/*
 * Work items of PATH_GROUPS, and the sums over rows. What is done with a row is cpu/groups.h. The
 * workspace holds weight and bias in the compute type, the sums of dweight and dbias, and each
 * row's own sums of its channels.
 */
#include "cpu/groups_run.h"
#include "cpu/affine.h"

int64_t group_channels(const problem *p) {
    return p->cols / p->reduced[p->reduced_count - 1].size;
}

/* The affine element of a row's first channel. */
int64_t group_first_affine(const problem *p, int64_t row) {
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

size_t group_real_bytes(const planish_plan *plan) {
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

double *group_row_sums(const cpu_job *job, int which, int64_t row) {
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

const void *group_weights_at(const cpu_job *job, int which, int64_t first) {
    const char *weights = dense_weights(job, which);
    return weights ? weights + (size_t)first * group_real_bytes(job->plan) : NULL;
}

/* A row whose elements are where `run` says, of a dtype that has these kernels. */
static void forward_row(const cpu_job *job, const group_kernels *kernels, int64_t row,
                        const row_run *run, traffic traffic) {
    const problem *p = &job->plan->problem;
    const int64_t first = group_first_affine(p, row);
    const group_forward_args args = {
        .channels = group_channels(p),
        .span = p->reduced[p->reduced_count - 1].size,
        .x = run->data[ROLE_X],
        .y = run->data[ROLE_Y],
        .weight = group_weights_at(job, 0, first),
        .bias = group_weights_at(job, 1, first),
        .weight_offset = p->weight_offset,
        .eps = p->eps,
        .mean = run_stat(p, run, ROLE_MEAN),
        .rstd = run_stat(p, run, ROLE_RSTD),
        .m2 = run_stat(p, run, ROLE_M2),
        .given = p->pass == PLANISH_APPLY,
        .traffic = traffic,
    };
    kernels->forward[p->kind](&args);
}

static void backward_row(const cpu_job *job, const group_kernels *kernels, int64_t row,
                         const row_run *run, traffic traffic) {
    const problem *p = &job->plan->problem;
    const group_backward_args args = {
        .channels = group_channels(p),
        .span = p->reduced[p->reduced_count - 1].size,
        .dy = run->data[ROLE_DY],
        .x = run->data[ROLE_X],
        .dx = run->data[ROLE_DX],
        .weight = group_weights_at(job, 0, group_first_affine(p, row)),
        .weight_offset = p->weight_offset,
        .mean = run_stat(p, run, ROLE_MEAN),
        .rstd = run_stat(p, run, ROLE_RSTD),
        .traffic = traffic,
        .dweight = group_row_sums(job, 0, row),
        .dbias = group_row_sums(job, 1, row),
    };
    kernels->backward[p->kind](&args);
}

void group_row(const cpu_job *job, dtype element, int64_t row, const row_run *run,
               traffic traffic) {
    const planish_plan *plan = job->plan;
    (plan->problem.pass == PLANISH_BACKWARD ? backward_row : forward_row)(
        job, &plan->kernels->groups[element], row, run, traffic);
}

/* ---- All rows ----------------------------------------------------------------------------------
 */

/* Tiles of rows along the innermost kept axis. */
static void group_tiles(cpu_job *job, int64_t begin, int64_t end) {
    const planish_plan *plan = job->plan;
    const problem *p = &plan->problem;
    const int64_t run = plan->run_rows;
    const int64_t all = p->rows / run * plan->run_tiles;
    const int64_t last = end * plan->block_tiles < all ? end * plan->block_tiles : all;
    const int slot = slot_take(job);
    for (int64_t tile = begin * plan->block_tiles; tile < last; tile++) {
        const int64_t first = tile % plan->run_tiles * plan->tile_rows;
        const int64_t rows = run - first < plan->tile_rows ? run - first : plan->tile_rows;
        const int64_t row = tile / plan->run_tiles * run + first;
        if (plan->by_pixel)
            group_strip(job, slot, row, rows);
        else
            group_planes(job, slot, row, rows);
    }
    slot_return(job, slot);
}

void group_blocks(void *data, int64_t begin, int64_t end) {
    cpu_job *job = data;
    const planish_plan *plan = job->plan;
    const problem *p = &plan->problem;
    if (plan->tile_rows) {
        group_tiles(job, begin, end);
        return;
    }
    const int64_t last = end * plan->block_rows < p->rows ? end * plan->block_rows : p->rows;
    for (int64_t row = begin * plan->block_rows; row < last; row++) {
        const row_run run = row_run_at(job, row, row + 1);
        group_row(job, p->dtypes[ROLE_X], row, &run, plan->traffic);
    }
}

void group_sums(const cpu_job *job) {
    const planish_plan *plan = job->plan;
    const problem *p = &plan->problem;
    const role outputs[2] = {ROLE_DWEIGHT, ROLE_DBIAS};
    const int64_t channels = group_channels(p);
    for (int which = 0; which < 2; which++) {
        if (!has(p, outputs[which]))
            continue;
        double *total = total_sums(job, which);
        memset(total, 0, plan->sum_bytes);
        for (int64_t row = 0; row < p->rows; row++) {
            double *to = total + group_first_affine(p, row);
            const double *sums = group_row_sums(job, which, row);
            for (int64_t c = 0; c < channels; c++)
                to[c] += sums[c];
        }
        const bool dense = affine_is_dense(p, outputs[which]);
        for (int64_t first = 0; first < p->affine; first += SUM_TILE) {
            const int64_t count = p->affine - first < SUM_TILE ? p->affine - first : SUM_TILE;
            store_affine(job, outputs[which], first, count, total + first, dense);
        }
    }
}
