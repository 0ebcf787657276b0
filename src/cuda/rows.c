/*
 * Plans for dense rows. Everything here follows from the row length, the dtypes and the device's
 * limits; the number of rows only sets the size of the grid, so a row's result cannot depend on it.
 */
#include "rows.h"

#include <stdio.h>

#include "finish.h"
#include "geometry.h"
#include "integers.h"
#include "rows_backward.h"
#include "rows_forward.h"
#include "rows_wide.h"

enum {
    LONG_WARPS = 8,  /* of a block of the kernels for long rows */
    LONG_BLOCKS = 4, /* of these in a multiprocessor */
};

/* Whether the problem is dense rows one stride apart; rows of one element have no reduced axis. */
static int is_rows(const problem *p) {
    if (p->kept_count > 1)
        return 0;
    if (p->reduced_count == 0)
        return p->cols == 1 && p->affine <= 1;
    return problem_is_rows(p);
}

/* Sets the constants of a backward in one read; 0: rows are too long for it. */
static int one_read(int32_t *c, const problem *p, const cuda_limits *limits) {
    return backward_geometry(c, (int)p->cols, dtype_bytes(p->dtypes[ROLE_X]),
                             dtype_bytes(p->dtypes[ROLE_DY]), problem_is_double(p), limits);
}

static void backward_plan(cuda_plan *plan, const problem *p) {
    const cuda_limits *limits = &plan->limits;
    int32_t *c = plan->main.constant;
    int cols = (int)p->cols;
    int x_bytes = dtype_bytes(p->dtypes[ROLE_X]), g_bytes = dtype_bytes(p->dtypes[ROLE_DY]);
    plan->main.kernel = CUDA_BACKWARD;
    /* The slope of ReLU jumps: what a mean lost shows there in 16 bits, too. */
    c[C_CORRECT] = !problem_hides_rounding(p) || p->activation == PLANISH_RELU;
    c[C_WANT_DWEIGHT] = has(p, ROLE_DWEIGHT);
    c[C_WANT_DBIAS] = has(p, ROLE_DBIAS);
    if (one_read(c, p, limits)) {
        plan->partials = most(1, limits->multiprocessors * c[C_MIN_BLOCKS] / c[C_CLUSTER]);
    } else {
        plan->main.kernel = CUDA_APPLY;
        c[C_WARPS] = LONG_WARPS;
        c[C_CLUSTER] = c[C_MIN_BLOCKS] = c[C_ROWS] = c[C_VECS] = c[C_TEAMS] = 1;
        c[C_LANES] = 32 * LONG_WARPS;
        int strips = ceil_div(cols, c[C_LANES] * c[C_WIDTH]);
        plan->partials = most(1, LONG_BLOCKS * limits->multiprocessors / strips);
        if (plan->partials > p->rows)
            plan->partials = p->rows > 0 ? p->rows : 1;
    }
    if (c[C_WANT_DWEIGHT] || c[C_WANT_DBIAS])
        cuda_plan_finish(plan, p, cols, plan->partials);
    if (p->activation == PLANISH_IDENTITY)
        wide_geometry(plan, most(x_bytes, g_bytes), limits);
}

/* Dense rows plan->stride apart. */
static void rows_plan(cuda_plan *plan, const problem *p) {
    int32_t *c = plan->main.constant;
    cuda_spec_describe(&plan->main, p);
    c[C_REAL_DOUBLE] = problem_is_double(p);
    c[C_COLS] = (int)p->cols;
    c[C_GROUP] = 1;
    if (p->pass == PLANISH_FORWARD) {
        int x_bytes = dtype_bytes(p->dtypes[ROLE_X]);
        plan->main.kernel = CUDA_FORWARD;
        forward_geometry(plan, (int)p->cols, x_bytes, c[C_REAL_DOUBLE], &plan->limits);
        wide_geometry(plan, x_bytes, &plan->limits);
        if (c[C_GROUPS])
            group_rows_geometry(plan, x_bytes);
    } else {
        backward_plan(plan, p);
    }
    plan->workspace_bytes = cuda_plan_workspace(plan);
}

/* Only rows in one read take dy through an activation. */
static bool is_too_long(const cuda_plan *plan, const problem *p) {
    cuda_spec spec = {.kernel = CUDA_BACKWARD};
    if (p->activation == PLANISH_IDENTITY || p->pass != PLANISH_BACKWARD)
        return false;
    cuda_spec_describe(&spec, p);
    return !one_read(spec.constant, p, &plan->limits);
}

bool rows_plan_make(cuda_plan *plan, const problem *p) {
    if (!is_rows(p) || is_too_long(plan, p))
        return false;
    for (int r = 0; r < ROLE_COUNT; r++)
        plan->stride[r] = p->kept_count ? p->kept[0].stride[r] : 0;
    rows_plan(plan, p);
    return true;
}

bool group_rows_plan_make(cuda_plan *plan, const problem *p, const image_view *v) {
    static const role full[] = {ROLE_X, ROLE_Y};
    if (p->pass != PLANISH_FORWARD || v->last)
        return false;
    for (int i = 0; i < 2; i++)
        if (v->images > 1 && v->groups > 1 && v->stride[full[i]] != v->groups * p->cols)
            return false;
    for (int r = 0; r < ROLE_COUNT; r++)
        plan->stride[r] = v->stride[r];
    for (int i = 0; i < 2; i++)
        if (v->groups > 1)
            plan->stride[full[i]] = p->cols;
    plan->main.constant[C_GROUPS] = (int)v->groups;
    plan->main.constant[C_PIXELS] = (int)v->pixels;
    rows_plan(plan, p);
    return true;
}

int rows_plan_describe(const cuda_plan *plan, char *text, size_t bytes) {
    const cuda_spec *spec = plan->wide.kernel >= 0 ? &plan->wide : &plan->main;
    const int32_t *c = spec->constant;
    return snprintf(text, bytes,
                    "cuda %s %s %lldx%lld: %d lanes x %d chunks of %d, %d rows at a time, "
                    "%d warps, cluster %d, group %d",
                    c[C_GROUPS] ? "groups" : "rows",
                    spec->kernel == CUDA_FORWARD ? "forward"
                    : spec->kernel == CUDA_APPLY ? "backward (two reads)"
                                                 : "backward",
                    (long long)plan->rows, (long long)plan->cols, c[C_LANES], c[C_VECS], c[C_WIDTH],
                    cuda_spec_rows_at_a_time(spec), c[C_WARPS], c[C_CLUSTER], c[C_GROUP]);
}
