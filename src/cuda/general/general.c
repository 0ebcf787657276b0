#include "cuda/general/general.h"

#include <stdio.h>
#include <string.h>

#include "cuda/common/axes.h"
#include "cuda/common/integers.h"

enum {
    WARPS = 8,     /* of a block */
    ACROSS = WARP, /* lanes that take neighbouring outer indices, where they do */
};

/* ---- Axes ------------------------------------------------------------------------------------ */

/* The tensor whose order in memory decides. */
static role model(const problem *p) {
    return has(p, ROLE_X) ? ROLE_X : ROLE_Y;
}

/* Those with small strides last. */
static void sorted_axes(cuda_axes *axes, const problem *p) {
    cuda_axes_by(axes, p, model(p));
}

/* Which axes are the outer ones of a kernel. */
static bool is_outer(const cuda_axis *a, cuda_kernel kernel) {
    return kernel == CUDA_GENERAL_ROWS ? !a->reduced : a->of->affine;
}

static int64_t size_of(const cuda_axes *axes, cuda_kernel kernel, bool outer) {
    int64_t size = 1;
    for (int k = 0; k < axes->count; k++)
        if (is_outer(&axes->axis[k], kernel) == outer)
            size *= axes->axis[k].of->size;
    return size;
}

/* Whether x is dense along the last of the outer or inner axes. */
static bool is_dense(const cuda_axes *axes, cuda_kernel kernel, bool outer) {
    for (int k = axes->count - 1; k >= 0; k--)
        if (is_outer(&axes->axis[k], kernel) == outer && axes->axis[k].of->size > 1)
            return axis_stride(axes->problem, axes->axis[k].of, model(axes->problem)) == 1;
    return false;
}

/* ---- Plans ----------------------------------------------------------------------------------- */

static bool is_backward(const cuda_plan *plan) {
    const int32_t pass = plan->main.pass;
    return pass == PLANISH_BACKWARD || pass == PLANISH_BACKWARD_FROM_Y ||
           pass == PLANISH_BACKWARD_STATISTICS;
}

static bool wants_sums(const cuda_plan *plan) {
    const cuda_spec *spec = &plan->main;
    return spec->type[ROLE_DWEIGHT] != DTYPE_NONE || spec->type[ROLE_DBIAS] != DTYPE_NONE;
}

/* Whether the sums need every row's exact mean first. */
static bool wants_delta(const cuda_plan *plan) {
    const cuda_spec *spec = &plan->main;
    return spec->pass == PLANISH_BACKWARD && spec->kind == PLANISH_LAYER &&
           spec->type[ROLE_C2] == DTYPE_NONE &&
           (spec->type[ROLE_DWEIGHT] != DTYPE_NONE || spec->activation != PLANISH_IDENTITY);
}

