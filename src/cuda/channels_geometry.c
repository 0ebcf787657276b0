/*
 * A tile is as many pixels as fill whole sectors of memory and leave room for several blocks in a
 * multiprocessor. Images of few pixels, or of pixels that do not come in whole sectors, are taken
 * whole, their channels shared by a cluster of blocks; so are tiles of many channels.
 */
#include "channels_geometry.h"

#include "channels_shape.h"
#include "integers.h"

enum {
    FEW_PIXELS = 256,          /* images below this are taken whole where they fit */
    ALONE_BYTES = 64 << 10,    /* of such an image in one block, or of a part that is not alone */
    WHOLE_BYTES = 160 << 10,   /* of its part in a block of a cluster (forward), of 16 bits; */
    LARGE_BYTES = 200 << 10,   /* of f32, also alone */
    FORWARD_BYTES = 64 << 10,  /* of a tile, rather */
    BACKWARD_BYTES = 84 << 10, /* of a ring of tiles, rather */
    MANY_BYTES = 200 << 10,    /* the same, of many threads; */
    WIDE_BYTES = 196 << 10,    /* of f32, */
    WIDE_PLANES = 26,          /* of threads in a block of it that is alone, or more */
    THREADS = 128,             /* of a block, rather: many small blocks hide each other's merges */
    WHOLE_PLANES = 8,          /* of a block with a whole image */
    MOST_THREADS = 512,        /* of a block, rather */
    MOST_TILE = 112,           /* pixels of a tile that is not shifted */
    MOST_EACH = 16,            /* channels whose sums a thread keeps in registers */
    FORWARD_EACH = 64,         /* channels of a thread, where threads are left */
    SHARED_EACH = 32,          /* of a cluster's thread (forward) */
    LINES_EACH = 16,           /* lines of several channels of a thread, rather (forward) */
    LIGHT_EACH = 8,            /* channels of a thread that needs 72 registers (backward) */
    FORWARD_THREADS = 1024,    /* in a multiprocessor: 64 registers each */
    BACKWARD_THREADS = 448,    /* up to 144 registers each */
    BACKWARD_MANY_THREADS = 512,
    MANY_CHANNELS = 64,  /* fewest of a tile with twice the threads (backward) */
    MANY_EACH = 10,      /* of its channels a thread sums in 128 registers */
    LINE_CHANNELS = 256, /* of a block in a cluster whose tiles are lines of 16 bits (backward) */
    LIGHT_THREADS = 832,
    LINES_SUMMED = 13,         /* lines of several channels that a thread sums (backward); */
    LINES_FEW = 10,            /* by other assemblers than those of sm_90 and sm_100, */
    LINES_THREADS = 512,       /* in a multiprocessor: 128 registers each, */
    LIGHT_LINES_THREADS = 768, /* of fewer lines of 16 bits */
    ALIKE = 8,                 /* channels of a shifted tile, of which every eighth begins alike */
    SHIFTED_TILE = 64,         /* pixels of such a tile at most; twice as many in the forward of */
    SHIFTED_MANY = 128,        /* more channels than these */
    SHIFTED_FORWARD = 32,      /* channels of a thread of it (forward) */
    SHIFTED_FORWARD_THREADS = 1536, /* in a multiprocessor */
};

/* What a channel of a shifted tile costs beside its pixels, in pixels. */
static const double SHIFT_COST = 10;

/* Bytes of an element that is held in shared memory. */
static int held_bytes(const int32_t *c) {
    return constant_bytes(c, C_X_TYPE) +
           (c[C_PASS] == PLANISH_BACKWARD ? constant_bytes(c, C_G_TYPE) : 0);
}

static bool fits(const cuda_plan *plan) {
    return channels_shared_bytes(&plan->main) + 256 <= (size_t)plan->limits.shared_per_block;
}

/* Neighbouring pixels of a thread. */
static int width_of(int pixels, int wanted) {
    while (pixels % wanted)
        wanted /= 2;
    return wanted;
}

static int lanes_of(const int32_t *c) {
    return c[C_ROWS] * c[C_TILE] / c[C_WIDTH];
}

/* Planes of threads over a block's channels, of which the fewest a block has are `fewest`, in at
 * most `threads`; false: more threads than that, or (backward) than `each` channels in one. */
