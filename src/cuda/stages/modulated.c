/*
 * A modulation behind the norm is its weight and bias, if each sample has its own: 1 + scale and
 * shift. So plans and arguments are those of plain rows that are cut into slices, the samples; but
 * a grid's second axis is that of the samples (docs/notebook/033). What has a weight or a bias as
 * well, or any other stage, is for the kernels that know them all (stages_forward.h,
 * stages_backward.h).
 */
#include "cuda/stages/modulated.h"
#include "cuda/stages/modulated_fit.h"

#include <stdio.h>
#include <string.h>

#include "cuda/common/integers.h"
#include "cuda/rows/rows_backward.h"
#include "cuda/rows/rows_forward.h"
#include "cuda/rows/rows_launches.h"
#include "cuda/rows/rows_shape.h"
#include "cuda/stages/samples.h"
#include "cuda/stages/stages_forward.h"

enum { MOST_SAMPLES = 65535, MOST_GRID_X = 1 << 30 };

/* ---- What the problem is --------------------------------------------------------------------- */

static const role_set modulation_roles =
    ROLE_BIT(ROLE_SCALE) | ROLE_BIT(ROLE_SHIFT) | ROLE_BIT(ROLE_DSCALE) | ROLE_BIT(ROLE_DSHIFT);

/* What a role of the rows' kernels is called outside. */
static role role_outside(role r) {
    switch (r) {
    case ROLE_WEIGHT:
        return ROLE_SCALE;
    case ROLE_BIAS:
        return ROLE_SHIFT;
    case ROLE_DWEIGHT:
        return ROLE_DSCALE;
    case ROLE_DBIAS:
        return ROLE_DSHIFT;
    default:
        return r;
    }
}

/* Nothing but a norm and its modulation, over one dense reduced axis. */
static bool is_modulation_alone(const problem *p) {
    const role_set rows = every_full_role | ROLE_BIT(ROLE_MEAN) | ROLE_BIT(ROLE_RSTD);
    const role_set others = p->present & STAGE_ROLES & ~modulation_roles;
    const axis *row = &p->reduced[0];
    if (others || (p->present & ~(rows | modulation_roles)) || !(p->present & modulation_roles) ||
        p->stages.rounding || p->stages.dropout_p > 0 || p->rows < 1 || p->cols < 2 ||
        p->reduced_count != 1 || !row->modulated)
        return false;
    for (role_set rest = p->present & (every_full_role | modulation_roles); rest; rest &= rest - 1)
        if (axis_stride(p, row, first_role(rest)) != 1)
            return false;
    return p->pass == PLANISH_BACKWARD || (p->pass == PLANISH_FORWARD && has(p, ROLE_Y));
}

/* Which of the kept axes is that of the samples, and which that of a sample's rows; NO_AXIS: there
 * is one sample, or one row. False: the problem has no such axes. */
enum { NO_AXIS = -1 };
static bool find_axes(const problem *p, int *of_samples, int *of_rows) {
    int modulated = 0;
    for (int k = 0; k < p->kept_count; k++)
        modulated += p->kept[k].modulated;
    *of_samples = *of_rows = NO_AXIS;
    if (modulated == 0 && p->kept_count <= 1) {
        *of_rows = p->kept_count - 1;
        return true;
    }
    if (p->kept_count != 2 || modulated != 1)
        return false;
    *of_samples = p->kept[1].modulated;
    *of_rows = !*of_samples;
    return true;
}

/* ---- Plans ----------------------------------------------------------------------------------- */

static bool is_forward(const cuda_plan *plan) {
    return plan->main.kernel == CUDA_MODULATED_FORWARD;
}

/* A specialisation as the functions for plain rows know it. */
static cuda_spec as_plain(const cuda_spec *spec) {
    cuda_spec plain = *spec;
    plain.kernel = spec->kernel == CUDA_MODULATED_FORWARD ? CUDA_FORWARD : CUDA_BACKWARD;
    return plain;
}

