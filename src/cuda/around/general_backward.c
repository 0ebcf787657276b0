#include "cuda/around/general_backward.h"

#include <stdio.h>
#include <string.h>

#include "cuda/around/around.h"
#include "cuda/common/integers.h"

enum {
    WARPS = 8,     /* of a block */
    ACROSS = WARP, /* lanes that take neighbouring outer indices, where they do */
    ROW_BYTES = 3 * sizeof(double),
};

/* The roles that these kernels know, in their order. */
#define ROLE_OF(role) ROLE_##role,
static const role known[] = {EACH_AROUND_GENERAL_BACKWARD_TENSOR(ROLE_OF)};
#undef ROLE_OF

/* ---- Axes -------------------------------------------------------------------------------------
 */

static int64_t size_of_stride(int64_t stride) {
    return stride < 0 ? -stride : stride;
}

/* Adds axes to the plan's list, those with small strides last. */
static void insert_axes(cuda_plan *plan, const problem *p, const axis *list, int count,
                        bool reduced) {
    for (int k = 0; k < count; k++) {
        const int64_t stride = size_of_stride(list[k].stride[ROLE_X]);
        int at = plan->axis_count++;
        for (; at > 0 && size_of_stride(plan->axis[at - 1].stride[ROLE_X]) <
                             stride * dtype_bytes(p->dtypes[ROLE_X]);
             at--)
            plan->axis[at] = plan->axis[at - 1];
        plan->axis[at] = (cuda_axis){.size = list[k].size,
                                     .affine = list[k].affine,
                                     .reduced = reduced,
                                     .column = list[k].column,
                                     .modulated = list[k].modulated,
                                     .index_step = list[k].index_step};
        for (int r = 0; r < ROLE_COUNT; r++)
            plan->axis[at].stride[r] = list[k].stride[r] * dtype_bytes(p->dtypes[r]);
    }
}

/* Which axes are the outer ones of a kernel. */
static bool is_outer(const cuda_axis *a, const cuda_spec *spec) {
    if (spec->kernel == CUDA_AROUND_BACK_ELEMENTS)
        return true;
    if (spec->kernel == CUDA_AROUND_BACK_ROWS)
        return !a->reduced;
    return spec->around_back.target == AROUND_AFFINE   ? a->affine
           : spec->around_back.target == AROUND_SCALED ? a->column
                                                       : a->modulated;
}

static int64_t size_of(const cuda_plan *plan, const cuda_spec *spec, bool outer) {
    int64_t size = 1;
    for (int k = 0; k < plan->axis_count; k++)
        if (is_outer(&plan->axis[k], spec) == outer)
            size *= plan->axis[k].size;
    return size;
}

/* Whether x is dense along the last of the outer or inner axes. */
static bool is_dense(const cuda_plan *plan, const cuda_spec *spec, bool outer) {
    for (int k = plan->axis_count - 1; k >= 0; k--)
        if (is_outer(&plan->axis[k], spec) == outer && plan->axis[k].size > 1)
            return plan->axis[k].stride[ROLE_X] == role_bytes(&plan->main, ROLE_X);
    return false;
}

/* ---- Plans ------------------------------------------------------------------------------------
 */

static bool make(cuda_plan *plan, const problem *p) {
    const general_tuning *t = &plan->limits.tuning->general;
    cuda_spec *spec = &plan->main;
    around_back_constants *c = &spec->around_back;
    if (p->pass != PLANISH_BACKWARD)
        return false;
    spec->kernel = CUDA_AROUND_BACK_ROWS;
    cuda_spec_describe(spec, p);
    spec->real_double = 1;
    spec->pass = p->pass;
    spec->cluster = 1;
    c->warps = WARPS;
    c->gate = !has(p, ROLE_GATE) ? 0 : p->around.gate == PLANISH_GATE_AFTER ? 1 : 2;
    c->drops = p->around.dropout_p > 0;
    c->single = !problem_is_double(p);
    plan->around.dropout_p = p->around.dropout_p;
    insert_axes(plan, p, p->kept, p->kept_count, false);
    insert_axes(plan, p, p->reduced, p->reduced_count, true);
    /* Decided by the axes of the row alone, so that a row's bits do not depend on the others. */
    c->lanes = p->cols < t->short_row || !is_dense(plan, spec, false) ? ACROSS : 1;
    plan->workspace_bytes = (size_t)p->rows * ROW_BYTES;
    return true;
}

static void size(cuda_plan *plan) {
    (void)plan; /* no constant changes the workspace */
}

static int describe(const cuda_plan *plan, char *text, size_t bytes) {
    return snprintf(text, bytes, "cuda general backward with stages %lldx%lld: %d axes",
                    (long long)plan->rows, (long long)plan->cols, plan->axis_count);
}

/* ---- Launches ---------------------------------------------------------------------------------
 */

