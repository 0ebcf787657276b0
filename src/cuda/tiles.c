/* Runs and tiles follow from the sizes of an image and the dtypes; what they are cut by is in
 * tuning.h. */
#include "tiles.h"

#include "groups_geometry.h"
#include "integers.h"

static int tile_channels(const int32_t *c) {
    return c[C_ROWS] * ceil_div(c[C_DEPTH], c[C_CLUSTER]);
}

/* As the kernel lays it out. */
static size_t tile_room(const int32_t *c, cuda_constant type) {
    return round_up(
        (size_t)tile_channels(c) * (size_t)c[C_PIXELS] * (size_t)constant_bytes(c, type) + 20);
}

size_t tiles_shared_bytes(const cuda_spec *spec) {
    const int32_t *c = spec->constant;
    const size_t channels = (size_t)tile_channels(c), parts = c[C_CORRECT] ? 3 : 2;
    const size_t rows = 6 * (size_t)c[C_ROWS], lanes = channels * (size_t)c[C_LANES];
    if (c[C_PASS] == PLANISH_FORWARD)
        return tile_room(c, C_X_TYPE) + round_up(4 * (rows + 2 * channels + 3 * lanes + 3));
    return tile_room(c, C_X_TYPE) + tile_room(c, C_G_TYPE) +
           round_up(4 * (rows + (4 + parts) * channels + (c[C_LANES] > 1 ? parts * lanes : 1)));
}

static bool is_backward(const int32_t *c) {
    return c[C_PASS] == PLANISH_BACKWARD;
}

/* Bytes of x, and of dy, of a row's part in a block. */
static int64_t part_bytes(const int32_t *c) {
    return (int64_t)ceil_div(c[C_DEPTH], c[C_CLUSTER]) * c[C_PIXELS] *
           (constant_bytes(c, C_X_TYPE) + (is_backward(c) ? constant_bytes(c, C_G_TYPE) : 0));
}

/* The same with what is kept of its channels. */
static int64_t row_bytes(const int32_t *c) {
    return part_bytes(c) + 24 + 28 * (int64_t)ceil_div(c[C_DEPTH], c[C_CLUSTER]);
}

/* Blocks that share a row: the fewest whose parts are small; parts differ little. */
static void set_cluster(int32_t *c, const cuda_limits *limits) {
    const tiles_tuning *t = &limits->tuning->tiles;
    const int largest = least(t->most_cluster, limits->max_cluster);
    for (int cluster = 1; cluster <= largest && cluster <= c[C_DEPTH]; cluster++) {
        const int depth = ceil_div(c[C_DEPTH], cluster);
        if (8 * depth * cluster > 9 * c[C_DEPTH])
            continue;
        c[C_CLUSTER] = cluster;
        if (part_bytes(c) <= t->part_bytes)
            return;
    }
}

/* Rows of a tile, so that an image's tiles are alike. */
static void set_rows(const tiles_tuning *t, int32_t *c) {
    const int groups = c[C_GROUPS];
    const int fit = c[C_CLUSTER] > 1 ? 1 : most(1, (int)(t->tile_bytes / row_bytes(c)));
    c[C_ROWS] = ceil_div(groups, ceil_div(groups, least(fit, groups)));
}

/* How many lanes of a warp meet in a bank of shared memory, at most, as they read their first runs:
 * on an average of some warps. */
static double meetings(const int32_t *c, int run, int lanes) {
    const int each = 4 / least(4, constant_bytes(c, C_X_TYPE)), pixels = c[C_PIXELS];
    int sum = 0;
    for (int warp = 0; warp < 4; warp++) {
        int count[32] = {0}, largest = 0, last = -1;
        for (int i = 32 * warp; i < 32 * warp + 32; i++) {
            const int word = (i / lanes * pixels + i % lanes * run) / each;
            if (word != last)
                largest = most(largest, ++count[word % 32]);
            last = word;
        }
        sum += largest;
    }
    return sum / 4.0;
}

/* What a lane costs that has `each` runs of a channel: it computes, and waits for its reads; a
 * shorter run at the end is written by elements. */
static double lane_cost(const tiles_tuning *t, const int32_t *c, int run, int lanes, int each) {
    const int rest = c[C_PIXELS] % run;
    const double reads = constant_bytes(c, C_X_TYPE) == 2 ? 0.5 : 1;
    const double wait = meetings(c, run, lanes) * reads;
    return each * (run + t->run_cost + wait * (run + 2)) +
           (rest ? rest * 1.5 + t->run_cost + wait * (rest + 2) : 0) + t->lane_cost +
           (lanes > 1 ? is_backward(c) ? t->merge_cost : t->merge_pivots_cost : 0);
}

