/* Runs and tiles follow from the sizes of an image and the dtypes; what they are cut by is in
 * tuning.h. */
#include "cuda/groups/tiles.h"

#include "cuda/common/integers.h"
#include "cuda/groups/groups_geometry.h"

static int tile_channels(const cuda_spec *spec) {
    const groups_constants *c = &spec->groups;
    return c->rows * ceil_div(c->depth, spec->cluster);
}

/* As the kernel lays it out. */
static size_t tile_room(const cuda_spec *spec, role r) {
    const groups_constants *c = &spec->groups;
    return round_up((size_t)tile_channels(spec) * (size_t)c->pixels * (size_t)role_bytes(spec, r) +
                    20);
}

size_t tiles_shared_bytes(const cuda_spec *spec) {
    const groups_constants *c = &spec->groups;
    const size_t channels = (size_t)tile_channels(spec), parts = spec->correct ? 3 : 2;
    const size_t rows = 6 * (size_t)c->rows, lanes = channels * (size_t)c->lanes;
    if (spec->pass == PLANISH_FORWARD)
        return tile_room(spec, ROLE_X) + round_up(4 * (rows + 2 * channels + 3 * lanes + 3));
    return tile_room(spec, ROLE_X) + tile_room(spec, ROLE_DY) +
           round_up(4 * (rows + (4 + parts) * channels + (c->lanes > 1 ? parts * lanes : 1)));
}

static bool is_backward(const cuda_spec *spec) {
    return spec->pass == PLANISH_BACKWARD;
}

/* Bytes of x, and of dy, of a row's part in a block. */
static int64_t part_bytes(const cuda_spec *spec) {
    const groups_constants *c = &spec->groups;
    return (int64_t)ceil_div(c->depth, spec->cluster) * c->pixels *
           (role_bytes(spec, ROLE_X) + (is_backward(spec) ? role_bytes(spec, ROLE_DY) : 0));
}

/* The same with what is kept of its channels. */
static int64_t row_bytes(const cuda_spec *spec) {
    const groups_constants *c = &spec->groups;
    return part_bytes(spec) + 24 + 28 * (int64_t)ceil_div(c->depth, spec->cluster);
}

/* Blocks that share a row: the fewest whose parts are small; parts differ little. */
static void set_cluster(cuda_spec *spec, const cuda_limits *limits) {
    groups_constants *c = &spec->groups;
    const tiles_tuning *t = &limits->tuning->tiles;
    const int largest = least(t->most_cluster, limits->max_cluster);
    for (int cluster = 1; cluster <= largest && cluster <= c->depth; cluster++) {
        const int depth = ceil_div(c->depth, cluster);
        if (8 * depth * cluster > 9 * c->depth)
            continue;
        spec->cluster = cluster;
        if (part_bytes(spec) <= t->part_bytes)
            return;
    }
}

/* Rows of a tile, so that an image's tiles are alike. */
static void set_rows(const tiles_tuning *t, cuda_spec *spec) {
    groups_constants *c = &spec->groups;
    const int groups = c->groups;
    const int fit = spec->cluster > 1 ? 1 : most(1, (int)(t->tile_bytes / row_bytes(spec)));
    c->rows = ceil_div(groups, ceil_div(groups, least(fit, groups)));
}

/* How many lanes of a warp meet in a bank of shared memory, at most, as they read their first runs:
 * on an average of some warps. */
