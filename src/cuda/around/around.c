/*
 * Dense rows with what stands around the norm. Rows are cut as the forward of dense rows cuts rows
 * of the dtype that the norm reads, so that the result has the bits of the two run one after the
 * other.
 */
#include "cuda/around/around.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cuda/common/integers.h"
#include "cuda/common/lanes.h"
#include "cuda/rows/rows_forward.h"
#include "cuda/rows/rows_shape.h"
#include "stages.h"

enum {
    MOST_GRID_X = 1 << 30,
    MOST_CENTRED = 512,   /* columns of CENTRED rows */
    MOST_GATED = 32,      /* columns of a thread whose gate waits */
    GATED_THREADS = 1024, /* of a multiprocessor then */
    EARLY_THREADS = 768,  /* of rows of a warp whose weights are loaded beside x */
};

/* ---- What the problem is ----------------------------------------------------------------------
 */

static bool is_full(role r) {
    return every_full_role & ROLE_BIT(r);
}

bool around_is_of_columns(role r) {
    const role_axes axes = axes_of(r);
    return axes == AXES_AFFINE || axes == AXES_COLUMN || axes == AXES_MODULATION;
}

/* Lanes whose chunks share a scale can hand it to each other. */
static bool takes_blocks(const problem *p, const rows_constants *c) {
    const int64_t block = p->around.block;
    if (!has(p, ROLE_Y_SCALES) || block >= p->cols)
        return true;
    if (block % c->width)
        return false;
    const int64_t lanes = block / c->width;
    return lanes <= 32 && !(lanes & (lanes - 1)) && c->lanes % lanes == 0;
}

bool around_is_dense(const problem *p) {
    if (p->kept_count > 2 || p->reduced_count != 1)
        return false;
    for (unsigned rest = p->present; rest; rest &= rest - 1) {
        const role r = first_role(rest);
        const int64_t stride = p->reduced[0].stride[r];
        if (p->cols > 1 && ((is_full(r) && stride != 1) ||
                            (around_is_of_columns(r) && stride != 0 && stride != 1)))
            return false;
    }
    return p->cols == 1 || p->around.dropout_p == 0 || p->reduced[0].index_step == 1;
}

/* What the norm reads. */
static dtype sum_type(const problem *p) {
    if (!has_prologue(p))
        return p->dtypes[ROLE_X];
    if (p->around.sum != DTYPE_NONE)
        return p->around.sum;
    return problem_is_double(p) ? DTYPE_F64 : DTYPE_F32;
}

/* The largest power of two up to 4 that divides the number of every row's first element. */
static int index_alignment(const problem *p) {
    uint64_t bits = 4;
    for (int k = 0; k < p->kept_count; k++)
        bits |= (uint64_t)p->kept[k].index_step;
    return (int)(bits & ~(bits - 1));
}

uint64_t around_dropped(double p) {
    return (uint64_t)ceil(ldexp(p, 32));
}

void around_describe(cuda_spec *spec, const problem *p) {
    stages_constants *s = &spec->stages;
    cuda_spec_describe(spec, p);
    s->gate_before = p->around.gate == PLANISH_GATE_BEFORE;
    s->round_xhat = p->around.rounding == PLANISH_ROUND_XHAT;
    s->dropout = p->around.dropout_p > 0;
    s->power_of_two = has(p, ROLE_Y_SCALES) && p->around.format == PLANISH_SCALE_POWER_OF_TWO;
    s->want_y = has(p, ROLE_Y);
}

/* ---- Plans ------------------------------------------------------------------------------------
 */

/* The gate behind the norm of rows in registers can wait in shared memory; short rows, of which a
 * thread has several, do without. */
static bool gate_can_wait(const cuda_spec *spec) {
    const rows_constants *c = &spec->rows;
    return spec->type[ROLE_GATE] != DTYPE_NONE && !spec->stages.gate_before && !spec->real_double &&
           c->hold == HOLD_IN_REGISTERS && c->variant == ROWS_PLAIN && c->cols > MOST_CENTRED &&
           c->width * role_bytes(spec, ROLE_GATE) >= 4;
}

/* RMSNorm, its weight of 16 bits and a gate that waits: as many threads as plain rows have at most,
 * of 64 registers, whatever x is. */
