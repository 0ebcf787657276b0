/*
 * Dense rows with what stands around the norm. Rows are cut as the forward of dense rows cuts rows
 * of the dtype that the norm reads, so that the result has the bits of the two run one after the
 * other.
 */
#include "cuda/stages/stages_forward.h"
#include "cuda/stages/stages_registers.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cuda/common/integers.h"
#include "cuda/common/lanes.h"
#include "cuda/rows/rows_early.h"
#include "cuda/rows/rows_fit.h"
#include "cuda/rows/rows_forward.h"
#include "cuda/rows/rows_shape.h"
#include "stages.h"

enum { MOST_GRID_X = 1 << 30 };

/* ---- What the problem is --------------------------------------------------------------------- */

static bool is_full(role r) {
    return every_full_role & ROLE_BIT(r);
}

bool stages_is_of_columns(role r) {
    const role_axes axes = axes_of(r);
    return axes == AXES_AFFINE || axes == AXES_COLUMN || axes == AXES_MODULATION;
}

/* Lanes whose chunks share a scale can hand it to each other. */
static bool takes_blocks(const problem *p, const rows_constants *c) {
    const int64_t block = p->stages.block;
    if (!has(p, ROLE_Y_SCALES) || block >= p->cols)
        return true;
    if (block % c->width)
        return false;
    const int64_t lanes = block / c->width;
    return lanes <= WARP && !(lanes & (lanes - 1)) && c->threads_per_row % lanes == 0;
}

bool stages_is_dense(const problem *p) {
    if (p->kept_count > 2 || p->reduced_count != 1)
        return false;
    for (role_set rest = p->present; rest; rest &= rest - 1) {
        const role r = first_role(rest);
        const int64_t stride = reduced_stride(p, 0, r);
        if (p->cols > 1 && ((is_full(r) && stride != 1) ||
                            (stages_is_of_columns(r) && stride != 0 && stride != 1)))
            return false;
    }
    return p->cols == 1 || p->stages.dropout_p == 0 || axis_index_step(p, &p->reduced[0]) == 1;
}

/* What the norm reads. */
static dtype sum_type(const problem *p) {
    if (!has_prologue(p))
        return p->dtypes[ROLE_X];
    if (p->stages.sum != DTYPE_NONE)
        return p->stages.sum;
    return problem_is_double(p) ? DTYPE_F64 : DTYPE_F32;
}

/* The largest power of two up to 4 that divides the number of every row's first element. */
static int index_alignment(const problem *p) {
    uint64_t bits = 4;
    for (int k = 0; k < p->kept_count; k++)
        bits |= (uint64_t)axis_index_step(p, &p->kept[k]);
    return (int)(bits & ~(bits - 1));
}

int64_t stages_stride(const cuda_plan *plan, int level, role r) {
    const int axis = plan->stages.axis[level];
    return axis ? kept_stride(plan->problem, axis - 1, r) : 0;
}

uint64_t stages_dropped(double p) {
    return (uint64_t)ceil(ldexp(p, 32));
}

void stages_set_constants(cuda_spec *spec, const problem *p) {
    stages_constants *s = &spec->stages;
    cuda_spec_describe(spec, p);
    s->gate_before = p->stages.gate == PLANISH_GATE_BEFORE;
    s->round_xhat = p->stages.rounding == PLANISH_ROUND_XHAT;
    s->dropout = p->stages.dropout_p > 0;
    s->power_of_two = has(p, ROLE_Y_SCALES) && p->stages.format == PLANISH_SCALE_POWER_OF_TWO;
    s->want_y = has(p, ROLE_Y);
}

/* ---- Plans ----------------------------------------------------------------------------------- */

/* What the norm reads has no memory of its own: it is in registers, or shared memory. */
static void fit(const cuda_plan *plan, cuda_spec *spec) {
    rows_constants *c = &spec->rows;
    spec->access[ROLE_X] = 16;
    forward_fit(plan, spec);
    if (spec->stages.gate_in_shared && spec->access[ROLE_GATE] < 4) {
        spec->stages.gate_in_shared = 0;
        stages_set_blocks(&plan->limits, spec);
    }
    if (c->early > EARLY_IN_REGISTERS &&
        (!rows_early_can_be_brought(spec) || c->hold != HOLD_IN_REGISTERS))
        c->early = 0;
    if (c->early && !plan->main.rows.early)
        spec->min_blocks = 1;
}

