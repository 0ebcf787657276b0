#include "cuda/general/general.h"

#include <stdio.h>

#include "cuda/common/axes.h"
#include "cuda/common/integers.h"
#include "cuda/stages/stages_forward.h"
#include "roles.h"
#include "stages.h"

/* Roles of a backward, but those that set_problem drops. */
#define STAGED(arg, role, field, axes, kinds, needed, optional, activated, ...)                    \
    +(((needed) | (optional) | (activated)) & PASS_B ? 1 : 0)
_Static_assert(0 EACH_ROLE(STAGED, ) - 6 <= GENERAL_TENSORS - 2, "more tensors than arguments");
#undef STAGED

enum {
    WARPS = 8,     /* of a block */
    ACROSS = WARP, /* lanes that take neighbouring outer indices, where they do */
};

/* ---- Axes ------------------------------------------------------------------------------------ */

/* The tensor whose order in memory decides. */
static role model(const problem *p) {
    return has(p, ROLE_X) ? ROLE_X : ROLE_Y;
}

/* Those with small strides last; but quantised blocks go by the order of a row's elements, and so
 * does every forward with stages. */
static void axes_of_problem(cuda_axes *axes, const problem *p) {
    if (problem_has_stages(p) && p->pass == PLANISH_FORWARD)
        cuda_axes_of(axes, p);
    else
        cuda_axes_by(axes, p, model(p));
}

/* Which axes are the outer ones of a kernel. */
static bool is_outer(const cuda_axis *a, int32_t kernel, int32_t target) {
    if (kernel == CUDA_GENERAL_ELEMENTS)
        return true;
    if (kernel != CUDA_GENERAL_COLUMNS && kernel != CUDA_GENERAL_FINISH)
        return !a->reduced;
    return target == GENERAL_AFFINE   ? a->of->affine
           : target == GENERAL_SCALED ? a->of->column
                                      : a->of->modulated;
}

static int64_t size_of(const cuda_axes *axes, int32_t kernel, int32_t target, bool outer) {
    int64_t size = 1;
    for (int k = 0; k < axes->count; k++)
        if (is_outer(&axes->axis[k], kernel, target) == outer)
            size *= axes->axis[k].of->size;
    return size;
}

/* Whether x is dense along the last of the outer or inner axes. */
static bool is_dense(const cuda_axes *axes, int32_t kernel, int32_t target, bool outer) {
    for (int k = axes->count - 1; k >= 0; k--)
        if (is_outer(&axes->axis[k], kernel, target) == outer && axes->axis[k].of->size > 1)
            return axis_stride(axes->problem, axes->axis[k].of, model(axes->problem)) == 1;
    return false;
}

/* Lanes that take neighbouring sums of columns. */
static int lanes_of_columns(const cuda_axes *axes, int32_t target) {
    return is_dense(axes, CUDA_GENERAL_COLUMNS, target, true) ||
                   !is_dense(axes, CUDA_GENERAL_COLUMNS, target, false)
               ? ACROSS
               : 1;
}

/* ---- Plans ----------------------------------------------------------------------------------- */

static bool is_backward(const cuda_plan *plan) {
    const int32_t pass = plan->main.pass;
    return pass == PLANISH_BACKWARD || pass == PLANISH_BACKWARD_FROM_Y ||
           pass == PLANISH_BACKWARD_STATISTICS;
}

static bool wants(const cuda_plan *plan, role one, role other) {
    return plan->main.type[one] != DTYPE_NONE || plan->main.type[other] != DTYPE_NONE;
}

static bool wants_elements(const cuda_plan *plan) {
    return wants(plan, ROLE_DX, ROLE_DRESIDUAL) || wants(plan, ROLE_DGATE, ROLE_DGATE);
}

/* Whether numbers of each row are kept for the kernels behind: of a backward that is whole. */
static bool keeps_rows(const cuda_plan *plan) {
    return is_backward(plan) && plan->main.pass != PLANISH_BACKWARD_STATISTICS &&
           plan->main.type[ROLE_C2] == DTYPE_NONE;
}

