/*
 * The backward of dense rows with what stands around the norm. How rows are cut follows from their
 * length, the dtypes and the stages; how many blocks share them, from their number and the device
 * as well.
 */
#include "cuda/stages/stages_backward.h"

#include <stdio.h>
#include <string.h>

#include "cuda/common/finish.h"
#include "cuda/common/integers.h"
#include "cuda/common/lanes.h"
#include "cuda/rows/rows_fit.h"
#include "cuda/stages/samples.h"
#include "cuda/stages/stages_forward.h"

static const role streams[] = {ROLE_X, ROLE_DY, ROLE_GATE, ROLE_DSUM, ROLE_BRANCH};
enum { STREAMS = sizeof streams / sizeof *streams };

/* ---- What the problem is --------------------------------------------------------------------- */

/* How the gradients of scale and shift go. */
typedef enum modulation { NOT_SUMMED, BY_SAMPLE, BY_OTHERS } modulation;

static modulation modulation_of(const problem *p) {
    if (!has(p, ROLE_DSCALE) && !has(p, ROLE_DSHIFT))
        return NOT_SUMMED;
    if (p->cols > 1 && !p->reduced[0].modulated)
        return BY_OTHERS;
    int modulated = 0;
    for (int k = 0; k < p->kept_count; k++)
        modulated += p->kept[k].modulated;
    if (modulated == p->kept_count) /* each row has its own */
        return NOT_SUMMED;
    return p->kept_count == 2 && !modulated ? BY_OTHERS : BY_SAMPLE;
}

/* Whether what varies with columns alone does so in every row, and is summed over all columns. */
static bool sums_by_columns(const problem *p) {
    const bool affine = p->present & AFFINE_ROLES, column = has(p, ROLE_DCOLUMN_SCALE);
    for (int k = 0; k < p->kept_count; k++)
        if ((affine && p->kept[k].affine) || (column && p->kept[k].column))
            return false;
    return p->cols == 1 || ((!affine || p->reduced[0].affine) && (!column || p->reduced[0].column));
}

/* Results that show more digits than 16 bits have. */
static bool shows_digits(const problem *p) {
    static const role shown[] = {ROLE_DRESIDUAL, ROLE_DGATE,         ROLE_DSCALE,
                                 ROLE_DSHIFT,    ROLE_DCOLUMN_SCALE, ROLE_DBIAS};
    for (size_t i = 0; i < sizeof shown / sizeof *shown; i++)
        if (has(p, shown[i]) && dtype_bytes(p->dtypes[shown[i]]) > 2)
            return true;
    return !problem_hides_rounding(p);
}

/* ---- Geometry -------------------------------------------------------------------------------- */

/* Columns that a thread has registers for. */
static int elements_of_thread(const stages_tuning *t, const cuda_spec *spec, const problem *p) {
    int bytes = role_bytes(spec, ROLE_WEIGHT) + role_bytes(spec, ROLE_SCALE);
    for (int i = 0; i < STREAMS; i++)
        bytes += role_bytes(spec, streams[i]);
    const bool after = has(p, ROLE_GATE) && !spec->stages.gate_before;
    int numbers = spec->want_dweight + spec->want_dbias + has(p, ROLE_DCOLUMN_SCALE);
    numbers += p->activation != PLANISH_IDENTITY || after; /* dm */
    numbers += spec->stages.gate_before;                   /* s */
    return t->back_words * 4 / (bytes + numbers * (int)real_bytes(spec));
}

static size_t ring_bytes(const cuda_spec *spec) {
    size_t bytes = 0;
    for (int i = 0; i < STREAMS; i++)
        bytes += (size_t)(spec->rows.width * role_bytes(spec, streams[i]));
    return bytes * WARP * (size_t)(spec->rows.warps * spec->rows.chunks_per_thread);
}

