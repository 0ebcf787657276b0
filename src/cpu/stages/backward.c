/*
 * The rows of the backward of a norm with stages around it; see backward.h. Rows are brought into
 * scratch in the compute type. There the stages behind the norm make dz of dy, the row kernels' own
 * backward makes ds of that, and the stages before it make the rest. A row is written when all that
 * is read of it was read, for an output may lie where an input does.
 */
#include "cpu/stages/backward.h"
#include "cpu/common/running.h"
#include "cpu/common/saved_mean.h"
#include "cpu/stages/backward_block.h"

/* ---- The stages before the norm, as they were ------------------------------------------------ */

/* What x of row `row`, the run's r-th, is multiplied by; keep only where it `keeps`. */
static factor_rows factors_of(stages_block *b, const row_run *run, int64_t r, int64_t row,
                              bool keeps) {
    const cpu_job *job = b->job;
    const problem *p = job->problem;
    factor_rows by = {
        .gate =
            gate_is_before(p) ? gather(b, ROLE_GATE, data_at(run, ROLE_GATE, r), ROW_GATE) : NULL,
        .column =
            gather_shared(b, ROLE_COLUMN_SCALE, data_at(run, ROLE_COLUMN_SCALE, r), ROW_COLUMN),
        .has_row_scale = has(p, ROLE_ROW_SCALE),
    };
    if (by.has_row_scale)
        by.row_scale = rounded(
            job->plan, element_load(data_at(run, ROLE_ROW_SCALE, r), p->dtypes[ROLE_ROW_SCALE]));
    if (keeps && p->stages.dropout_p > 0) {
        char *const keep = b->rows[ROW_KEEP];
        for (int64_t i = 0; i < p->cols; i++)
            if (job->plan->is_double)
                ((double *)keep)[i] = 1;
            else
                ((float *)keep)[i] = 1;
        stages_drop(job, &b->draw, stages_row_index(p, row), keep, NULL);
        by.keep = keep;
    }
    return by;
}

/* s from x of the forward, which is in place of it. */
static void make_s(stages_block *b, const row_run *run, int64_t r, int64_t row, void *s) {
    const cpu_job *job = b->job;
    const int64_t n = job->problem->cols;
    const stage_kernels *kernels = stages_kernels(job->plan);
    const factor_rows by = factors_of(b, run, r, row, true);
    kernels->gate(s, by.gate, n);
    if (by.column)
        kernels->multiply(s, by.column, n);
    if (by.has_row_scale)
        kernels->scale(s, by.row_scale, n);
    if (by.keep)
        stages_drop(job, &b->draw, stages_row_index(job->problem, row), s, NULL);
}

/* ---- The stages behind it -------------------------------------------------------------------- */

/* Beyond these xhat would leave the range of f32 on the way. */
static bool in_range(double mean, double rstd) {
    return fabs(mean) < 1e30 && rstd < 1e30 && rstd > 1e-30;
}

/* A row's mean, NaN where there is none, and rstd. */
typedef struct row_moments {
    double mean, rstd;
} row_moments;

static row_moments moments_of(const problem *p, const row_run *run, int64_t r) {
    const bool running = has(p, ROLE_RUNNING_MEAN);
    const row_stat mean = run_stat(p, run, running ? ROLE_RUNNING_MEAN : ROLE_MEAN);
    const row_stat spread = run_stat(p, run, running ? ROLE_RUNNING_VAR : ROLE_RSTD);
    const double saved = stat_load(&spread, r);
    return (row_moments){mean.data ? stat_load(&mean, r) : 0,
                         running ? running_rstd(saved, p->rule.eps) : saved};
}

/* What makes xhat of s, by statistics as the row kernels take them: a saved mean is mended, unless
 * it is not of this part of a row alone. */