/* Whether the columns of a backward leave partial sums: those of a norm alone. */
static bool sums_in_parts(const cuda_plan *plan) {
    return is_backward(plan) && !plan->main.general.stages && wants(plan, ROLE_DWEIGHT, ROLE_DBIAS);
}

/* Rows of partial sums: as many as make work for the device. */
static int64_t parts_of(const cuda_plan *plan) {
    const general_tuning *t = &plan->limits.tuning->general;
    const int lanes = plan->column_lanes;
    const int64_t columns = ceil_div_i64(plan->columns, lanes);
    const int64_t wanted = ceil_div_i64((int64_t)t->partial_blocks * plan->limits.multiprocessors,
                                        columns ? columns : 1);
    const int64_t most =
        ceil_div_i64(plan->column, (int64_t)t->partial_elements * WARP * WARPS / lanes);
    const int64_t parts = least_i64(wanted, most);
    return parts > 0 ? parts : 1;
}

static size_t bytes_of_rows(const cuda_plan *plan) {
    return keeps_rows(plan) ? (size_t)plan->rows * GENERAL_ROW_NUMBERS * sizeof(double) : 0;
}

static void plan_size(cuda_plan *plan) {
    plan->workspace_bytes = bytes_of_rows(plan);
    if (!sums_in_parts(plan))
        return;
    plan->partials = parts_of(plan);
    plan->workspace_bytes += 2 * (size_t)plan->partials * (size_t)plan->columns * sizeof(double);
}

/* What the kernels know of the problem: not what only batches have, which are theirs where there
 * are no elements. */
static void set_problem(cuda_spec *spec, const problem *p) {
    static const role of_batches[] = {ROLE_ADDEND,      ROLE_DADDEND, ROLE_RUNNING_MEAN,
                                      ROLE_RUNNING_VAR, ROLE_C1,      ROLE_C2};
    cuda_spec_describe(spec, p);
    spec->general.stages = problem_has_stages(p);
    spec->stages.is_double = 1;
    spec->stages.sum_type = DTYPE_NONE;
    if (!spec->general.stages)
        return;
    stages_set_constants(spec, p);
    spec->stages.is_double = problem_is_double(p);
    if (has_prologue(p))
        spec->stages.sum_type = p->stages.sum;
    for (size_t i = 0; i < sizeof of_batches / sizeof *of_batches; i++)
        spec->type[of_batches[i]] = DTYPE_NONE;
}

static const char *plan_make(cuda_plan *plan, const problem *p) {
    const general_tuning *t = &plan->limits.tuning->general;
    cuda_spec *spec = &plan->main;
    general_constants *c = &spec->general;
    set_problem(spec, p);
    spec->real_double = 1;
    spec->pass = p->pass;
    spec->kernel = is_backward(plan) ? CUDA_GENERAL_ROWS : CUDA_GENERAL_FORWARD;
    spec->cluster = 1;
    c->warps = WARPS;
    cuda_axes axes;
    axes_of_problem(&axes, p);
    plan->axis_count = axes.count;
    plan->column_lanes = lanes_of_columns(&axes, GENERAL_AFFINE);
    plan->columns = size_of(&axes, CUDA_GENERAL_COLUMNS, GENERAL_AFFINE, true);
    plan->column = size_of(&axes, CUDA_GENERAL_COLUMNS, GENERAL_AFFINE, false);
    /* Decided by the axes of the row alone, so that a row's bits do not depend on the others. */
    c->lanes = p->cols < t->short_row || !is_dense(&axes, spec->kernel, 0, false) ? ACROSS : 1;
    c->slices = WARP * WARPS / c->lanes;
    plan_size(plan);
    return NULL;
}

static int plan_describe(const cuda_plan *plan, char *text, size_t bytes) {
    static const char *const passes[] = {"forward",    "backward", "backward from y",
                                         "statistics", "apply",    "backward statistics"};
    const general_constants *c = &plan->main.general;
    return snprintf(text, bytes, "cuda general %s%s %lldx%lld: %d axes, %d rows in a block",
                    c->stages ? "stages " : "", passes[plan->main.pass], (long long)plan->rows,
                    (long long)plan->cols, plan->axis_count, c->lanes);
}