static bool set_planes(int32_t *c, int planes, int fewest, int each, int threads) {
    const bool backward = c[C_PASS] == PLANISH_BACKWARD;
    const int rows = c[C_ROWS], lanes = lanes_of(c), depth = c[C_DEPTH] / rows;
    planes = most(planes, ceil_div(depth, backward ? each : FORWARD_EACH));
    planes = least(planes, least(fewest / rows, most(1, threads / lanes)));
    if (backward && ceil_div(depth, planes) > each)
        return false;
    c[C_LANES] = lanes;
    c[C_PLANES] = planes;
    c[C_WARPS] = ceil_div(lanes * planes, 32);
    return c[C_WARPS] <= threads / 32;
}

/* Neighbouring pixels of a thread of a tile: two that are shifted. */
static int tile_width(const int32_t *c, int wanted) {
    return channels_is_shifted(c) ? 2 : width_of(c[C_PIXELS], wanted);
}

/* Planes over channels that begin alike. */
static int shifted_planes(const int32_t *c, int each) {
    return ceil_div(ceil_div(c[C_DEPTH], each), ALIKE) * ALIKE;
}

/* Lines of as many channels as make whole chunks of pixels for the threads of an image. */
static void set_lines(int32_t *c) {
    int rows = 1;
    while (rows * c[C_PIXELS] % 4)
        rows *= 2;
    c[C_ROWS] = c[C_PIXELS] >= 4 && c[C_COLS] % rows == 0 ? rows : 1;
}

/* Shares the channels between the blocks of a cluster; returns the fewest a block has. */
static int share_channels(int32_t *c, int cluster) {
    const int channels = c[C_COLS], depth = ceil_div(ceil_div(channels, cluster), 8) * 8;
    c[C_CLUSTER] = cluster;
    c[C_DEPTH] = cluster > 1 ? depth : channels;
    return channels - (cluster - 1) * c[C_DEPTH];
}

static int64_t part_bytes(const int32_t *c) {
    return (int64_t)c[C_DEPTH] * c[C_TILE] * held_bytes(c);
}

/* Whether a block has a large part of f32, of which a multiprocessor holds one or two (forward). */
static bool is_large(const int32_t *c) {
    return c[C_PASS] == PLANISH_FORWARD && c[C_ROWS] == 1 &&
           part_bytes(c) > (c[C_CLUSTER] == 1 ? ALONE_BYTES : WHOLE_BYTES);
}

/* Planes over a whole image's part in a forward block. */
static bool set_forward_planes(int32_t *c, int fewest) {
    if (is_large(c))
        return set_planes(c, WHOLE_PLANES / 2, fewest, 0, MOST_THREADS);
    const int lines = c[C_DEPTH] / c[C_ROWS], wanted = ceil_div(lines, SHARED_EACH);
    if (c[C_CLUSTER] > 1 && wanted > WHOLE_PLANES)
        return set_planes(c, ceil_div(wanted, 4) * 4, fewest, 0, 2 * MOST_THREADS);
    const bool alone = c[C_CLUSTER] == 1;
    const int each = c[C_ROWS] > 1 ? lines / LINES_EACH : (lines + MOST_EACH / 2) / MOST_EACH;
    const int planes = alone ? most(2, least(each, WHOLE_PLANES)) : WHOLE_PLANES;
    return set_planes(c, planes, fewest, 0, MOST_THREADS);
}

/* Whether a tile has twice the threads: whole lines of 16-bit pixels in the backward, which has few
 * blocks to a multiprocessor. */
static bool has_many(const int32_t *c) {
    return c[C_PASS] == PLANISH_BACKWARD && c[C_TILE] == 64 && c[C_TILE] != c[C_PIXELS] &&
           constant_bytes(c, C_X_TYPE) == 2 && c[C_COLS] >= MANY_CHANNELS;
}

/* Threads of a multiprocessor, by the registers they need. */
static int threads_of(const int32_t *c) {
    const int each = ceil_div(c[C_DEPTH] / c[C_ROWS], c[C_PLANES]);
    if (c[C_PASS] == PLANISH_FORWARD)
        return channels_is_shifted(c) ? SHIFTED_FORWARD_THREADS : FORWARD_THREADS;
    if (((has_many(c) && each <= MANY_EACH) || channels_is_shifted(c)) && c[C_CLUSTER] == 1)
        return BACKWARD_MANY_THREADS;
    if (c[C_ROWS] > 1)
        return each < LIGHT_EACH && constant_bytes(c, C_X_TYPE) == 2 ? LIGHT_LINES_THREADS
                                                                     : LINES_THREADS;
    return c[C_TILE] == c[C_PIXELS] && each <= LIGHT_EACH ? LIGHT_THREADS : BACKWARD_THREADS;
}

