/*
 * The alignments of the buffers choose how wide the kernels load and store; they never change what
 * is computed.
 */
#include "cuda/rows/rows_launches.h"

#include <string.h>

#include "cuda/common/finish.h"
#include "cuda/common/integers.h"
#include "cuda/geometry.h"
#include "cuda/rows/rows_fit.h"
#include "cuda/rows/rows_levels.h"
#include "cuda/rows/rows_shape.h"

enum {
    MOST_GRID_X = 1 << 30,
    MOST_GRID_Y = 65535,
    ALONE_TURNS = 2, /* a block's, to save the kernel that would add up the blocks' sums */
};

/* The largest power of two up to 16 that divides everything given: how wide accesses may be. */
static int32_t access_of(const void *pointer, int64_t stride, int bytes) {
    return common_alignment((uint64_t)(uintptr_t)pointer | (uint64_t)(stride * bytes));
}

/* Bytes from one row of a tensor to the next. */
static int64_t row_bytes(const cuda_plan *plan, role r) {
    return plan->stride[r] * role_bytes(&plan->main, r);
}

/* ---- Specialisations ------------------------------------------------------------------------- */

/* A kernel of the plan for buffers at these addresses: the alignments, and what follows from them.
 */
static cuda_spec spec_for(const cuda_plan *plan, const cuda_spec *which, void *const *b) {
    static const role forward[] = {ROLE_X, ROLE_Y}, backward[] = {ROLE_X, ROLE_DY, ROLE_DX};
    const bool is_forward = rows_are_forward(which);
    const role *roles = is_forward ? forward : backward;
    cuda_spec spec = *which;
    for (int i = 0; i < (is_forward ? 2 : 3); i++) {
        /* Of rows that follow each other only the first one's address counts. */
        const int64_t stride = spec.rows.dense >> i & 1 ? 0 : plan->stride[roles[i]];
        spec.access[roles[i]] =
            access_of(b[roles[i]], stride | (int64_t)rows_stride_bits(plan, roles[i]),
                      role_bytes(&spec, roles[i]));
    }
    if (spec.type[ROLE_DSUM] != DTYPE_NONE)
        spec.access[ROLE_DSUM] =
            access_of(b[ROLE_DSUM], plan->stride[ROLE_DSUM], role_bytes(&spec, ROLE_DSUM));
    spec.access[ROLE_WEIGHT] =
        access_of(b[ROLE_WEIGHT], plan->places.slice[ROLE_WEIGHT], role_bytes(&spec, ROLE_WEIGHT));
    if (is_forward || spec.type[ROLE_BIAS] != DTYPE_NONE)
        spec.access[ROLE_BIAS] =
            access_of(b[ROLE_BIAS], plan->places.slice[ROLE_BIAS], role_bytes(&spec, ROLE_BIAS));
    if (!cuda_spec_is_cooperative(&spec))
        rows_fit_apply(plan, &spec);
    return spec;
}

/* The buffers by what the kernels take them for. */
static void buffers_of_kernels(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                               void *taken[ROLE_COUNT]) {
    memcpy(taken, (const void *)buffers, ROLE_COUNT * sizeof *taken);
    taken[ROLE_DX] = buffers[plan->dx_role];
}

int rows_launch_specs(const cuda_plan *plan, void *const given[ROLE_COUNT],
                      cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    int count = 0;
    void *buffers[ROLE_COUNT];
    buffers_of_kernels(plan, given, buffers);
    const cuda_spec *which = plan->cooperative.kernel >= 0 ? &plan->cooperative : &plan->main;
    cuda_spec main = spec_for(plan, which, buffers);
    if (main.kernel == CUDA_APPLY) {
        launches[count].spec = main;
        launches[count++].spec.kernel = CUDA_SUMS;
    }
    launches[count++].spec = main;
    if (plan->finish.kernel >= 0)
        launches[count++].spec = plan->finish;
    return count;
}

/* ---- Grids and arguments --------------------------------------------------------------------- */

/* Bytes from slice to slice. */
static int64_t slice_bytes(const cuda_plan *plan, role r) {
    return rows_slice_bytes(plan, r, role_bytes(&plan->main, r));
}

