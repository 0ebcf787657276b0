/*
 * A modulation behind the norm is its weight and bias, if each sample has its own: 1 + scale and
 * shift. So it is planned and launched as plain rows that are cut into slices, the samples; but for
 * the order of the grid (rows_slices_are_last), the registers that a sample's addresses take, and
 * the sums: their number for each sample follows from what keeps the device busy, and each sample's
 * result has a place of its own. What has a weight or a bias as well, or any other stage, is for
 * the kernels that know them all (stages_forward.h, stages_backward.h).
 */
#include "cuda/stages/modulated.h"
#include "cuda/stages/modulated_fit.h"

#include <stdio.h>

#include "cuda/common/integers.h"
#include "cuda/rows/rows_backward.h"
#include "cuda/rows/rows_fit.h"
#include "cuda/rows/rows_forward.h"
#include "cuda/rows/rows_launches.h"
#include "cuda/rows/rows_levels.h"
#include "cuda/rows/rows_shape.h"
#include "cuda/stages/samples.h"

enum { MOST_SAMPLES = 65535 };

/* ---- Plans ----------------------------------------------------------------------------------- */

static bool is_forward(const cuda_plan *plan) {
    return rows_are_forward(&plan->main);
}

static int64_t parts_of(const cuda_plan *plan, int64_t resident) {
    return samples_parts(rows_slices(plan), plan->rows, rows_at_a_time(&plan->main), resident);
}

/* The most parts of a sample that a device may have: where it finds room for fewer clusters than
 * would fill it, each of them has less to do. */
static int64_t most_parts(const cuda_plan *plan) {
    const int64_t planned = rows_resident(plan, &plan->main);
    int64_t parts = plan->stages.parts;
    for (int64_t held = 1; plan->main.cluster > 1 && held < planned; held++)
        parts = most_i64(parts, parts_of(plan, held));
    return parts;
}

static void size(cuda_plan *plan) {
    const cuda_spec *spec = &plan->main;
    rows_fit_alone(plan);
    if (is_forward(plan))
        return;
    plan->stages.parts = parts_of(plan, rows_resident(plan, spec));
    plan->partials = rows_slices(plan) * most_parts(plan);
    plan->workspace_bytes = (size_t)(plan->partials * plan->cols) *
                            (size_t)(spec->want_dweight + spec->want_dbias) * real_bytes(spec);
}

static bool make_backward(cuda_plan *plan, const problem *p) {
    cuda_spec *spec = &plan->main;
    const bool hides = problem_hides_rounding(p);
    spec->want_dweight = has(p, ROLE_DWEIGHT);
    spec->want_dbias = has(p, ROLE_DBIAS);
    spec->correct = !hides || slope_jumps(p->activation);
    if (p->activation == PLANISH_IDENTITY)
        spec->type[ROLE_BIAS] = DTYPE_NONE;
    else if (!hides || dtype_bytes(p->dtypes[ROLE_DBIAS]) > 2)
        spec->type[ROLE_Y] = DTYPE_F32; /* to activation.cu: results of more than 16 bits */
    if (!backward_geometry(spec, (int)p->cols, dtype_bytes(p->dtypes[ROLE_X]),
                           dtype_bytes(p->dtypes[ROLE_DY]), spec->real_double, &plan->limits))
        return false;
    modulated_fit_clusters(&plan->limits, spec);
    return true;
}

/* Sets the slices, which are samples, and what is one; false: rows are not dense, or not of samples
 * one stride apart. */
static bool find_samples(cuda_plan *plan, const problem *p) {
    problem known;
    const bool each_its_own = p->kept_count == 1 && p->kept[0].affine;
    return p->kept_count <= 2 && !each_its_own && rows_levels_make(plan, p, &known) &&
           plan->places.levels == 1;
}

/* A norm whose weights are the modulation (steps_of_modulation). */
static const char *make(cuda_plan *plan, const problem *p) {
    cuda_spec *spec = &plan->main;
    if (!find_samples(plan, p))
        return "a modulation along other axes than dense rows and one of two others";
    if (rows_slices(plan) > MOST_SAMPLES)
        return "so many samples";
    plan->dx_role = ROLE_DX;
    cuda_spec_describe(spec, p);
    spec->kernel = p->pass == PLANISH_FORWARD ? CUDA_MODULATED_FORWARD : CUDA_MODULATED_BACKWARD;
    spec->real_double = problem_is_double(p);
    spec->cooperating_blocks = 1;
    spec->rows.cols = (int)p->cols;
    if (p->pass == PLANISH_FORWARD) {
        forward_geometry(plan, (int)p->cols, dtype_bytes(p->dtypes[ROLE_X]), spec->real_double,
                         &plan->limits);
        modulated_fit_registers(plan);
        if (plan->places.slices > 1 && plan->rows < rows_at_a_time(spec))
            return "so few rows of a sample"; /* most of a block would have no row */
    } else if (!make_backward(plan, p)) {
        return "rows so long";
    }
    size(plan);
    return NULL;
}

