/* Problem -> plan: which kernels take it. */
#include <string.h>

#include "backend.h"
#include "channels.h"
#include "general.h"
#include "groups.h"
#include "images.h"
#include "rows.h"

/* The backward of an activation asks for the mean before the sums: but for rows and the general
 * kernels it has to be given with all its digits, where they show. */
static bool misses_digits(const problem *p) {
    return p->kind == PLANISH_LAYER && !problem_hides_rounding(p) &&
           p->dtypes[ROLE_MEAN] != DTYPE_F64;
}

/* Of 16 bits they show where the slope jumps; groups let them. */
static bool misses_digits_at_jumps(const problem *p) {
    return p->kind == PLANISH_LAYER && p->activation == PLANISH_RELU &&
           p->dtypes[ROLE_MEAN] != DTYPE_F64;
}

static bool fast_plan(cuda_plan *plan, const problem *p) {
    image_view v;
    const bool behind = p->activation != PLANISH_IDENTITY && p->pass == PLANISH_BACKWARD;
    if ((p->pass != PLANISH_FORWARD && p->pass != PLANISH_BACKWARD) || p->cols < 1 ||
        p->cols > 1 << 30)
        return false;
    if (rows_plan_make(plan, p))
        return true;
    if (behind && misses_digits(p))
        return false;
    if (!(behind && misses_digits_at_jumps(p)) && channels_plan_make(plan, p))
        return true;
    memset(&plan->main, 0, sizeof plan->main);
    return images_of_groups(&v, p) &&
           (group_tiles_plan_make(plan, p, &v) || group_rows_plan_make(plan, p, &v) ||
            groups_plan_make(plan, p, &v));
}

void cuda_plan_make(cuda_plan *plan, const problem *p, const cuda_limits *limits) {
    memset(plan, 0, offsetof(cuda_plan, axis));
    plan->limits = *limits;
    plan->rows = p->rows;
    plan->cols = p->cols;
    plan->eps = p->eps;
    plan->finish.kernel = plan->wide.kernel = -1;
    if (!fast_plan(plan, p)) {
        memset(&plan->main, 0, sizeof plan->main);
        general_plan_make(plan, p);
    }
}

int cuda_plan_is_general(const cuda_plan *plan) {
    return plan->main.kernel == CUDA_GENERAL_ROWS;
}

int cuda_plan_describe(const cuda_plan *plan, char *text, size_t bytes) {
    if (plan->main.kernel == CUDA_GENERAL_ROWS)
        return general_plan_describe(plan, text, bytes);
    if (plan->main.kernel == CUDA_CHANNELS)
        return channels_plan_describe(plan, text, bytes);
    if (cuda_spec_is_groups(&plan->main))
        return groups_plan_describe(plan, text, bytes);
    return rows_plan_describe(plan, text, bytes);
}