static bool is_gate_alone(const cuda_spec *spec) {
    for (role r = NORM_ROLES; r < ROLE_COUNT; r++)
        if (r != ROLE_GATE && r != ROLE_BRANCH && spec->type[r] != DTYPE_NONE)
            return false;
    return spec->stages.gate_in_shared && spec->kind == PLANISH_RMS &&
           spec->activation == PLANISH_IDENTITY && !spec->stages.round_xhat &&
           !spec->stages.dropout && spec->type[ROLE_BIAS] == DTYPE_NONE &&
           role_bytes(spec, ROLE_X) == 2 && role_bytes(spec, ROLE_BRANCH) == 2 &&
           role_bytes(spec, ROLE_WEIGHT) <= 2 && role_bytes(spec, ROLE_GATE) == 2;
}

/* Registers of a thread, in words: what is held, what is under way, and the rest. */
static int registers_of(const cuda_spec *spec) {
    const rows_constants *c = &spec->rows;
    const int in_registers = c->hold == HOLD_IN_REGISTERS;
    const int chunks = in_registers ? c->vecs * c->rows : 4 * c->rows, width = c->width;
    static const role under_way[] = {ROLE_BRANCH, ROLE_RESIDUAL, ROLE_GATE};
    int bytes = 0;
    for (int i = 0; i < 3 - spec->stages.gate_in_shared; i++)
        bytes += spec->type[under_way[i]] == DTYPE_NONE ? 0 : role_bytes(spec, under_way[i]);
    int words = chunks * width * bytes / 4;
    if (c->variant != ROWS_PLAIN || c->cols <= MOST_CENTRED) /* a row as numbers */
        words = most(words, c->vecs * width + chunks * width * role_bytes(spec, ROLE_X) / 4);
    /* As numbers, too, where y waits for its scale; beside q where it is given. */
    if (spec->type[ROLE_Q] != DTYPE_NONE && in_registers && !spec->real_double)
        words = most(words, c->vecs * width + (spec->type[ROLE_Y_SCALES] == DTYPE_NONE ? 16 : 0));
    return 44 + words + (spec->real_double ? 40 : 0) + 2 * width;
}

/* Whether a quantised row's y waits for its scale in the registers that had the row, and little
 * else stands around the norm: 64 registers do (tests/cuda/test_quantised_registers.py). */
static bool is_lean(const cuda_limits *limits, const cuda_spec *spec) {
    const rows_constants *c = &spec->rows;
    static const role more[] = {ROLE_GATE, ROLE_SCALE,        ROLE_SHIFT,
                                ROLE_MASK, ROLE_COLUMN_SCALE, ROLE_ROW_SCALE};
    bool bare = spec->type[ROLE_Q] != DTYPE_NONE && !spec->activation && !spec->stages.dropout &&
                !spec->stages.round_xhat && !spec->stages.want_y;
    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        bare = bare && spec->type[more[i]] == DTYPE_NONE;
    static const role narrow[] = {ROLE_BRANCH, ROLE_X, ROLE_RESIDUAL, ROLE_WEIGHT, ROLE_BIAS};
    for (size_t i = 0; i < sizeof narrow / sizeof *narrow; i++)
        bare = bare && (spec->type[narrow[i]] == DTYPE_NONE || role_bytes(spec, narrow[i]) == 2);
    if (!bare || spec->real_double || c->hold != HOLD_IN_REGISTERS || c->variant != ROWS_PLAIN ||
        c->cols <= 512 || c->rows > 1 || c->width != 8 || c->vecs > 4 || spec->cluster > 1)
        return false;
    const bool found = spec->type[ROLE_Y_SCALES] != DTYPE_NONE, layer = spec->kind == 0;
    const bool blocks = found && spec->stages.scale_block < c->cols;
    const int arch = limits->arch;
    if (arch >= 110 || (layer && (arch >= 100 || blocks || !found)) || (!found && arch < 89) ||
        (!found && arch >= 100 && spec->type[ROLE_Q] == DTYPE_I8))
        return false;
    /* A last chunk that some lanes have not takes more. */
    return c->vecs * c->lanes * c->width == c->cols ||
           (arch >= 90 && !layer && spec->type[ROLE_Q] != DTYPE_I8);
}

/* A row of one warp waits for its sums, its largest and its weights one after the other, and
 * nothing is left to hide that: the weights come beside x, for a quarter of the warps. Not where a
 * residual is under way already, nor where the scale is given and y waits for nothing. */
static bool loads_early(const cuda_limits *limits, const cuda_spec *spec) {
    return is_lean(limits, spec) && spec->rows.lanes == 32 &&
           spec->type[ROLE_Y_SCALES] != DTYPE_NONE && spec->type[ROLE_RESIDUAL] == DTYPE_NONE &&
           spec->type[ROLE_BIAS] == DTYPE_NONE;
}

