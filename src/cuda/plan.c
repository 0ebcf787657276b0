/* Problem -> plan: which kernels take it. */
#include <float.h>
#include <string.h>

#include "cuda/backend.h"
#include "cuda/batch/batch.h"
#include "cuda/families.h"
#include "cuda/general/general.h"
#include "cuda/rows/rows.h"
#include "cuda/stages/modulated.h"
#include "cuda/stages/stages_backward.h"
#include "cuda/stages/stages_forward.h"
#include "cuda/stages/sum_step.h"
#include "stages.h"

enum { MOST_COLS = 1 << 30 };

/* The families that know a norm of which each device has a part, and one by given moments. */
static const cuda_family *const part_families[] = {&rows_family, &batch_family, NULL};

/* Whether the families of kernels that are fast at some problems are asked at all. */
static bool may_be_fast(const problem *p) {
    return p->pass != PLANISH_BACKWARD_FROM_Y && p->cols >= 1 && p->cols <= MOST_COLS;
}

/* As kernels/common/rule.cu takes it: of L2 the square of the least length, which a row of zeros
 * needs to be a number. */
static double eps_of(const norm_rule *rule) {
    const double square = rule->least * rule->least;
    if (!rule_is_l2(rule))
        return rule->eps;
    return rule->least <= 0 ? 0 : square < DBL_MIN ? DBL_MIN : square;
}

/* A plan of nothing yet. */
static void begin(cuda_plan *plan, const problem *p, const cuda_limits *limits) {
    memset(plan, 0, sizeof *plan);
    plan->problem = p;
    plan->limits = *limits;
    plan->limits.tuning = gpu_tuning_of(limits->arch);
    plan->rows = p->rows;
    plan->cols = p->cols;
    plan->eps = eps_of(&p->rule);
    plan->finish.kernel = plan->cooperative.kernel = -1;
}

/* Where all that is asked for has to be: a problem, its steps, and room for another problem. */
typedef struct planning {
    steps *steps;
    const problem *problem;
    problem *norm;
    const cuda_limits *limits;
} planning;

/* What in a problem a family does not take; NULL: the plan is its. */
static const char *ask(cuda_plan *plan, const cuda_family *family, const problem *p,
                       const cuda_limits *limits) {
    begin(plan, p, limits);
    return family->plan_make(plan, p);
}

/* The first of some families that takes a problem; NULL: none. */
static const cuda_family *first_of(cuda_plan *plan, const cuda_family *const list[],
                                   const problem *p, const cuda_limits *limits) {
    for (; *list; list++)
        if (!ask(plan, *list, p, limits))
            return *list;
    return NULL;
}

/* The families that know of stages around the norm, by pass, closed by NULL. */
static const cuda_family *const forward_families[] = {&stages_forward_family, NULL};
static const cuda_family *const backward_families[] = {&rows_family, &stages_backward_family, NULL};
static const cuda_family *const *families_of_stages(const problem *p) {
    return p->pass == PLANISH_FORWARD ? forward_families : backward_families;
}

/* Whether this family took dense rows: then the families that know of stages have kernels for them,
 * of one launch. */
static bool is_of_rows(const cuda_family *family, const problem *norm) {
    return family == &row_levels_family || (family == &rows_family && problem_is_rows(norm));
}

/* Families that are fast at the norm alone: s is made first where one of them takes it; its bits
 * are those of the norm alone. */
static bool plan_sum(cuda_plan *plan, const planning *of) {
    if (!stages_make_sum_alone(of->problem))
        return false;
    steps_of_sum(of->steps, of->problem, of->norm);
    const cuda_family *const f = first_of(plan, cuda_fast_families, of->norm, of->limits);
    if (!f || is_of_rows(f, of->norm))
        return false;
    sum_step_plan(plan, of->problem);
    return true;
}

/* The same of a backward to whose dx a gradient is added: by the kernels that make it, where they
 * can, else by a step behind them. The bits are the same. */
static bool plan_dsum(cuda_plan *plan, const planning *of) {
    const problem *p = of->problem;
    if (!stages_join_dsum_alone(p) || problem_is_rows(p))
        return false;
    steps_of_dsum(of->steps, p, of->norm);
    const cuda_family *const f = first_of(plan, cuda_fast_families, of->norm, of->limits);
    if (!f || is_of_rows(f, of->norm))
        return false;
    if (f->plan_dsum && f->plan_dsum(plan, p)) {
        steps_of_whole(of->steps, p);
        plan->problem = p;
    } else {
        sum_step_plan_dsum(plan, p, of->norm->dtypes[ROLE_DX]);
    }
    return true;
}