/* Elements of a run, lanes of a channel and warps of a block, so that all have about the same to do
 * and little is left over. A run is an odd number of words. */
static void set_lanes(const tiles_tuning *t, int32_t *c, int most_warps) {
    const bool halves =
        constant_bytes(c, C_X_TYPE) == 2 || (is_backward(c) && constant_bytes(c, C_G_TYPE) == 2);
    const int channels = tile_channels(c);
    double best_cost = 0;
    for (int words = 1; words <= t->most_words; words += 2) {
        const int run = words * (halves ? 2 : 1), runs = most(1, c[C_PIXELS] / run);
        if (run > c[C_PIXELS] && words > 1)
            break;
        for (int each = 1; each <= runs && (each == 1 || each * run <= t->most_chain); each++) {
            const int lanes = ceil_div(runs, each);
            if (ceil_div(runs, lanes) != each)
                continue;
            const double lane = lane_cost(t, c, run, lanes, each);
            for (int warps = ceil_div(3 * most_warps, 4); warps <= most_warps; warps++) {
                const double cost = lane * warps * ceil_div(channels * lanes, 32 * warps);
                if (best_cost > 0 && cost >= best_cost)
                    continue;
                best_cost = cost;
                c[C_WIDTH] = run;
                c[C_VECS] = each;
                c[C_LANES] = lanes;
                c[C_WARPS] = warps;
            }
        }
    }
}

static int threads_of(const int32_t *c, const cuda_limits *limits) {
    const tiles_tuning *t = &limits->tuning->tiles;
    const bool halves =
        constant_bytes(c, C_X_TYPE) == 2 && (!is_backward(c) || constant_bytes(c, C_G_TYPE) == 2);
    return halves && c[C_ACTIVATION] == PLANISH_IDENTITY ? t->half_threads : t->threads;
}

/* Whether other kernels would go element by element, or have little to do for a block. Those of f32
 * elements are good at long channels. */
static bool wants_tiles(const tiles_tuning *t, const int32_t *c) {
    const int bytes = constant_bytes(c, C_X_TYPE);
    const int64_t channel = (int64_t)c[C_PIXELS] * bytes, row = c[C_DEPTH] * channel;
    if (!is_backward(c))
        return channel % 8;
    if (bytes == 4)
        return row < t->short_row / 2 ||
               (channel % 8 && (channel < t->long_channel || row < t->long_row));
    return row < t->short_row || channel % 8;
}

bool tiles_geometry(cuda_spec *spec, const cuda_limits *limits) {
    const tiles_tuning *t = &limits->tuning->tiles;
    int32_t *c = spec->constant;
    const int room = limits->shared_per_block;
    const cuda_constant out = is_backward(c) ? C_D_TYPE : C_Y_TYPE;
    if (!wants_tiles(t, c) ||
        (c[out] != DTYPE_NONE && constant_bytes(c, out) != constant_bytes(c, C_X_TYPE)))
        return false;
    const cuda_spec before = *spec;
    c[C_STAGE] = STAGE_TILE;
    c[C_PLANES] = c[C_PIECE] = c[C_LANES] = c[C_ROWS] = c[C_CLUSTER] = 1;
    if (part_bytes(c) / c[C_DEPTH] <= room) {
        set_cluster(c, limits);
        set_rows(t, c);
        const int fit = (int)least_i64(16, (room + 1024) / (c[C_ROWS] * row_bytes(c) + 3072));
        const int threads = threads_of(c, limits);
        set_lanes(t, c, most(1, least(t->most_warps, threads / 32 / most(1, fit))));
        const size_t shared = tiles_shared_bytes(spec) + 2048; /* and the exchange's */
        if (shared <= (size_t)room) {
            const int blocks = (room + 1024) / (int)shared;
            c[C_MIN_BLOCKS] = most(1, least(blocks, threads / (32 * c[C_WARPS])));
            return true;
        }
    }
    *spec = before;
    return false;
}

int64_t tiles_of_image(const cuda_spec *spec) {
    return ceil_div(spec->constant[C_GROUPS], spec->constant[C_ROWS]);
}

int64_t tiles_images_at_once(const cuda_spec *spec, int64_t images, const cuda_limits *limits) {
    const tiles_tuning *t = &limits->tuning->tiles;
    const int32_t *c = spec->constant;
    const int64_t blocks = (int64_t)limits->multiprocessors * c[C_MIN_BLOCKS] / c[C_CLUSTER];
    const int64_t held = blocks / tiles_of_image(spec);
    if (images <= t->few_images || !is_backward(c))
        return images;
    const int64_t once = least_i64(images, held > t->least_partials ? held : t->least_partials);
    const int64_t turns = ceil_div_i64(images, once) * once;
    return images <= t->many_images && 100 * images < 93 * turns ? images : once;
}