static size_t shared_bytes(const cuda_spec *spec) {
    const rows_constants *c = &spec->rows;
    if (spec->kernel != CUDA_STAGES_BACKWARD)
        return 0;
    const size_t sums = (size_t)c->teams *
                        (size_t)(c->threads_per_row * c->chunks_per_thread * c->width) *
                        real_bytes(spec);
    const size_t ring = ring_bytes(spec);
    return ring > sums ? ring : sums;
}

/* Where the warps follow from the teams, whole warps each. */
static size_t shared_of_teams(const cuda_spec *spec) {
    cuda_spec with = *spec;
    with.rows.warps = spec->rows.teams * spec->rows.threads_per_row / WARP;
    return shared_bytes(&with);
}

static bool make_geometry(const cuda_limits *limits, cuda_spec *spec, const problem *p) {
    const stages_tuning *t = &limits->tuning->stages;
    rows_constants *c = &spec->rows;
    const int x = dtype_bytes(p->dtypes[ROLE_X]), dy = dtype_bytes(p->dtypes[ROLE_DY]);
    const int bytes = most(x, dy);
    c->cols = (int)p->cols;
    c->width = chunk_width(c->cols, bytes, spec->real_double ? 2 : 8);
    const int chunks = c->cols / c->width;
    const int elements = most(c->width, elements_of_thread(t, spec, p) / c->width * c->width);
    spec->cluster = 1;
    c->threads_per_row = lanes_within_warp(chunks, c->width, c->width * bytes, elements, 16, 60, 14,
                                           &c->chunks_per_thread);
    c->warps = c->teams = t->back_warps;
    if (!c->threads_per_row) {
        while (spec->cluster < limits->max_cluster &&
               (int64_t)spec->cluster * t->back_lanes * elements < c->cols)
            spec->cluster *= 2;
        c->threads_per_row = lanes_of_block(chunks, c->width, spec->cluster, elements,
                                            t->back_lanes, &c->chunks_per_thread);
        if (!c->threads_per_row)
            return false;
        /* One block of several teams leaves one row of sums where as many blocks would leave one
         * each. */
        c->teams = spec->cluster == 1
                       ? most(1, least(t->back_teams, t->back_threads / c->threads_per_row))
                       : 1;
        while (c->teams > 1 && shared_of_teams(spec) > (size_t)limits->shared_per_block)
            c->teams /= 2;
        c->warps = c->teams * c->threads_per_row / WARP;
    }
    spec->min_blocks = most(1, t->back_threads / (WARP * c->warps));
    while (spec->min_blocks > 1 && (shared_bytes(spec) + 2048) * (size_t)spec->min_blocks >
                                       (size_t)limits->shared_per_block)
        spec->min_blocks--;
    return shared_bytes(spec) <= (size_t)limits->shared_per_block;
}

static int block_rows(const cuda_spec *spec) {
    const rows_constants *c = &spec->rows;
    return c->teams * (c->threads_per_row <= WARP ? WARP / c->threads_per_row : 1);
}

/* ---- Plans ----------------------------------------------------------------------------------- */

static void fit(const cuda_plan *plan, cuda_spec *spec) {
    (void)plan;
    spec->rows.ring_slots = 1;
    for (int i = 0; i < STREAMS; i++) /* asynchronous copies need 4 bytes */
        if (spec->type[streams[i]] != DTYPE_NONE &&
            (spec->access[streams[i]] < 4 || spec->rows.width * role_bytes(spec, streams[i]) < 4))
            spec->rows.ring_slots = 0;
}

