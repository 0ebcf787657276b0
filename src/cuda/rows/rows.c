/*
 * Plans for dense rows. Everything here follows from the row length, the dtypes and the device's
 * limits; the number of rows only sets the size of the grid, so a row's result cannot depend on it.
 */
#include "cuda/rows/rows.h"

#include <stdio.h>

#include "cuda/common/finish.h"
#include "cuda/common/integers.h"
#include "cuda/rows/rows_backward.h"
#include "cuda/rows/rows_cooperative.h"
#include "cuda/rows/rows_early.h"
#include "cuda/rows/rows_fit.h"
#include "cuda/rows/rows_forward.h"
#include "cuda/rows/rows_launches.h"
#include "cuda/rows/rows_levels.h"
#include "cuda/rows/rows_shape.h"

/* Whether the problem is dense rows one stride apart; rows of one element have no reduced axis. */
static int is_rows(const problem *p) {
    if (p->kept_count > 1)
        return 0;
    if (p->reduced_count == 0)
        return p->cols == 1 && p->affine <= 1;
    return problem_is_rows(p);
}

/* A row of partial sums for each block, or cluster, of a backward; as many for each slice. */
static int64_t partial_rows(const cuda_plan *plan) {
    const cuda_spec *spec = &plan->main;
    const int64_t slices = rows_slices(plan);
    const int all = plan->limits.multiprocessors * spec->min_blocks / spec->cluster;
    return slices * most_i64(1, all / slices);
}

static void rows_plan_size(cuda_plan *plan) {
    if (plan->main.kernel == CUDA_BACKWARD)
        plan->partials = partial_rows(plan);
    plan->workspace_bytes = rows_plan_workspace(plan);
    rows_fit_alone(plan);
}

/* Sets the constants of a backward in one read; 0: rows are too long for it. */
static int one_read(cuda_spec *spec, const problem *p, const cuda_limits *limits) {
    return backward_geometry(spec, (int)p->cols, dtype_bytes(p->dtypes[ROLE_X]),
                             dtype_bytes(p->dtypes[ROLE_DY]), problem_is_double(p), limits);
}

static void backward_plan(cuda_plan *plan, const problem *p) {
    const rows_backward_tuning *t = &plan->limits.tuning->rows_backward;
    const cuda_limits *limits = &plan->limits;
    cuda_spec *spec = &plan->main;
    rows_constants *c = &spec->rows;
    int cols = (int)p->cols;
    int x_bytes = dtype_bytes(p->dtypes[ROLE_X]), dy_bytes = dtype_bytes(p->dtypes[ROLE_DY]);
    plan->main.kernel = CUDA_BACKWARD;
    /* The slope of ReLU jumps: what a mean lost shows there in 16 bits, too. */
    spec->correct = !problem_hides_rounding(p) || slope_jumps(p->activation);
    if (rows_are_parts(spec)) /* all the digits that a mean has, and nothing that it lost */
        spec->correct = p->dtypes[ROLE_MEAN] == DTYPE_F64 && !spec->real_double;
    spec->want_dweight = has(p, ROLE_DWEIGHT);
    spec->want_dbias = has(p, ROLE_DBIAS);
    if (one_read(spec, p, limits)) {
        plan->partials = partial_rows(plan);
    } else {
        plan->main.kernel = CUDA_APPLY;
        c->warps = t->long_warps;
        spec->cluster = spec->min_blocks = c->rows = c->chunks_per_thread = c->teams = 1;
        c->threads_per_row = WARP * t->long_warps;
        int strips = ceil_div(cols, c->threads_per_row * c->width);
        plan->partials = most(1, t->long_blocks * limits->multiprocessors / strips);
        if (plan->partials > p->rows)
            plan->partials = p->rows > 0 ? p->rows : 1;
    }
    if (spec->want_dweight || spec->want_dbias) {
        const int64_t slices = rows_slices(plan), partials = plan->partials;
        cuda_plan_finish(plan, p, cols * (int)slices, partials / slices);
        plan->partials = partials;
    }
    if (p->activation == PLANISH_IDENTITY && !rows_are_parts(spec))
        cooperative_geometry(plan, most(x_bytes, dy_bytes), limits);
}