static int64_t parts_of(const cuda_plan *plan, int64_t resident) {
    const cuda_spec plain = as_plain(&plan->main);
    return samples_parts(plan->stages.samples, plan->stages.inner_rows, rows_at_a_time(&plain),
                         resident);
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
    if (is_forward(plan))
        return;
    plan->stages.parts = parts_of(plan, rows_resident(plan, spec));
    plan->partials = plan->stages.samples * most_parts(plan);
    plan->workspace_bytes = (size_t)(plan->partials * plan->cols) *
                            (size_t)(spec->want_dweight + spec->want_dbias) * real_bytes(spec);
}

static void describe_problem(cuda_plan *plan, const problem *p) {
    cuda_spec *spec = &plan->main;
    cuda_spec_describe(spec, p);
    for (role r = ROLE_WEIGHT; r < ROLE_COUNT; r++)
        if (role_outside(r) != r)
            spec->type[r] = p->dtypes[role_outside(r)];
    for (role r = NORM_ROLES; r < ROLE_COUNT; r++)
        spec->type[r] = DTYPE_NONE;
    spec->weight_offset = has(p, ROLE_SCALE);
    spec->real_double = problem_is_double(p);
    spec->cooperating_blocks = 1;
    spec->rows.cols = (int)p->cols;
}

static bool make_backward(cuda_plan *plan, const problem *p) {
    cuda_spec *spec = &plan->main;
    problem plain; /* as problem_hides_rounding knows it */
    problem_copy(&plain, p);
    plain.dtypes[ROLE_DWEIGHT] = p->dtypes[ROLE_DSCALE];
    const bool hides = problem_hides_rounding(&plain);
    spec->kernel = CUDA_BACKWARD;
    spec->want_dweight = has(p, ROLE_DSCALE);
    spec->want_dbias = has(p, ROLE_DSHIFT);
    spec->correct = !hides || p->activation == PLANISH_RELU;
    if (p->activation == PLANISH_IDENTITY)
        spec->type[ROLE_BIAS] = DTYPE_NONE;
    else if (!hides || dtype_bytes(p->dtypes[ROLE_DSHIFT]) > 2)
        spec->type[ROLE_Y] = DTYPE_F32; /* to activation.cu: results of more than 16 bits */
    if (!backward_geometry(spec, (int)p->cols, dtype_bytes(p->dtypes[ROLE_X]),
                           dtype_bytes(p->dtypes[ROLE_DY]), spec->real_double, &plan->limits))
        return false;
    modulated_fit_clusters(&plan->limits, spec);
    spec->kernel = CUDA_MODULATED_BACKWARD;
    return true;
}

static const char *make(cuda_plan *plan, const problem *p) {
    int axes[2]; /* of samples, of their rows */
    if (!is_modulation_alone(p))
        return "anything but dense rows and scale, shift or both";
    if (!find_axes(p, &axes[0], &axes[1]))
        return "a modulation along other axes than one of two";
    describe_problem(plan, p);
    cuda_stages *a = &plan->stages;
    a->samples = axes[0] == NO_AXIS ? 1 : p->kept[axes[0]].size;
    a->inner_rows = axes[1] == NO_AXIS ? 1 : p->kept[axes[1]].size;
    if (a->samples > MOST_SAMPLES)
        return "so many samples";
    for (role r = 0; r < NORM_ROLES; r++) {
        if (axes[0] != NO_AXIS)
            plan->places.slice[r] = kept_stride(p, axes[0], role_outside(r));
        if (axes[1] != NO_AXIS)
            plan->stride[r] = kept_stride(p, axes[1], role_outside(r));
    }
    if (p->pass == PLANISH_FORWARD) {
        plan->main.kernel = CUDA_FORWARD;
        forward_geometry(plan, (int)p->cols, dtype_bytes(p->dtypes[ROLE_X]), plan->main.real_double,
                         &plan->limits);
        modulated_fit_registers(plan);
        const int at_a_time = rows_at_a_time(&plan->main);
        plan->main.kernel = CUDA_MODULATED_FORWARD;
        if (a->samples > 1 && a->inner_rows < at_a_time) /* most of a block would have no row */
            return "so few rows of a sample";
    } else if (!make_backward(plan, p)) {
        return "rows so long";
    }
    size(plan);
    return NULL;
}

