/*
 * Forward of a norm with stages around it; see stages_path.h. A batch of rows is made what the norm
 * reads, in scratch; the row kernel runs on it in place; what follows the norm is done row by row
 * and written. A row's result depends on that row alone, whatever batch it is in.
 */
#include "cpu/common/running.h"
#include "cpu/stages/stages_path.h"
#include "stages.h"

/* A block of rows on its thread. */
typedef struct stages_block {
    const cpu_job *job;
    const stage_kernels *kernels;
    char *slot;
    philox draw;
    role_set direct;                 /* roles whose rows can be read and written where they are */
    const char *loaded[STAGES_ROWS]; /* what of a tensor is in each of the slot's rows */
    double largest;                  /* |y| so far */
} stages_block;

static char *batch_row(const stages_block *b, int64_t i) {
    const stages_cut *cut = &b->job->plan->cut.stages;
    return b->slot + STAGES_PIECE_BYTES + (size_t)(STAGES_ROWS + i) * cut->row_bytes;
}

static char *slot_row(const stages_block *b, int place) {
    return b->slot + STAGES_PIECE_BYTES + (size_t)place * b->job->plan->cut.stages.row_bytes;
}

/* Roles whose rows are dense elements of the compute type; of bytes, dense ones. */
static role_set direct_roles(const cpu_job *job) {
    const problem *p = job->problem;
    const dtype real = job->plan->is_double ? DTYPE_F64 : DTYPE_F32;
    role_set direct = 0;
    for (role_set rest = p->reduced_count == 1 ? p->present : 0; rest; rest &= rest - 1) {
        const role r = first_role(rest);
        const role_types types = types_of(r);
        const bool fits = types == TYPES_REAL ? p->dtypes[r] == real
                                              : types == TYPES_BYTE || types == TYPES_QUANTISED;
        if (fits && (reduced_stride(p, 0, r) == 1 || p->cols == 1))
            direct |= ROLE_BIT(r);
    }
    return direct;
}

/* A row that a stage reads: where it is, or in the slot, where it may be since the last row; NULL
 * where the tensor is absent. */
static const void *operand(stages_block *b, const row_run *run, int64_t i, role r, int place) {
    if (!run->data[r])
        return NULL;
    const char *data = run->data[r] + i * run->pitch[r];
    if (b->direct & ROLE_BIT(r))
        return data;
    if (b->loaded[place] != data || place == STAGES_OPERAND) {
        stages_gather(b->job, r, data, slot_row(b, place));
        b->loaded[place] = data;
    }
    return slot_row(b, place);
}

/* ---- Before the norm ------------------------------------------------------------------------- */

/* Draws what stays of a row, or all of it where nothing is dropped, and writes the mask. */
static void drop(stages_block *b, const row_run *run, int64_t row, int64_t i, char *u) {
    const problem *p = b->job->problem;
    char *const mask =
        run->data[ROLE_MASK] ? run->data[ROLE_MASK] + i * run->pitch[ROLE_MASK] : NULL;
    char *const kept = b->direct & ROLE_BIT(ROLE_MASK) ? mask : slot_row(b, STAGES_BYTES);
    if (p->stages.dropout_p > 0)
        stages_drop(b->job, &b->draw, stages_row_index(p, row + i), u,
                    mask ? (uint8_t *)kept : NULL);
    else if (mask)
        memset(kept, 1, (size_t)p->cols);
    if (mask && kept != mask)
        stages_scatter(b->job, ROLE_MASK, mask, kept);
}

/* s as it is rounded, in `u`, and in its tensor. */
static void round_sum(stages_block *b, const row_run *run, int64_t i, char *u) {
    const problem *p = b->job->problem;
    char *const sum = run->data[ROLE_SUM] ? run->data[ROLE_SUM] + i * run->pitch[ROLE_SUM] : NULL;
    if (p->stages.sum == DTYPE_NONE)
        return;
    /* From there it is read again, unless that would be slow. */
    const bool far = b->job->plan->cut.stages.general || b->job->plan->traffic == TRAFFIC_STREAM;
    if (!sum || far) {
        stages_round(b->job->plan, u, p->stages.sum, p->cols, b->slot);
        if (sum)
            stages_scatter(b->job, ROLE_SUM, sum, u);
        return;
    }
    stages_scatter(b->job, ROLE_SUM, sum, u);
    if (!(b->direct & ROLE_BIT(ROLE_SUM)))
        stages_gather(b->job, ROLE_SUM, sum, u);
}