static void set_norm(const stages_block *b, const row_run *run, int64_t r, behind_args *a) {
    const cpu_job *job = b->job;
    const problem *p = job->problem;
    const cpu_plan *plan = job->plan;
    const row_stat mean = run_stat(p, run, ROLE_MEAN);
    const row_moments of = moments_of(p, run, r);
    const double inverse = 1.0 / (double)p->cols;
    bool is_exact = problem_is_given(p);
    a->rms = p->kind == PLANISH_RMS;
    a->rstd = rounded(plan, of.rstd);
    a->minus_delta = -0.0;
    if (!a->rms) {
        const mean_reach reach = mean_reach_of(mean.type, plan->is_double);
        a->mean = rounded(plan, of.mean);
        is_exact |= reach.is_exact;
        const double delta =
            is_exact ? 0 : kernels_of(plan)->distance(a->s, p->cols, a->mean) * inverse * a->rstd;
        a->minus_delta = -(is_exact ? (of.mean - a->mean) * a->rstd
                                    : rest_of_mean(&reach, &mean, r, delta, a->mean, a->rstd));
    }
    if (plan->is_double || in_range(a->mean, a->rstd))
        return;
    const double near = of.mean, rstd = of.rstd;
    const double minus_delta = a->rms || is_exact ? 0 : a->minus_delta;
    float *const xhat = (float *)b->rows[ROW_XHAT];
    for (int64_t i = 0; i < p->cols; i++)
        xhat[i] = (float)(((double)((const float *)a->s)[i] - near) * rstd + minus_delta);
    a->s = xhat;
    a->rms = true;
    a->rstd = 1;
}

/* dz of row `row` in scratch, the run's r-th and the batch's i-th; and dgate and sums. */
static void behind_row(stages_block *b, const row_run *run, int64_t r, int64_t row, int64_t i) {
    const cpu_job *job = b->job;
    const problem *p = job->problem;
    char *const dz = batch_row(b, BATCH_DZ, i), *const dy = data_at(run, ROLE_DY, r);
    if (!is_direct(b, ROLE_DY))
        stages_gather(job, ROLE_DY, dy, dz);
    if (!has_behind(p))
        return;
    const bool after = gate_is_after(p);
    char *const dgate = after ? data_at(run, ROLE_DGATE, r) : NULL;
    char *const daddend = data_at(run, ROLE_DADDEND, r);
    behind_args a = {
        .cols = p->cols,
        .s = is_own_s(b) ? data_at(run, ROLE_X, r) : batch_row(b, BATCH_S, i),
        .dy = is_direct(b, ROLE_DY) ? dy : dz,
        .dz = dz,
        .weight = gather_shared(b, ROLE_WEIGHT, data_at(run, ROLE_WEIGHT, r), ROW_WEIGHT),
        .bias = gather_shared(b, ROLE_BIAS, data_at(run, ROLE_BIAS, r), ROW_BIAS),
        .scale = gather_shared(b, ROLE_SCALE, data_at(run, ROLE_SCALE, r), ROW_SCALE),
        .shift = gather_shared(b, ROLE_SHIFT, data_at(run, ROLE_SHIFT, r), ROW_SHIFT),
        .addend = gather(b, ROLE_ADDEND, data_at(run, ROLE_ADDEND, r), ROW_ADDEND),
        .gate = after ? gather(b, ROLE_GATE, data_at(run, ROLE_GATE, r), ROW_GATE) : NULL,
        .y = gather(b, ROLE_Y, data_at(run, ROLE_Y, r), ROW_Y),
        .least = rounds_to_zero(p->dtypes[ROLE_DY]),
        .weight_offset = p->weight_offset,
        .activation = p->activation,
        .dgate = place(b, ROLE_DGATE, dgate, ROW_DGATE),
        .daddend = place(b, ROLE_DADDEND, daddend, ROW_DADDEND),
        .dscale = chunk_of(b, ROLE_DSCALE),
        .dshift = chunk_of(b, ROLE_DSHIFT),
    };
    count_row(b, ROLE_DSCALE, row);
    count_row(b, ROLE_DSHIFT, row);
    if (needs_z(p))
        set_norm(b, run, r, &a);
    kernels_of(job->plan)->behind(&a);
    bring(b, ROLE_DGATE, dgate, a.dgate);
    bring(b, ROLE_DADDEND, daddend, a.daddend);
}

/* ---- The norm itself, and the stages before it ----------------------------------------------- */