/* Sets what leads to rows that lie at several strides. */
static void set_jumps(const cuda_plan *plan, role r, int64_t jump[2]) {
    rows_level_jumps(plan, r, role_bytes(&plan->main, r), jump);
}

/* A grid of blocks that share the rows, of each slice. */
static void set_grid(const cuda_plan *plan, cuda_launch *l, int64_t blocks) {
    const bool sliced = plan->places.slices > 0, last = rows_slices_are_last(&l->spec);
    l->blocks_x = sliced && !last ? plan->places.slices : blocks;
    l->blocks_y = !sliced ? 1 : (unsigned)(last ? plan->places.slices : blocks);
}

row_forward_args rows_forward_arguments(const cuda_plan *plan, void *const b[ROLE_COUNT],
                                        int64_t rows, int64_t turn) {
    row_forward_args args = {.x = b[ROLE_X],
                             .weight = b[ROLE_WEIGHT],
                             .bias = b[ROLE_BIAS],
                             .y = b[ROLE_Y],
                             .mean = b[ROLE_MEAN],
                             .rstd = b[ROLE_RSTD],
                             .rows = rows,
                             .x_stride = row_bytes(plan, ROLE_X),
                             .y_stride = row_bytes(plan, ROLE_Y),
                             .mean_stride = row_bytes(plan, ROLE_MEAN),
                             .rstd_stride = row_bytes(plan, ROLE_RSTD),
                             .row_turn = turn,
                             .x_turn = turn * row_bytes(plan, ROLE_X),
                             .y_turn = turn * row_bytes(plan, ROLE_Y),
                             .eps = plan->eps,
                             .eps_rounded = (float)plan->eps,
                             .eps_is_small = plan->eps < 1e-30,
                             .levels = rows_levels_arguments(plan),
                             .x_slice = slice_bytes(plan, ROLE_X),
                             .weight_slice = slice_bytes(plan, ROLE_WEIGHT),
                             .bias_slice = slice_bytes(plan, ROLE_BIAS),
                             .y_slice = slice_bytes(plan, ROLE_Y),
                             .mean_slice = slice_bytes(plan, ROLE_MEAN),
                             .rstd_slice = slice_bytes(plan, ROLE_RSTD)};
    if (plan->main.pass == PLANISH_STATISTICS) {
        args.m2 = b[ROLE_M2];
        args.m2_stride = row_bytes(plan, ROLE_M2);
        args.eps_is_small = 1; /* what will be added to the variance is not known yet */
    }
    set_jumps(plan, ROLE_X, args.x_jump);
    set_jumps(plan, ROLE_Y, args.y_jump);
    return args;
}

static void forward_arguments(const cuda_plan *plan, void *const *b, int resident_clusters,
                              cuda_launch *l) {
    const cuda_spec *spec = &l->spec;
    const rows_constants *c = &spec->rows;
    int64_t units = rows_units(plan, &l->spec), cluster = spec->cluster, grid = units;
    int64_t at_once = cluster > 1 ? resident_clusters : rows_resident(plan, &l->spec);
    if (rows_slices_are_last(spec)) /* of a slice */
        at_once = most_i64(1, at_once / rows_slices(plan));
    /* Short-lived blocks even out what multiprocessors differ in; long-lived ones save starts. */
    if (plan->turns && units >= 2 * plan->turns * at_once)
        grid = (units + plan->turns - 1) / plan->turns;
    else if (c->ring_slots || (c->variant == ROWS_PLAIN && c->hold != HOLD_IN_REGISTERS))
        grid = at_once;
    if (grid > units)
        grid = units;
    grid = least_i64(grid, (spec->rows.sliced ? MOST_GRID_Y : MOST_GRID_X) / cluster);
    int64_t turn = grid * rows_at_a_time(&l->spec);
    set_grid(plan, l, grid * cluster);
    l->args.forward = rows_forward_arguments(plan, b, plan->rows, turn);
}