/* Row i of a batch whose first row is `row`: s, in scratch. */
static void before_norm(stages_block *b, const row_run *run, int64_t row, int64_t i) {
    const problem *p = b->job->problem;
    const stage_kernels *kernels = b->kernels;
    const int64_t n = p->cols;
    char *const u = batch_row(b, i);
    stages_gather(b->job, ROLE_X, run->data[ROLE_X] + i * run->pitch[ROLE_X], u);
    if (has(p, ROLE_GATE) && p->stages.gate == PLANISH_GATE_BEFORE)
        kernels->gate(u, operand(b, run, i, ROLE_GATE, STAGES_OPERAND), n);
    if (has(p, ROLE_COLUMN_SCALE))
        kernels->multiply(u, operand(b, run, i, ROLE_COLUMN_SCALE, STAGES_COLUMN_SCALE), n);
    if (has(p, ROLE_ROW_SCALE)) {
        const row_stat scale = run_stat(p, run, ROLE_ROW_SCALE);
        kernels->scale(u, stat_load(&scale, i), n);
    }
    drop(b, run, row, i, u);
    if (has(p, ROLE_RESIDUAL))
        kernels->add(u, operand(b, run, i, ROLE_RESIDUAL, STAGES_OPERAND), n);
    round_sum(b, run, i, u);
}

/* ---- The norm -------------------------------------------------------------------------------- */

/* What the row kernel does of that which follows xhat. */
static bool kernel_weighs(const problem *p) {
    return p->stages.rounding == PLANISH_ROUND_ONCE;
}
static bool kernel_activates(const problem *p) {
    return kernel_weighs(p) && !has_modulation(p) && !has(p, ROLE_ADDEND);
}

/* Statistics of some rows in f64, beside those in tensors. */
typedef struct row_doubles {
    double mean[STAGES_BATCH_ROWS], rstd[STAGES_BATCH_ROWS], m2[STAGES_BATCH_ROWS];
} row_doubles;

static row_stat stat_of_doubles(double values[]) {
    return (row_stat){(char *)values, sizeof *values, DTYPE_F64};
}

static bool keeps_running(const problem *p) {
    return p->pass == PLANISH_FORWARD && (has(p, ROLE_RUNNING_MEAN) || has(p, ROLE_RUNNING_VAR));
}

/* Has the kernel write a row's moments to `own`, of which the kept ones are made, or read them from
 * there. */
static void use_doubles(const problem *p, const row_run *run, int64_t i, row_doubles *own,
                        forward_args *args) {
    args->mean = stat_of_doubles(own->mean);
    if (keeps_running(p)) {
        args->m2 = stat_of_doubles(own->m2);
        return;
    }
    args->rstd = stat_of_doubles(own->rstd);
    const row_stat mean = run_stat(p, run, ROLE_RUNNING_MEAN),
                   var = run_stat(p, run, ROLE_RUNNING_VAR);
    for (int64_t k = 0; k < args->rows; k++) {
        own->mean[k] = stat_load(&mean, i + k);
        own->rstd[k] = running_rstd(stat_load(&var, i + k), p->rule.eps);
    }
}

static void update_running(const problem *p, const row_run *run, int64_t i, int64_t count,
                           const row_doubles *own) {
    const row_stat mean = run_stat(p, run, ROLE_MEAN);
    stat_store_rows(&mean, i, (int)count, own->mean);
    for (int64_t k = 0; k < count; k++)
        running_update(p, run, i + k, own->mean[k], own->m2[k]);
}

/* Rows [i, i + count) of a batch, which have one weight and bias, in place. */
static void norm(stages_block *b, const row_run *run, int64_t i, int64_t count, const char *x,
                 int64_t x_pitch) {
    const cpu_plan *plan = b->job->plan;
    const problem *p = b->job->problem;
    const row_stat mean = run_stat(p, run, ROLE_MEAN), rstd = run_stat(p, run, ROLE_RSTD);
    const planish_activation f = kernel_activates(p) ? p->activation : PLANISH_IDENTITY;
    const bool weighs = kernel_weighs(p);
    row_doubles own;
    forward_args args = {
        .hints = &plan->hints,
        .rows = count,
        .cols = p->cols,
        .x = x,
        .x_pitch = x_pitch,
        .y = batch_row(b, i),
        .y_pitch = (int64_t)plan->cut.stages.row_bytes,
        .weight = weighs ? operand(b, run, i, ROLE_WEIGHT, STAGES_WEIGHT) : NULL,
        .bias = weighs ? operand(b, run, i, ROLE_BIAS, STAGES_BIAS) : NULL,
        .weight_offset = p->weight_offset,
        .rule = p->rule,
        .mean = stat_at(&mean, i),
        .rstd = stat_at(&rstd, i),
        .given = p->pass == PLANISH_APPLY,
        .kind = p->kind,
        .activation = f,
    };
    if (has(p, ROLE_RUNNING_MEAN) || has(p, ROLE_RUNNING_VAR))
        use_doubles(p, run, i, &own, &args);
    stages_row_kernels(plan)->forward[f == PLANISH_IDENTITY ? (int)p->kind : KIND_ACTIVATED](&args);
    if (keeps_running(p))
        update_running(p, run, i, count, &own);
}