/* Blocks of a multiprocessor that has so many threads. */
static int blocks_of(const cuda_plan *plan, int threads) {
    const int room = plan->limits.shared_per_block + 1024;
    const int fit = room / ((int)channels_shared_bytes(&plan->main) + 1280);
    return most(1, least(fit, threads / (32 * plan->main.constant[C_WARPS])));
}

/* Planes over lines of several channels in a block that has them all (backward): the fewest of
 * those with the most threads in a multiprocessor that have something to do. */
static bool set_planes_of_lines(cuda_plan *plan) {
    int32_t *c = plan->main.constant;
    const int lanes = lanes_of(c), lines = c[C_DEPTH] / c[C_ROWS];
    const int largest = least(lines, MOST_THREADS / lanes), arch = plan->limits.arch;
    const int summed = arch == 90 || arch == 100 ? LINES_SUMMED : LINES_FEW;
    int best = 0, best_planes = 0;
    c[C_LANES] = lanes;
    for (int planes = ceil_div(lines, summed); planes <= largest; planes++) {
        c[C_PLANES] = planes;
        c[C_WARPS] = ceil_div(lanes * planes, 32);
        const int busy = blocks_of(plan, LINES_THREADS) * lanes * planes;
        if (busy > best && fits(plan)) {
            best = busy;
            best_planes = planes;
        }
    }
    c[C_PLANES] = best_planes;
    c[C_WARPS] = ceil_div(lanes * best_planes, 32);
    return best > 0;
}

/* The same in the backward: a large part has its multiprocessor alone. */
static bool set_backward_planes(cuda_plan *plan, int fewest, int each) {
    int32_t *c = plan->main.constant;
    if (c[C_CLUSTER] == 1 && c[C_ROWS] > 1)
        return set_planes_of_lines(plan);
    if (c[C_CLUSTER] == 1 && part_bytes(c) <= ALONE_BYTES)
        return set_planes(c, WHOLE_PLANES, fewest, each, MOST_THREADS);
    return set_planes(c, MOST_THREADS / lanes_of(c), fewest, 2 * MOST_EACH, MOST_THREADS);
}

/* Whether a block takes as much of a whole image as it may: forward blocks are the more in number
 * the less each has; a backward block has what it can hold, but for lines of several channels. Not
 * where messages would be much beside it. */
static bool may_hold(const int32_t *c) {
    const bool forward = c[C_PASS] == PLANISH_FORWARD;
    const bool large = forward && constant_bytes(c, C_X_TYPE) == 4 && c[C_ROWS] == 1;
    if (c[C_CLUSTER] == 1)
        return part_bytes(c) <= (large ? LARGE_BYTES : ALONE_BYTES) || !forward;
    if (3 * channels_message_bytes(c) > part_bytes(c))
        return false;
    return !forward || part_bytes(c) <= (large ? LARGE_BYTES : WHOLE_BYTES);
}

/* The whole image in a block or in the smallest cluster that may hold it; single blocks of the
 * backward have a ring where two images fit. */
static bool whole_image(cuda_plan *plan, int each) {
    static const int clusters[] = {1, 2, 3, 4, 6, 8, 16};
    int32_t *c = plan->main.constant;
    const bool backward = c[C_PASS] == PLANISH_BACKWARD;
    const int largest = least(plan->limits.max_cluster, backward ? 16 : 8);
    c[C_TILE] = c[C_PIXELS];
    c[C_STAGES] = 1;
    set_lines(c);
    for (size_t i = 0; i < sizeof clusters / sizeof *clusters && clusters[i] <= largest; i++) {
        const int fewest = share_channels(c, clusters[i]);
        if (fewest < least(8, c[C_COLS]) || !may_hold(c))
            continue;
        /* Fewer planes of more threads have fewer sums. */
        c[C_WIDTH] = width_of(c[C_ROWS] * c[C_PIXELS], is_large(c) ? 2 : 4);
        if (!(backward ? set_backward_planes(plan, fewest, each) : set_forward_planes(c, fewest)) ||
            !fits(plan))
            continue;
        c[C_STAGES] = backward && clusters[i] == 1 && c[C_ROWS] == 1 ? 2 : 1;
        if (!fits(plan))
            c[C_STAGES] = 1;
        return true;
    }
    c[C_ROWS] = 1;
    return false;
}

