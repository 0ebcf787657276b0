/* Three kernels, one after the other, or one by clusters of blocks (batch_geometry.c). */
#include "cuda/batch/batch.h"

#include <stdio.h>

#include "cuda/batch/batch_geometry.h"
#include "cuda/batch/batch_view.h"
#include "cuda/common/divisors.h"
#include "cuda/common/images.h"
#include "cuda/common/integers.h"

enum { MOST_GRID = 1 << 30, MOST_VARIANTS = 3, MERGE_LANES = 8, CONSTANTS = 5 };

/* ---- Plans ----------------------------------------------------------------------------------- */

static bool is_backward(const cuda_spec *spec) {
    return spec->pass == PLANISH_BACKWARD;
}

/* Those of partial sums, at the beginning of the workspace. */
static size_t sums_bytes(const cuda_plan *plan) {
    return round_up((size_t)plan->partials * 3 * (size_t)plan->rows * real_bytes(&plan->main));
}

static void batch_plan_size(cuda_plan *plan) {
    plan->partials = batch_pieces(plan);
    plan->workspace_bytes = 0;
    if (plan->main.batch.variant == BATCH_SUMS)
        plan->workspace_bytes =
            sums_bytes(plan) + CONSTANTS * (size_t)plan->rows * real_bytes(&plan->main);
}

static const char *batch_plan_make(cuda_plan *plan, const problem *p) {
    batch_view v;
    cuda_spec *spec = &plan->main;
    if (images_lack_digits(p))
        return IMAGES_LACK_DIGITS;
    if (!batch_view_of(&v, p))
        return "rows that are neither neighbours nor runs of neighbours";
    cuda_spec_describe(spec, p);
    spec->kernel = CUDA_BATCH;
    spec->pass = p->pass;
    spec->real_double = problem_is_double(p);
    spec->cooperating_blocks = 1;
    spec->correct = is_backward(spec) && p->kind == PLANISH_LAYER && !problem_hides_rounding(p) &&
                    p->activation == PLANISH_IDENTITY;
    spec->want_dweight = has(p, ROLE_DWEIGHT);
    spec->want_dbias = has(p, ROLE_DBIAS);
    batch_set_geometry(plan, &v);
    if (plan->rows > MOST_GRID / spec->cluster)
        return "more rows than a grid has blocks";
    batch_plan_size(plan);
    return NULL;
}

static int batch_plan_describe(const cuda_plan *plan, char *text, size_t bytes) {
    static const char *const passes[] = {"forward", "backward", "", "", "apply"};
    const cuda_spec *spec = &plan->main;
    const batch_constants *c = &spec->batch;
    return snprintf(text, bytes,
                    "cuda batch %s %lldx%lld%s: %s, chunks of %d, %d lanes, pieces of %lld, "
                    "%d warps, cluster %d, %d held",
                    passes[spec->pass], (long long)plan->rows, (long long)plan->cols,
                    c->last ? " channels last" : "",
                    c->variant == BATCH_WHOLE ? "one read" : "two reads", c->width, c->lanes,
                    (long long)plan->turns, c->warps, spec->cluster, c->hold);
}

/* ---- Launches -------------------------------------------------------------------------------- */

/* Those that are launched, in their order; returns how many. */
static int variants_of_plan(const cuda_plan *plan, int variants[MOST_VARIANTS]) {
    const cuda_spec *spec = &plan->main;
    int count = 0;
    if (spec->batch.variant != BATCH_SUMS) {
        variants[count++] = spec->batch.variant;
        return count;
    }
    variants[count++] = BATCH_SUMS;
    variants[count++] = BATCH_MOMENTS;
    if (!is_backward(spec) || spec->type[ROLE_DX] != DTYPE_NONE)
        variants[count++] = BATCH_APPLY;
    return count;
}

/* Alignment of a tensor's steps. */
static int32_t access_of(const cuda_plan *plan, const batch_view *v, void *const *buffers, role r) {
    const cuda_spec *spec = &plan->main;
    const batch_place *at = &v->at[r];
    uint64_t bits = (uint64_t)(uintptr_t)buffers[r] | (uint64_t)(at->outer | at->run);
    bits |= (uint64_t)(spec->batch.width * role_bytes(spec, r));
    if (!v->last)
        bits |= (uint64_t)at->inner;
    return common_alignment(bits);
}