row_backward_args rows_backward_arguments(const cuda_plan *plan, void *const b[ROLE_COUNT],
                                          int64_t rows, int64_t turn, char *sums,
                                          int64_t partials) {
    const cuda_spec *spec = &plan->main;
    size_t bytes = (size_t)(partials * plan->cols) * real_bytes(spec);
    row_backward_args args = {.dy = b[ROLE_DY],
                              .x = b[ROLE_X],
                              .mean = b[ROLE_MEAN],
                              .rstd = b[ROLE_RSTD],
                              .weight = b[ROLE_WEIGHT],
                              .bias = b[ROLE_BIAS],
                              .dx = b[ROLE_DX],
                              .clamped = plan->problem->rule.clamped,
                              .partial_weight = sums,
                              .partial_bias = sums + (spec->want_dweight ? bytes : 0),
                              .dweight = b[ROLE_DWEIGHT],
                              .dbias = b[ROLE_DBIAS],
                              .x_stride = row_bytes(plan, ROLE_X),
                              .dy_stride = row_bytes(plan, ROLE_DY),
                              .dx_stride = row_bytes(plan, ROLE_DX),
                              .mean_stride = row_bytes(plan, ROLE_MEAN),
                              .rstd_stride = row_bytes(plan, ROLE_RSTD),
                              .x_turn = turn * row_bytes(plan, ROLE_X),
                              .dy_turn = turn * row_bytes(plan, ROLE_DY),
                              .dx_turn = turn * row_bytes(plan, ROLE_DX),
                              .mean_turn = turn * row_bytes(plan, ROLE_MEAN),
                              .rstd_turn = turn * row_bytes(plan, ROLE_RSTD),
                              .dsum = b[ROLE_DSUM],
                              .dsum_stride = row_bytes(plan, ROLE_DSUM),
                              .dsum_turn = turn * row_bytes(plan, ROLE_DSUM),
                              .turns = (uint32_t)(rows / turn),
                              .rest = (uint32_t)(rows % turn),
                              .levels = rows_levels_arguments(plan),
                              .row_turn = turn,
                              .x_slice = slice_bytes(plan, ROLE_X),
                              .dy_slice = slice_bytes(plan, ROLE_DY),
                              .dx_slice = slice_bytes(plan, ROLE_DX),
                              .mean_slice = slice_bytes(plan, ROLE_MEAN),
                              .rstd_slice = slice_bytes(plan, ROLE_RSTD),
                              .weight_slice = slice_bytes(plan, ROLE_WEIGHT),
                              .bias_slice = slice_bytes(plan, ROLE_BIAS),
                              .dweight_slice = slice_bytes(plan, ROLE_DWEIGHT),
                              .dbias_slice = slice_bytes(plan, ROLE_DBIAS)};
    if (rows_are_parts(spec)) {
        args.c1 = b[ROLE_C1];
        args.c2 = b[ROLE_C2];
        args.c_stride = row_bytes(plan, ROLE_C2);
        args.c_turn = turn * row_bytes(plan, ROLE_C2);
    }
    set_jumps(plan, ROLE_X, args.x_jump);
    set_jumps(plan, ROLE_DY, args.dy_jump);
    set_jumps(plan, ROLE_DX, args.dx_jump);
    return args;
}

/* What follows a backward that leaves `count` partial rows from `sums` on, in planes of `room`
 * rows: nothing where there is only one, for then it is the result. */
static void finish_arguments(const cuda_plan *plan, void *const *b, char *sums, int64_t room,
                             int64_t count, cuda_launch *backward) {
    if (plan->finish.kernel < 0)
        return;
    cuda_finish_arguments(plan, b, sums, room, count, backward + 1);
    if (count == 1) {
        backward->args.backward.alone = 1;
        backward[1].blocks_x = 0;
    }
}

static void backward_arguments(const cuda_plan *plan, void *const *b, char *workspace,
                               int resident_clusters, cuda_launch *l) {
    const cuda_spec *spec = &l->spec;
    int64_t cluster = spec->cluster, units = rows_units(plan, &l->spec);
    const int64_t most_grid = plan->partials / rows_slices(plan); /* of a slice */
    int64_t grid = most_grid;
    if (cluster > 1 && resident_clusters < grid)
        grid = resident_clusters;
    if (units < grid)
        grid = units > 0 ? units : 1;
    if (plan->finish.kernel >= 0 && units <= ALONE_TURNS)
        grid = 1;
    int64_t turn = grid * rows_at_a_time(&l->spec);
    set_grid(plan, l, grid * cluster);
    l->args.backward =
        rows_backward_arguments(plan, b, plan->rows, turn, workspace, plan->partials);
    finish_arguments(plan, b, workspace, most_grid, grid, l);
}