/* ---- Launches -------------------------------------------------------------------------------- */

/* Drops from a norm alone what a kernel of its backward does not look at. */
static void reduce_spec(cuda_spec *spec) {
    uint8_t *const type = spec->type;
    if (spec->kernel == CUDA_GENERAL_COLUMNS) {
        type[ROLE_DX] = type[ROLE_DBIAS] = DTYPE_NONE;
        if (type[ROLE_DWEIGHT] != DTYPE_NONE)
            type[ROLE_DWEIGHT] = DTYPE_F64; /* of the partial sums */
    } else if (spec->kernel != CUDA_GENERAL_FINISH) {
        type[ROLE_DWEIGHT] = type[ROLE_DBIAS] = DTYPE_NONE;
    } else {
        spec->pass = spec->kind = spec->weight_offset = spec->activation = 0;
        for (role r = 0; r < ROLE_COUNT; r++)
            if (r != ROLE_DWEIGHT && r != ROLE_DBIAS)
                type[r] = DTYPE_NONE;
        spec->general.lanes = 1;
    }
}

/* A kernel of a plan, and whose sums it makes. */
typedef struct part {
    cuda_kernel kernel;
    int target;
} part;

/* The kernels of a plan in their order; returns how many. Outputs may be the inputs themselves:
 * elements come last. */
static int parts_in_order(const cuda_plan *plan, part parts[CUDA_MOST_LAUNCHES]) {
    int count = 0;
    if (wants(plan, ROLE_AMAX, ROLE_AMAX))
        parts[count++] = (part){CUDA_GENERAL_CLEAR, 0};
    if (!is_backward(plan)) {
        parts[count++] = (part){CUDA_GENERAL_FORWARD, 0};
        return count;
    }
    if (keeps_rows(plan) || plan->main.pass == PLANISH_BACKWARD_STATISTICS)
        parts[count++] = (part){CUDA_GENERAL_ROWS, 0};
    if (wants(plan, ROLE_DWEIGHT, ROLE_DBIAS))
        parts[count++] = (part){CUDA_GENERAL_COLUMNS, GENERAL_AFFINE};
    if (sums_in_parts(plan))
        parts[count++] = (part){CUDA_GENERAL_FINISH, GENERAL_AFFINE};
    if (wants(plan, ROLE_DCOLUMN_SCALE, ROLE_DCOLUMN_SCALE))
        parts[count++] = (part){CUDA_GENERAL_COLUMNS, GENERAL_SCALED};
    if (wants(plan, ROLE_DSCALE, ROLE_DSHIFT))
        parts[count++] = (part){CUDA_GENERAL_COLUMNS, GENERAL_MODULATED};
    if (wants_elements(plan))
        parts[count++] = (part){CUDA_GENERAL_ELEMENTS, 0};
    return count;
}

static void set_spec(const cuda_plan *plan, part of, cuda_spec *spec) {
    general_constants *c = &spec->general;
    *spec = plan->main;
    spec->kernel = of.kernel;
    c->target = of.target;
    if (of.kernel == CUDA_GENERAL_COLUMNS) {
        cuda_axes axes;
        axes_of_problem(&axes, plan->problem);
        c->lanes = lanes_of_columns(&axes, of.target);
    }
    if (is_backward(plan) && !c->stages)
        reduce_spec(spec);
    c->slices = WARP * WARPS / c->lanes;
}

static int launch_specs(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                        cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    (void)buffers; /* taken as they lie: alignment is nothing to these kernels */
    part parts[CUDA_MOST_LAUNCHES];
    const int count = parts_in_order(plan, parts);
    for (int i = 0; i < count; i++)
        set_spec(plan, parts[i], &launches[i].spec);
    return count;
}