static int describe(const cuda_plan *plan, char *text, size_t bytes) {
    const cuda_spec *spec = &plan->main;
    const rows_constants *c = &spec->rows;
    const int64_t samples = rows_slices(plan), rows = plan->rows * samples;
    return snprintf(text, bytes,
                    "cuda stages %s %lldx%lld of %lld samples: %d lanes x %d chunks of %d, "
                    "%d rows at a time, %d warps, cluster %d",
                    is_forward(plan) ? "forward" : "backward", (long long)rows,
                    (long long)plan->cols, (long long)samples, c->threads_per_row,
                    c->chunks_per_thread, c->width, rows_at_a_time(spec), c->warps, spec->cluster);
}

/* ---- Launches -------------------------------------------------------------------------------- */

static int launch_specs(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                        cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    const int count = rows_launch_specs(plan, buffers, launches);
    if (is_forward(plan) || !(plan->main.want_dweight || plan->main.want_dbias))
        return count;
    cuda_spec sums = plan->main; /* as the kernel of the samples knows what is wanted */
    for (role r = ROLE_X; r < NORM_ROLES; r++)
        sums.type[r] = DTYPE_NONE;
    sums.weight_offset = 0;
    sums.type[ROLE_DSCALE] = plan->main.type[ROLE_DWEIGHT];
    sums.type[ROLE_DSHIFT] = plan->main.type[ROLE_DBIAS];
    samples_describe(&launches[count].spec, &sums, (int)plan->cols, rows_slices(plan),
                     plan->stages.parts);
    return count + 1;
}

/* Bytes from sample to sample. */
static int64_t slice_bytes(const cuda_plan *plan, role r) {
    return rows_slice_bytes(plan, r, role_bytes(&plan->main, r));
}

/* What adds up the sums of `parts` blocks of each sample. */
static void samples_launch(const cuda_plan *plan, void *const *b, const row_backward_args *rows,
                           int64_t parts, cuda_launch *l) {
    samples_grid(l, rows_slices(plan));
    l->args.samples = (samples_args){.partial_weight = rows->partial_weight,
                                     .partial_bias = rows->partial_bias,
                                     .dscale = b[ROLE_DWEIGHT],
                                     .dshift = b[ROLE_DBIAS],
                                     .dscale_stride = slice_bytes(plan, ROLE_DWEIGHT),
                                     .dshift_stride = slice_bytes(plan, ROLE_DBIAS),
                                     .samples = rows_slices(plan),
                                     .parts = parts};
    if (parts == 1) /* they are the result */
        l->blocks_x = 0;
}

static void launch_arguments(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                             void *workspace, int resident,
                             cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    cuda_launch *l = launches;
    const cuda_spec *spec = &l->spec;
    const int64_t samples = rows_slices(plan);
    int64_t parts = plan->stages.parts;
    if (is_forward(plan)) {
        rows_launch_arguments(plan, buffers, workspace, resident, launches);
        return;
    }
    if (spec->cluster > 1 && resident < rows_resident(plan, spec))
        parts = parts_of(plan, most(1, resident));
    const int64_t turn = parts * rows_at_a_time(spec);
    modulated_backward_args *a = &l->args.modulated_backward;
    *a = (modulated_backward_args){.rows = rows_backward_arguments(plan, buffers, plan->rows, turn,
                                                                   workspace, samples * parts),
                                   .partial_slice = parts * plan->cols};
    a->rows.alone = parts == 1;
    l->blocks_x = parts * spec->cluster;
    l->blocks_y = (unsigned)samples;
    if (spec->want_dweight || spec->want_dbias)
        samples_launch(plan, buffers, &a->rows, parts, l + 1);
}

const cuda_family modulated_family = {
    .name = "modulated rows",
    .plan_make = make,
    .plan_size = size,
    .plan_describe = describe,
    .launch_specs = launch_specs,
    .launch_arguments = launch_arguments,
    .threads = rows_threads,
    .shared_bytes = rows_shared_bytes,
};