/* Rows too long for one read: sums, apply, finish. */
static void long_arguments(const cuda_plan *plan, void *const *b, char *workspace, cuda_launch *l) {
    cuda_launch *sums = &l[0], *apply = &l[1];
    const cuda_spec *spec = &apply->spec;
    const rows_constants *c = &spec->rows;
    size_t bytes = real_bytes(spec);
    int64_t pieces = (plan->cols + CUDA_LONG_PIECE - 1) / CUDA_LONG_PIECE;
    int64_t strip = (int64_t)rows_threads(&apply->spec) * c->width;
    char *partials = workspace + (size_t)(plan->rows * pieces) * 4 * bytes;
    size_t partial_bytes = (size_t)(plan->partials * plan->cols) * bytes;
    sums->blocks_x = plan->rows > 0 ? pieces : 0;
    sums->blocks_y = (unsigned)(plan->rows < MOST_GRID_Y ? plan->rows : MOST_GRID_Y);
    apply->blocks_x = (plan->cols + strip - 1) / strip;
    apply->blocks_y = (unsigned)plan->partials;
    sums->args.lengthy = apply->args.lengthy =
        (row_long_args){.dy = b[ROLE_DY],
                        .x = b[ROLE_X],
                        .mean = b[ROLE_MEAN],
                        .rstd = b[ROLE_RSTD],
                        .weight = b[ROLE_WEIGHT],
                        .dx = b[ROLE_DX],
                        .clamped = plan->problem->rule.clamped,
                        .partial_weight = partials,
                        .partial_bias = partials + (spec->want_dweight ? partial_bytes : 0),
                        .sums = workspace,
                        .rows = plan->rows,
                        .x_stride = row_bytes(plan, ROLE_X),
                        .dy_stride = row_bytes(plan, ROLE_DY),
                        .dx_stride = row_bytes(plan, ROLE_DX),
                        .mean_stride = row_bytes(plan, ROLE_MEAN),
                        .rstd_stride = row_bytes(plan, ROLE_RSTD),
                        .dsum = b[ROLE_DSUM],
                        .dsum_stride = row_bytes(plan, ROLE_DSUM)};
    if (plan->finish.kernel >= 0)
        cuda_finish_arguments(plan, b, partials, plan->partials, plan->partials, l + 2);
}

/* Rows over groups of blocks, of which the device holds `resident`. */
static void cooperative_arguments(const cuda_plan *plan, void *const *b, char *workspace,
                                  int resident, cuda_launch *l) {
    int64_t groups = rows_plan_groups(plan);
    if (resident < groups)
        groups = resident;
    l->blocks_x = groups * l->spec.cooperating_blocks;
    l->blocks_y = 1;
    if (rows_are_forward(&l->spec)) {
        l->args.forward = rows_forward_arguments(plan, b, plan->rows, groups);
        l->args.forward.mail = (void *)workspace;
    } else {
        char *sums = workspace + (size_t)groups * rows_mail_bytes(&l->spec);
        l->args.backward = rows_backward_arguments(plan, b, plan->rows, groups, sums, groups);
        l->args.backward.mail = (void *)workspace;
        finish_arguments(plan, b, sums, groups, groups, l);
    }
}

void rows_launch_arguments(const cuda_plan *plan, void *const given[ROLE_COUNT], void *workspace,
                           int resident, cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    void *buffers[ROLE_COUNT];
    buffers_of_kernels(plan, given, buffers);
    if (cuda_spec_is_cooperative(&launches[0].spec))
        cooperative_arguments(plan, buffers, workspace, resident, launches);
    else if (rows_are_forward(&plan->main))
        forward_arguments(plan, buffers, resident, launches);
    else if (plan->main.kernel == CUDA_APPLY)
        long_arguments(plan, buffers, workspace, launches);
    else
        backward_arguments(plan, buffers, workspace, resident, launches);
}
