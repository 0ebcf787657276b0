/*
 * In one read: images stored by pixel whose strips fit a cluster of blocks (strips.c), and the
 * backward of rows that fit a block's shared memory, x and dy, alone or several (tiles.c).
 * Everything else in two. Pieces and segments follow from the sizes of an image and the dtypes
 * alone.
 */
#include "groups.h"

#include <stdio.h>
#include <string.h>

#include "finish.h"
#include "images.h"
#include "integers.h"
#include "rows.h"
#include "strips.h"
#include "tiles.h"

enum { STAGE_ROW, STAGE_SUMS, STAGE_MOMENTS, STAGE_APPLY };

enum {
    THREADS = 256,           /* of a block, where rows are read twice */
    MOST_LANES = 64,         /* chunks of channels in such a block */
    PIECE_BYTES = 64 << 10,  /* of x in such a block */
    MOST_STEPS = 16,         /* chunks of a lane, where pixels are dense */
    ROW_VECS = 6,            /* chunks of a thread, of rows read once */
    ROW_THREADS = 768,       /* in a multiprocessor, the same */
    ROW_MANY_THREADS = 1024, /* the same, of two large blocks */
    ROW_BLOCKS = 3,          /* in a multiprocessor, of rows that take a cluster */
    MOST_ROW_CLUSTER = 8,
    SEGMENT_COST = 2,
    LEAST_CHUNK = 4, /* bytes, of strips: what a copy to shared memory takes */
    MOST_GRID = 1 << 30
};

static bool is_backward(const int32_t *c) {
    return c[C_PASS] == PLANISH_BACKWARD;
}

static int images_of(const cuda_plan *plan) {
    return (int)(plan->rows / plan->main.constant[C_GROUPS]);
}

/* ---- Geometry ----------------------------------------------------------------------------------
 */

static size_t groups_shared_bytes(const cuda_spec *spec) {
    const int32_t *c = spec->constant;
    if (spec->kernel == CUDA_STRIPS)
        return strips_shared_bytes(spec);
    if (c[C_STAGE] == STAGE_TILE)
        return tiles_shared_bytes(spec);
    if (c[C_STAGE] == STAGE_ROW) {
        const int part = c[C_DEPTH] / c[C_CLUSTER];
        const size_t row = (size_t)part * (size_t)c[C_PIXELS];
        const int chunks = ceil_div(c[C_PIXELS], c[C_WIDTH]);
        const int sums = 3 * part * ceil_div(chunks, c[C_PIECE]);
        return round_up(row * (size_t)constant_bytes(c, C_X_TYPE)) +
               round_up(row * (size_t)constant_bytes(c, C_G_TYPE)) +
               (size_t)(2 * part + sums) * sizeof(float); /* weights and biases */
    }
    if (c[C_STAGE] == STAGE_SUMS && c[C_LAST])
        return (size_t)(3 * c[C_PLANES] * c[C_LANES] * c[C_WIDTH]) * sizeof(float);
    return 0;
}

/* Elements of a chunk: a power of two that divides `run`, of at most 16 bytes. */
static int width_of(const int32_t *c, int run) {
    int bytes =
        most(constant_bytes(c, C_X_TYPE), constant_bytes(c, is_backward(c) ? C_D_TYPE : C_Y_TYPE));
    if (is_backward(c))
        bytes = most(bytes, constant_bytes(c, C_G_TYPE));
    int width = 16 / bytes;
    while (run % width)
        width /= 2;
    return width;
}

/* Warps of a block and chunks of a segment, so that all warps have about the same to do:
 * SEGMENT_COST is what a segment costs beside its chunks, in turns of a warp. */
static void set_segments(int32_t *c, int part, int chunks, int most_warps) {
    const int turns = ceil_div(chunks, 32);
    int best_cost = 0;
    for (int warps = most_warps / 2; warps <= most_warps; warps++)
        for (int cuts = 1; cuts <= turns && cuts <= 2 * most_warps; cuts++) {
            const int each = ceil_div(turns, cuts);
            const int cost = ceil_div(part * cuts, warps) * (each + SEGMENT_COST);
            if (best_cost && cost >= best_cost)
                continue;
            best_cost = cost;
            c[C_WARPS] = warps;
            c[C_PIECE] = 32 * each;
        }
}

/* A row at a time in a block, or in a cluster where a block does not hold it (or not two, of f32
 * with an activation, whose arithmetic one block would wait for); false where neither does. */