static void norm_of_batch(stages_block *b, const row_run *run, bool made) {
    const int64_t pitch = (int64_t)b->job->plan->cut.stages.row_bytes;
    const char *x = made ? batch_row(b, 0) : run->data[ROLE_X];
    const int64_t x_pitch = made ? pitch : run->pitch[ROLE_X];
    const bool shared = !run->pitch[ROLE_WEIGHT] && !run->pitch[ROLE_BIAS];
    const int64_t step = shared ? run->rows : 1;
    for (int64_t i = 0; i < run->rows; i += step)
        norm(b, run, i, step, x + i * x_pitch, x_pitch);
}

/* ---- After the norm -------------------------------------------------------------------------- */

/* Rounds xhat and its product with the weight to x's dtype (PLANISH_ROUND_XHAT). */
static void weigh_rounded(stages_block *b, const row_run *run, int64_t i, char *z) {
    const problem *p = b->job->problem;
    const void *weight = operand(b, run, i, ROLE_WEIGHT, STAGES_WEIGHT);
    const void *bias = operand(b, run, i, ROLE_BIAS, STAGES_BIAS);
    stages_round(b->job->plan, z, p->dtypes[ROLE_X], p->cols, b->slot);
    if (weight) {
        b->kernels->weigh(z, weight, p->weight_offset, p->cols);
        stages_round(b->job->plan, z, p->dtypes[ROLE_X], p->cols, b->slot);
    }
    if (bias)
        b->kernels->add(z, bias, p->cols);
}

static void count_largest(stages_block *b, double largest) {
    b->largest = largest > b->largest ? largest : b->largest;
}

/* Each block of a row with the scale of its own. */
static void quantise_blocks(stages_block *b, const row_run *run, int64_t i, const char *y,
                            char *q) {
    const problem *p = b->job->problem;
    const stages *s = &p->stages;
    const size_t real_bytes = stages_real_bytes(b->job->plan);
    const dtype type = p->dtypes[ROLE_Q], of_scale = p->dtypes[ROLE_Y_SCALES];
    char *scales = run->data[ROLE_Y_SCALES] + i * run->pitch[ROLE_Y_SCALES];
    for (int64_t at = 0; at < p->cols; at += s->block) {
        const int64_t n = p->cols - at < s->block ? p->cols - at : s->block;
        const char *const piece = y + (size_t)at * real_bytes;
        const double largest = b->kernels->largest(piece, n);
        const float scale = stages_scale(s, type, largest);
        stages_store_scale(scales, of_scale, scale);
        b->kernels->quantise(q + at, piece, scale, type, n);
        count_largest(b, largest);
        scales += s->scale_stride * dtype_bytes(of_scale);
    }
}

static void quantise(stages_block *b, const row_run *run, int64_t i, const char *y) {
    const problem *p = b->job->problem;
    char *const q = run->data[ROLE_Q] + i * run->pitch[ROLE_Q];
    char *const made = b->direct & ROLE_BIT(ROLE_Q) ? q : slot_row(b, STAGES_BYTES);
    if (has(p, ROLE_Y_SCALES))
        quantise_blocks(b, run, i, y, made);
    else
        b->kernels->quantise(made, y, *(const float *)run->data[ROLE_Y_SCALE], p->dtypes[ROLE_Q],
                             p->cols);
    if (made != q)
        stages_scatter(b->job, ROLE_Q, q, made);
}