/* ds of row i of a batch, the run's r-th, by statistics that depend on nothing in it. */
static void given_row(stages_block *b, const row_run *run, int64_t r, int64_t i) {
    const problem *p = b->job->problem;
    behind_args of = {.s = is_own_s(b) ? data_at(run, ROLE_X, r) : batch_row(b, BATCH_S, i)};
    set_norm(b, run, r, &of);
    const row_stat c1 = run_stat(p, run, ROLE_C1), c2 = run_stat(p, run, ROLE_C2);
    const given_args args = {
        .cols = p->cols,
        .s = of.s,
        .dz = is_own_dz(b) ? data_at(run, ROLE_DY, r) : batch_row(b, BATCH_DZ, i),
        .ds = wants_ds(p) ? batch_row(b, BATCH_DS, i) : NULL,
        .weight = gather_shared(b, ROLE_WEIGHT, data_at(run, ROLE_WEIGHT, r), ROW_WEIGHT),
        .weight_offset = p->weight_offset,
        .rms = of.rms,
        .mean = of.mean,
        .rstd = of.rstd,
        .minus_delta = of.minus_delta,
        .ds_rstd = moments_of(p, run, r).rstd,
        .c1 = c1.data ? stat_load(&c1, r) : 0,
        .c2 = c2.data ? stat_load(&c2, r) : 0,
        .dweight = chunk_of(b, ROLE_DWEIGHT),
        .dbias = chunk_of(b, ROLE_DBIAS),
    };
    kernels_of(b->job->plan)->given(&args);
}

/* ds of a batch, which is the run's rows from r on. */
static void norm_rows(stages_block *b, const row_run *run, int64_t r, int64_t row, int64_t rows) {
    const cpu_job *job = b->job;
    const problem *p = job->problem;
    const cpu_plan *plan = job->plan;
    const row_stat mean = run_stat(p, run, ROLE_MEAN), rstd = run_stat(p, run, ROLE_RSTD);
    for (int64_t i = 0; i < rows; i++) {
        count_row(b, ROLE_DWEIGHT, row + i);
        count_row(b, ROLE_DBIAS, row + i);
        if (problem_is_given(p))
            given_row(b, run, r + i, i);
    }
    if (problem_is_given(p))
        return;
    const backward_args args = {
        .hints = &plan->hints,
        .rows = rows,
        .cols = p->cols,
        .dy = is_own_dz(b) ? data_at(run, ROLE_DY, r) : b->batch[BATCH_DZ],
        .dy_pitch = is_own_dz(b) ? run->pitch[ROLE_DY] : (int64_t)b->row_bytes,
        .x = is_own_s(b) ? data_at(run, ROLE_X, r) : b->batch[BATCH_S],
        .x_pitch = is_own_s(b) ? run->pitch[ROLE_X] : (int64_t)b->row_bytes,
        .dx = wants_ds(p) ? b->batch[BATCH_DS] : NULL,
        .dx_pitch = (int64_t)b->row_bytes,
        .weight = gather_shared(b, ROLE_WEIGHT, data_at(run, ROLE_WEIGHT, r), ROW_WEIGHT),
        .weight_offset = p->weight_offset,
        .rule = p->rule,
        .mean = stat_at(&mean, r),
        .rstd = stat_at(&rstd, r),
        .traffic = TRAFFIC_CACHED,
        .dweight = chunk_of(b, ROLE_DWEIGHT),
        .dbias = chunk_of(b, ROLE_DBIAS),
        .kind = p->kind,
    };
    stages_row_kernels(plan)->backward[p->kind](&args);
}

/* dresidual, dx and what else is made of ds, of row `row`. */
static void before_row(stages_block *b, const row_run *run, int64_t r, int64_t row, int64_t i) {
    const cpu_job *job = b->job;
    const problem *p = job->problem;
    const bool factors = has_factors(p), before = gate_is_before(p);
    char *const dx = data_at(run, ROLE_DX, r);
    char *const dgate = before ? data_at(run, ROLE_DGATE, r) : NULL;
    before_args a = {
        .cols = p->cols,
        .ds = batch_row(b, BATCH_DS, i),
        .dsum = gather(b, ROLE_DSUM, data_at(run, ROLE_DSUM, r), ROW_DSUM),
        .branch = gather(b, ROLE_BRANCH, data_at(run, ROLE_BRANCH, r), ROW_BRANCH),
        .dcolumn = chunk_of(b, ROLE_DCOLUMN_SCALE),
        .dgate = place(b, ROLE_DGATE, dgate, ROW_DGATE),
        .dx = factors || is_direct(b, ROLE_DX) ? place(b, ROLE_DX, dx, ROW_DX) : NULL,
    };
    /* Of dx alone: drawn where it is used, the same product. */
    const bool drops = p->stages.dropout_p > 0 && a.dx && !a.dcolumn && !a.dgate;
    if (factors)
        a.by = factors_of(b, run, r, row, !drops);
    if (a.dgate)
        a.x = gather(b, ROLE_X, data_at(run, ROLE_X, r), ROW_X);
    count_row(b, ROLE_DCOLUMN_SCALE, row);
    if (factors || a.dsum || a.dx)
        kernels_of(job->plan)->before(&a);
    if (drops)
        stages_drop(job, &b->draw, stages_row_index(p, row), a.dx, NULL);
    bring(b, ROLE_DRESIDUAL, data_at(run, ROLE_DRESIDUAL, r), a.ds);
    bring(b, ROLE_DX, dx, a.dx ? a.dx : a.ds);
    bring(b, ROLE_DGATE, dgate, a.dgate);
}

