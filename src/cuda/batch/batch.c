/* Three kernels, one after the other, or one: of blocks that all run at once, or of clusters
 * (batch_geometry.c). */
#include "cuda/batch/batch.h"

#include <stdio.h>

#include "cuda/batch/batch_geometry.h"
#include "cuda/batch/batch_view.h"
#include "cuda/common/divisors.h"
#include "cuda/common/images.h"
#include "cuda/common/integers.h"

enum { MOST_GRID = 1 << 30, MOST_VARIANTS = 3, MERGE_LANES = 8, CONSTANTS = 7 };

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

/* What the kernels know beside the roles of a norm alone. */
static const role_set known = ROLE_BIT(ROLE_ADDEND) | ROLE_BIT(ROLE_DADDEND) | STATISTIC_ROLES;

static void describe(cuda_plan *plan, const problem *p) {
    cuda_spec *spec = &plan->main;
    cuda_spec_describe(spec, p);
    spec->kernel = CUDA_BATCH;
    spec->pass = p->pass;
    spec->real_double = problem_is_double(p);
    spec->cooperating_blocks = 1;
    spec->correct = is_backward(spec) && p->kind == PLANISH_LAYER && !problem_hides_rounding(p) &&
                    (p->activation == PLANISH_IDENTITY || problem_masks_by_y(p)) &&
                    !problem_is_given(p);
    spec->want_dweight = has(p, ROLE_DWEIGHT);
    spec->want_dbias = has(p, ROLE_DBIAS);
    if (p->pass == PLANISH_STATISTICS) /* in the place of rstd */
        spec->type[ROLE_RSTD] = p->dtypes[ROLE_M2];
    spec->batch.frozen = p->pass != PLANISH_FORWARD && has(p, ROLE_RUNNING_MEAN);
    if (spec->batch.frozen) { /* in the places of mean and rstd */
        spec->type[ROLE_MEAN] = p->dtypes[ROLE_RUNNING_MEAN];
        spec->type[ROLE_RSTD] = p->dtypes[ROLE_RUNNING_VAR];
        spec->type[ROLE_RUNNING_MEAN] = spec->type[ROLE_RUNNING_VAR] = DTYPE_NONE;
    }
}

static const char *batch_plan_make(cuda_plan *plan, const problem *p) {
    batch_view v;
    if (p->pass == PLANISH_BACKWARD_STATISTICS)
        return "c1 and c2 alone";
    if ((p->present & STAGE_ROLES & ~known) || p->stages.rounding)
        return "stages around the norm, but an addend";
    /* What is kept over many calls is taken as it is. */
    if (images_lack_digits(p) && !problem_masks_by_y(p) && !has(p, ROLE_RUNNING_MEAN))
        return IMAGES_LACK_DIGITS;
    /* With all digits elsewhere: sums about an outlier that a thread met would lack some. */
    if (p->pass == PLANISH_STATISTICS && problem_is_double(p))
        return "statistics of f64";
    if (!batch_view_of(&v, p))
        return "rows that are neither neighbours nor runs of neighbours";
    describe(plan, p);
    batch_set_geometry(plan, &v);
    if (plan->rows > MOST_GRID / plan->main.cluster)
        return "more rows than a grid has blocks";
    batch_plan_size(plan);
    return NULL;
}

static int batch_plan_describe(const cuda_plan *plan, char *text, size_t bytes) {
    static const char *const passes[] = {"forward", "backward", "", "statistics", "apply"};
    const cuda_spec *spec = plan->cooperative.kernel >= 0 ? &plan->cooperative : &plan->main;
    const batch_constants *c = &spec->batch;
    return snprintf(text, bytes,
                    "cuda batch %s %lldx%lld%s: %s, chunks of %d, %d lanes, pieces of %lld, "
                    "%d warps, cluster %d, group %d, %d of %d at once held%s",
                    passes[spec->pass], (long long)plan->rows, (long long)plan->cols,
                    c->last     ? " channels last"
                    : c->pixels ? " slabs"
                                : "",
                    c->variant == BATCH_WHOLE  ? "one read"
                    : c->variant == BATCH_HELD ? "one launch"
                    : c->alone                 ? "given moments"
                                               : "two reads",
                    c->width, c->lanes, (long long)plan->turns, c->warps, spec->cluster,
                    spec->cooperating_blocks, c->hold, c->at_once,
                    c->ask_ahead ? ", asked ahead" : "");
}

/* ---- Launches -------------------------------------------------------------------------------- */

/* Whether one cooperative launch does all: not in x's place where rows that leave float's range are
 * read again. */
static bool is_held(const cuda_plan *plan, void *const *buffers) {
    return plan->cooperative.kernel >= 0 &&
           (is_backward(&plan->main) || plan->main.type[ROLE_X] == DTYPE_F16 ||
            buffers[ROLE_X] != buffers[ROLE_Y]);
}