static double meetings(const cuda_spec *spec, int run, int lanes) {
    const groups_constants *c = &spec->groups;
    const int each = 4 / least(4, role_bytes(spec, ROLE_X)), pixels = c->pixels;
    int sum = 0;
    for (int warp = 0; warp < 4; warp++) {
        int count[32] = {0}, largest = 0, last = -1;
        for (int i = WARP * warp; i < WARP * warp + WARP; i++) {
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
static double lane_cost(const tiles_tuning *t, const cuda_spec *spec, int run, int lanes,
                        int each) {
    const groups_constants *c = &spec->groups;
    const int rest = c->pixels % run;
    const double reads = role_bytes(spec, ROLE_X) == 2 ? 0.5 : 1;
    const double wait = meetings(spec, run, lanes) * reads;
    return each * (run + t->run_cost + wait * (run + 2)) +
           (rest ? rest * 1.5 + t->run_cost + wait * (rest + 2) : 0) + t->lane_cost +
           (lanes > 1 ? is_backward(spec) ? t->merge_cost : t->merge_pivots_cost : 0);
}

/* Elements of a run, lanes of a channel and warps of a block, so that all have about the same to do
 * and little is left over. A run is an odd number of words. */
static void set_lanes(const tiles_tuning *t, cuda_spec *spec, int most_warps) {
    groups_constants *c = &spec->groups;
    const bool halves =
        role_bytes(spec, ROLE_X) == 2 || (is_backward(spec) && role_bytes(spec, ROLE_DY) == 2);
    const int channels = tile_channels(spec);
    double best_cost = 0;
    for (int words = 1; words <= t->most_words; words += 2) {
        const int run = words * (halves ? 2 : 1), runs = most(1, c->pixels / run);
        if (run > c->pixels && words > 1)
            break;
        for (int each = 1; each <= runs && (each == 1 || each * run <= t->most_chain); each++) {
            const int lanes = ceil_div(runs, each);
            if (ceil_div(runs, lanes) != each)
                continue;
            const double lane = lane_cost(t, spec, run, lanes, each);
            for (int warps = ceil_div(3 * most_warps, 4); warps <= most_warps; warps++) {
                const double cost = lane * warps * ceil_div(channels * lanes, WARP * warps);
                if (best_cost > 0 && cost >= best_cost)
                    continue;
                best_cost = cost;
                c->width = run;
                c->lanes = lanes;
                c->warps = warps;
            }
        }
    }
}

static int threads_of(const cuda_spec *spec, const cuda_limits *limits) {
    const tiles_tuning *t = &limits->tuning->tiles;
    const bool halves =
        role_bytes(spec, ROLE_X) == 2 && (!is_backward(spec) || role_bytes(spec, ROLE_DY) == 2);
    return halves && spec->activation == PLANISH_IDENTITY ? t->half_threads : t->threads;
}

/* Whether other kernels would go element by element, or have little to do for a block. Those of f32
 * elements are good at long channels. */
static bool wants_tiles(const tiles_tuning *t, const cuda_spec *spec) {
    const groups_constants *c = &spec->groups;
    const int bytes = role_bytes(spec, ROLE_X);
    const int64_t channel = (int64_t)c->pixels * bytes, row = c->depth * channel;
    if (!is_backward(spec))
        return channel % 8;
    if (bytes == 4)
        return row < t->short_row / 2 ||
               (channel % 8 && (channel < t->long_channel || row < t->long_row));
    return row < t->short_row || channel % 8;
}

bool tiles_geometry(cuda_spec *spec, const cuda_limits *limits) {
    const tiles_tuning *t = &limits->tuning->tiles;
    groups_constants *c = &spec->groups;
    const int room = limits->shared_per_block;
    const role out = is_backward(spec) ? ROLE_DX : ROLE_Y;
    if (!wants_tiles(t, spec) ||
        (spec->type[out] != DTYPE_NONE && role_bytes(spec, out) != role_bytes(spec, ROLE_X)))
        return false;
    const cuda_spec before = *spec;
    c->variant = GROUPS_IN_TILES;
    c->planes = c->piece = c->lanes = c->rows = spec->cluster = 1;
    if (part_bytes(spec) / c->depth <= room) {
        set_cluster(spec, limits);
        set_rows(t, spec);
        const int fit = (int)least_i64(16, (room + 1024) / (c->rows * row_bytes(spec) + 3072));
        const int threads = threads_of(spec, limits);
        set_lanes(t, spec, most(1, least(t->most_warps, threads / WARP / most(1, fit))));
        const size_t shared = tiles_shared_bytes(spec) + 2048; /* and the exchange's */
        if (shared <= (size_t)room) {
            const int blocks = (room + 1024) / (int)shared;
            spec->min_blocks = most(1, least(blocks, threads / (WARP * c->warps)));
            return true;
        }
    }
    *spec = before;
    return false;
}

int64_t tiles_of_image(const cuda_spec *spec) {
    return ceil_div(spec->groups.groups, spec->groups.rows);
}

int64_t tiles_images_at_once(const cuda_spec *spec, int64_t images, const cuda_limits *limits) {
    const tiles_tuning *t = &limits->tuning->tiles;
    const int64_t blocks = (int64_t)limits->multiprocessors * spec->min_blocks / spec->cluster;
    const int64_t held = blocks / tiles_of_image(spec);
    if (images <= t->few_images || !is_backward(spec))
        return images;
    const int64_t once = least_i64(images, held > t->least_partials ? held : t->least_partials);
    const int64_t turns = ceil_div_i64(images, once) * once;
    return images <= t->many_images && 100 * images < 93 * turns ? images : once;
}