static cuda_spec variant_of(const cuda_plan *plan, const batch_view *v, void *const *buffers,
                            int variant) {
    static const role full[] = {ROLE_X, ROLE_Y, ROLE_DY, ROLE_DX};
    cuda_spec made = plan->main, *spec = &made;
    batch_constants *c = &spec->batch;
    c->variant = variant;
    for (size_t i = 0; i < sizeof full / sizeof *full; i++)
        spec->access[full[i]] =
            has(plan->problem, full[i]) ? (uint8_t)access_of(plan, v, buffers, full[i]) : 1;
    if (variant == BATCH_MOMENTS) {
        c->lanes = MERGE_LANES;
        spec->min_blocks = 1;
    }
    return made;
}

static int batch_launch_specs(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                              cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    int variants[MOST_VARIANTS];
    const int count = variants_of_plan(plan, variants);
    batch_view v;
    batch_view_of(&v, plan->problem);
    for (int i = 0; i < count; i++)
        launches[i].spec = variant_of(plan, &v, buffers, variants[i]);
    return count;
}

static int64_t grid_of(const cuda_plan *plan, const cuda_spec *spec) {
    const batch_constants *c = &spec->batch;
    if (c->variant == BATCH_WHOLE)
        return plan->rows * spec->cluster;
    if (c->variant == BATCH_MOMENTS)
        return ceil_div_i64(plan->rows, c->lanes);
    const int64_t strips = c->last ? ceil_div_i64(plan->rows, c->lanes * c->width) : plan->rows;
    return least_i64(strips * plan->partials, MOST_GRID);
}

static void batch_launch_arguments(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                                   void *workspace, int resident,
                                   cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    (void)resident; /* clusters come and go */
    const cuda_spec *spec = &plan->main;
    const role out = is_backward(spec) ? ROLE_DX : ROLE_Y;
    int variants[MOST_VARIANTS];
    const int count = variants_of_plan(plan, variants);
    batch_view v;
    batch_view_of(&v, plan->problem);
    const int64_t run_steps = v.last ? 1 : v.run / spec->batch.width;
    for (int i = 0; i < count; i++) {
        launches[i].blocks_x = grid_of(plan, &launches[i].spec);
        launches[i].blocks_y = 1;
        launches[i].args.batch =
            (batch_args){.x = buffers[ROLE_X],
                         .weight = buffers[ROLE_WEIGHT],
                         .bias = buffers[ROLE_BIAS],
                         .dy = buffers[ROLE_DY],
                         .mean = buffers[ROLE_MEAN],
                         .rstd = buffers[ROLE_RSTD],
                         .out = buffers[out],
                         .dweight = buffers[ROLE_DWEIGHT],
                         .dbias = buffers[ROLE_DBIAS],
                         .sums = workspace,
                         .constants = workspace ? (char *)workspace + sums_bytes(plan) : NULL,
                         .rows = plan->rows,
                         .inner_rows = v.inner_rows,
                         .x_at = v.at[ROLE_X],
                         .dy_at = v.at[ROLE_DY],
                         .out_at = v.at[out],
                         .weight_at = v.at[ROLE_WEIGHT],
                         .bias_at = v.at[ROLE_BIAS],
                         .mean_at = v.at[ROLE_MEAN],
                         .rstd_at = v.at[ROLE_RSTD],
                         .dweight_at = v.at[ROLE_DWEIGHT],
                         .dbias_at = v.at[ROLE_DBIAS],
                         .steps = (u32)batch_steps(plan),
                         .run_steps = (u32)run_steps,
                         .piece = (u32)plan->turns,
                         .pieces = (u32)plan->partials,
                         .run_divisor = divisor_of(most_i64(run_steps, 2)),
                         .cols = (double)plan->cols,
                         .eps = plan->eps,
                         .eps_is_small = plan->eps < 1e-30};
    }
}

static unsigned batch_threads(const cuda_spec *spec) {
    return WARP * (unsigned)spec->batch.warps;
}

const cuda_family batch_family = {
    .name = "batches",
    .plan_make = batch_plan_make,
    .plan_size = batch_plan_size,
    .plan_describe = batch_plan_describe,
    .launch_specs = batch_launch_specs,
    .launch_arguments = batch_launch_arguments,
    .threads = batch_threads,
    .shared_bytes = batch_shared_bytes,
};
