#include "cpu/run.h"
#include "cpu/batch/batch_run.h"
#include "cpu/channels/channels_run.h"
#include "cpu/common/affine.h"
#include "cpu/common/sums.h"
#include "cpu/general/strided.h"
#include "cpu/groups/groups_job.h"
#include "cpu/groups/groups_run.h"
#include "cpu/openmp.h"
#include "cpu/stages/backward.h"
#include "cpu/stages/backward_sums.h"
#include "cpu/stages/stages_path.h"
#include "cpu/stages/sum_first.h"
#include "stages.h"

static const row_kernels *kernels_of(const cpu_job *job) {
    const problem *p = job->problem;
    const dtype element = p->dtypes[ROLE_X];
    const role weight = has(p, ROLE_WEIGHT) ? ROLE_WEIGHT : ROLE_BIAS;
    const bool same = !has(p, weight) || p->dtypes[weight] == element;
    return &job->plan->kernels->of[element].rows[same ? WEIGHT_SAME : WEIGHT_F32];
}

/* ---- Work items of the row path -------------------------------------------------------------- */

/* Where a block's rows begin; the last's end is the sample's. */
static int64_t block_begin(const cpu_job *job, int64_t block) {
    const rows_cut *cut = &job->plan->cut.rows;
    return block / cut->sample_blocks * cut->sample_rows +
           block % cut->sample_blocks * cut->block_rows;
}
static int64_t block_end(const cpu_job *job, int64_t block) {
    const rows_cut *cut = &job->plan->cut.rows;
    const int64_t end = block_begin(job, block) + cut->block_rows;
    const int64_t of_sample = (block / cut->sample_blocks + 1) * cut->sample_rows;
    return end < of_sample ? end : of_sample;
}

static void forward_blocks(void *data, int64_t begin, int64_t end) {
    const cpu_job *job = data;
    const problem *p = job->problem;
    const row_kernels *kernels = kernels_of(job);
    const int64_t last = block_end(job, end - 1);
    const planish_activation f =
        p->stages.rounding ? (planish_activation)ROUNDED_XHAT : p->activation;
    for (int64_t row = block_begin(job, begin); row < last;) {
        const row_run run = row_run_at(job, row, last);
        const forward_args args = {
            .hints = &job->plan->hints,
            .rows = run.rows,
            .cols = p->cols,
            .x = run.data[ROLE_X],
            .x_pitch = run.pitch[ROLE_X],
            .y = run.data[ROLE_Y],
            .y_pitch = run.pitch[ROLE_Y],
            .weight = run.data[ROLE_WEIGHT],
            .bias = run.data[ROLE_BIAS],
            .weight_offset = p->weight_offset,
            .rule = p->rule,
            .mean = run_stat(p, &run, ROLE_MEAN),
            .rstd = run_stat(p, &run, ROLE_RSTD),
            .m2 = run_stat(p, &run, ROLE_M2),
            .given = p->pass == PLANISH_APPLY,
            .traffic = job->plan->traffic,
            .kind = p->kind,
            .activation = f,
            .residual = run.data[ROLE_RESIDUAL],
            .residual_pitch = run.pitch[ROLE_RESIDUAL],
            .sum = run.data[ROLE_SUM],
            .sum_pitch = run.pitch[ROLE_SUM],
        };
        kernels->forward[kernel_kind(p->kind, f)](&args);
        row += run.rows;
    }
}

/* For the longest run from `row` on that ends before `end`. */
static backward_args backward_args_at(const cpu_job *job, int64_t row, int64_t end, void *dweight,
                                      void *dbias) {
    const problem *p = job->problem;
    const row_run run = row_run_at(job, row, end);
    return (backward_args){
        .hints = &job->plan->hints,
        .rows = run.rows,
        .cols = p->cols,
        .dy = run.data[ROLE_DY],
        .dy_pitch = run.pitch[ROLE_DY],
        .x = run.data[ROLE_X],
        .x_pitch = run.pitch[ROLE_X],
        .dx = run.data[ROLE_DX],
        .dx_pitch = run.pitch[ROLE_DX],
        .weight = run.data[ROLE_WEIGHT],
        .weight_offset = p->weight_offset,
        .rule = p->rule,
        .mean = run_stat(p, &run, ROLE_MEAN),
        .rstd = run_stat(p, &run, ROLE_RSTD),
        .traffic = job->plan->traffic,
        .dweight = dweight,
        .dbias = dbias,
        .kind = p->kind,
        .activation = p->activation,
        .bias = run.data[ROLE_BIAS],
        .dsum = run.data[ROLE_DSUM],
        .dsum_pitch = run.pitch[ROLE_DSUM],
        .half = problem_half(p),
        .c1 = run_stat(p, &run, ROLE_C1),
        .c2 = run_stat(p, &run, ROLE_C2),
    };
}

/* The kernel of this problem's rows. */
static backward_kernel *backward_kernel_of(const row_kernels *kernels, const problem *p) {
    return problem_half(p) ? kernels->halves[p->kind]
                           : kernels->backward[kernel_kind(p->kind, p->activation)];
}

/* Leaves the first rows out. */
static void skip_rows(backward_args *args, int64_t rows) {
    args->rows -= rows;
    args->x += rows * args->x_pitch;
    args->dy += rows * args->dy_pitch;
    args->dx = args->dx ? args->dx + rows * args->dx_pitch : NULL;
    args->dsum = args->dsum ? args->dsum + rows * args->dsum_pitch : NULL;
    args->mean = stat_at(&args->mean, rows);
    args->rstd = stat_at(&args->rstd, rows);
    args->c1 = stat_at(&args->c1, rows);
    args->c2 = stat_at(&args->c2, rows);
}