static bool row_geometry(cuda_plan *plan) {
    int32_t *c = plan->main.constant;
    c[C_STAGE] = STAGE_ROW;
    c[C_LANES] = 32;
    c[C_PLANES] = c[C_CLUSTER] = 1;
    c[C_WIDTH] = width_of(c, c[C_PIXELS]);
    const int chunks = c[C_PIXELS] / c[C_WIDTH];
    const size_t room = (size_t)plan->limits.shared_per_block - 1024;
    if (plan->cols > 1 << 20)
        return false;
    c[C_PIECE] = 32;
    const size_t whole = groups_shared_bytes(&plan->main);
    const bool slow = c[C_ACTIVATION] != PLANISH_IDENTITY && c[C_X_TYPE] == DTYPE_F32;
    const size_t blocks = whole > room ? ROW_BLOCKS : slow ? 2 : 1;
    for (int more = 2; more <= least(MOST_ROW_CLUSTER, plan->limits.max_cluster); more++)
        if (c[C_DEPTH] % more == 0 && blocks * groups_shared_bytes(&plan->main) > room)
            c[C_CLUSTER] = more;
    const int fits = (int)(room / groups_shared_bytes(&plan->main));
    if (!fits)
        return false;
    const int part = c[C_DEPTH] / c[C_CLUSTER];
    const int wanted = ceil_div(part * chunks, 32 * ROW_VECS);
    const int many = fits == 1 ? 20 : c[C_CLUSTER] == 1 ? 16 : fits < ROW_BLOCKS ? 12 : 8;
    set_segments(c, part, chunks, most(2, least(wanted, many)));
    const size_t fit = (room + 2048) / (groups_shared_bytes(&plan->main) + 1536);
    const int threads = c[C_WARPS] > 12 && fits > 1 ? ROW_MANY_THREADS : ROW_THREADS;
    c[C_MIN_BLOCKS] = most(1, least((int)fit, threads / (32 * c[C_WARPS])));
    return true;
}

static bool strip_geometry(cuda_plan *plan) {
    int32_t *c = plan->main.constant;
    c[C_STAGE] = STAGE_ROW;
    c[C_WIDTH] = width_of(c, c[C_COLS]);
    return c[C_WIDTH] * constant_bytes(c, C_X_TYPE) >= LEAST_CHUNK &&
           strips_geometry(&plan->main, &plan->limits);
}

/* Channels of an image in equal strips of at most MOST_LANES chunks, where they divide so. */
static int lanes_of(int chunks) {
    const int strips = ceil_div(chunks, MOST_LANES);
    for (int more = strips; more < 2 * strips; more++)
        if (chunks % more == 0)
            return chunks / more;
    return ceil_div(chunks, strips);
}

static void piece_geometry(cuda_plan *plan) {
    int32_t *c = plan->main.constant;
    c[C_STAGE] = STAGE_APPLY;
    c[C_CLUSTER] = 1;
    c[C_WIDTH] = width_of(c, c[C_LAST] ? c[C_COLS] : c[C_PIXELS]);
    c[C_WARPS] = THREADS / 32;
    c[C_MIN_BLOCKS] = is_backward(c) ? 2 : 3;
    if (c[C_LAST]) {
        c[C_LANES] = lanes_of(c[C_COLS] / c[C_WIDTH]);
        c[C_PLANES] = THREADS / c[C_LANES];
        const int pixel = c[C_LANES] * c[C_WIDTH] * constant_bytes(c, C_X_TYPE);
        const int turns = most(1, PIECE_BYTES / pixel / (4 * c[C_PLANES]));
        c[C_PIECE] = least(c[C_PIXELS], 4 * turns * c[C_PLANES]);
    } else {
        c[C_LANES] = 32;
        c[C_PLANES] = 1;
        c[C_PIECE] = least(ceil_div(c[C_PIXELS], 32 * c[C_WIDTH]), MOST_STEPS) * 32 * c[C_WIDTH];
    }
}

static bool reads_once(const int32_t *c) {
    return c[C_STAGE] == STAGE_ROW || c[C_STAGE] == STAGE_TILE;
}

static int64_t pieces_of(const int32_t *c) {
    return reads_once(c) ? 0 : ceil_div(c[C_PIXELS], c[C_PIECE]);
}

static size_t sums_bytes(const cuda_plan *plan) {
    const int32_t *c = plan->main.constant;
    return (size_t)images_of(plan) * (size_t)pieces_of(c) * 3 * (size_t)c[C_COLS] * sizeof(float);
}

