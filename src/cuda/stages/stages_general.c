/* The forward of any problem with what stands around the norm. */
#include <stdio.h>
#include <string.h>

#include "cuda/common/axes.h"
#include "cuda/common/integers.h"
#include "cuda/stages/stages_forward.h"
#include "stages.h"

enum {
    WARPS = 8,     /* of a block */
    ACROSS = WARP, /* lanes that take neighbouring rows, where they do */
};

/* As the kernel counts them. */
#define ROLE_OF(role) ROLE_##role,
static const role roles[] = {EACH_STAGES_GENERAL_TENSOR(ROLE_OF)};
#undef ROLE_OF

static const char *stages_general_plan_make(cuda_plan *plan, const problem *p) {
    if (!problem_has_stages(p) || p->pass != PLANISH_FORWARD)
        return "this pass";
    const general_tuning *t = &plan->limits.tuning->general;
    cuda_spec *spec = &plan->main;
    stages_set_constants(spec, p);
    spec->kernel = CUDA_STAGES_GENERAL;
    spec->real_double = 1;
    spec->cluster = 1;
    spec->stages.is_double = problem_is_double(p);
    spec->stages.sum_type = !has_prologue(p)              ? p->dtypes[ROLE_X]
                            : p->stages.sum != DTYPE_NONE ? p->stages.sum
                            : spec->stages.is_double      ? DTYPE_F64
                                                          : DTYPE_F32;
    plan->axis_count = p->kept_count + p->reduced_count;
    /* Decided by the axes of the row alone, so that a row's bits do not depend on the others. */
    const bool dense = reduced_stride(p, p->reduced_count - 1, ROLE_X) == 1;
    spec->general = (general_constants){.warps = WARPS};
    spec->general.lanes = p->cols < t->short_row || !dense ? ACROSS : 1;
    spec->general.slices = WARP * WARPS / spec->general.lanes;
    return NULL;
}

static void stages_general_plan_size(cuda_plan *plan) {
    (void)plan;
}

static int stages_general_plan_describe(const cuda_plan *plan, char *text, size_t bytes) {
    return snprintf(
        text, bytes, "cuda general stages forward %lldx%lld: %d axes, %d rows in a block",
        (long long)plan->rows, (long long)plan->cols, plan->axis_count, plan->main.general.lanes);
}

static int stages_general_launch_specs(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                                       cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    (void)buffers; /* taken as they lie */
    int count = 0;
    if (plan->main.type[ROLE_AMAX] != DTYPE_NONE) {
        launches[count].spec = plan->main;
        launches[count++].spec.kernel = CUDA_STAGES_GENERAL_CLEAR;
    }
    launches[count++].spec = plan->main;
    return count;
}

static void set_axes(const cuda_plan *plan, stages_general_args *a) {
    cuda_axes axes;
    cuda_axes_of(&axes, plan->problem);
    for (int k = 0; k < axes.count; k++) {
        const cuda_axis *from = &axes.axis[k];
        a->axis[k].size = from->of->size;
        for (int i = 0; i < STAGES_GENERAL_INDEX; i++)
            a->axis[k].stride[i] = cuda_axis_bytes(&axes, from, roles[i]);
        a->axis[k].stride[STAGES_GENERAL_INDEX] = axis_index_step(plan->problem, from->of);
        *(from->reduced ? &a->inner : &a->outer) += 1;
    }
}

static void stages_general_launch_arguments(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                                            void *workspace, int resident,
                                            cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    (void)workspace;
    (void)resident;
    const stages *s = &plan->problem->stages;
    const int64_t block = has(plan->problem, ROLE_Y_SCALES) ? s->block : plan->cols;
    const int clears = launches[0].spec.kernel == CUDA_STAGES_GENERAL_CLEAR;
    cuda_launch *l = &launches[clears];
    stages_general_args *a = &l->args.stages_general;
    *a =
        (stages_general_args){.rng = buffers[ROLE_RNG],
                              .y_scale = buffers[ROLE_Y_SCALE],
                              .amax = buffers[ROLE_AMAX],
                              .outer_size = plan->rows,
                              .inner_size = plan->cols,
                              .block = most_i64(1, block),
                              .scale_stride = s->scale_stride * role_bytes(&l->spec, ROLE_Y_SCALES),
                              .dropped = stages_dropped(s->dropout_p),
                              .eps = plan->eps,
                              .keep_factor = 1 / (1 - s->dropout_p),
                              .scale_least = (float)s->scale_least,
                              .scale_most = (float)s->scale_most};
    for (int i = 0; i < STAGES_GENERAL_INDEX; i++)
        a->data[i] = buffers[roles[i]];
    set_axes(plan, a);
    l->blocks_x =
        least_i64(ceil_div_i64(plan->rows, l->spec.general.lanes),
                  (int64_t)plan->limits.tuning->general.blocks * plan->limits.multiprocessors);
    l->blocks_y = 1;
    if (clears) {
        launches[0].blocks_x = launches[0].blocks_y = 1;
        launches[0].args.stages_general = *a;
    }
}

static unsigned stages_general_threads(const cuda_spec *spec) {
    return WARP * (unsigned)spec->general.warps;
}

static size_t stages_general_shared_bytes(const cuda_spec *spec) {
    (void)spec;
    return 0;
}

const cuda_family stages_general_family = {
    .plan_make = stages_general_plan_make,
    .plan_size = stages_general_plan_size,
    .plan_describe = stages_general_plan_describe,
    .launch_specs = stages_general_launch_specs,
    .launch_arguments = stages_general_launch_arguments,
    .threads = stages_general_threads,
    .shared_bytes = stages_general_shared_bytes,
};
