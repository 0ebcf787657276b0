#include "cuda/stages/stages_general_backward.h"

#include <stdio.h>
#include <string.h>

#include "cuda/common/axes.h"
#include "cuda/common/integers.h"
#include "cuda/stages/stages_forward.h"

enum {
    WARPS = 8,     /* of a block */
    ACROSS = WARP, /* lanes that take neighbouring outer indices, where they do */
    ROW_BYTES = 3 * sizeof(double),
};

/* The roles that these kernels know, in their order. */
#define ROLE_OF(role) ROLE_##role,
static const role known[] = {EACH_STAGES_GENERAL_BACKWARD_TENSOR(ROLE_OF)};
#undef ROLE_OF

/* ---- Axes ------------------------------------------------------------------------------------ */

/* Which axes are the outer ones of a kernel. */
static bool is_outer(const cuda_axis *a, const cuda_spec *spec) {
    if (spec->kernel == CUDA_STAGES_BACK_ELEMENTS)
        return true;
    if (spec->kernel == CUDA_STAGES_BACK_ROWS)
        return !a->reduced;
    return spec->stages_back.target == STAGES_AFFINE   ? a->of->affine
           : spec->stages_back.target == STAGES_SCALED ? a->of->column
                                                       : a->of->modulated;
}

static int64_t size_of(const cuda_axes *axes, const cuda_spec *spec, bool outer) {
    int64_t size = 1;
    for (int k = 0; k < axes->count; k++)
        if (is_outer(&axes->axis[k], spec) == outer)
            size *= axes->axis[k].of->size;
    return size;
}

/* Whether x is dense along the last of the outer or inner axes. */
static bool is_dense(const cuda_axes *axes, const cuda_spec *spec, bool outer) {
    for (int k = axes->count - 1; k >= 0; k--)
        if (is_outer(&axes->axis[k], spec) == outer && axes->axis[k].of->size > 1)
            return axis_stride(axes->problem, axes->axis[k].of, ROLE_X) == 1;
    return false;
}

/* ---- Plans ----------------------------------------------------------------------------------- */

static const char *make(cuda_plan *plan, const problem *p) {
    const general_tuning *t = &plan->limits.tuning->general;
    cuda_spec *spec = &plan->main;
    stages_back_constants *c = &spec->stages_back;
    if (p->pass != PLANISH_BACKWARD)
        return "this pass";
    spec->kernel = CUDA_STAGES_BACK_ROWS;
    cuda_spec_describe(spec, p);
    spec->real_double = 1;
    spec->pass = p->pass;
    spec->cluster = 1;
    c->warps = WARPS;
    c->gate = !has(p, ROLE_GATE) ? 0 : p->stages.gate == PLANISH_GATE_AFTER ? 1 : 2;
    c->drops = p->stages.dropout_p > 0;
    c->single = !problem_is_double(p);
    cuda_axes axes;
    cuda_axes_by(&axes, p, ROLE_X);
    plan->axis_count = axes.count;
    /* Decided by the axes of the row alone, so that a row's bits do not depend on the others. */
    c->lanes = p->cols < t->short_row || !is_dense(&axes, spec, false) ? ACROSS : 1;
    plan->workspace_bytes = (size_t)p->rows * ROW_BYTES;
    return NULL;
}

static void size(cuda_plan *plan) {
    (void)plan; /* no constant changes the workspace */
}

static int describe(const cuda_plan *plan, char *text, size_t bytes) {
    return snprintf(text, bytes, "cuda general backward with stages %lldx%lld: %d axes",
                    (long long)plan->rows, (long long)plan->cols, plan->axis_count);
}

/* ---- Launches -------------------------------------------------------------------------------- */

static void add(const cuda_plan *plan, cuda_kernel kernel, int target, cuda_launch *launches,
                int *count) {
    cuda_axes axes;
    cuda_axes_by(&axes, plan->problem, ROLE_X);
    cuda_spec *spec = &launches[*count].spec;
    *spec = plan->main;
    spec->kernel = kernel;
    spec->stages_back.target = target;
    if (kernel == CUDA_STAGES_BACK_COLUMNS)
        spec->stages_back.lanes =
            is_dense(&axes, spec, true) || !is_dense(&axes, spec, false) ? ACROSS : 1;
    spec->stages_back.slices = WARP * WARPS / spec->stages_back.lanes;
    ++*count;
}

static bool wants(const cuda_plan *plan, role one, role other) {
    return plan->main.type[one] != DTYPE_NONE || plan->main.type[other] != DTYPE_NONE;
}