/* A modulation alone: what in it kernels do not take, or NULL. */
static const char *plan_modulation(cuda_plan *plan, const planning *of) {
    if (!stages_modulate_alone(of->problem))
        return "anything but dense rows and scale, shift or both";
    steps_of_modulation(of->steps, of->problem, of->norm);
    const char *const why = ask(plan, &modulated_family, of->norm, of->limits);
    plan->is_modulated = true;
    return why;
}

static bool plan_stages(cuda_plan *plan, const planning *of) {
    if (plan_sum(plan, of) || plan_dsum(plan, of) || !plan_modulation(plan, of))
        return true;
    steps_of_whole(of->steps, of->problem);
    return first_of(plan, families_of_stages(of->problem), of->problem, of->limits);
}

/* What no other kernels know: statistics that are kept or given, and what is added behind a norm.
 * Where there are no elements there is nothing to know of it. */
static const role_set of_batches = ROLE_BIT(ROLE_ADDEND) | ROLE_BIT(ROLE_DADDEND) | STATISTIC_ROLES;

static bool is_for_batches(const problem *p) {
    return (p->present & of_batches) || problem_masks_by_y(p);
}

bool cuda_plan_knows(const cuda_plan *plan, const problem *p, const char **unknown) {
    const role_set roles = p->present & of_batches;
    *unknown = role_name(roles ? first_role(roles) : ROLE_Y);
    return !is_for_batches(p) || problem_is_half(p) || p->rows == 0 || p->cols == 0 ||
           cuda_family_of(plan) == &batch_family;
}

/* By the kernels of batches, or halves of a backward by those of rows; else these by the general
 * ones, the rest by none. */
static void plan_batch(cuda_plan *plan, const planning *of) {
    const problem *p = of->problem;
    /* The last of them is that of batches. */
    const cuda_family *const *families = problem_is_half(p) ? part_families : part_families + 1;
    if (may_be_fast(p) && first_of(plan, families, p, of->limits))
        return;
    ask(plan, &general_family, p, of->limits);
}

/* Those that are asked about a norm alone. */
static const cuda_family *const *families_of_norms(const problem *p) {
    const bool is_part =
        p->pass == PLANISH_APPLY || p->pass == PLANISH_STATISTICS || has(p, ROLE_C2);
    return is_part ? part_families : cuda_fast_families;
}

void cuda_plan_make(cuda_plan *plan, steps *s, const problem *p, problem *norm,
                    const cuda_limits *limits) {
    const planning of = {s, p, norm, limits};
    steps_of_whole(s, p);
    if (is_for_batches(p)) {
        plan_batch(plan, &of);
        return;
    }
    if (may_be_fast(p) &&
        (problem_has_stages(p) ? plan_stages(plan, &of)
                               : first_of(plan, families_of_norms(p), p, limits) != NULL))
        return;
    steps_of_whole(s, p);
    ask(plan, &general_family, p, limits);
}

void cuda_plan_rebind(cuda_plan *plan, const steps *s) {
    plan->problem = steps_norm(s)->problem;
    if (plan->sum.problem)
        plan->sum.problem = steps_beside(s)->problem;
}

static void say_why(text *to, const char **separator, const cuda_family *family, const char *why) {
    if (why)
        append(to, "%skernels of %s do not take %s", *separator, family->name, why);
    *separator = "; ";
}

void cuda_why_general(const problem *p, const cuda_limits *limits, text *to) {
    cuda_plan plan;
    steps unused;
    problem norm;
    const char *separator = "";
    const planning of = {&unused, p, &norm, limits};
    if (!may_be_fast(p)) {
        append(to, p->pass == PLANISH_BACKWARD_FROM_Y ? "pass is PLANISH_BACKWARD_FROM_Y"
                                                      : "rows have no elements, or more than 2^30");
        return;
    }
    const bool has_stages = problem_has_stages(p);
    if (has_stages)
        say_why(to, &separator, &modulated_family, plan_modulation(&plan, &of));
    const cuda_family *const *f = has_stages ? families_of_stages(p) : families_of_norms(p);
    for (; *f; f++)
        say_why(to, &separator, *f, ask(&plan, *f, p, limits));
}

int cuda_plan_is_general(const cuda_plan *plan) {
    return cuda_family_of(plan) == &general_family;
}

int cuda_plan_describe(const cuda_plan *plan, char *text, size_t bytes) {
    const int before = !plan->sum.problem ? 0 : sum_step_describe(plan, text, bytes);
    const size_t at = (size_t)before < bytes ? (size_t)before : bytes;
    return before + cuda_family_of(plan)->plan_describe(plan, text + at, bytes - at);
}