static int lanes_of_columns(const cuda_axes *axes) {
    return is_dense(axes, CUDA_GENERAL_COLUMNS, true) ||
                   !is_dense(axes, CUDA_GENERAL_COLUMNS, false)
               ? ACROSS
               : 1;
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

static void general_plan_size(cuda_plan *plan) {
    if (!wants_sums(plan))
        return;
    plan->partials = parts_of(plan);
    plan->workspace_bytes = 2 * (size_t)plan->partials * (size_t)plan->columns * sizeof(double);
    if (wants_delta(plan))
        plan->workspace_bytes += (size_t)plan->rows * sizeof(double);
}

static const char *general_plan_make(cuda_plan *plan, const problem *p) {
    const general_tuning *t = &plan->limits.tuning->general;
    cuda_spec *spec = &plan->main;
    general_constants *c = &spec->general;
    plan->main.kernel = CUDA_GENERAL_ROWS;
    cuda_spec_describe(&plan->main, p);
    spec->real_double = 1;
    spec->pass = p->pass;
    spec->type[ROLE_M2] = p->dtypes[ROLE_M2];
    c->warps = WARPS;
    spec->cluster = 1;
    cuda_axes axes;
    sorted_axes(&axes, p);
    plan->axis_count = axes.count;
    plan->column_lanes = lanes_of_columns(&axes);
    plan->columns = size_of(&axes, CUDA_GENERAL_COLUMNS, true);
    plan->column = size_of(&axes, CUDA_GENERAL_COLUMNS, false);
    /* Decided by the axes of the row alone, so that a row's bits do not depend on the others. */
    c->lanes = p->cols < t->short_row || !is_dense(&axes, CUDA_GENERAL_ROWS, false) ? ACROSS : 1;
    general_plan_size(plan);
    return NULL;
}

static int general_plan_describe(const cuda_plan *plan, char *text, size_t bytes) {
    static const char *const passes[] = {"forward",    "backward", "backward from y",
                                         "statistics", "apply",    "backward statistics"};
    return snprintf(text, bytes, "cuda general %s %lldx%lld: %d axes, %d rows in a block",
                    passes[plan->main.pass], (long long)plan->rows, (long long)plan->cols,
                    plan->axis_count, plan->main.general.lanes);
}

/* ---- Launches -------------------------------------------------------------------------------- */

/* The specialisation of one kernel, without what it does not look at. */
static cuda_spec spec_of(const cuda_plan *plan, cuda_kernel kernel) {
    cuda_spec made = plan->main, *spec = &made;
    general_constants *c = &spec->general;
    spec->kernel = kernel;
    if (kernel == CUDA_GENERAL_ROWS) {
        spec->type[ROLE_DWEIGHT] = spec->type[ROLE_DBIAS] = DTYPE_NONE;
    } else if (kernel == CUDA_GENERAL_COLUMNS) {
        spec->type[ROLE_DX] = spec->type[ROLE_DBIAS] = DTYPE_NONE;
        spec->type[ROLE_DWEIGHT] = spec->type[ROLE_DWEIGHT] == DTYPE_NONE
                                       ? DTYPE_NONE
                                       : DTYPE_F64; /* of the partial sums */
        c->lanes = plan->column_lanes;
    } else {
        spec->pass = spec->kind = spec->weight_offset = spec->activation = 0;
        for (role r = 0; r < ROLE_COUNT; r++)
            if (r != ROLE_DWEIGHT && r != ROLE_DBIAS)
                spec->type[r] = DTYPE_NONE;
        c->lanes = 1;
    }
    c->slices = WARP * WARPS / c->lanes;
    return made;
}

/* Those that are launched, in their order; returns how many. dx may be dy or x itself: the sums
 * come first. */
static int kernels_of(const cuda_plan *plan, cuda_kernel kernels[CUDA_MOST_LAUNCHES]) {
    int count = 0;
    if (is_backward(plan) && wants_sums(plan)) {
        if (wants_delta(plan))
            kernels[count++] = CUDA_GENERAL_ROWS;
        kernels[count++] = CUDA_GENERAL_COLUMNS;
        kernels[count++] = CUDA_GENERAL_FINISH;
    }
    if (!is_backward(plan) || plan->main.pass == PLANISH_BACKWARD_STATISTICS ||
        plan->main.type[ROLE_DX] != DTYPE_NONE)
        kernels[count++] = CUDA_GENERAL_ROWS;
    return count;
}

static int general_launch_specs(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                                cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    (void)buffers; /* taken as they lie: alignment is nothing to these kernels */
    cuda_kernel kernels[CUDA_MOST_LAUNCHES];
    const int count = kernels_of(plan, kernels);
    for (int i = 0; i < count; i++)
        launches[i].spec = spec_of(plan, kernels[i]);
    if (is_backward(plan) && wants_sums(plan) && wants_delta(plan))
        launches[0].spec.type[ROLE_DX] = DTYPE_NONE; /* only delta */
    return count;
}

/* Appends the axes that are, or are not, outer ones of the kernel; returns how many. */
static int append_axes(const cuda_axes *axes, cuda_kernel kernel, bool outer, general_args *args,
                       int at) {
    const int first = at;
    for (int k = 0; k < axes->count; k++) {
        const cuda_axis *a = &axes->axis[k];
        if (is_outer(a, kernel) != outer)
            continue;
        args->axis[at].size = a->of->size;
        for (role r = 0; r < NORM_ROLES; r++)
            args->axis[at].stride[r] = cuda_axis_bytes(axes, a, r);
        args->axis[at].stride[GENERAL_C1] = cuda_axis_bytes(axes, a, ROLE_C1);
        args->axis[at].stride[GENERAL_C2] = cuda_axis_bytes(axes, a, ROLE_C2);
        /* delta is dense over the rows, in the list's order */
        const int64_t span = (int64_t)sizeof(double) * cuda_axes_rows_behind(axes, k);
        args->axis[at++].stride[GENERAL_DELTA] = a->reduced ? 0 : span;
    }
    return at - first;
}

static void set_grid(const cuda_plan *plan, cuda_launch *l) {
    const general_tuning *t = &plan->limits.tuning->general;
    const general_args *a = &l->args.general;
    const int at_a_time =
        l->spec.kernel == CUDA_GENERAL_FINISH ? WARP * WARPS : l->spec.general.lanes;
    l->blocks_x = least_i64(ceil_div_i64(a->outer_size, at_a_time),
                            (int64_t)t->blocks * plan->limits.multiprocessors);
    l->blocks_y = l->spec.kernel == CUDA_GENERAL_COLUMNS ? (unsigned)a->parts : 1;
}

static void general_launch_arguments(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                                     void *workspace, int resident,
                                     cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    (void)resident; /* neither clusters nor blocks that wait for each other */
    cuda_kernel kernels[CUDA_MOST_LAUNCHES];
    const int count = kernels_of(plan, kernels);
    cuda_axes axes;
    sorted_axes(&axes, plan->problem);
    double *delta = workspace;
    double *partials = wants_delta(plan) ? delta + plan->rows : delta;
    for (int i = 0; i < count; i++) {
        const cuda_kernel kernel = kernels[i];
        general_args *a = &launches[i].args.general;
        memcpy(a->data, buffers, NORM_ROLES * sizeof *buffers);
        a->data[GENERAL_DELTA] = delta;
        a->data[GENERAL_C1] = buffers[ROLE_C1];
        a->data[GENERAL_C2] = buffers[ROLE_C2];
        a->partials = partials;
        a->outer_size = size_of(&axes, kernel, true);
        a->inner_size = size_of(&axes, kernel, false);
        a->parts = plan->partials;
        a->eps = plan->eps;
        a->clamped = plan->problem->rule.clamped;
        a->outer = append_axes(&axes, kernel, true, a, 0);
        a->inner = append_axes(&axes, kernel, false, a, a->outer);
        set_grid(plan, &launches[i]);
    }
}

static unsigned general_threads(const cuda_spec *spec) {
    return WARP * (unsigned)spec->general.warps;
}

static size_t general_shared_bytes(const cuda_spec *spec) {
    (void)spec;
    return 0;
}

const cuda_family general_family = {
    .plan_make = general_plan_make,
    .plan_size = general_plan_size,
    .plan_describe = general_plan_describe,
    .launch_specs = general_launch_specs,
    .launch_arguments = general_launch_arguments,
    .threads = general_threads,
    .shared_bytes = general_shared_bytes,
};