/* As the plan's kernels see it. */
static batch_view view_of(const cuda_plan *plan) {
    batch_view v;
    batch_view_of(&v, plan->problem);
    if (plan->main.batch.pixels)
        batch_view_by_place(&v);
    return v;
}

/* Those that are launched, in their order; returns how many. */
static int variants_of_plan(const cuda_plan *plan, void *const *buffers,
                            int variants[MOST_VARIANTS]) {
    const cuda_spec *spec = &plan->main;
    int count = 0;
    if (is_held(plan, buffers)) {
        variants[count++] = BATCH_HELD;
        return count;
    }
    if (spec->batch.variant != BATCH_SUMS) {
        variants[count++] = spec->batch.variant;
        return count;
    }
    variants[count++] = BATCH_SUMS;
    variants[count++] = BATCH_MOMENTS;
    if (spec->pass == PLANISH_STATISTICS)
        return count;
    if (!is_backward(spec) || spec->type[ROLE_DX] != DTYPE_NONE ||
        (spec->type[ROLE_DADDEND] != DTYPE_NONE && !batch_leaves_gradient(spec)))
        variants[count++] = BATCH_APPLY;
    return count;
}

/* Alignment of a tensor's steps. */
static int32_t access_of(const cuda_plan *plan, const batch_view *v, void *const *buffers, role r) {
    const cuda_spec *spec = &plan->main;
    const batch_place *at = &v->at[r];
    uint64_t bits = (uint64_t)(uintptr_t)buffers[r] | (uint64_t)(at->outer | at->run);
    bits |= (uint64_t)(spec->batch.width * role_bytes(spec, r));
    if (!v->last && !spec->batch.pixels)
        bits |= (uint64_t)at->inner;
    return common_alignment(bits);
}

/* Whether pieces are merged in the order in which blocks do that run at once. */
static bool merges_as_held(const cuda_spec *spec) {
    return spec->batch.last && spec->min_blocks == 1;
}

/* Of what there is one number of for each row: 1, where rows that are neighbours lie apart in it.
 */
static int32_t number_access_of(const cuda_plan *plan, const batch_view *v, void *const *buffers,
                                role r, role place) {
    const int bytes = role_bytes(&plan->main, place);
    if (!v->last || v->at[r].inner != bytes)
        return 1;
    return common_alignment((uint64_t)(uintptr_t)buffers[r] | (uint64_t)v->at[r].outer |
                            (uint64_t)(plan->main.batch.width * bytes));
}

/* The output behind sums that left a gradient: that of a norm alone, whose dy is what they left. */
static void forget_activation(cuda_spec *spec) {
    static const role gone[] = {ROLE_BIAS, ROLE_Y, ROLE_ADDEND, ROLE_DADDEND};
    spec->access[ROLE_DY] = spec->access[ROLE_DADDEND];
    spec->activation = PLANISH_IDENTITY;
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++) {
        spec->type[gone[i]] = DTYPE_NONE;
        spec->access[gone[i]] = 0;
    }
}

/* Of the tensors of x's shape. */
static int least_access(const cuda_spec *spec) {
    int found = 16;
    for (role r = 0; r < ROLE_COUNT; r++)
        if (axes_of(r) == AXES_FULL && spec->type[r] != DTYPE_NONE)
            found = least(found, spec->access[r]);
    return found;
}