static void stages_forward_plan_size(cuda_plan *plan) {
    rows_fit_make(plan, fit);
}

static const char *stages_forward_plan_make(cuda_plan *plan, const problem *p) {
    if (!problem_has_stages(p) || p->pass != PLANISH_FORWARD)
        return "this pass";
    if (!stages_is_dense(p))
        return STAGES_NOT_DENSE;
    cuda_spec *spec = &plan->main;
    rows_constants *c = &spec->rows;
    stages_constants *s = &spec->stages;
    stages_set_constants(spec, p);
    spec->kernel = CUDA_STAGES_FORWARD;
    spec->real_double = problem_is_double(p);
    spec->cooperating_blocks = 1;
    spec->type[ROLE_BRANCH] = p->dtypes[ROLE_X];
    spec->type[ROLE_X] = sum_type(p);
    if (!s->want_y)
        spec->type[ROLE_Y] = p->dtypes[ROLE_X];
    c->cols = (int)p->cols;
    forward_geometry(plan, c->cols, dtype_bytes((dtype)spec->type[ROLE_X]), spec->real_double,
                     &plan->limits);
    c->ring_slots = c->delay = c->early = 0;
    if (!takes_blocks(p, c))
        return "scales of blocks that no power of two lanes share";
    s->gate_in_shared = stages_gate_can_wait(&plan->limits, spec);
    s->scale_block = has(p, ROLE_Y_SCALES) ? (int)least_i64(p->stages.block, p->cols) : 0;
    stages_set_blocks(&plan->limits, spec);
    c->early = stages_early(&plan->limits, spec);
    s->two_levels = p->kept_count == 2;
    s->index_aligned = index_alignment(p);
    plan->stages = (cuda_stages){.inner_rows = p->kept[p->kept_count - 1].size};
    for (int k = 0; k < p->kept_count; k++) {
        const int level = k + 2 - p->kept_count; /* the inner one is 1 */
        plan->stages.index[level] = axis_index_step(p, &p->kept[k]);
        plan->stages.axis[level] = k + 1;
    }
    for (role_set rest = p->present; rest; rest &= rest - 1) {
        const role r = first_role(rest);
        if (stages_stride(plan, 0, r) || stages_stride(plan, 1, r))
            role_words_add(&s->varies, r == ROLE_X ? ROLE_BRANCH : r);
        if (stages_is_of_columns(r) && p->cols > 1 && reduced_stride(p, 0, r) == 0)
            role_words_add(&s->alike, r);
    }
    stages_forward_plan_size(plan);
    return NULL;
}

static int stages_forward_plan_describe(const cuda_plan *plan, char *text, size_t bytes) {
    const cuda_spec *spec = &plan->main;
    const rows_constants *c = &spec->rows;
    return snprintf(text, bytes,
                    "cuda stages forward %lldx%lld: %d lanes x %d chunks of %d, %d rows at a time, "
                    "%d warps, cluster %d",
                    (long long)plan->rows, (long long)plan->cols, c->threads_per_row,
                    c->chunks_per_thread, c->width, rows_at_a_time(spec), c->warps, spec->cluster);
}

/* ---- Launches -------------------------------------------------------------------------------- */

/* What a kernel's role is called outside: what the norm reads has no memory of its own. */
static role role_outside(role r) {
    return r == ROLE_BRANCH ? ROLE_X : r;
}

static cuda_spec spec_for(const cuda_plan *plan, void *const *b) {
    cuda_spec spec = plan->main;
    for (role r = 0; r < ROLE_COUNT; r++) {
        const role outside = role_outside(r);
        const int64_t bytes = role_bytes(&spec, r);
        spec.access[r] = 16;
        if (spec.type[r] != DTYPE_NONE && r != ROLE_X && b[outside])
            spec.access[r] = common_alignment((uint64_t)(uintptr_t)b[outside] |
                                              (uint64_t)(stages_stride(plan, 0, outside) * bytes) |
                                              (uint64_t)(stages_stride(plan, 1, outside) * bytes));
    }
    rows_fit_apply(plan, &spec);
    return spec;
}