static void size(cuda_plan *plan) {
    const cuda_spec *spec = &plan->main;
    rows_fit_make(plan, fit);
    const int64_t samples = most_i64(1, plan->stages.samples), rows = plan->rows / samples;
    const int64_t resident =
        most_i64(1, (int64_t)plan->limits.multiprocessors * spec->min_blocks / spec->cluster);
    const int64_t units = most_i64(1, ceil_div_i64(rows, block_rows(spec)));
    plan->stages.parts = spec->stages.by_sample
                             ? samples_parts(samples, rows, block_rows(spec), resident)
                             : least_i64(units, resident);
    plan->partials = samples * plan->stages.parts;
    const size_t row = (size_t)plan->cols * real_bytes(spec);
    const int sums =
        spec->want_dweight + spec->want_dbias + (spec->type[ROLE_DCOLUMN_SCALE] != DTYPE_NONE);
    plan->workspace_bytes = (size_t)plan->partials * (size_t)sums * row;
    if (spec->stages.by_sample)
        plan->workspace_bytes += 2 * (size_t)samples * row;
}

static void set_levels(cuda_plan *plan, const problem *p) {
    cuda_stages *a = &plan->stages;
    stages_constants *s = &plan->main.stages;
    /* Samples are the outer of two axes. */
    const bool swap = s->by_sample && p->kept_count == 2 && p->kept[1].modulated;
    s->two_levels = p->kept_count == 2 || (s->by_sample && p->kept[0].modulated);
    a->inner_rows = p->kept[p->kept_count - 1].size;
    for (int k = 0; k < p->kept_count; k++) {
        int level = k + 2 - p->kept_count; /* the inner one is 1 */
        if (swap)
            level = !level;
        if (level == 1)
            a->inner_rows = p->kept[k].size;
        a->index[level] = axis_index_step(p, &p->kept[k]);
        a->axis[level] = k + 1;
    }
    a->samples = s->by_sample && a->inner_rows > 0 ? p->rows / a->inner_rows : 1;
    uint64_t bits = 4;
    for (int k = 0; k < p->kept_count; k++)
        bits |= (uint64_t)axis_index_step(p, &p->kept[k]);
    s->index_aligned = (int32_t)(bits & ~(bits - 1));
    for (role_set rest = p->present; rest; rest &= rest - 1) {
        const role r = first_role(rest);
        if (stages_stride(plan, 0, r) || stages_stride(plan, 1, r))
            role_words_add(&s->varies, r);
        if (stages_is_of_columns(r) && p->cols > 1 && reduced_stride(p, 0, r) == 0)
            role_words_add(&s->alike, r);
    }
}

static const char *make(cuda_plan *plan, const problem *p) {
    cuda_spec *spec = &plan->main;
    stages_constants *s = &spec->stages;
    const modulation m = modulation_of(p);
    if (p->pass != PLANISH_BACKWARD || p->rows < 1)
        return "no rows, or this pass";
    if (!stages_is_dense(p))
        return STAGES_NOT_DENSE;
    if (m == BY_OTHERS)
        return "gradients of a modulation that rows do not share by samples";
    if (!sums_by_columns(p))
        return "weights or a column_scale that vary from row to row, or not along all of a row";
    stages_set_constants(spec, p);
    spec->kernel = CUDA_STAGES_BACKWARD;
    spec->real_double = problem_is_double(p);
    spec->cooperating_blocks = 1;
    s->gate_before = has(p, ROLE_GATE) && p->stages.gate == PLANISH_GATE_BEFORE;
    s->by_sample = m == BY_SAMPLE;
    spec->want_dweight = has(p, ROLE_DWEIGHT);
    spec->want_dbias = has(p, ROLE_DBIAS);
    if (s->by_sample) {
        spec->want_dweight |= has(p, ROLE_DSCALE);
        spec->want_dbias |= has(p, ROLE_DSHIFT) || has(p, ROLE_BIAS);
    }
    spec->correct = p->kind == PLANISH_LAYER && (shows_digits(p) || slope_jumps(p->activation));
    if (shows_digits(p))
        spec->type[ROLE_Y] = DTYPE_F32; /* to activation.cu: results of more than 16 bits */
    if (!make_geometry(&plan->limits, spec, p))
        return "rows so long";
    set_levels(plan, p);
    size(plan);
    cuda_plan_finish(plan, p, spec->rows.cols,
                     s->by_sample ? plan->stages.samples : plan->partials);
    size(plan);
    return NULL;
}