/* Appends the axes that are, or are not, outer ones of the kernel; returns how many. */
static int append_axes(const cuda_axes *axes, const cuda_spec *spec, bool outer, general_args *args,
                       int at) {
    const int first = at;
    for (int k = 0; k < axes->count; k++) {
        const cuda_axis *a = &axes->axis[k];
        if (is_outer(a, spec->kernel, spec->general.target) != outer)
            continue;
        general_axis *to = &args->axis[at++];
        int slot = 0;
        to->size = a->of->size;
        for (role r = 0; r < ROLE_COUNT; r++)
            if (spec->type[r] != DTYPE_NONE)
                to->stride[slot++] = cuda_axis_bytes(axes, a, r);
        /* what is kept of rows is dense, in the list's order */
        const int64_t span = GENERAL_ROW_NUMBERS * (int64_t)sizeof(double);
        to->stride[slot++] = a->reduced ? 0 : span * cuda_axes_rows_behind(axes, k);
        to->stride[slot] = axis_index_step(axes->problem, a->of);
    }
    return at - first;
}

static void set_tensors(const cuda_plan *plan, void *const buffers[ROLE_COUNT], char *workspace,
                        cuda_launch *l) {
    general_args *a = &l->args.general;
    int slot = 0;
    for (role r = 0; r < ROLE_COUNT; r++)
        if (l->spec.type[r] != DTYPE_NONE)
            a->data[slot++] = buffers[r];
    a->data[slot] = workspace;
    a->partials = workspace ? (double *)(workspace + bytes_of_rows(plan)) : NULL;
}

static void set_grid(const cuda_plan *plan, cuda_launch *l) {
    const general_tuning *t = &plan->limits.tuning->general;
    const general_args *a = &l->args.general;
    const int32_t kernel = l->spec.kernel;
    const bool alone = kernel == CUDA_GENERAL_FINISH || kernel == CUDA_GENERAL_ELEMENTS;
    l->blocks_x =
        least_i64(ceil_div_i64(a->outer_size, alone ? WARP * WARPS : l->spec.general.lanes),
                  (int64_t)t->blocks * plan->limits.multiprocessors);
    if (kernel == CUDA_GENERAL_CLEAR)
        l->blocks_x = 1;
    l->blocks_y = kernel == CUDA_GENERAL_COLUMNS ? (unsigned)a->parts : 1;
}

static void launch_arguments(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                             void *workspace, int resident,
                             cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    (void)resident; /* neither clusters nor blocks that wait for each other */
    const problem *p = plan->problem;
    static const stages none;
    const stages *s = plan->main.general.stages ? &p->stages : &none;
    const int64_t block = has(p, ROLE_Y_SCALES) ? s->block : plan->cols;
    const double keep_factor = 1 / (1 - s->dropout_p);
    cuda_axes axes;
    axes_of_problem(&axes, p);
    part parts[CUDA_MOST_LAUNCHES];
    const int count = parts_in_order(plan, parts);
    for (int i = 0; i < count; i++) {
        const cuda_spec *spec = &launches[i].spec;
        const int32_t kernel = spec->kernel, target = spec->general.target;
        general_args *a = &launches[i].args.general;
        *a =
            (general_args){.outer_size = size_of(&axes, kernel, target, true),
                           .inner_size = size_of(&axes, kernel, target, false),
                           .parts = sums_in_parts(plan) ? plan->partials : 1,
                           .block = most_i64(1, block),
                           .scale_stride = s->scale_stride * role_bytes(spec, ROLE_Y_SCALES),
                           .dropped = stages_dropped(s->dropout_p),
                           .keep_factor = spec->stages.is_double ? keep_factor : (float)keep_factor,
                           .eps = plan->eps,
                           .clamped = p->rule.clamped,
                           .scale_least = (float)s->scale_least,
                           .scale_most = (float)s->scale_most};
        set_tensors(plan, buffers, workspace, &launches[i]);
        a->outer = append_axes(&axes, spec, true, a, 0);
        a->inner = append_axes(&axes, spec, false, a, a->outer);
        set_grid(plan, &launches[i]);
    }
}

static unsigned threads(const cuda_spec *spec) {
    return WARP * (unsigned)spec->general.warps;
}

const cuda_family general_family = {
    .plan_make = plan_make,
    .plan_size = plan_size,
    .plan_describe = plan_describe,
    .launch_specs = launch_specs,
    .launch_arguments = launch_arguments,
    .threads = threads,
};
