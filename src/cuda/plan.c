/* Problem -> plan: which kernels take it. */
#include <string.h>

#include "cuda/backend.h"
#include "cuda/families.h"
#include "cuda/general/general.h"
#include "cuda/rows/rows.h"
#include "cuda/stages/modulated.h"
#include "cuda/stages/stages_backward.h"
#include "cuda/stages/stages_forward.h"
#include "cuda/stages/stages_general_backward.h"
#include "cuda/stages/sum_step.h"
#include "stages.h"

enum { MOST_COLS = 1 << 30 };

/* Whether the families of kernels that are fast at some problems are asked at all. */
static bool may_be_fast(const problem *p) {
    return (p->pass == PLANISH_FORWARD || p->pass == PLANISH_BACKWARD) && p->cols >= 1 &&
           p->cols <= MOST_COLS;
}

/* A plan of nothing yet. */
static void begin(cuda_plan *plan, const problem *p, const cuda_limits *limits) {
    memset(plan, 0, sizeof *plan);
    plan->problem = p;
    plan->limits = *limits;
    plan->limits.tuning = gpu_tuning_of(limits->arch);
    plan->rows = p->rows;
    plan->cols = p->cols;
    plan->eps = p->eps;
    plan->finish.kernel = plan->cooperative.kernel = plan->sum.spec.kernel = -1;
}

/* The families that know of stages around the norm, by pass, closed by NULL; the last takes all. */
static const cuda_family *const forward_families[] = {&modulated_family, &stages_forward_family,
                                                      NULL};
static const cuda_family *const backward_families[] = {&rows_family, &modulated_family,
                                                       &stages_backward_family, NULL};

/* Whether this family took dense rows: then the families that know of stages have kernels for them,
 * of one launch. */
static bool is_of_rows(const cuda_family *family, const problem *norm) {
    return family == &row_levels_family || (family == &rows_family && problem_is_rows(norm));
}

/* Families that are fast at the norm alone: s is made first where one of them takes it; its bits
 * are those of the norm alone. */
static bool sum_plan_make(cuda_plan *plan, const problem *p, const cuda_limits *limits) {
    problem norm;
    if (!stages_make_sum_alone(p))
        return false;
    stages_norm_of_sum(p, &norm);
    for (const cuda_family *const *f = cuda_fast_families; *f; f++) {
        begin(plan, &norm, limits);
        if (!(*f)->plan_make(plan, &norm)) {
            if (is_of_rows(*f, &norm))
                return false;
            sum_step_plan(plan, p);
            return true;
        }
    }
    return false;
}

/* The same of a backward to whose dx a gradient is added: by the kernels that make it, where they
 * can, else by one behind them. The bits are the same. */
static bool dsum_plan_make(cuda_plan *plan, const problem *p, const cuda_limits *limits) {
    problem norm;
    if (!stages_join_dsum_alone(p) || problem_is_rows(p))
        return false;
    stages_norm_before_dsum(p, &norm);
    for (const cuda_family *const *f = cuda_fast_families; *f; f++) {
        begin(plan, &norm, limits);
        if (!(*f)->plan_make(plan, &norm)) {
            if (is_of_rows(*f, &norm))
                return false;
            if (!(*f)->plan_dsum || !(*f)->plan_dsum(plan, p))
                sum_step_plan_dsum(plan, p, norm.dtypes[ROLE_DX]);
            return true;
        }
    }
    return false;
}

static void stages_plan_make(cuda_plan *plan, const problem *p, const cuda_limits *limits) {
    const bool forward = p->pass == PLANISH_FORWARD;
    if (may_be_fast(p) &&
        (forward ? sum_plan_make(plan, p, limits) : dsum_plan_make(plan, p, limits)))
        return;
    if (may_be_fast(p))
        for (const cuda_family *const *f = forward ? forward_families : backward_families; *f;
             f++) {
            begin(plan, p, limits);
            if (!(*f)->plan_make(plan, p))
                return;
        }
    begin(plan, p, limits);
    (forward ? &stages_general_family : &stages_general_backward_family)->plan_make(plan, p);
}

static void plan_make(cuda_plan *plan, const problem *p, const cuda_limits *limits) {
    if (problem_has_stages(p)) {
        stages_plan_make(plan, p, limits);
        return;
    }
    if (may_be_fast(p))
        for (const cuda_family *const *f = cuda_fast_families; *f; f++) {
            begin(plan, p, limits);
            if (!(*f)->plan_make(plan, p))
                return;
        }
    begin(plan, p, limits);
    general_family.plan_make(plan, p);
}

void cuda_plan_make(cuda_plan *plan, const problem *p, const cuda_limits *limits) {
    plan_make(plan, p, limits);
    plan->problem = p;
}

void cuda_why_general(const problem *p, const cuda_limits *limits, text *to) {
    cuda_plan plan;
    if (!may_be_fast(p)) {
        append(to, p->pass == PLANISH_FORWARD || p->pass == PLANISH_BACKWARD
                       ? "rows have no elements, or more than 2^30"
                       : "pass is neither PLANISH_FORWARD nor PLANISH_BACKWARD");
        return;
    }
    const cuda_family *const *const asked = !problem_has_stages(p)       ? cuda_fast_families
                                            : p->pass == PLANISH_FORWARD ? forward_families
                                                                         : backward_families;
    for (const cuda_family *const *f = asked; *f; f++) {
        begin(&plan, p, limits);
        const char *why = (*f)->plan_make(&plan, p);
        if (why)
            append(to, "%skernels of %s do not take %s", f == asked ? "" : "; ", (*f)->name, why);
    }
}

int cuda_plan_is_general(const cuda_plan *plan) {
    const cuda_family *family = cuda_family_of(plan);
    return family == &general_family || family == &stages_general_family ||
           family == &stages_general_backward_family;
}

int cuda_plan_describe(const cuda_plan *plan, char *text, size_t bytes) {
    const int before = plan->sum.spec.kernel < 0 ? 0 : sum_step_describe(plan, text, bytes);
    const size_t at = (size_t)before < bytes ? (size_t)before : bytes;
    return before + cuda_family_of(plan)->plan_describe(plan, text + at, bytes - at);
}