static int describe(const cuda_plan *plan, char *text, size_t bytes) {
    const cuda_spec *spec = &plan->main;
    const rows_constants *c = &spec->rows;
    return snprintf(
        text, bytes,
        "cuda stages backward %lldx%lld: %d lanes x %d chunks of %d, %d rows at a time, "
        "%d warps, cluster %d",
        (long long)plan->rows, (long long)plan->cols, c->threads_per_row, c->chunks_per_thread,
        c->width, block_rows(spec), c->warps, spec->cluster);
}

/* ---- Launches -------------------------------------------------------------------------------- */

static cuda_spec spec_for(const cuda_plan *plan, void *const *b) {
    cuda_spec spec = plan->main;
    for (role r = 0; r < ROLE_COUNT; r++) {
        const int64_t bytes = role_bytes(&spec, r);
        spec.access[r] = 16;
        if (spec.type[r] != DTYPE_NONE && b[r])
            spec.access[r] = common_alignment((uint64_t)(uintptr_t)b[r] |
                                              (uint64_t)(stages_stride(plan, 0, r) * bytes) |
                                              (uint64_t)(stages_stride(plan, 1, r) * bytes));
    }
    rows_fit_apply(plan, &spec);
    return spec;
}

static bool wants(const cuda_plan *plan, role r) {
    return plan->main.type[r] != DTYPE_NONE;
}

static int launch_specs(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                        cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    int count = 0;
    launches[count++].spec = spec_for(plan, buffers);
    if (plan->main.stages.by_sample) {
        samples_describe(&launches[count++].spec, &plan->main, plan->main.rows.cols,
                         plan->stages.samples, plan->stages.parts);
    }
    if (wants(plan, ROLE_DWEIGHT) || wants(plan, ROLE_DBIAS))
        launches[count++].spec = plan->finish;
    if (wants(plan, ROLE_DCOLUMN_SCALE)) {
        cuda_spec *spec = &launches[count++].spec;
        *spec = plan->finish;
        spec->type[ROLE_DWEIGHT] = plan->main.type[ROLE_DCOLUMN_SCALE];
        spec->type[ROLE_DBIAS] = DTYPE_NONE;
    }
    return count;
}

static cuda_launch *add_finish(cuda_launch *l, char *weight, char *bias, void *dweight, void *dbias,
                               int64_t count) {
    const finish_constants *f = &l->spec.finish;
    l->blocks_x = ceil_div(f->cols, f->lanes);
    l->blocks_y = (dweight != NULL) + (dbias != NULL);
    l->args.finish = (finish_args){.partial_weight = weight,
                                   .partial_bias = bias,
                                   .dweight = dweight,
                                   .dbias = dbias,
                                   .count = count};
    return l + 1;
}

/* What a run's sums lie in. */
typedef struct sums {
    char *weight, *bias, *scaled, *sample_weight, *sample_bias;
} sums;

static sums sums_in(const cuda_plan *plan, char *workspace) {
    const cuda_spec *spec = &plan->main;
    const size_t row = (size_t)plan->cols * real_bytes(spec);
    const size_t plane = (size_t)plan->partials * row;
    sums s = {.weight = workspace};
    s.bias = s.weight + (spec->want_dweight ? plane : 0);
    s.scaled = s.bias + (spec->want_dbias ? plane : 0);
    s.sample_weight = s.scaled + (wants(plan, ROLE_DCOLUMN_SCALE) ? plane : 0);
    s.sample_bias = s.sample_weight + (size_t)plan->stages.samples * row;
    return s;
}