static void set_blocks(const cuda_limits *limits, cuda_spec *spec) {
    rows_constants *c = &spec->rows;
    if (is_gate_alone(spec) && c->width * c->vecs * c->rows <= MOST_GATED) {
        spec->min_blocks = most(1, GATED_THREADS / (32 * c->warps));
        return;
    }
    if (is_lean(limits, spec)) {
        const int threads =
            loads_early(limits, spec) ? EARLY_THREADS : limits->tuning->rows_forward.threads;
        spec->min_blocks = most(1, threads / (32 * c->warps));
        return;
    }
    while (c->lanes <= 32 && c->rows > 1 && registers_of(spec) > 100)
        c->rows /= 2;
    const int threads = 32 * limits->tuning->lane_registers / most(32, registers_of(spec));
    spec->min_blocks = most(1, least(spec->min_blocks, threads / (32 * c->warps)));
}

static bool around_plan_make(cuda_plan *plan, const problem *p) {
    if (!problem_has_stages(p) || p->pass != PLANISH_FORWARD || !around_is_dense(p))
        return false;
    cuda_spec *spec = &plan->main;
    rows_constants *c = &spec->rows;
    stages_constants *s = &spec->stages;
    around_describe(spec, p);
    spec->real_double = problem_is_double(p);
    spec->cooperating_blocks = 1;
    spec->type[ROLE_BRANCH] = p->dtypes[ROLE_X];
    spec->type[ROLE_X] = sum_type(p);
    if (!s->want_y)
        spec->type[ROLE_Y] = p->dtypes[ROLE_X];
    c->cols = (int)p->cols;
    /* The geometry is that of a kernel of plain rows. */
    spec->kernel = CUDA_FORWARD;
    forward_geometry(plan, c->cols, dtype_bytes((dtype)spec->type[ROLE_X]), spec->real_double,
                     &plan->limits);
    c->stages = c->delay = c->early = 0;
    if (!takes_blocks(p, c))
        return false;
    s->gate_in_shared = gate_can_wait(spec);
    s->scale_block = has(p, ROLE_Y_SCALES) ? (int)least_i64(p->around.block, p->cols) : 0;
    set_blocks(&plan->limits, spec);
    c->early = loads_early(&plan->limits, spec);
    spec->kernel = CUDA_AROUND_FORWARD;
    s->two_levels = p->kept_count == 2;
    s->index_aligned = index_alignment(p);
    plan->around = (cuda_around){.inner_rows = p->kept[p->kept_count - 1].size,
                                 .dropout_p = p->around.dropout_p,
                                 .block = p->around.block,
                                 .scale_stride = p->around.scale_stride,
                                 .scale_least = p->around.scale_least,
                                 .scale_most = p->around.scale_most};
    for (int k = 0; k < p->kept_count; k++) {
        const int level = k + 2 - p->kept_count; /* the inner one is 1 */
        plan->around.index[level] = p->kept[k].index_step;
        for (role r = 0; r < ROLE_COUNT; r++)
            plan->around.stride[level][r] = p->kept[k].stride[r];
    }
    for (unsigned rest = p->present; rest; rest &= rest - 1) {
        const role r = first_role(rest);
        if (plan->around.stride[0][r] || plan->around.stride[1][r])
            s->varies |= (int32_t)ROLE_BIT(r == ROLE_X ? ROLE_BRANCH : r);
        if (around_is_of_columns(r) && p->cols > 1 && p->reduced[0].stride[r] == 0)
            s->alike |= (int32_t)ROLE_BIT(r);
    }
    return true;
}

static void around_plan_size(cuda_plan *plan) {
    (void)plan;
}

static int around_plan_describe(const cuda_plan *plan, char *text, size_t bytes) {
    cuda_spec counted = plan->main; /* as rows_at_a_time knows it */
    const rows_constants *c = &counted.rows;
    counted.kernel = CUDA_FORWARD;
    return snprintf(text, bytes,
                    "cuda around forward %lldx%lld: %d lanes x %d chunks of %d, %d rows at a time, "
                    "%d warps, cluster %d",
                    (long long)plan->rows, (long long)plan->cols, c->lanes, c->vecs, c->width,
                    rows_at_a_time(&counted), c->warps, counted.cluster);
}