/* Dense rows plan->stride apart. */
static void rows_plan(cuda_plan *plan, const problem *p) {
    if (!plan->dx_role)
        plan->dx_role = ROLE_DX;
    cuda_spec *spec = &plan->main;
    rows_constants *c = &spec->rows;
    cuda_spec_describe(&plan->main, p);
    spec->real_double = problem_is_double(p);
    c->cols = (int)p->cols;
    c->levels = most(1, plan->places.levels);
    c->sliced = plan->places.slices > 0;
    spec->cooperating_blocks = 1;
    spec->pass = p->pass == PLANISH_BACKWARD ? 0 : p->pass;
    if (p->pass == PLANISH_FORWARD || p->pass == PLANISH_STATISTICS || p->pass == PLANISH_APPLY) {
        int x_bytes = dtype_bytes(p->dtypes[ROLE_X]);
        plan->main.kernel = CUDA_FORWARD;
        forward_geometry(plan, (int)p->cols, x_bytes, spec->real_double, &plan->limits);
        rows_early_geometry(plan);
        /* Registers for the normal distribution, beside those of rows within a warp. */
        if (p->activation == PLANISH_GELU && c->threads_per_row <= WARP)
            spec->min_blocks = most(1, spec->min_blocks * 3 / 4);
        if (!rows_are_parts(spec))
            cooperative_geometry(plan, x_bytes, &plan->limits);
        if (c->groups)
            group_rows_geometry(plan, x_bytes);
    } else {
        backward_plan(plan, p);
    }
    plan->workspace_bytes = rows_plan_workspace(plan);
    rows_fit_alone(plan);
}

/* Only rows in one read take dy through an activation. */
static bool is_too_long(const cuda_plan *plan, const problem *p) {
    cuda_spec spec = {.kernel = CUDA_BACKWARD};
    if (p->activation == PLANISH_IDENTITY || p->pass != PLANISH_BACKWARD)
        return false;
    cuda_spec_describe(&spec, p);
    return !one_read(&spec, p, &plan->limits);
}

/* What these kernels do not take of a norm of which each device has a part. The statistics of f64
 * are made with all digits elsewhere: sums about an outlier that a thread met would lack some. */
static const char *why_no_part(const cuda_plan *plan, const problem *p) {
    if (p->pass == PLANISH_STATISTICS && plan->main.real_double)
        return "statistics of f64";
    if (has(p, ROLE_C1) && plan->stride[ROLE_C1] * dtype_bytes(p->dtypes[ROLE_C1]) !=
                               plan->stride[ROLE_C2] * dtype_bytes(p->dtypes[ROLE_C2]))
        return "c1 and c2 of unlike strides";
    return plan->main.kernel == CUDA_APPLY ? "half a backward of rows so long" : NULL;
}

/*
 * The problem as these kernels know it: of the stages around the norm only a gradient that is added
 * to dx, which may be written as dresidual. False: there are others, or rows are not dense there.
 */
static bool is_residual_alone(const problem *p, problem *known, int *dx_role) {
    const role_set taken = ROLE_BIT(ROLE_DSUM) | ROLE_BIT(ROLE_DRESIDUAL);
    const stages *s = &p->stages;
    problem_copy(known, p);
    *dx_role = ROLE_DX;
    if (!problem_has_stages(p))
        return true;
    if (p->pass != PLANISH_BACKWARD || (p->present & STAGE_ROLES & ~taken) || s->dropout_p > 0 ||
        (has(p, ROLE_DX) && has(p, ROLE_DRESIDUAL)))
        return false;
    const axis *row = &p->reduced[0];
    for (role r = ROLE_DSUM; r <= ROLE_DRESIDUAL; r++)
        if (has(p, r) && p->reduced_count && row->size > 1 && axis_stride(p, row, r) != 1)
            return false;
    if (has(p, ROLE_DRESIDUAL)) {
        *dx_role = ROLE_DRESIDUAL;
        known->dtypes[ROLE_DX] = p->dtypes[ROLE_DRESIDUAL];
        known->dtypes[ROLE_DRESIDUAL] = DTYPE_NONE;
        known->place[ROLE_DX] = p->place[ROLE_DRESIDUAL];
    }
    return true;
}