static void add(const cuda_plan *plan, cuda_kernel kernel, int target, cuda_launch *launches,
                int *count) {
    cuda_spec *spec = &launches[*count].spec;
    *spec = plan->main;
    spec->kernel = kernel;
    spec->around_back.target = target;
    if (kernel == CUDA_AROUND_BACK_COLUMNS)
        spec->around_back.lanes =
            is_dense(plan, spec, true) || !is_dense(plan, spec, false) ? ACROSS : 1;
    spec->around_back.slices = WARP * WARPS / spec->around_back.lanes;
    ++*count;
}

static bool wants(const cuda_plan *plan, role one, role other) {
    return plan->main.type[one] != DTYPE_NONE || plan->main.type[other] != DTYPE_NONE;
}

static int launch_specs(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                        cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    (void)buffers; /* taken as they lie: alignment is nothing to these kernels */
    int count = 0;
    add(plan, CUDA_AROUND_BACK_ROWS, 0, launches, &count);
    if (wants(plan, ROLE_DWEIGHT, ROLE_DBIAS))
        add(plan, CUDA_AROUND_BACK_COLUMNS, AROUND_AFFINE, launches, &count);
    if (wants(plan, ROLE_DCOLUMN_SCALE, ROLE_DCOLUMN_SCALE))
        add(plan, CUDA_AROUND_BACK_COLUMNS, AROUND_SCALED, launches, &count);
    if (wants(plan, ROLE_DSCALE, ROLE_DSHIFT))
        add(plan, CUDA_AROUND_BACK_COLUMNS, AROUND_MODULATED, launches, &count);
    if (wants(plan, ROLE_DX, ROLE_DRESIDUAL) || wants(plan, ROLE_DGATE, ROLE_DGATE))
        add(plan, CUDA_AROUND_BACK_ELEMENTS, 0, launches, &count);
    return count;
}

/* Appends the axes that are, or are not, outer ones of the kernel; returns how many. */
static int append_axes(const cuda_plan *plan, const cuda_spec *spec, bool outer,
                       around_general_backward_args *args, int at) {
    const int first = at;
    for (int k = 0; k < plan->axis_count; k++) {
        const cuda_axis *a = &plan->axis[k];
        if (is_outer(a, spec) != outer)
            continue;
        args->axis[at].size = a->size;
        args->axis[at].stride[AROUND_GENERAL_BACKWARD_INDEX] = a->index_step;
        for (int r = 0; r < AROUND_GENERAL_ROW; r++)
            args->axis[at].stride[r] = a->stride[known[r]];
        int64_t span = ROW_BYTES; /* dense over the rows, in the list's order */
        for (int i = k + 1; i < plan->axis_count; i++)
            span *= plan->axis[i].reduced ? 1 : plan->axis[i].size;
        args->axis[at++].stride[AROUND_GENERAL_ROW] = a->reduced ? 0 : span;
    }
    return at - first;
}

static void launch_arguments(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                             void *workspace, int resident,
                             cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    const general_tuning *t = &plan->limits.tuning->general;
    (void)resident; /* neither clusters nor blocks that wait for each other */
    cuda_launch counted[CUDA_MOST_LAUNCHES];
    const int count = launch_specs(plan, buffers, counted);
    for (int i = 0; i < count; i++) {
        const cuda_spec *spec = &launches[i].spec;
        around_general_backward_args *a = &launches[i].args.around_back;
        memset(a, 0, sizeof *a);
        for (int r = 0; r < AROUND_GENERAL_ROW; r++)
            a->data[r] = buffers[known[r]];
        a->data[AROUND_GENERAL_ROW] = workspace;
        a->rng = buffers[ROLE_RNG];
        a->drop_below = around_dropped(plan->around.dropout_p);
        a->kept = 1 / (1 - plan->around.dropout_p);
        if (spec->around_back.single)
            a->kept = (float)a->kept;
        a->outer_size = size_of(plan, spec, true);
        a->inner_size = size_of(plan, spec, false);
        a->outer = append_axes(plan, spec, true, a, 0);
        a->inner = append_axes(plan, spec, false, a, a->outer);
        const int at_a_time =
            spec->kernel == CUDA_AROUND_BACK_ELEMENTS ? WARP * WARPS : spec->around_back.lanes;
        launches[i].blocks_x = least_i64(ceil_div_i64(a->outer_size, at_a_time),
                                         (int64_t)t->blocks * plan->limits.multiprocessors);
        launches[i].blocks_y = 1;
    }
}

static unsigned threads(const cuda_spec *spec) {
    return WARP * (unsigned)spec->around_back.warps;
}

static size_t shared_bytes(const cuda_spec *spec) {
    (void)spec;
    return 0;
}

const cuda_family around_general_backward_family = {
    .plan_make = make,
    .plan_size = size,
    .plan_describe = describe,
    .launch_specs = launch_specs,
    .launch_arguments = launch_arguments,
    .threads = threads,
    .shared_bytes = shared_bytes,
};