static size_t moments_bytes(const cuda_plan *plan) {
    return reads_once(plan->main.constant) ? 0 : (size_t)plan->rows * 8 * sizeof(float);
}

/* The kernel that runs where the device holds it. */
static const cuda_spec *first_of(const cuda_plan *plan) {
    return plan->wide.kernel >= 0 ? &plan->wide : &plan->main;
}

/* Of dweight and dbias: one of each image, or of each of its blocks; of tiles, of those images that
 * have blocks of their own. */
static int64_t partial_rows(const cuda_plan *plan, const cuda_spec *spec) {
    if (spec->constant[C_STAGE] == STAGE_TILE)
        return tiles_images_at_once(spec, images_of(plan), &plan->limits);
    return images_of(plan) * (spec->kernel == CUDA_STRIPS ? strips_blocks(spec) : 1);
}

static int64_t strips_held(const cuda_plan *plan, const cuda_spec *spec) {
    return strips_at_once(spec, images_of(plan), &plan->limits);
}

/* Rounded, as partial sums follow. */
static size_t mail_bytes(const cuda_plan *plan, const cuda_spec *spec) {
    if (spec->kernel != CUDA_STRIPS || spec->constant[C_GROUP] <= 1)
        return 0;
    return round_up((size_t)strips_held(plan, spec) * strips_mail_bytes(spec));
}

static void groups_plan_size(cuda_plan *plan) {
    const int32_t *c = plan->main.constant;
    plan->partials = partial_rows(plan, &plan->main);
    if (plan->wide.kernel >= 0 && partial_rows(plan, &plan->wide) > plan->partials)
        plan->partials = partial_rows(plan, &plan->wide);
    plan->workspace_bytes = sums_bytes(plan) + moments_bytes(plan) +
                            mail_bytes(plan, first_of(plan)) +
                            (size_t)plan->partials * (size_t)c[C_COLS] * sizeof(float) *
                                (size_t)(c[C_WANT_DWEIGHT] + c[C_WANT_DBIAS]);
}

/* Describes the problem; false where it is none for these kernels. */
static bool describe(cuda_plan *plan, const problem *p, const image_view *v) {
    if (problem_is_double(p) || v->images > MOST_GRID)
        return false;
    int32_t *c = plan->main.constant;
    images_describe(plan, p, v, CUDA_GROUPS);
    c[C_GROUPS] = (int)v->groups;
    c[C_DEPTH] = (int)v->depth;
    c[C_LAST] |= v->pixels == 1;
    c[C_CLUSTER] = 1;
    return true;
}

/* Where rows go in tiles, forward and backward (tiles.h). */
static bool tiles_plan_make(cuda_plan *plan, const problem *p, const image_view *v) {
    if (describe(plan, p, v) && !plan->main.constant[C_LAST] &&
        tiles_geometry(&plan->main, &plan->limits)) {
        const int32_t *c = plan->main.constant;
        groups_plan_size(plan);
        if (c[C_WANT_DWEIGHT] || c[C_WANT_DBIAS])
            cuda_plan_finish(plan, p, c[C_COLS], plan->partials);
        return true;
    }
    memset(&plan->main, 0, sizeof plan->main);
    return false;
}

/* Strips, rows or pieces. */
static bool other_plan_make(cuda_plan *plan, const problem *p, const image_view *v) {
    if (!describe(plan, p, v))
        return false;
    const int32_t *c = plan->main.constant;
    const bool once = c[C_LAST] ? strip_geometry(plan) : is_backward(c) && row_geometry(plan);
    if (!once)
        piece_geometry(plan);
    plan->wide = plan->main;
    if (plan->main.kernel != CUDA_STRIPS ||
        !strips_shared_geometry(&plan->wide, v->images, &plan->limits))
        plan->wide.kernel = -1;
    groups_plan_size(plan);
    if (c[C_WANT_DWEIGHT] || c[C_WANT_DBIAS])
        cuda_plan_finish(plan, p, c[C_COLS], plan->partials);
    return true;
}

static bool groups_plan_make(cuda_plan *plan, const problem *p) {
    image_view v;
    return images_of_groups(&v, p) &&
           (tiles_plan_make(plan, p, &v) || group_rows_plan_make(plan, p, &v) ||
            other_plan_make(plan, p, &v));
}

