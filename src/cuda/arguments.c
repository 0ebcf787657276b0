/*
 * The alignments of the buffers choose how wide the kernels load and store; they never change what
 * is computed.
 */
#include "arguments.h"

#include <string.h>

#include "channels.h"
#include "finish.h"
#include "general.h"
#include "geometry.h"
#include "groups.h"
#include "integers.h"

enum {
    MOST_GRID_X = 1 << 30,
    MOST_GRID_Y = 65535,
    ALONE_TURNS = 2, /* a block's, to save the kernel that would add up the blocks' sums */
};

int cuda_spec_is_wide(const cuda_spec *spec) {
    return spec->constant[C_GROUP] > 1;
}

int cuda_spec_cluster(const cuda_spec *spec) {
    return spec->kernel == CUDA_FINISH ? 1 : spec->constant[C_CLUSTER];
}

/* The largest power of two up to 16 that divides everything given: how wide accesses may be. */
static int32_t access_of(const void *pointer, int64_t stride, int bytes) {
    return common_alignment((uint64_t)(uintptr_t)pointer | (uint64_t)(stride * bytes));
}

/* Bytes from one row of a tensor to the next. */
static int64_t row_bytes(const cuda_plan *plan, role r) {
    static const cuda_constant types[ROLE_COUNT] = {
        [ROLE_X] = C_X_TYPE,       [ROLE_Y] = C_Y_TYPE,  [ROLE_MEAN] = C_MEAN_TYPE,
        [ROLE_RSTD] = C_RSTD_TYPE, [ROLE_DY] = C_G_TYPE, [ROLE_DX] = C_D_TYPE};
    return plan->stride[r] * constant_bytes(plan->main.constant, types[r]);
}

/* Turns of blocks (or clusters) over the rows. */
static int64_t units_of(const cuda_plan *plan, const cuda_spec *spec) {
    int64_t at_a_time = cuda_spec_rows_at_a_time(spec);
    return (plan->rows + at_a_time - 1) / at_a_time;
}

/* Blocks (or clusters) the device holds at once, as planned. */
static int64_t resident(const cuda_plan *plan, const cuda_spec *spec) {
    const int32_t *c = spec->constant;
    int64_t n = (int64_t)plan->limits.multiprocessors * c[C_MIN_BLOCKS] / c[C_CLUSTER];
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
    cuda_spec spec = *which;
    int32_t *c = spec.constant;
    int64_t stride[ROLE_COUNT];
    memcpy(stride, plan->stride, sizeof stride);
    const int tiled = cuda_spec_is_tiled(which);
    if (tiled)
        c[C_DENSE] = dense_rows(plan, stride);
    c[C_X_ACCESS] = access_of(b[ROLE_X], stride[ROLE_X], constant_bytes(spec.constant, C_X_TYPE));
    c[C_W_ACCESS] = access_of(b[ROLE_WEIGHT], 0, 1);
    /* Asynchronous copies need 4 bytes. Without them the sums stay the same. */
    int narrow = c[C_X_ACCESS] < 4 || c[C_WIDTH] * constant_bytes(spec.constant, C_X_TYPE) < 4;
    if (spec.kernel == CUDA_FORWARD) {
        c[C_Y_ACCESS] =
            access_of(b[ROLE_Y], stride[ROLE_Y], constant_bytes(spec.constant, C_Y_TYPE));
        c[C_B_ACCESS] = access_of(b[ROLE_BIAS], 0, 1);
        if (cuda_spec_is_wide(&spec))
            return spec;
        /* Rows within warps that fill less than half of the device: rather more threads than
         * several rows for each. The bits are the same. */
        while (c[C_LANES] <= 32 && c[C_ROWS] > 1 &&
               2 * units_of(plan, &spec) < resident(plan, &spec) &&
               !(tiled && cuda_spec_rows_at_a_time(&spec) % 16)) /* a tile is whole words */
            c[C_ROWS] /= 2;
        if (tiled) {
            if (c[C_DENSE] != 3 || c[C_X_ACCESS] < 4) /* more addresses, or loads, under way */
                c[C_MIN_BLOCKS] = most(1, c[C_MIN_BLOCKS] * 3 / 4);
            return spec;
        }
        const int few = units_of(plan, &spec) <= 2 * plan->limits.multiprocessors / c[C_CLUSTER];
        if (c[C_HOLD] == 1 && few && c[C_VECS] <= 5)
            c[C_HOLD] = 0; /* the same sums */
        if (c[C_HOLD] == 1 && narrow)
            c[C_HOLD] = 2;
        /* A ring needs rows to come: with one turn for each team it would only delay the first. */
        if (narrow || units_of(plan, &spec) <= resident(plan, &spec))
            c[C_STAGES] = 0;
        if (c[C_HOLD] == 0 && !c[C_REAL_DOUBLE] && c[C_WARPS] <= 16 && few) {
            c[C_EARLY] = 1;
            c[C_MIN_BLOCKS] = 1;
        }
    } else {
        c[C_G_ACCESS] =
            access_of(b[ROLE_DY], stride[ROLE_DY], constant_bytes(spec.constant, C_G_TYPE));
        c[C_D_ACCESS] =
            access_of(b[ROLE_DX], stride[ROLE_DX], constant_bytes(spec.constant, C_D_TYPE));
        if (c[C_B_TYPE] != DTYPE_NONE)
            c[C_B_ACCESS] = access_of(b[ROLE_BIAS], 0, 1);
        if (cuda_spec_is_wide(&spec) || tiled)
            return spec;
        /* But rows that are read twice go through registers to their ring. */
        narrow |= c[C_G_ACCESS] < 4 || c[C_WIDTH] * constant_bytes(spec.constant, C_G_TYPE) < 4;
        if (spec.kernel == CUDA_APPLY || (narrow && !c[C_HOLD]))
            c[C_STAGES] = 0;
    }
    return spec;
}