static int describe(const cuda_plan *plan, char *text, size_t bytes) {
    const cuda_spec plain = as_plain(&plan->main);
    const rows_constants *c = &plain.rows;
    return snprintf(text, bytes,
                    "cuda stages %s %lldx%lld of %lld samples: %d lanes x %d chunks of %d, "
                    "%d rows at a time, %d warps, cluster %d",
                    is_forward(plan) ? "forward" : "backward", (long long)plan->rows,
                    (long long)plan->cols, (long long)plan->stages.samples, c->threads_per_row,
                    c->chunks_per_thread, c->width, rows_at_a_time(&plain), c->warps,
                    plain.cluster);
}

/* ---- Launches -------------------------------------------------------------------------------- */

/* Bytes from sample to sample, and from row to row, of a tensor by its role inside. */
static int64_t slice_bytes(const cuda_plan *plan, role r) {
    return plan->places.slice[r] * role_bytes(&plan->main, r);
}
static int64_t row_bytes(const cuda_plan *plan, role r) {
    return plan->stride[r] * role_bytes(&plan->main, r);
}

/* The buffers by their roles inside. */
static void buffers_inside(void *const buffers[ROLE_COUNT], void *inside[ROLE_COUNT]) {
    for (role r = 0; r < ROLE_COUNT; r++)
        inside[r] = buffers[role_outside(r)];
}

/* As for plain rows (rows_launches.c), over the samples as well: what is dense there is so here
 * within a sample. */
static cuda_spec spec_for(const cuda_plan *plan, void *const *b) {
    static const role forward[] = {ROLE_X, ROLE_Y}, backward[] = {ROLE_X, ROLE_DY, ROLE_DX};
    const role *roles = is_forward(plan) ? forward : backward;
    cuda_spec spec = as_plain(&plan->main);
    const bool tiled = rows_are_tiled(&spec);
    for (int i = 0; i < (is_forward(plan) ? 2 : 3); i++) {
        const role r = roles[i];
        const bool dense = tiled && (plan->stages.inner_rows < 2 || plan->stride[r] == plan->cols);
        spec.rows.dense |= dense << i;
        spec.access[r] =
            common_alignment((uint64_t)(uintptr_t)b[r] | (uint64_t)slice_bytes(plan, r) |
                             (uint64_t)(dense ? 0 : row_bytes(plan, r)));
    }
    for (role r = ROLE_WEIGHT; r <= ROLE_BIAS; r++)
        if (spec.type[r] != DTYPE_NONE)
            spec.access[r] =
                common_alignment((uint64_t)(uintptr_t)b[r] | (uint64_t)slice_bytes(plan, r));
    if (is_forward(plan))
        forward_fit_buffers(plan, &spec);
    else
        backward_fit_buffers(&spec);
    spec.kernel = plan->main.kernel;
    return spec;
}

static int launch_specs(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                        cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    void *inside[ROLE_COUNT];
    buffers_inside(buffers, inside);
    launches[0].spec = spec_for(plan, inside);
    if (is_forward(plan) || !(plan->main.want_dweight || plan->main.want_dbias))
        return 1;
    cuda_spec sums = plan->main; /* as the kernel of the samples knows what is wanted */
    for (role r = ROLE_X; r < NORM_ROLES; r++)
        sums.type[r] = DTYPE_NONE;
    sums.weight_offset = 0;
    sums.type[ROLE_DSCALE] = plan->main.type[ROLE_DWEIGHT];
    sums.type[ROLE_DSHIFT] = plan->main.type[ROLE_DBIAS];
    samples_describe(&launches[1].spec, &sums, (int)plan->cols, plan->stages.samples,
                     plan->stages.parts);
    return 2;
}