static int launch_specs(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                        cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    (void)buffers; /* taken as they lie: alignment is nothing to these kernels */
    int count = 0;
    add(plan, CUDA_STAGES_BACK_ROWS, 0, launches, &count);
    if (wants(plan, ROLE_DWEIGHT, ROLE_DBIAS))
        add(plan, CUDA_STAGES_BACK_COLUMNS, STAGES_AFFINE, launches, &count);
    if (wants(plan, ROLE_DCOLUMN_SCALE, ROLE_DCOLUMN_SCALE))
        add(plan, CUDA_STAGES_BACK_COLUMNS, STAGES_SCALED, launches, &count);
    if (wants(plan, ROLE_DSCALE, ROLE_DSHIFT))
        add(plan, CUDA_STAGES_BACK_COLUMNS, STAGES_MODULATED, launches, &count);
    if (wants(plan, ROLE_DX, ROLE_DRESIDUAL) || wants(plan, ROLE_DGATE, ROLE_DGATE))
        add(plan, CUDA_STAGES_BACK_ELEMENTS, 0, launches, &count);
    return count;
}

/* Appends the axes that are, or are not, outer ones of the kernel; returns how many. */
static int append_axes(const cuda_axes *axes, const cuda_spec *spec, bool outer,
                       stages_general_backward_args *args, int at) {
    const int first = at;
    for (int k = 0; k < axes->count; k++) {
        const cuda_axis *a = &axes->axis[k];
        if (is_outer(a, spec) != outer)
            continue;
        args->axis[at].size = a->of->size;
        args->axis[at].stride[STAGES_GENERAL_BACKWARD_INDEX] =
            axis_index_step(axes->problem, a->of);
        for (int r = 0; r < STAGES_GENERAL_ROW; r++)
            args->axis[at].stride[r] = cuda_axis_bytes(axes, a, known[r]);
        /* dense over the rows, in the list's order */
        const int64_t span = (int64_t)ROW_BYTES * cuda_axes_rows_behind(axes, k);
        args->axis[at++].stride[STAGES_GENERAL_ROW] = a->reduced ? 0 : span;
    }
    return at - first;
}

static void launch_arguments(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                             void *workspace, int resident,
                             cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    const general_tuning *t = &plan->limits.tuning->general;
    (void)resident; /* neither clusters nor blocks that wait for each other */
    cuda_axes axes;
    cuda_axes_by(&axes, plan->problem, ROLE_X);
    cuda_launch counted[CUDA_MOST_LAUNCHES];
    const int count = launch_specs(plan, buffers, counted);
    for (int i = 0; i < count; i++) {
        const cuda_spec *spec = &launches[i].spec;
        stages_general_backward_args *a = &launches[i].args.stages_general_backward;
        memset(a, 0, sizeof *a);
        for (int r = 0; r < STAGES_GENERAL_ROW; r++)
            a->data[r] = buffers[known[r]];
        a->data[STAGES_GENERAL_ROW] = workspace;
        a->rng = buffers[ROLE_RNG];
        a->drop_below = stages_dropped(plan->problem->stages.dropout_p);
        a->kept = 1 / (1 - plan->problem->stages.dropout_p);
        if (spec->stages_back.single)
            a->kept = (float)a->kept;
        a->clamped = plan->problem->rule.clamped;
        a->outer_size = size_of(&axes, spec, true);
        a->inner_size = size_of(&axes, spec, false);
        a->outer = append_axes(&axes, spec, true, a, 0);
        a->inner = append_axes(&axes, spec, false, a, a->outer);
        const int at_a_time =
            spec->kernel == CUDA_STAGES_BACK_ELEMENTS ? WARP * WARPS : spec->stages_back.lanes;
        launches[i].blocks_x = least_i64(ceil_div_i64(a->outer_size, at_a_time),
                                         (int64_t)t->blocks * plan->limits.multiprocessors);
        launches[i].blocks_y = 1;
    }
}

static unsigned threads(const cuda_spec *spec) {
    return WARP * (unsigned)spec->stages_back.warps;
}

static size_t shared_bytes(const cuda_spec *spec) {
    (void)spec;
    return 0;
}

const cuda_family stages_general_backward_family = {
    .plan_make = make,
    .plan_size = size,
    .plan_describe = describe,
    .launch_specs = launch_specs,
    .launch_arguments = launch_arguments,
    .threads = threads,
    .shared_bytes = shared_bytes,
};
