/*
 * What groups keep in the workspace: weight and bias in the compute type, the sums of dweight and
 * dbias, each row's own sums of its channels.
 */
#include "cpu/groups/groups_job.h"
#include "cpu/common/affine.h"

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

size_t group_real_bytes(const cpu_plan *plan) {
    return plan->is_double ? sizeof(double) : sizeof(float);
}

static const group_space *space_of(const cpu_plan *plan) {
    return plan->path == PATH_GROUP_ROWS ? &plan->cut.group_rows.space : &plan->cut.tiles.space;
}

/* weight (which = 0) or bias (1) of all affine elements; NULL: absent. */
static char *dense_weights(const cpu_job *job, int which) {
    const bool there = has(job->problem, which ? ROLE_BIAS : ROLE_WEIGHT);
    return there ? job->workspace + (size_t)which * space_of(job->plan)->weight_bytes : NULL;
}

static double *total_sums(const cpu_job *job, int which) {
    const group_space *space = space_of(job->plan);
    return (double *)(job->workspace + 2 * space->weight_bytes + (size_t)which * space->sum_bytes);
}

double *group_row_sums(const cpu_job *job, int which, int64_t row) {
    const group_space *space = space_of(job->plan);
    const size_t rows = (size_t)job->problem->rows;
    char *at = job->workspace + 2 * (space->weight_bytes + space->sum_bytes);
    return (double *)(at + ((size_t)which * rows + (size_t)row) * space->row_sum_bytes);
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

void group_sums(const cpu_job *job) {
    const problem *p = job->problem;
    const role outputs[2] = {ROLE_DWEIGHT, ROLE_DBIAS};
    /* Rows beside each other with weights of their own have these beside each other. */
    const axis *const inner = p->kept_count ? &p->kept[p->kept_count - 1] : NULL;
    const int64_t channels = group_channels(p), run = inner && inner->affine ? inner->size : 1;
    for (int which = 0; which < 2; which++) {
        if (!has(p, outputs[which]))
            continue;
        double *total = total_sums(job, which);
        memset(total, 0, space_of(job->plan)->sum_bytes);
        for (int64_t row = 0; row < p->rows; row += run) {
            double *to = total + group_first_affine(p, row);
            const double *sums = group_row_sums(job, which, row);
            for (int64_t c = 0; c < run * channels; c++)
                to[c] += sums[c];
        }
        const bool dense = affine_is_dense(p, outputs[which]);
        for (int64_t first = 0; first < p->affine; first += SUM_TILE) {
            const int64_t count = p->affine - first < SUM_TILE ? p->affine - first : SUM_TILE;
            store_affine(job, outputs[which], first, count, total + first, dense);
        }
    }
}