/* The rows of a block, whose sums go to space->sum a chunk at a time. */
static void backward_block(const cpu_job *job, int64_t row, int64_t end, const block_space *space) {
    const cpu_plan *plan = job->plan;
    backward_kernel *const kernel = backward_kernel_of(kernels_of(job), job->problem);
    const int64_t chunk_rows = plan->sums ? CHUNK_ROWS : end - row;
    backward_args left = {0};
    for (int64_t chunk_end = row; row < end;) {
        if (!left.rows)
            left = backward_args_at(job, row, end, space->chunk[0], space->chunk[1]);
        if (row == chunk_end)
            chunk_end = row + chunk_rows < end ? row + chunk_rows : end;
        const int64_t rows = left.rows, taken = rows < chunk_end - row ? rows : chunk_end - row;
        left.rows = taken;
        kernel(&left);
        left.rows = rows;
        skip_rows(&left, taken);
        row += taken;
        for (int i = 0; i < 2 && row == chunk_end && !blocks_are_chunks(plan); i++)
            if (space->chunk[i])
                flush_dense(job, space->chunk[i], space->sum[i]);
    }
}

static void backward_blocks(void *data, int64_t begin, int64_t end) {
    const cpu_job *job = data;
    const cpu_plan *plan = job->plan;
    for (int64_t block = begin; block < end; block++) {
        block_space space = {0};
        if (plan->sums)
            space = block_space_of(job, block);
        for (int i = 0; i < 2; i++)
            if (space.chunk[i]) {
                memset(space.chunk[i], 0, plan->slices.chunk_bytes);
                if (!blocks_are_chunks(plan))
                    memset(space.sum[i], 0, plan->slices.sum_bytes);
            }
        backward_block(job, block_begin(job, block), block_end(job, block), &space);
    }
}

/* ---- Work items of any path ------------------------------------------------------------------ */

static void blocks_of_path(void *data, int64_t begin, int64_t end) {
    const cpu_job *job = data;
    switch (job->plan->path) {
    case PATH_EMPTY:
        break;
    case PATH_ROWS:
        (problem_is_backward(job->problem) ? backward_blocks : forward_blocks)(data, begin, end);
        break;
    case PATH_CHANNELS:
        channel_blocks(data, begin, end);
        break;
    case PATH_GROUP_ROWS:
        group_row_blocks(data, begin, end);
        break;
    case PATH_PIXELS:
    case PATH_PLANES:
        group_tile_blocks(data, begin, end);
        break;
    case PATH_BATCH:
        batch_blocks(data, begin, end);
        break;
    case PATH_STRIDED:
        strided_blocks(data, begin, end);
        break;
    case PATH_STAGES:
        (problem_is_backward(job->problem) ? stages_backward_blocks
                                           : stages_forward_blocks)(data, begin, end);
        break;
    }
#if defined(__SSE2__)
    /* Once, not in kernels: it waits until all non-temporal stores have arrived. */
    if (job->plan->traffic == TRAFFIC_STREAM)
        __builtin_ia32_sfence();
#endif
}

/* ---- The run --------------------------------------------------------------------------------- */

static void fork_join(const cpu_job *job, const planish_exec *exec, bool parallel, int64_t count,
                      planish_task task) {
    if (!parallel || count < 2)
        task((void *)job, 0, count);
    else if (exec && exec->parallel_for)
        exec->parallel_for(exec->parallel_context, count, task, (void *)job);
    else
        openmp_for(count, task, (void *)job);
}

static void run_job(cpu_job *job, const planish_exec *exec) {
    const problem *p = job->problem;
    const cpu_plan *plan = job->plan;
    if (plan->path == PATH_EMPTY) {
        fill_empty(job);
        stages_fill_empty(job);
        gradient_sums_clear(job);
        return;
    }
    if (path_is_groups(plan->path))
        group_weights(job);
    if (plan->path == PATH_BATCH)
        batch_begin(job);
    fork_join(job, exec, plan->parallel, plan->blocks, blocks_of_path);
    if (plan->path == PATH_BATCH) {
        if (batch_goes_on(job))
            fork_join(job, exec, plan->parallel, plan->blocks, batch_results);
        batch_end(job);
        return;
    }
    if (plan->path == PATH_STAGES) {
        if (problem_is_backward(p))
            fork_join(job, exec, plan->parallel, stages_backward_sum_tiles(p),
                      stages_backward_sums);
        else
            stages_forward_finish(job);
        return;
    }
    if (plan->sums && path_is_groups(plan->path))
        group_sums(job);
    else if (plan->sums)
        fork_join(job, exec, plan->parallel, sum_tile_count(job), sum_tiles);
}

void cpu_run(const steps *s, const cpu_plan *plan, void *const buffers[ROLE_COUNT],
             const planish_exec *exec) {
    const step *first = &s->step[0], *norm = steps_norm(s);
    sum_maker maker;
    cpu_job job = {
        .problem = norm->problem, .plan = plan, .workspace = exec ? exec->workspace : NULL};
    for (int r = 0; r < ROLE_COUNT; r++)
        job.data[r] = buffers[r];
    if (first->kind == STEP_MAKE_SUM)
        sum_first_begin(&maker, &job, first->problem, buffers);
    if (norm->kind == STEP_MODULATED_NORM)
        stages_move_modulation(job.data);
    run_job(&job, exec);
}
