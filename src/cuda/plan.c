/* Problem -> plan: which kernels take it. */
#include <string.h>

#include "cuda/around/around.h"
#include "cuda/backend.h"
#include "cuda/families.h"
#include "cuda/general/general.h"

enum { MOST_COLS = 1 << 30 };

/* Whether the families of kernels that are fast at some problems are asked at all. */
static bool may_be_fast(const problem *p) {
    return (p->pass == PLANISH_FORWARD || p->pass == PLANISH_BACKWARD) && p->cols >= 1 &&
           p->cols <= MOST_COLS;
}

/* A plan of nothing yet. */
static void begin(cuda_plan *plan, const problem *p, const cuda_limits *limits) {
    memset(plan, 0, offsetof(cuda_plan, axis));
    plan->limits = *limits;
    plan->limits.tuning = gpu_tuning_of(limits->arch);
    plan->rows = p->rows;
    plan->cols = p->cols;
    plan->eps = p->eps;
    plan->finish.kernel = plan->cooperative.kernel = -1;
}

/* Of a forward; what the backward has of stages is refused before (cuda_plan_refuses). */
static void around_plan_make(cuda_plan *plan, const problem *p, const cuda_limits *limits) {
    if (may_be_fast(p)) {
        begin(plan, p, limits);
        if (around_family.plan_make(plan, p))
            return;
    }
    begin(plan, p, limits);
    around_general_family.plan_make(plan, p);
}

const char *cuda_plan_refuses(const problem *p) {
    if (problem_has_stages(p) && p->pass != PLANISH_FORWARD)
        return "a GPU has no backward of stages around the norm yet";
    return NULL;
}

void cuda_plan_make(cuda_plan *plan, const problem *p, const cuda_limits *limits) {
    if (problem_has_stages(p)) {
        around_plan_make(plan, p, limits);
        return;
    }
    if (may_be_fast(p))
        for (const cuda_family *const *f = cuda_fast_families; *f; f++) {
            begin(plan, p, limits);
            if ((*f)->plan_make(plan, p))
                return;
        }
    begin(plan, p, limits);
    general_family.plan_make(plan, p);
}

int cuda_plan_is_general(const cuda_plan *plan) {
    const cuda_family *family = cuda_family_of(plan);
    return family == &general_family || family == &around_general_family;
}

int cuda_plan_describe(const cuda_plan *plan, char *text, size_t bytes) {
    return cuda_family_of(plan)->plan_describe(plan, text, bytes);
}