static const char *rows_plan_make(cuda_plan *plan, const problem *given) {
    problem known;
    int dx_role;
    if (!is_residual_alone(given, &known, &dx_role))
        return "stages, but for one gradient of dense rows that joins dx";
    const problem *p = &known;
    if (!is_rows(p))
        return "rows that are not dense and one stride apart with one weight";
    if (is_too_long(plan, p))
        return "the backward of an activation in rows so long";
    plan->dx_role = dx_role;
    for (int r = 0; r < ROLE_COUNT; r++)
        plan->stride[r] = p->kept_count ? kept_stride(p, 0, r) : 0;
    rows_plan(plan, p);
    return rows_are_parts(&plan->main) ? why_no_part(plan, p) : NULL;
}

/* Kernels of rows in one read by blocks that do not wait for each other know of levels and slices,
 * but that a cluster has no slice. */
static const char *row_levels_plan_make(cuda_plan *plan, const problem *given) {
    problem known;
    const bool fast = given->pass == PLANISH_FORWARD || given->pass == PLANISH_BACKWARD;
    if (!fast || !rows_levels_make(plan, given, &known) || !rows_sums_follow(plan, given))
        return "rows that are not dense and at most three strides apart, or weights that vary "
               "along "
               "several axes of them";
    if (is_too_long(plan, &known))
        return "the backward of an activation in rows so long";
    plan->dx_role = ROLE_DX;
    rows_plan(plan, &known);
    const cuda_spec *spec = &plan->main;
    if (plan->cooperative.kernel >= 0 || spec->kernel == CUDA_APPLY ||
        (spec->rows.sliced && spec->cluster > 1))
        return "such rows that are so long";
    return NULL;
}

bool group_rows_plan_make(cuda_plan *plan, const problem *p, const image_view *v) {
    static const role full[] = {ROLE_X, ROLE_Y};
    if (p->pass != PLANISH_FORWARD || v->last)
        return false;
    for (int i = 0; i < 2; i++)
        if (v->images > 1 && v->groups > 1 && v->stride[full[i]] != v->groups * p->cols)
            return false;
    for (int r = 0; r < NORM_ROLES; r++)
        plan->stride[r] = v->stride[r]; /* no stages here */
    for (int i = 0; i < 2; i++)
        if (v->groups > 1)
            plan->stride[full[i]] = p->cols;
    plan->main.rows.groups = (int)v->groups;
    plan->main.rows.pixels = (int)v->pixels;
    rows_plan(plan, p);
    return true;
}

static const char *name_of_pass(const cuda_spec *spec) {
    switch (spec->pass) {
    case PLANISH_STATISTICS:
        return "statistics";
    case PLANISH_APPLY:
        return "apply";
    case PLANISH_BACKWARD_STATISTICS:
        return "backward statistics";
    default:
        return spec->kernel == CUDA_FORWARD        ? "forward"
               : spec->kernel == CUDA_APPLY        ? "backward (two reads)"
               : spec->type[ROLE_C2] != DTYPE_NONE ? "backward apply"
                                                   : "backward";
    }
}

static int rows_plan_describe(const cuda_plan *plan, char *text, size_t bytes) {
    const cuda_spec *spec = plan->cooperative.kernel >= 0 ? &plan->cooperative : &plan->main;
    const rows_constants *c = &spec->rows;
    char cut[60] = "";
    if (c->levels > 1 || c->sliced)
        snprintf(cut, sizeof cut, ", %d levels in %lld slices", c->levels,
                 (long long)rows_slices(plan));
    return snprintf(text, bytes,
                    "cuda %s %s %lldx%lld: %d lanes x %d chunks of %d, %d rows at a time, "
                    "%d warps, cluster %d, group %d%s",
                    c->groups ? "groups" : "rows", name_of_pass(spec), (long long)plan->rows,
                    (long long)plan->cols, c->threads_per_row, c->chunks_per_thread, c->width,
                    rows_at_a_time(spec), c->warps, spec->cluster, spec->cooperating_blocks, cut);
}

const cuda_family rows_family = {
    .name = "rows",
    .plan_make = rows_plan_make,
    .plan_size = rows_plan_size,
    .plan_describe = rows_plan_describe,
    .launch_specs = rows_launch_specs,
    .launch_arguments = rows_launch_arguments,
    .threads = rows_threads,
    .shared_bytes = rows_shared_bytes,
};

const cuda_family row_levels_family = {.name = "rows at several strides",
                                       .plan_make = row_levels_plan_make};
