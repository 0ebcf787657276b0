/*
 * dweight and dbias: what the blocks summed, added in the order of the blocks and written out; and
 * the values of a problem that has no elements.
 */
#include "cpu/common/sums.h"
#include "cpu/common/affine.h"

#include <math.h>

void flush_dense(const cpu_job *job, void *chunk, double *sum) {
    const cpu_plan *plan = job->plan;
    plan->kernels->spans->flush[plan->is_double](sum, chunk, job->problem->cols);
}

/* Adds elements of a block's sums, dweight's (0) or dbias's (1). */
static void add_block(const cpu_job *job, int64_t block, int which, int64_t first, int64_t count,
                      double total[]) {
    const cpu_plan *plan = job->plan;
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

/* Of PATH_ROWS a sample's blocks make its sums; else there is one, of all blocks and elements. */
typedef struct sample_sums {
    int64_t elements, blocks, tiles;
} sample_sums;

static sample_sums sample_sums_of(const cpu_job *job) {
    const cpu_plan *plan = job->plan;
    const bool rows = plan->path == PATH_ROWS;
    const int64_t elements = rows ? job->problem->cols : job->problem->affine;
    return (sample_sums){elements, rows ? plan->cut.rows.sample_blocks : plan->blocks,
                         (elements + SUM_TILE - 1) / SUM_TILE};
}

int64_t sum_tile_count(const cpu_job *job) {
    const sample_sums of = sample_sums_of(job);
    return job->plan->blocks / of.blocks * of.tiles;
}

void sum_tiles(void *data, int64_t begin, int64_t end) {
    const cpu_job *job = data;
    const sample_sums of = sample_sums_of(job);
    const role outputs[2] = {ROLE_DWEIGHT, ROLE_DBIAS};
    double total[SUM_TILE];
    for (int64_t tile = begin; tile < end; tile++) {
        const int64_t sample = tile / of.tiles, first = tile % of.tiles * SUM_TILE;
        const int64_t count = of.elements - first < SUM_TILE ? of.elements - first : SUM_TILE;
        for (int o = 0; o < 2; o++) {
            const role output = outputs[o];
            if (!has(job->problem, output))
                continue;
            memset(total, 0, (size_t)count * sizeof *total);
            for (int64_t block = 0; block < of.blocks; block++)
                add_block(job, sample * of.blocks + block, o, first, count, total);
            store_affine(job, output, sample * of.elements + first, count, total,
                         job->plan->path == PATH_ROWS && affine_is_dense(job->problem, output));
        }
    }
}

void fill_empty(const cpu_job *job) {
    const problem *p = job->problem;
    const role sums[2] = {ROLE_DWEIGHT, ROLE_DBIAS};
    for (int o = 0; o < 2; o++)
        for (int64_t i = 0; has(p, sums[o]) && i < p->affine; i++)
            element_store(affine_element(job, sums[o], i), p->dtypes[sums[o]], 0);
    if (p->pass != PLANISH_FORWARD && p->pass != PLANISH_STATISTICS &&
        p->pass != PLANISH_BACKWARD_STATISTICS)
        return;
    for (int64_t row = 0; row < p->rows;) {
        const row_run run = row_run_at(job, row, p->rows);
        const row_stat mean = run_stat(p, &run, ROLE_MEAN), rstd = run_stat(p, &run, ROLE_RSTD);
        const row_stat sums[] = {run_stat(p, &run, ROLE_M2), run_stat(p, &run, ROLE_C1),
                                 run_stat(p, &run, ROLE_C2)};
        for (int64_t i = 0; i < run.rows; i++) {
            if (p->pass != PLANISH_BACKWARD_STATISTICS) { /* there they are inputs */
                stat_store(&mean, i, NAN);
                stat_store(&rstd, i, NAN);
            }
            for (int s = 0; s < 3; s++)
                stat_store(&sums[s], i, 0);
        }
        row += run.rows;
    }
}
