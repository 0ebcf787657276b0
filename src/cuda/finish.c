#include "finish.h"

#include "integers.h"

void cuda_plan_finish(cuda_plan *plan, const problem *p, int cols, int64_t partials) {
    const general_tuning *t = &plan->limits.tuning->general;
    int32_t *f = plan->finish.constant;
    plan->partials = partials;
    plan->finish.kernel = CUDA_FINISH;
    f[C_REAL_DOUBLE] = problem_is_double(p);
    f[C_COLS] = cols;
    f[C_DW_TYPE] = p->dtypes[ROLE_DWEIGHT];
    f[C_DB_TYPE] = p->dtypes[ROLE_DBIAS];
    f[C_ROWS] = t->finish_rows;
    f[C_SLICES] = 1;
    const int each = cols <= t->finish_few_cols ? t->finish_rows / 2 : t->finish_rows;
    while (f[C_SLICES] < 32 && f[C_SLICES] * each < partials)
        f[C_SLICES] *= 2;
    f[C_LANES] = 32;
    while (f[C_LANES] * f[C_SLICES] < t->finish_threads &&
           cols / (2 * f[C_LANES]) >= plan->limits.multiprocessors)
        f[C_LANES] *= 2;
    f[C_GROUP] = 1;
}

void cuda_finish_arguments(const cuda_plan *plan, void *const buffers[ROLE_COUNT], char *partials,
                           int64_t room, int64_t count, cuda_launch *l) {
    const int32_t *c = plan->main.constant;
    const int32_t *f = plan->finish.constant;
    const int64_t cols = f[C_COLS];
    size_t bytes = (size_t)(room * cols) * real_bytes(c);
    l->blocks_x = ceil_div(f[C_COLS], f[C_LANES]);
    l->blocks_y = (unsigned)(c[C_WANT_DWEIGHT] + c[C_WANT_DBIAS]);
    l->args.finish = (cuda_finish_args){.partial_weight = partials,
                                        .partial_bias = partials + (c[C_WANT_DWEIGHT] ? bytes : 0),
                                        .dweight = buffers[ROLE_DWEIGHT],
                                        .dbias = buffers[ROLE_DBIAS],
                                        .count = count};
}

static unsigned finish_threads(const cuda_spec *spec) {
    return (unsigned)(spec->constant[C_LANES] * spec->constant[C_SLICES]);
}

static size_t finish_shared_bytes(const cuda_spec *spec) {
    (void)spec;
    return 0;
}

const cuda_family finish_family = {.threads = finish_threads, .shared_bytes = finish_shared_bytes};