static void forward_launch(const cuda_plan *plan, void *const *b, int resident, cuda_launch *l) {
    const cuda_spec plain = as_plain(&l->spec);
    const rows_constants *c = &plain.rows;
    const int64_t cluster = plain.cluster, samples = plan->stages.samples;
    const int64_t rows = plan->stages.inner_rows, at_a_time = rows_at_a_time(&plain);
    const int64_t units = ceil_div_i64(rows, at_a_time);
    const int64_t held = cluster > 1 ? resident : rows_resident(plan, &plain);
    const int64_t at_once = most_i64(1, held / samples);
    int64_t grid = units;
    if (plan->turns && units >= 2 * plan->turns * at_once)
        grid = ceil_div_i64(units, plan->turns);
    else if (c->ring_slots || (c->variant == ROWS_PLAIN && c->hold != HOLD_IN_REGISTERS))
        grid = least_i64(units, at_once);
    grid = least_i64(grid, MOST_GRID_X / cluster);
    const int64_t turn = grid * at_a_time;
    l->blocks_x = grid * cluster;
    l->blocks_y = (unsigned)samples;
    l->args.forward = rows_forward_arguments(plan, b, rows, turn);
}

/* What adds up the sums of `parts` blocks of each sample. */
static void samples_launch(const cuda_plan *plan, void *const *b, char *weight, char *bias,
                           int64_t parts, cuda_launch *l) {
    samples_grid(l, plan->stages.samples);
    l->args.samples = (samples_args){.partial_weight = weight,
                                     .partial_bias = bias,
                                     .dscale = b[ROLE_DWEIGHT],
                                     .dshift = b[ROLE_DBIAS],
                                     .dscale_stride = slice_bytes(plan, ROLE_DWEIGHT),
                                     .dshift_stride = slice_bytes(plan, ROLE_DBIAS),
                                     .samples = plan->stages.samples,
                                     .parts = parts};
    if (parts == 1) /* they are the result */
        l->blocks_x = 0;
}

static void backward_launch(const cuda_plan *plan, void *const *b, char *workspace, int resident,
                            cuda_launch *l) {
    const cuda_spec plain = as_plain(&l->spec);
    const int64_t samples = plan->stages.samples, rows = plan->stages.inner_rows;
    int64_t parts = plan->stages.parts;
    if (plain.cluster > 1 && resident < rows_resident(plan, &plain))
        parts = parts_of(plan, most(1, resident));
    const int64_t turn = parts * rows_at_a_time(&plain);
    modulated_backward_args *a = &l->args.modulated_backward;
    *a = (modulated_backward_args){
        .rows = rows_backward_arguments(plan, b, rows, turn, workspace, samples * parts),
        .partial_slice = parts * plan->cols};
    a->rows.alone = parts == 1;
    l->blocks_x = parts * plain.cluster;
    l->blocks_y = (unsigned)samples;
    if (plain.want_dweight || plain.want_dbias)
        samples_launch(plan, b, a->rows.partial_weight, a->rows.partial_bias, parts, l + 1);
}

static void launch_arguments(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                             void *workspace, int resident,
                             cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    void *inside[ROLE_COUNT];
    buffers_inside(buffers, inside);
    if (is_forward(plan))
        forward_launch(plan, inside, resident, launches);
    else
        backward_launch(plan, inside, workspace, resident, launches);
}

static unsigned threads(const cuda_spec *spec) {
    const cuda_spec plain = as_plain(spec);
    return rows_threads(&plain);
}

static size_t shared_bytes(const cuda_spec *spec) {
    const cuda_spec plain = as_plain(spec);
    return rows_shared_bytes(&plain);
}

const cuda_family modulated_family = {
    .name = "modulated rows",
    .plan_make = make,
    .plan_size = size,
    .plan_describe = describe,
    .launch_specs = launch_specs,
    .launch_arguments = launch_arguments,
    .threads = threads,
    .shared_bytes = shared_bytes,
};