static int groups_plan_describe(const cuda_plan *plan, char *text, size_t bytes) {
    const int32_t *c = first_of(plan)->constant;
    return snprintf(text, bytes,
                    "cuda groups %s %dx%dx%dx%d%s: %s, chunks of %d, %d lanes x %d planes, "
                    "pieces of %d, %d warps, cluster %d, group %d",
                    is_backward(c) ? "backward" : "forward", images_of(plan), c[C_GROUPS],
                    c[C_DEPTH], c[C_PIXELS], c[C_LAST] ? " channels last" : "",
                    c[C_STAGE] == STAGE_TILE  ? "tiles"
                    : c[C_STAGE] == STAGE_ROW ? "one read"
                                              : "two reads",
                    c[C_WIDTH], c[C_LANES], c[C_PLANES], c[C_PIECE], c[C_WARPS], c[C_CLUSTER],
                    c[C_GROUP]);
}

/* ---- Launches ----------------------------------------------------------------------------------
 */

/* Alignment of a tensor's rows: of an image, of a group of it, or of the channels of a pixel. */
static int32_t access_of(const cuda_plan *plan, void *const *buffers, role r, int bytes) {
    const int32_t *c = first_of(plan)->constant;
    uint64_t bits = (uint64_t)(uintptr_t)buffers[r] | (uint64_t)(plan->stride[r] * bytes);
    const int64_t run = c[C_LAST] ? c[C_COLS]
                        : c[C_STAGE] == STAGE_TILE
                            ? (int64_t)(c[C_CLUSTER] > 1 ? 1 : c[C_ROWS] * c[C_DEPTH]) * c[C_PIXELS]
                        : c[C_STAGE] == STAGE_ROW
                            ? (int64_t)(c[C_DEPTH] / c[C_CLUSTER]) * c[C_PIXELS]
                            : c[C_PIXELS];
    bits |= (uint64_t)(run * bytes);
    if (plan->main.kernel == CUDA_STRIPS)
        bits |= (uint64_t)(c[C_TILE] * bytes);
    return common_alignment(bits);
}

static cuda_spec stage_of(const cuda_plan *plan, void *const *buffers, int stage) {
    cuda_spec spec = *first_of(plan);
    int32_t *c = spec.constant;
    c[C_STAGE] = stage;
    if (!is_backward(c) && (stage == STAGE_SUMS || stage == STAGE_MOMENTS))
        c[C_ACTIVATION] = PLANISH_IDENTITY;
    if (stage == STAGE_MOMENTS) {
        const int64_t entries = c[C_DEPTH] * (is_backward(c) ? 1 : pieces_of(plan->main.constant));
        c[C_WARPS] = entries <= 128 ? 1 : entries <= 2048 ? 4 : 16;
        c[C_MIN_BLOCKS] = 1;
    }
    /* Chunks of several rows hold the moments of each; other assemblers spill what sm_90's does
     * not.
     */
    if (stage == STAGE_APPLY && c[C_LAST] && c[C_DEPTH] % c[C_WIDTH] && plan->limits.arch != 90)
        c[C_MIN_BLOCKS] = least(c[C_MIN_BLOCKS], 2);
    c[C_X_ACCESS] = access_of(plan, buffers, ROLE_X, constant_bytes(c, C_X_TYPE));
    c[C_Y_ACCESS] = access_of(plan, buffers, ROLE_Y, constant_bytes(c, C_Y_TYPE));
    c[C_G_ACCESS] = access_of(plan, buffers, ROLE_DY, constant_bytes(c, C_G_TYPE));
    c[C_D_ACCESS] = access_of(plan, buffers, ROLE_DX, constant_bytes(c, C_D_TYPE));
    if (stage == STAGE_TILE)
        c[C_HOLD] =
            images_lie_as_x(plan, buffers, images_of(plan), is_backward(c) ? ROLE_DX : ROLE_Y);
    return spec;
}

static int groups_launch_specs(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                               cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    const int32_t *c = plan->main.constant;
    int count = 0;
    if (reads_once(c)) {
        launches[count++].spec = stage_of(plan, buffers, c[C_STAGE]);
    } else {
        launches[count++].spec = stage_of(plan, buffers, STAGE_SUMS);
        launches[count++].spec = stage_of(plan, buffers, STAGE_MOMENTS);
        if (!is_backward(c) || c[C_D_TYPE] != DTYPE_NONE)
            launches[count++].spec = stage_of(plan, buffers, STAGE_APPLY);
    }
    if (plan->finish.kernel >= 0)
        launches[count++].spec = plan->finish;
    return count;
}