/* ---- Launches ---------------------------------------------------------------------------------
 */

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
                                              (uint64_t)(plan->around.stride[0][outside] * bytes) |
                                              (uint64_t)(plan->around.stride[1][outside] * bytes));
    }
    spec.kernel = CUDA_FORWARD;
    forward_fit_buffers(plan, &spec);
    if (spec.stages.gate_in_shared && spec.access[ROLE_GATE] < 4) {
        spec.stages.gate_in_shared = 0;
        set_blocks(&plan->limits, &spec);
    }
    spec.rows.dense = 0;
    if (spec.rows.early && !plan->main.rows.early)
        spec.min_blocks = 1;
    spec.kernel = CUDA_AROUND_FORWARD;
    return spec;
}

static int around_launch_specs(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                               cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    int count = 0;
    const cuda_spec main = spec_for(plan, buffers);
    if (main.type[ROLE_AMAX] != DTYPE_NONE) {
        launches[count].spec = main;
        launches[count].spec.cluster = 1; /* one block, which makes no cluster */
        launches[count++].spec.kernel = CUDA_AROUND_CLEAR;
    }
    launches[count++].spec = main;
    return count;
}

static void around_launch_arguments(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                                    void *workspace, int resident,
                                    cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    (void)workspace;
    (void)resident;
    const cuda_around *around = &plan->around;
    const int clears = launches[0].spec.kernel == CUDA_AROUND_CLEAR;
    cuda_launch *l = &launches[clears];
    cuda_spec counted = l->spec; /* as rows_units knows it */
    counted.kernel = CUDA_FORWARD;
    const int64_t units = rows_units(plan, &counted), cluster = l->spec.cluster;
    int64_t grid = least_i64(units, MOST_GRID_X / cluster);
    if (clears) /* few blocks, each with a maximum of its own */
        grid = least_i64(grid, 4 * rows_resident(plan, &l->spec));
    l->blocks_x = grid * cluster;
    l->blocks_y = 1;
    cuda_around_args *a = &l->args.around;
    *a = (cuda_around_args){.rows = plan->rows,
                            .row_turn = grid * rows_at_a_time(&counted),
                            .inner_rows = around->inner_rows,
                            .index_outer = around->index[0],
                            .index_inner = around->index[1],
                            .scale_stride =
                                around->scale_stride * role_bytes(&l->spec, ROLE_Y_SCALES),
                            .dropped = around_dropped(around->dropout_p),
                            .eps = plan->eps,
                            .keep_factor = 1 / (1 - around->dropout_p),
                            .eps_rounded = (float)plan->eps,
                            .scale_least = (float)around->scale_least,
                            .scale_most = (float)around->scale_most,
                            .eps_is_small = plan->eps < 1e-30};
    for (role r = 0; r < ROLE_COUNT; r++) {
        const role outside = role_outside(r);
        const int64_t bytes = role_bytes(&l->spec, r);
        if (l->spec.type[r] == DTYPE_NONE || r == ROLE_X)
            continue;
        a->tensor[r] = (cuda_around_tensor){buffers[outside], around->stride[0][outside] * bytes,
                                            around->stride[1][outside] * bytes};
    }
    if (clears) {
        launches[0].blocks_x = launches[0].blocks_y = 1;
        launches[0].args.around = *a;
    }
}

static unsigned around_threads(const cuda_spec *spec) {
    return spec->kernel == CUDA_AROUND_CLEAR ? 32u : 32u * (unsigned)spec->rows.warps;
}

static size_t around_shared_bytes(const cuda_spec *spec) {
    const rows_constants *c = &spec->rows;
    if (spec->kernel == CUDA_AROUND_CLEAR)
        return 0;
    if (c->variant == ROWS_IN_RUNS) /* a row for each team; lanes read behind the last one's end */
        return round_up((size_t)c->warps * (size_t)(32 / c->lanes) * (size_t)c->cols * 2 +
                        4 * (size_t)run_words(c->cols, c->lanes) + 4);
    if (spec->stages.gate_in_shared)
        return 32 * (size_t)c->warps * (size_t)c->vecs * (size_t)c->rows * (size_t)c->width *
               (size_t)role_bytes(spec, ROLE_GATE);
    if (c->hold == HOLD_IN_SHARED)
        return 32 * (size_t)c->warps * (size_t)c->vecs * (size_t)c->rows * (size_t)c->width *
               (size_t)role_bytes(spec, ROLE_X);
    return 0;
}

const cuda_family around_family = {
    .plan_make = around_plan_make,
    .plan_size = around_plan_size,
    .plan_describe = around_plan_describe,
    .launch_specs = around_launch_specs,
    .launch_arguments = around_launch_arguments,
    .threads = around_threads,
    .shared_bytes = around_shared_bytes,
};