static int stages_forward_launch_specs(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                                       cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    int count = 0;
    const cuda_spec main = spec_for(plan, buffers);
    if (main.type[ROLE_AMAX] != DTYPE_NONE) {
        launches[count].spec = main;
        launches[count].spec.cluster = 1; /* one block, which makes no cluster */
        launches[count++].spec.kernel = CUDA_STAGES_CLEAR;
    }
    launches[count++].spec = main;
    return count;
}

static void stages_forward_launch_arguments(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                                            void *workspace, int resident,
                                            cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    (void)workspace;
    (void)resident;
    const cuda_stages *at = &plan->stages;
    const stages *s = &plan->problem->stages;
    const int clears = launches[0].spec.kernel == CUDA_STAGES_CLEAR;
    cuda_launch *l = &launches[clears];
    const int64_t units = rows_units(plan, &l->spec), cluster = l->spec.cluster;
    int64_t grid = least_i64(units, MOST_GRID_X / cluster);
    if (clears) /* few blocks, each with a maximum of its own */
        grid = least_i64(grid, 4 * rows_resident(plan, &l->spec));
    l->blocks_x = grid * cluster;
    l->blocks_y = 1;
    stages_forward_args *a = &l->args.stages_forward;
    *a =
        (stages_forward_args){.rows = plan->rows,
                              .row_turn = grid * rows_at_a_time(&l->spec),
                              .inner_rows = at->inner_rows,
                              .index_outer = at->index[0],
                              .index_inner = at->index[1],
                              .scale_stride = s->scale_stride * role_bytes(&l->spec, ROLE_Y_SCALES),
                              .dropped = stages_dropped(s->dropout_p),
                              .eps = plan->eps,
                              .keep_factor = 1 / (1 - s->dropout_p),
                              .eps_rounded = (float)plan->eps,
                              .scale_least = (float)s->scale_least,
                              .scale_most = (float)s->scale_most,
                              .eps_is_small = plan->eps < 1e-30};
    for (role r = 0; r < ROLE_COUNT; r++) {
        const role outside = role_outside(r);
        const int64_t bytes = role_bytes(&l->spec, r);
        if (l->spec.type[r] == DTYPE_NONE || r == ROLE_X)
            continue;
        a->tensor[r] = (stages_tensor){buffers[outside], stages_stride(plan, 0, outside) * bytes,
                                       stages_stride(plan, 1, outside) * bytes};
    }
    if (clears) {
        launches[0].blocks_x = launches[0].blocks_y = 1;
        launches[0].args.stages_forward = *a;
    }
}

static unsigned stages_threads(const cuda_spec *spec) {
    return spec->kernel == CUDA_STAGES_CLEAR ? WARP : WARP * (unsigned)spec->rows.warps;
}

static size_t stages_shared_bytes(const cuda_spec *spec) {
    const rows_constants *c = &spec->rows;
    if (spec->kernel == CUDA_STAGES_CLEAR)
        return 0;
    if (c->variant == ROWS_IN_RUNS) /* a row for each team; lanes read behind the last one's end */
        return round_up((size_t)c->warps * (size_t)(WARP / c->threads_per_row) * (size_t)c->cols *
                            2 +
                        4 * (size_t)run_words(c->cols, c->threads_per_row) + 4);
    if (c->early == EARLY_IN_SHARED)
        return WARP * (size_t)c->warps * (size_t)c->chunks_per_thread * (size_t)c->width *
               (size_t)role_bytes(spec, ROLE_WEIGHT);
    if (spec->stages.gate_in_shared)
        return WARP * (size_t)c->warps * (size_t)c->chunks_per_thread * (size_t)c->rows *
               (size_t)c->width * (size_t)role_bytes(spec, ROLE_GATE);
    if (c->hold == HOLD_IN_SHARED)
        return WARP * (size_t)c->warps * (size_t)c->chunks_per_thread * (size_t)c->rows *
               (size_t)c->width * (size_t)role_bytes(spec, ROLE_X);
    return 0;
}

const cuda_family stages_forward_family = {
    .name = "rows with stages",
    .plan_make = stages_forward_plan_make,
    .plan_size = stages_forward_plan_size,
    .plan_describe = stages_forward_plan_describe,
    .launch_specs = stages_forward_launch_specs,
    .launch_arguments = stages_forward_launch_arguments,
    .threads = stages_threads,
    .shared_bytes = stages_shared_bytes,
};