/* Planes of such a tile, in warps that a multiprocessor's four schedulers share alike. */
static int many_planes(const int32_t *c, int each) {
    const int lanes = c[C_TILE] / c[C_WIDTH], step = most(1, THREADS / lanes);
    return ceil_div(most(2 * step, ceil_div(c[C_COLS], each)), step) * step;
}

/* Whether it is of f32 in the backward, of many channels, of which a ring of two lines fits: such
 * do best with all of a multiprocessor's memory. */
static bool is_wide(const int32_t *c) {
    return c[C_PASS] == PLANISH_BACKWARD && held_bytes(c) == 2 * (int)sizeof(float) &&
           c[C_COLS] >= MANY_CHANNELS &&
           2 * LINE / (int)sizeof(float) * c[C_COLS] * held_bytes(c) <= WIDE_BYTES;
}

/* Planes of such a tile: more where its block has the multiprocessor alone. */
static int wide_planes(const int32_t *c) {
    const int each = ceil_div(c[C_DEPTH], LIGHT_EACH);
    const int bytes = 2 * c[C_TILE] * c[C_DEPTH] * held_bytes(c);
    return 2 * bytes > WIDE_BYTES ? most(each, WIDE_PLANES) : each;
}

/* The most pixels of a tile that are of use, as measured. */
static int most_pixels(const int32_t *c) {
    if (!channels_is_shifted(c))
        return MOST_TILE;
    const bool wide = c[C_PASS] == PLANISH_FORWARD && c[C_COLS] > SHIFTED_MANY;
    return wide ? 2 * SHIFTED_TILE : SHIFTED_TILE;
}

/* Idle lanes, more than fits several times, and segments below full speed. */
static double cost_of_tile(const int32_t *c) {
    const int tile = c[C_TILE], pixels = c[C_PIXELS];
    const double bytes = (double)c[C_STAGES] * c[C_COLS] * tile * held_bytes(c);
    const bool shifted = channels_is_shifted(c), forward = c[C_PASS] == PLANISH_FORWARD;
    const bool many = (has_many(c) || shifted) && c[C_STAGES] == 2;
    const double room = forward      ? FORWARD_BYTES
                        : is_wide(c) ? WIDE_BYTES
                        : many       ? MANY_BYTES
                                     : BACKWARD_BYTES;
    const bool narrow = tile * constant_bytes(c, C_X_TYPE) < (is_wide(c) ? LINE : 2 * SECTOR);
    if (shifted) /* the pieces at a channel's ends */
        return (double)ceil_div(pixels, tile) * tile / pixels * (bytes > room ? bytes / room : 1) *
               (1 + SHIFT_COST / tile);
    const bool by_elements = pixels * constant_bytes(c, C_X_TYPE) % 4;
    /* Lines of f32 are nearly as good as two of them; of the backward's other tiles, the larger. */
    const bool line =
        forward && tile == 32 && constant_bytes(c, C_X_TYPE) == 4 && c[C_COLS] >= MANY_CHANNELS;
    const double wide = 1.1 - .001 * least(tile, 64);
    const double shape = tile == 64 ? 1 : line ? 1.03 : is_wide(c) && !narrow ? wide : 1.1;
    const bool single = is_wide(c) && c[C_STAGES] == 1;
    /* Lines of f32 that go on are no better for it, as measured. */
    const bool spanning = channels_is_spanning(c) && constant_bytes(c, C_X_TYPE) == 2;
    const double idle = spanning ? 1 : (double)ceil_div(pixels, tile) * tile / pixels;
    return idle * (bytes > room ? bytes / room : 1) * (narrow ? 1.4 : 1) * shape *
           (by_elements ? 1.4 : 1) * (single ? 1.5 : 1);
}