/* ---- Blocks ---------------------------------------------------------------------------------- */

static void batch(stages_block *b, const row_run *run, int64_t r, int64_t row, int64_t rows) {
    const problem *p = b->job->problem;
    for (int64_t i = 0; i < rows; i++) {
        char *const s = batch_row(b, BATCH_S, i);
        if (!is_own_s(b))
            stages_gather(b->job, ROLE_X, data_at(run, ROLE_X, r + i), s);
        const int64_t next = r + i + b->job->plan->cut.stages.batch_rows;
        if (next < run->rows)
            stages_prefetch_row(b->job, run, next);
        if (gate_is_before(p))
            make_s(b, run, r + i, row + i, s);
        behind_row(b, run, r + i, row + i, i);
    }
    if (wants_ds(p) || b->sums[ROLE_DWEIGHT] || b->sums[ROLE_DBIAS])
        norm_rows(b, run, r, row, rows);
    for (int64_t i = 0; i < rows && wants_ds(p); i++)
        before_row(b, run, r + i, row + i, i);
}

/* Shares a thread's slot out. */
static stages_block block_in(const cpu_job *job, char *at) {
    const problem *p = job->problem;
    const stages_cut *cut = &job->plan->cut.stages;
    const unsigned wanted = scratch_rows_of(p);
    stages_block b = {.job = job, .row_bytes = cut->row_bytes, .direct = direct_roles(job)};
    for (int k = 0; k < BATCH_KINDS; k++, at += (size_t)cut->batch_rows * cut->row_bytes)
        b.batch[k] = at;
    for (int k = 0; k < SCRATCH_ROWS; k++)
        if (wanted >> k & 1) {
            b.rows[k] = at;
            at += cut->row_bytes;
        }
    if (p->stages.dropout_p > 0)
        b.draw = philox_of((const uint64_t *)job->data[ROLE_RNG], p->stages.dropout_p);
    return b;
}

static void run_block(stages_block *b, const gradient_sum of[], int count, int64_t block) {
    const cpu_job *job = b->job;
    const problem *p = job->problem;
    const cpu_plan *plan = job->plan;
    const int64_t first = block * plan->cut.stages.block_rows,
                  after = first + plan->cut.stages.block_rows;
    const int64_t last = after < p->rows ? after : p->rows;
    char *at = job->workspace + (size_t)block * plan->slices.bytes;
    block_sum sums[GRADIENT_SUMS];
    for (int i = 0; i < count; i++) {
        sums[i] = block_sum_begin(job, &of[i], at, first, last);
        at += gradient_sum_bytes(&of[i], p->cols, stages_real_bytes(plan));
        b->sums[of[i].output] = &sums[i];
    }
    for (int64_t row = first; row < last;) {
        const row_run run = row_run_at(job, row, last);
        for (int64_t r = 0; r < run.rows;) {
            const int64_t chunk = CHUNK_ROWS - (row + r - first) % CHUNK_ROWS;
            int64_t rows = plan->cut.stages.batch_rows;
            rows = rows < chunk ? rows : chunk;
            rows = rows < run.rows - r ? rows : run.rows - r;
            batch(b, &run, r, row + r, rows);
            r += rows;
        }
        row += run.rows;
    }
    for (int i = 0; i < count; i++)
        block_sum_end(job, &sums[i]);
}

void stages_backward_blocks(void *data, int64_t begin, int64_t end) {
    cpu_job *const job = data;
    gradient_sum of[GRADIENT_SUMS];
    const int count = gradient_sums_of(job->problem, of);
    const int slot = slot_take(job);
    stages_block b = block_in(job, slot_data(job, &job->plan->cut.stages.slots, slot));
    for (int64_t block = begin; block < end; block++)
        run_block(&b, of, count, block);
    slot_return(job, slot);
}
