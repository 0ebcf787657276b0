/*
 * The alignments of the buffers choose how wide the kernels load and store; they never change what
 * is computed.
 */
#include "rows_launches.h"

#include <string.h>

#include "finish.h"
#include "geometry.h"
#include "integers.h"
#include "rows_shape.h"

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

/* Turns of blocks (or clusters) over the rows. */
static int64_t units_of(const cuda_plan *plan, const cuda_spec *spec) {
    int64_t at_a_time = rows_at_a_time(spec);
    return (plan->rows + at_a_time - 1) / at_a_time;
}

/* Blocks (or clusters) the device holds at once, as planned. */
static int64_t resident(const cuda_plan *plan, const cuda_spec *spec) {
    int64_t n = (int64_t)plan->limits.multiprocessors * spec->min_blocks / spec->cluster;
    return n > 0 ? n : 1;
}

/* ---- Specialisations ---------------------------------------------------------------------------
 */

/* Whose rows follow each other without a gap: 1 x, 2 y or dy, 4 dx. Their strides become 0, for
 * only the first row's address counts. */
static int dense_rows(const cuda_plan *plan, int64_t stride[ROLE_COUNT]) {
    static const role forward[] = {ROLE_X, ROLE_Y}, backward[] = {ROLE_X, ROLE_DY, ROLE_DX};
    const int is_forward = plan->main.kernel == CUDA_FORWARD;
    const role *roles = is_forward ? forward : backward;
    int dense = 0;
    for (int i = 0; i < (is_forward ? 2 : 3); i++)
        if (plan->rows < 2 || stride[roles[i]] == plan->cols) {
            dense |= 1 << i;
            stride[roles[i]] = 0;
        }
    return dense;
}

/* A kernel of the plan for buffers at these addresses. */
static cuda_spec spec_for(const cuda_plan *plan, const cuda_spec *which, void *const *b) {
    cuda_spec made = *which, *spec = &made;
    rows_constants *c = &spec->rows;
    int64_t stride[ROLE_COUNT];
    memcpy(stride, plan->stride, sizeof stride);
    const int tiled = rows_are_tiled(which);
    if (tiled)
        c->dense = dense_rows(plan, stride);
    spec->access[ROLE_X] = access_of(b[ROLE_X], stride[ROLE_X], role_bytes(spec, ROLE_X));
    spec->access[ROLE_WEIGHT] = access_of(b[ROLE_WEIGHT], 0, 1);
    /* Asynchronous copies need 4 bytes. Without them the sums stay the same. */
    int narrow = spec->access[ROLE_X] < 4 || c->width * role_bytes(spec, ROLE_X) < 4;
    if (spec->kernel == CUDA_FORWARD) {
        spec->access[ROLE_Y] = access_of(b[ROLE_Y], stride[ROLE_Y], role_bytes(spec, ROLE_Y));
        spec->access[ROLE_BIAS] = access_of(b[ROLE_BIAS], 0, 1);
        if (cuda_spec_is_wide(spec))
            return made;
        /* Rows within warps that fill less than half of the device: rather more threads than
         * several rows for each. The bits are the same. */
        while (c->lanes <= 32 && c->rows > 1 && 2 * units_of(plan, spec) < resident(plan, spec) &&
               !(tiled && rows_at_a_time(spec) % 16)) /* a tile is whole words */
            c->rows /= 2;
        if (tiled) {
            if (c->dense != 3 || spec->access[ROLE_X] < 4) /* more addresses, or loads, under way */
                spec->min_blocks = most(1, spec->min_blocks * 3 / 4);
            return made;
        }
        const int few = units_of(plan, spec) <= 2 * plan->limits.multiprocessors / spec->cluster;
        if (c->hold == HOLD_IN_SHARED && few && c->vecs <= 5)
            c->hold = HOLD_IN_REGISTERS; /* the same sums */
        if (c->hold == HOLD_IN_SHARED && narrow)
            c->hold = READ_AGAIN;
        /* A ring needs rows to come: with one turn for each team it would only delay the first. */
        if (narrow || units_of(plan, spec) <= resident(plan, spec))
            c->stages = 0;
        if (c->hold == HOLD_IN_REGISTERS && !spec->real_double && c->warps <= 16 && few) {
            c->early = 1;
            spec->min_blocks = 1;
        }
    } else {
        spec->access[ROLE_DY] = access_of(b[ROLE_DY], stride[ROLE_DY], role_bytes(spec, ROLE_DY));
        spec->access[ROLE_DX] = access_of(b[ROLE_DX], stride[ROLE_DX], role_bytes(spec, ROLE_DX));
        if (cuda_spec_is_wide(spec) || tiled)
            return made;
        /* But rows that are read twice go through registers to their ring. */
        narrow |= spec->access[ROLE_DY] < 4 || c->width * role_bytes(spec, ROLE_DY) < 4;
        if (spec->kernel == CUDA_APPLY || (narrow && c->hold == HOLD_IN_THREAD))
            c->stages = 0;
    }
    return made;
}