/* Some pixels of an image in a block. */
static bool some_pixels(cuda_plan *plan, int each) {
    static const int tiles[] = {64, 32, 112, 96, 80, 48, 40, 16, 8, 4, 128};
    int32_t *c = plan->main.constant;
    const bool backward = c[C_PASS] == PLANISH_BACKWARD;
    double best_cost = 0;
    cuda_spec best = plan->main;
    bool found = false;
    c[C_CLUSTER] = 1;
    c[C_DEPTH] = c[C_COLS];
    for (size_t i = 0; i < sizeof tiles / sizeof *tiles; i++) {
        c[C_TILE] = tiles[i];
        /* Fewer threads of more pixels, so that each has few channels to sum. */
        const bool eight = backward && tiles[i] == 32 && constant_bytes(c, C_X_TYPE) == 2;
        c[C_WIDTH] = tile_width(c, eight ? 8 : 4);
        c[C_STAGES] = backward ? 2 : 1;
        const bool shifted = channels_is_shifted(c);
        const int planes = shifted       ? shifted_planes(c, backward ? each : SHIFTED_FORWARD)
                           : is_wide(c)  ? wide_planes(c)
                           : has_many(c) ? many_planes(c, each)
                                         : most(1, THREADS * c[C_WIDTH] / tiles[i]);
        const bool sectors = tiles[i] != 40 || constant_bytes(c, C_X_TYPE) == 4;
        if (tiles[i] == c[C_PIXELS] || tiles[i] > most_pixels(c) || !sectors ||
            !set_planes(c, planes, c[C_COLS], each, MOST_THREADS) ||
            (shifted && c[C_PLANES] % ALIKE && c[C_COLS] >= ALIKE))
            continue;
        if (!fits(plan))
            c[C_STAGES] = 1;
        if (!fits(plan))
            continue;
        const double cost = cost_of_tile(c);
        if (!found || cost < best_cost) {
            found = true;
            best_cost = cost;
            best = plan->main;
        }
    }
    plan->main = best;
    return found;
}

/* Pixels that a cluster shares: of about `wanted`, so that the last tile is not nearly empty. */
static int shared_tile(const int32_t *c, int wanted) {
    const int bytes = constant_bytes(c, C_X_TYPE), pixels = c[C_PIXELS];
    const int unit = pixels * bytes % SECTOR ? 4 : SECTOR / bytes;
    return ceil_div(ceil_div(pixels, ceil_div(pixels, wanted)), unit) * unit;
}

/* Whether blocks of a cluster have rings of whole lines of 16-bit pixels, of equal parts of many
 * channels (backward). */
static bool share_lines(const int32_t *c) {
    const int parts = c[C_COLS] / LINE_CHANNELS;
    return c[C_PASS] == PLANISH_BACKWARD && held_bytes(c) == 4 && c[C_COLS] % LINE_CHANNELS == 0 &&
           (parts == 2 || parts == 4 || parts == 8) && c[C_PIXELS] * 2 % SECTOR == 0;
}

/* Some pixels of an image in the smallest cluster whose blocks have small parts of them. */
static bool shared_pixels(cuda_plan *plan) {
    int32_t *c = plan->main.constant;
    const bool backward = c[C_PASS] == PLANISH_BACKWARD;
    const bool ring = backward && c[C_PIXELS] * constant_bytes(c, C_X_TYPE) % SECTOR == 0;
    c[C_TILE] = shared_tile(c, ring && !share_lines(c) ? 32 : 64);
    c[C_WIDTH] = tile_width(c, 4);
    c[C_STAGES] = ring ? 2 : 1;
    if (c[C_TILE] >= c[C_PIXELS])
        return false;
    for (int cluster = 2; cluster <= plan->limits.max_cluster; cluster *= 2) {
        const int fewest = share_channels(c, cluster);
        const int each = backward ? MOST_EACH : SHARED_EACH;
        if (fewest >= 8 && part_bytes(c) <= ALONE_BYTES &&
            set_planes(c, ceil_div(c[C_DEPTH], each), fewest, each, MOST_THREADS) && fits(plan))
            return true;
    }
    return false;
}

/* Tiles of fewer pixels than make two sectors (one in the backward) are shared instead. */
static bool tiles(cuda_plan *plan, int each) {
    const int32_t *c = plan->main.constant;
    if (share_lines(c) && shared_pixels(plan))
        return true;
    const bool found = some_pixels(plan, each);
    if (found && c[C_TILE] >= (c[C_PASS] == PLANISH_FORWARD ? 32 : 16))
        return true;
    const cuda_spec narrow = plan->main;
    if (shared_pixels(plan))
        return true;
    plan->main = narrow;
    return found;
}

static bool set_geometry(cuda_plan *plan, int each) {
    const int32_t *c = plan->main.constant;
    const bool few = c[C_PIXELS] < FEW_PIXELS || c[C_PIXELS] * constant_bytes(c, C_X_TYPE) % SECTOR;
    return (few && whole_image(plan, each)) || tiles(plan, each) || whole_image(plan, each);
}

bool channels_set_geometry(cuda_plan *plan) {
    int32_t *c = plan->main.constant;
    c[C_STAGES] = c[C_ROWS] = 1;
    if (!set_geometry(plan, MOST_EACH) && !set_geometry(plan, 2 * MOST_EACH))
        return false;
    c[C_MIN_BLOCKS] = blocks_of(plan, threads_of(c));
    return true;
}