static cuda_launch *add_samples(const cuda_plan *plan, void *const *b, const sums *s,
                                cuda_launch *l) {
    const cuda_spec *spec = &plan->main;
    const cuda_stages *a = &plan->stages;
    samples_grid(l, a->samples);
    l->args.samples = (samples_args){
        .partial_weight = s->weight,
        .partial_bias = s->bias,
        .sample_weight = wants(plan, ROLE_DWEIGHT) ? s->sample_weight : NULL,
        .sample_bias = wants(plan, ROLE_DBIAS) ? s->sample_bias : NULL,
        .weight = b[ROLE_WEIGHT],
        .bias = b[ROLE_BIAS],
        .scale = b[ROLE_SCALE],
        .dscale = b[ROLE_DSCALE],
        .dshift = b[ROLE_DSHIFT],
        .scale_stride = stages_stride(plan, 0, ROLE_SCALE) * role_bytes(spec, ROLE_SCALE),
        .dscale_stride = stages_stride(plan, 0, ROLE_DSCALE) * role_bytes(spec, ROLE_DSCALE),
        .dshift_stride = stages_stride(plan, 0, ROLE_DSHIFT) * role_bytes(spec, ROLE_DSHIFT),
        .samples = a->samples,
        .parts = a->parts};
    return l + 1;
}

static void launch_arguments(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                             void *workspace, int resident,
                             cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    (void)resident; /* no block waits for another */
    const cuda_stages *at = &plan->stages;
    const cuda_spec *spec = &launches[0].spec;
    const sums s = sums_in(plan, workspace);
    const double keep = 1 / (1 - plan->problem->stages.dropout_p);
    cuda_launch *l = &launches[1];
    stages_backward_args *a = &launches[0].args.stages_backward;
    *a = (stages_backward_args){.partial_weight = s.weight,
                                .partial_bias = s.bias,
                                .partial_scaled = s.scaled,
                                .rows = spec->stages.by_sample ? at->inner_rows : plan->rows,
                                .inner_rows = at->inner_rows,
                                .index_outer = at->index[0],
                                .index_inner = at->index[1],
                                .dropped = stages_dropped(plan->problem->stages.dropout_p),
                                .keep_factor = keep,
                                .clamped = plan->problem->rule.clamped,
                                .parts = (uint32_t)at->parts};
    for (role r = 0; r < ROLE_COUNT; r++) {
        const int64_t bytes = role_bytes(spec, r);
        if (spec->type[r] != DTYPE_NONE && r != ROLE_Y)
            a->tensor[r] = (stages_tensor){buffers[r], stages_stride(plan, 0, r) * bytes,
                                           stages_stride(plan, 1, r) * bytes};
    }
    launches[0].blocks_x = plan->partials * spec->cluster;
    launches[0].blocks_y = 1;
    if (spec->stages.by_sample)
        l = add_samples(plan, buffers, &s, l);
    if (wants(plan, ROLE_DWEIGHT) || wants(plan, ROLE_DBIAS))
        l = spec->stages.by_sample
                ? add_finish(l, s.sample_weight, s.sample_bias, buffers[ROLE_DWEIGHT],
                             buffers[ROLE_DBIAS], at->samples)
                : add_finish(l, s.weight, s.bias, buffers[ROLE_DWEIGHT], buffers[ROLE_DBIAS],
                             plan->partials);
    if (wants(plan, ROLE_DCOLUMN_SCALE))
        add_finish(l, s.scaled, NULL, buffers[ROLE_DCOLUMN_SCALE], NULL, plan->partials);
}

static unsigned threads(const cuda_spec *spec) {
    if (spec->kernel == CUDA_STAGES_SAMPLES)
        return samples_threads(spec);
    return WARP * (unsigned)spec->rows.warps;
}

const cuda_family stages_backward_family = {
    .name = "rows with stages",
    .plan_make = make,
    .plan_size = size,
    .plan_describe = describe,
    .launch_specs = launch_specs,
    .launch_arguments = launch_arguments,
    .threads = threads,
    .shared_bytes = shared_bytes,
};
