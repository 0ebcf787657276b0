#include "cuda/common/finish.h"

#include "cuda/common/integers.h"

void cuda_plan_finish(cuda_plan *plan, const problem *p, int cols, int64_t partials) {
    const general_tuning *t = &plan->limits.tuning->general;
    cuda_spec *spec = &plan->finish;
    finish_constants *f = &spec->finish;
    plan->partials = partials;
    spec->kernel = CUDA_FINISH;
    spec->cluster = spec->cooperating_blocks = 1;
    spec->real_double = problem_is_double(p);
    f->cols = cols;
    spec->type[ROLE_DWEIGHT] = p->dtypes[ROLE_DWEIGHT];
    spec->type[ROLE_DBIAS] = p->dtypes[ROLE_DBIAS];
    f->rows = t->finish_rows;
    f->slices = 1;
    const int each = cols <= t->finish_few_cols ? t->finish_rows / 2 : t->finish_rows;
    while (f->slices < 32 && f->slices * each < partials)
        f->slices *= 2;
    f->lanes = 32;
    while (f->lanes * f->slices < t->finish_threads &&
           cols / (2 * f->lanes) >= plan->limits.multiprocessors)
        f->lanes *= 2;
}

void cuda_finish_arguments(const cuda_plan *plan, void *const buffers[ROLE_COUNT], char *partials,
                           int64_t room, int64_t count, cuda_launch *l) {
    const cuda_spec *spec = &plan->main;
    const finish_constants *f = &plan->finish.finish;
    const int64_t cols = f->cols;
    size_t bytes = (size_t)(room * cols) * real_bytes(spec);
    l->blocks_x = ceil_div(f->cols, f->lanes);
    l->blocks_y = (unsigned)(spec->want_dweight + spec->want_dbias);
    l->args.finish = (finish_args){.partial_weight = partials,
                                   .partial_bias = partials + (spec->want_dweight ? bytes : 0),
                                   .dweight = buffers[ROLE_DWEIGHT],
                                   .dbias = buffers[ROLE_DBIAS],
                                   .count = count};
}

static unsigned finish_threads(const cuda_spec *spec) {
    return (unsigned)(spec->finish.lanes * spec->finish.slices);
}

const cuda_family finish_family = {.threads = finish_threads};