/* Blocks of strips: a cluster for each strip; of those that live on, as many as the device holds at
 * once. */
static int64_t strips_grid(const cuda_plan *plan, int resident) {
    const cuda_spec *spec = first_of(plan);
    if (spec->constant[C_GROUP] <= 1)
        return strips_blocks(spec) * strips_of(spec, images_of(plan));
    const int64_t held = strips_held(plan, spec);
    return strips_blocks(spec) * (resident > 0 ? least_i64(held, resident) : held);
}

static int64_t grid_of(const cuda_plan *plan, const int32_t *c, int resident) {
    const int64_t pieces = (int64_t)images_of(plan) * pieces_of(plan->main.constant);
    int64_t grid =
        plan->main.kernel == CUDA_STRIPS ? strips_grid(plan, resident) : plan->rows * c[C_CLUSTER];
    if (c[C_STAGE] == STAGE_TILE)
        return plan->partials * tiles_of_image(first_of(plan)) * c[C_CLUSTER];
    if (c[C_STAGE] == STAGE_SUMS || c[C_STAGE] == STAGE_APPLY)
        grid = c[C_LAST] ? pieces * ceil_div(ceil_div(c[C_COLS], c[C_WIDTH]), c[C_LANES])
                         : (pieces * c[C_COLS] + c[C_WARPS] - 1) / c[C_WARPS];
    return grid < MOST_GRID ? grid : MOST_GRID; /* whole clusters: both are multiples */
}

static void groups_launch_arguments(const cuda_plan *plan, void *const buffers[ROLE_COUNT],
                                    void *workspace, int resident,
                                    cuda_launch launches[CUDA_MOST_LAUNCHES]) {
    const cuda_spec *first = first_of(plan);
    const int32_t *c = first->constant;
    const int count = groups_launch_specs(plan, buffers, launches) - (plan->finish.kernel >= 0);
    char *sums = workspace, *moments = sums + sums_bytes(plan);
    char *mail = moments + moments_bytes(plan);
    float *partials = (float *)(mail + mail_bytes(plan, first));
    for (int i = 0; i < count; i++) {
        launches[i].blocks_x = grid_of(plan, launches[i].spec.constant, resident);
        launches[i].blocks_y = 1;
        launches[i].args.groups = (cuda_groups_args){
            .x = buffers[ROLE_X],
            .weight = buffers[ROLE_WEIGHT],
            .bias = buffers[ROLE_BIAS],
            .dy = buffers[ROLE_DY],
            .mean = buffers[ROLE_MEAN],
            .rstd = buffers[ROLE_RSTD],
            .out = buffers[is_backward(c) ? ROLE_DX : ROLE_Y],
            .sums = (float *)sums,
            .moments = (float *)moments,
            .partial_weight = partials,
            .partial_bias = partials + (c[C_WANT_DWEIGHT] ? plan->partials * c[C_COLS] : 0),
            .mail = (uint64_t *)mail,
            .images = images_of(plan),
            .x_image = plan->stride[ROLE_X] * constant_bytes(c, C_X_TYPE),
            .dy_image = plan->stride[ROLE_DY] * constant_bytes(c, C_G_TYPE),
            .out_image = is_backward(c) ? plan->stride[ROLE_DX] * constant_bytes(c, C_D_TYPE)
                                        : plan->stride[ROLE_Y] * constant_bytes(c, C_Y_TYPE),
            .mean_stride = plan->stride[ROLE_MEAN] * constant_bytes(c, C_MEAN_TYPE),
            .rstd_stride = plan->stride[ROLE_RSTD] * constant_bytes(c, C_RSTD_TYPE),
            .eps = plan->eps,
            .eps_is_small = plan->eps < 1e-30};
    }
    if (plan->finish.kernel >= 0)
        cuda_finish_arguments(plan, buffers, (char *)partials, plan->partials,
                              partial_rows(plan, first), &launches[count]);
}

static unsigned groups_threads(const cuda_spec *spec) {
    return 32u * (unsigned)spec->constant[C_WARPS];
}

const cuda_family groups_family = {
    .plan_make = groups_plan_make,
    .plan_size = groups_plan_size,
    .plan_describe = groups_plan_describe,
    .launch_specs = groups_launch_specs,
    .launch_arguments = groups_launch_arguments,
    .threads = groups_threads,
    .shared_bytes = groups_shared_bytes,
};