int cuda_launch_specs(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                      cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    if (plan->main.kernel == CUDA_GENERAL_ROWS)
        return general_launch_specs(plan, launches);
    if (plan->main.kernel == CUDA_CHANNELS)
        return channels_launch_specs(plan, buffers, launches);
    if (cuda_spec_is_groups(&plan->main))
        return groups_launch_specs(plan, buffers, launches);
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
    const int32_t *c = l->spec.constant;
    int64_t units = units_of(plan, &l->spec), cluster = c[C_CLUSTER], grid = units;
    int64_t at_once = cluster > 1 ? resident_clusters : resident(plan, &l->spec);
    /* Short-lived blocks even out what multiprocessors differ in; long-lived ones save starts. */
    if (plan->turns && units >= 2 * plan->turns * at_once)
        grid = (units + plan->turns - 1) / plan->turns;
    else if (c[C_STAGES] || (c[C_HOLD] && !c[C_TILE]))
        grid = at_once;
    if (grid > units)
        grid = units;
    if (grid > MOST_GRID_X / cluster)
        grid = MOST_GRID_X / cluster;
    int64_t turn = grid * cuda_spec_rows_at_a_time(&l->spec);
    l->blocks_x = grid * cluster;
    l->blocks_y = 1;
    l->args.forward = forward_args_of(plan, b, turn);
}

/* With room for `partials` rows of partial sums from `sums` on. */
static cuda_backward_args backward_args_of(const cuda_plan *plan, void *const *b, int64_t turn,
                                           char *sums, int64_t partials) {
    const int32_t *c = plan->main.constant;
    size_t bytes = (size_t)(partials * plan->cols) * real_bytes(c);
    return (cuda_backward_args){.dy = b[ROLE_DY],
                                .x = b[ROLE_X],
                                .mean = b[ROLE_MEAN],
                                .rstd = b[ROLE_RSTD],
                                .weight = b[ROLE_WEIGHT],
                                .bias = b[ROLE_BIAS],
                                .dx = b[ROLE_DX],
                                .partial_weight = sums,
                                .partial_bias = sums + (c[C_WANT_DWEIGHT] ? bytes : 0),
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
    const int32_t *c = l->spec.constant;
    int64_t cluster = c[C_CLUSTER], units = units_of(plan, &l->spec), grid = plan->partials;
    if (cluster > 1 && resident_clusters < grid)
        grid = resident_clusters;
    if (units < grid)
        grid = units > 0 ? units : 1;
    if (plan->finish.kernel >= 0 && units <= ALONE_TURNS)
        grid = 1;
    int64_t turn = grid * cuda_spec_rows_at_a_time(&l->spec);
    l->blocks_x = grid * cluster;
    l->blocks_y = 1;
    l->args.backward = backward_args_of(plan, b, turn, workspace, plan->partials);
    finish_arguments(plan, b, workspace, plan->partials, grid, l);
}

/* Rows too long for one read: sums, apply, finish. */
static void long_arguments(const cuda_plan *plan, void *const *b, char *workspace, cuda_launch *l) {
    cuda_launch *sums = &l[0], *apply = &l[1];
    const int32_t *c = apply->spec.constant;
    size_t bytes = real_bytes(c);
    int64_t pieces = (plan->cols + CUDA_LONG_PIECE - 1) / CUDA_LONG_PIECE;
    int64_t strip = (int64_t)cuda_spec_threads(&apply->spec) * c[C_WIDTH];
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
                         .partial_bias = partials + (c[C_WANT_DWEIGHT] ? partial_bytes : 0),
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
    int64_t groups = cuda_plan_groups(plan);
    if (resident < groups)
        groups = resident;
    l->blocks_x = groups * l->spec.constant[C_GROUP];
    l->blocks_y = 1;
    if (l->spec.kernel == CUDA_FORWARD) {
        l->args.forward = forward_args_of(plan, b, groups);
        l->args.forward.mail = workspace;
    } else {
        char *sums = workspace + (size_t)groups * cuda_spec_mail_bytes(&l->spec);
        l->args.backward = backward_args_of(plan, b, groups, sums, groups);
        l->args.backward.mail = workspace;
        finish_arguments(plan, b, sums, groups, groups, l);
    }
}

void cuda_launch_arguments(const cuda_plan *plan, void *const buffers[ROLE_COUNT], void *workspace,
                           int resident, cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    if (cuda_spec_is_wide(&launches[0].spec) && !cuda_spec_is_groups(&launches[0].spec)) {
        wide_arguments(plan, buffers, workspace, resident, launches);
        return;
    }
    switch (plan->main.kernel) {
    case CUDA_FORWARD:
        forward_arguments(plan, buffers, resident, launches);
        break;
    case CUDA_GENERAL_ROWS:
        general_launch_arguments(plan, buffers, workspace, launches);
        break;
    case CUDA_CHANNELS:
        channels_launch_arguments(plan, buffers, workspace, resident, launches);
        break;
    case CUDA_GROUPS:
    case CUDA_STRIPS:
        groups_launch_arguments(plan, buffers, workspace, resident, launches);
        break;
    case CUDA_APPLY:
        long_arguments(plan, buffers, workspace, launches);
        break;
    default:
        backward_arguments(plan, buffers, workspace, resident, launches);
    }
}