static cuda_spec variant_of(const cuda_plan *plan, const batch_view *v, void *const *buffers,
                            int variant) {
    cuda_spec made = variant == BATCH_HELD ? plan->cooperative : plan->main, *spec = &made;
    batch_constants *c = &spec->batch;
    c->variant = variant;
    for (role r = 0; r < ROLE_COUNT; r++)
        if (axes_of(r) == AXES_FULL && has(plan->problem, r))
            spec->access[r] = (uint8_t)access_of(plan, v, buffers, r);
    const bool frozen = c->frozen;
    const struct {
        role r, place;
    } numbers[] = {{ROLE_WEIGHT, ROLE_WEIGHT},
                   {ROLE_BIAS, ROLE_BIAS},
                   {frozen ? ROLE_RUNNING_MEAN : ROLE_MEAN, ROLE_MEAN},
                   {frozen ? ROLE_RUNNING_VAR : ROLE_RSTD, ROLE_RSTD}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (spec->type[numbers[i].place] != DTYPE_NONE)
            spec->access[numbers[i].place] =
                (uint8_t)number_access_of(plan, v, buffers, numbers[i].r, numbers[i].place);
    if (c->pixels && least_access(spec) == 2)
        c->at_once = most(1, c->at_once / 2); /* elements come by registers of their own */
    if (variant == BATCH_MOMENTS) {
        const int rows = c->lanes * c->width;
        spec->min_blocks = 1;
        c->lanes = MERGE_LANES;
        if (merges_as_held(&plan->main)) {
            c->lanes = WARP;
            c->warps = plan->main.batch.warps * WARP / rows;
        }
    }
    if (variant == BATCH_APPLY && c->last && !is_backward(spec) &&
        spec->type[ROLE_ADDEND] != DTYPE_NONE)
        c->at_once = plan->limits.tuning->batch.added_at_once;
    if (variant == BATCH_APPLY && batch_leaves_gradient(spec))
        forget_activation(spec);
    return made;
}

static int batch_launch_specs(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                              cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    int variants[MOST_VARIANTS];
    const int count = variants_of_plan(plan, buffers, variants);
    const batch_view v = view_of(plan);
    for (int i = 0; i < count; i++)
        launches[i].spec = variant_of(plan, &v, buffers, variants[i]);
    return count;
}

static int64_t grid_of(const cuda_plan *plan, const batch_view *v, const cuda_spec *spec) {
    const batch_constants *c = &spec->batch;
    const bool by_place = c->last || c->pixels;
    const int64_t strips = by_place ? ceil_div_i64(v->rows, c->lanes * c->width) : v->rows;
    if (c->variant == BATCH_HELD)
        return spec->cooperating_blocks;
    if (c->variant == BATCH_WHOLE)
        return strips * spec->cluster;
    if (c->variant == BATCH_MOMENTS)
        return ceil_div_i64(plan->rows, c->lanes);
    return least_i64(strips * plan->partials, MOST_GRID);
}

static batch_tensor tensor_of(const batch_view *v, void *const *buffers, role r) {
    return (batch_tensor){buffers[r], v->at[r]};
}

static void batch_launch_arguments(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                                   void *workspace, int resident,
                                   cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    (void)resident; /* clusters come and go */
    const cuda_spec *spec = &plan->main;
    const bool back = is_backward(spec), frozen = spec->batch.frozen;
    const role rstd_role = frozen                             ? ROLE_RUNNING_VAR
                           : spec->pass == PLANISH_STATISTICS ? ROLE_M2
                                                              : ROLE_RSTD;
    int variants[MOST_VARIANTS];
    const int count = variants_of_plan(plan, buffers, variants);
    const batch_view v = view_of(plan);
    const int64_t run_steps = most_i64(v.run / spec->batch.width, 1);
    const batch_args args = {
        .x = tensor_of(&v, buffers, ROLE_X),
        .dy = tensor_of(&v, buffers, ROLE_DY),
        .beside = tensor_of(&v, buffers, problem_masks_by_y(plan->problem) ? ROLE_Y : ROLE_ADDEND),
        .out = tensor_of(&v, buffers, back ? ROLE_DX : ROLE_Y),
        .daddend = tensor_of(&v, buffers, ROLE_DADDEND),
        .weight = tensor_of(&v, buffers, ROLE_WEIGHT),
        .bias = tensor_of(&v, buffers, ROLE_BIAS),
        .mean = tensor_of(&v, buffers, frozen ? ROLE_RUNNING_MEAN : ROLE_MEAN),
        .rstd = tensor_of(&v, buffers, rstd_role),
        .c1 = tensor_of(&v, buffers, ROLE_C1),
        .c2 = tensor_of(&v, buffers, ROLE_C2),
        .dweight = tensor_of(&v, buffers, ROLE_DWEIGHT),
        .dbias = tensor_of(&v, buffers, ROLE_DBIAS),
        .running_mean = tensor_of(&v, buffers, ROLE_RUNNING_MEAN),
        .running_var = tensor_of(&v, buffers, ROLE_RUNNING_VAR),
        .sums = workspace,
        .constants = workspace ? (char *)workspace + sums_bytes(plan) : NULL,
        .rows = v.rows,
        .inner_rows = v.inner_rows,
        .steps = (u32)batch_steps(plan),
        .run_steps = (u32)run_steps,
        .piece = (u32)plan->turns,
        .pieces = (u32)plan->partials,
        .run_divisor = divisor_of(most_i64(run_steps, 2)),
        .cols = (double)plan->cols,
        .eps = plan->eps,
        .count = plan->problem->rule.count,
        .clamped = plan->problem->rule.clamped,
        .momentum = plan->problem->momentum,
        .eps_is_small = plan->eps < 1e-30};
    for (int i = 0; i < count; i++) {
        launches[i].blocks_x = grid_of(plan, &v, &launches[i].spec);
        launches[i].blocks_y = 1;
        launches[i].args.batch = args;
        if (launches[i].spec.batch.variant == BATCH_APPLY && batch_leaves_gradient(spec))
            launches[i].args.batch.dy = args.daddend;
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