int rows_launch_specs(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                      cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    int count = 0;
    const cuda_spec *which = plan->wide.kernel >= 0 ? &plan->wide : &plan->main;
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

/* ---- Grids and arguments ----------------------------------------------------------------------
 */

static cuda_forward_args forward_args_of(const cuda_plan *plan, void *const *b, int64_t turn) {
    return (cuda_forward_args){.x = b[ROLE_X],
                               .weight = b[ROLE_WEIGHT],
                               .bias = b[ROLE_BIAS],
                               .y = b[ROLE_Y],
                               .mean = b[ROLE_MEAN],
                               .rstd = b[ROLE_RSTD],
                               .rows = plan->rows,
                               .x_stride = row_bytes(plan, ROLE_X),
                               .y_stride = row_bytes(plan, ROLE_Y),
                               .mean_stride = row_bytes(plan, ROLE_MEAN),
                               .rstd_stride = row_bytes(plan, ROLE_RSTD),
                               .row_turn = turn,
                               .x_turn = turn * row_bytes(plan, ROLE_X),
                               .y_turn = turn * row_bytes(plan, ROLE_Y),
                               .eps = plan->eps,
                               .eps_rounded = (float)plan->eps,
                               .eps_is_small = plan->eps < 1e-30};
}

static void forward_arguments(const cuda_plan *plan, void *const *b, int resident_clusters,
                              cuda_launch *l) {
    const cuda_spec *spec = &l->spec;
    const rows_constants *c = &spec->rows;
    int64_t units = units_of(plan, &l->spec), cluster = spec->cluster, grid = units;
    int64_t at_once = cluster > 1 ? resident_clusters : resident(plan, &l->spec);
    /* Short-lived blocks even out what multiprocessors differ in; long-lived ones save starts. */
    if (plan->turns && units >= 2 * plan->turns * at_once)
        grid = (units + plan->turns - 1) / plan->turns;
    else if (c->stages || (c->variant == ROWS_PLAIN && c->hold != HOLD_IN_REGISTERS))
        grid = at_once;
    if (grid > units)
        grid = units;
    if (grid > MOST_GRID_X / cluster)
        grid = MOST_GRID_X / cluster;
    int64_t turn = grid * rows_at_a_time(&l->spec);
    l->blocks_x = grid * cluster;
    l->blocks_y = 1;
    l->args.forward = forward_args_of(plan, b, turn);
}

/* With room for `partials` rows of partial sums from `sums` on. */
static cuda_backward_args backward_args_of(const cuda_plan *plan, void *const *b, int64_t turn,
                                           char *sums, int64_t partials) {
    const cuda_spec *spec = &plan->main;
    size_t bytes = (size_t)(partials * plan->cols) * real_bytes(spec);
    return (cuda_backward_args){.dy = b[ROLE_DY],
                                .x = b[ROLE_X],
                                .mean = b[ROLE_MEAN],
                                .rstd = b[ROLE_RSTD],
                                .weight = b[ROLE_WEIGHT],
                                .dx = b[ROLE_DX],
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
                                .turns = (uint32_t)(plan->rows / turn),
                                .rest = (uint32_t)(plan->rows % turn)};
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
    int64_t cluster = spec->cluster, units = units_of(plan, &l->spec), grid = plan->partials;
    if (cluster > 1 && resident_clusters < grid)
        grid = resident_clusters;
    if (units < grid)
        grid = units > 0 ? units : 1;
    if (plan->finish.kernel >= 0 && units <= ALONE_TURNS)
        grid = 1;
    int64_t turn = grid * rows_at_a_time(&l->spec);
    l->blocks_x = grid * cluster;
    l->blocks_y = 1;
    l->args.backward = backward_args_of(plan, b, turn, workspace, plan->partials);
    finish_arguments(plan, b, workspace, plan->partials, grid, l);
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
        (cuda_long_args){.dy = b[ROLE_DY],
                         .x = b[ROLE_X],
                         .mean = b[ROLE_MEAN],
                         .rstd = b[ROLE_RSTD],
                         .weight = b[ROLE_WEIGHT],
                         .dx = b[ROLE_DX],
                         .partial_weight = partials,
                         .partial_bias = partials + (spec->want_dweight ? partial_bytes : 0),
                         .sums = workspace,
                         .rows = plan->rows,
                         .x_stride = row_bytes(plan, ROLE_X),
                         .dy_stride = row_bytes(plan, ROLE_DY),
                         .dx_stride = row_bytes(plan, ROLE_DX),
                         .mean_stride = row_bytes(plan, ROLE_MEAN),
                         .rstd_stride = row_bytes(plan, ROLE_RSTD)};
    if (plan->finish.kernel >= 0)
        cuda_finish_arguments(plan, b, partials, plan->partials, plan->partials, l + 2);
}

/* Rows over groups of blocks, of which the device holds `resident`. */
static void wide_arguments(const cuda_plan *plan, void *const *b, char *workspace, int resident,
                           cuda_launch *l) {
    int64_t groups = rows_plan_groups(plan);
    if (resident < groups)
        groups = resident;
    l->blocks_x = groups * l->spec.group;
    l->blocks_y = 1;
    if (l->spec.kernel == CUDA_FORWARD) {
        l->args.forward = forward_args_of(plan, b, groups);
        l->args.forward.mail = workspace;
    } else {
        char *sums = workspace + (size_t)groups * rows_mail_bytes(&l->spec);
        l->args.backward = backward_args_of(plan, b, groups, sums, groups);
        l->args.backward.mail = workspace;
        finish_arguments(plan, b, sums, groups, groups, l);
    }
}

void rows_launch_arguments(const cuda_plan *plan, void *const buffers[ROLE_COUNT], void *workspace,
                           int resident, cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    if (cuda_spec_is_wide(&launches[0].spec))
        wide_arguments(plan, buffers, workspace, resident, launches);
    else if (plan->main.kernel == CUDA_FORWARD)
        forward_arguments(plan, buffers, resident, launches);
    else if (plan->main.kernel == CUDA_APPLY)
        long_arguments(plan, buffers, workspace, launches);
    else
        backward_arguments(plan, buffers, workspace, resident, launches);
}