/* Row i of a batch: y and q. */
static void after_norm(stages_block *b, const row_run *run, int64_t i) {
    const problem *p = b->job->problem;
    const stage_kernels *kernels = b->kernels;
    char *const y = batch_row(b, i);
    if (!kernel_weighs(p))
        weigh_rounded(b, run, i, y);
    if (has_modulation(p))
        kernels->modulate(y, operand(b, run, i, ROLE_SCALE, STAGES_SCALE),
                          operand(b, run, i, ROLE_SHIFT, STAGES_SHIFT), p->cols);
    if (has(p, ROLE_ADDEND))
        kernels->add(y, operand(b, run, i, ROLE_ADDEND, STAGES_OPERAND), p->cols);
    if (p->activation != PLANISH_IDENTITY && !kernel_activates(p))
        kernels->activate(y, p->activation, p->cols);
    if (has(p, ROLE_GATE) && p->stages.gate == PLANISH_GATE_AFTER)
        kernels->gate(y, operand(b, run, i, ROLE_GATE, STAGES_OPERAND), p->cols);
    if (has(p, ROLE_AMAX) && !has(p, ROLE_Y_SCALES))
        count_largest(b, kernels->largest(y, p->cols));
    if (has(p, ROLE_Q))
        quantise(b, run, i, y);
    if (has(p, ROLE_Y))
        stages_scatter(b->job, ROLE_Y, run->data[ROLE_Y] + i * run->pitch[ROLE_Y], y);
}

/* ---- Blocks ---------------------------------------------------------------------------------- */

static void forward_block(stages_block *b, int64_t first, int64_t last) {
    const cpu_job *job = b->job;
    const problem *p = job->problem;
    const int64_t most = job->plan->cut.stages.batch_rows;
    const bool made = has_prologue(p) || !(b->direct & ROLE_BIT(ROLE_X));
    for (int64_t row = first; row < last;) {
        row_run run = row_run_at(job, row, last);
        const int64_t there = run.rows, rows = there < most ? there : most;
        for (int64_t i = 0; i < rows; i++) {
            if (i + most < there)
                stages_prefetch_row(job, &run, i + most);
            if (made)
                before_norm(b, &run, row, i);
        }
        run.rows = rows;
        norm_of_batch(b, &run, made);
        for (int64_t i = 0; i < rows; i++)
            after_norm(b, &run, i);
        row += rows;
    }
}

/* The largest |y| of each block. */
static double *largest_of_blocks(const cpu_job *job) {
    return (double *)(job->workspace + job->plan->cut.stages.largest_offset);
}

void stages_forward_blocks(void *data, int64_t begin, int64_t end) {
    cpu_job *job = data;
    const problem *p = job->problem;
    const stages_cut *cut = &job->plan->cut.stages;
    const int slot = slot_take(job);
    stages_block b = {
        .job = job,
        .kernels = stages_kernels(job->plan),
        .slot = slot_data(job, &cut->slots, slot),
        .direct = direct_roles(job),
    };
    if (p->stages.dropout_p > 0)
        b.draw = philox_of((const uint64_t *)job->data[ROLE_RNG], p->stages.dropout_p);
    for (int64_t block = begin; block < end; block++) {
        const int64_t last = (block + 1) * cut->block_rows;
        b.largest = 0;
        forward_block(&b, block * cut->block_rows, last < p->rows ? last : p->rows);
        if (has(p, ROLE_AMAX))
            largest_of_blocks(job)[block] = b.largest;
    }
    slot_return(job, slot);
}

void stages_forward_finish(const cpu_job *job) {
    double largest = 0;
    if (!has(job->problem, ROLE_AMAX))
        return;
    for (int64_t block = 0; block < job->plan->blocks; block++) {
        const double of_block = largest_of_blocks(job)[block];
        largest = of_block > largest ? of_block : largest;
    }
    *(float *)job->data[ROLE_AMAX] = (float)largest;
}

/* Nothing has no largest element: its scale is that of 0. */
void stages_fill_empty(const cpu_job *job) {
    const problem *p = job->problem;
    const int bytes = dtype_bytes(p->dtypes[ROLE_Y_SCALES]);
    if (has(p, ROLE_AMAX))
        *(float *)job->data[ROLE_AMAX] = 0;
    for (int64_t row = 0; has(p, ROLE_Y_SCALES) && row < p->rows;) {
        const row_run run = row_run_at(job, row, p->rows);
        const float scale = stages_scale(&p->stages, p->dtypes[ROLE_Q], 0);
        for (int64_t i = 0; i < run.rows; i++)
            for (int64_t k = 0; k < p->stages.blocks; k++)
                stages_store_scale(run.data[ROLE_Y_SCALES] + i * run.pitch[ROLE_Y_SCALES] +
                                       k * p->stages.scale_stride * bytes,
                                   p->dtypes[ROLE_Y_SCALES], scale);
        row += run.rows;
    }
}
