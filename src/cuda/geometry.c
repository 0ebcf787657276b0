/*
 * Problem -> plan: which kernel, with which constants. Everything here follows from the row length,
 * the dtypes and the device's limits; the number of rows only sets the size of the grid, so a row's
 * result cannot depend on it. The figures are from measurements (docs/notebook-gpu.md).
 */
#include "geometry.h"

#include <stdio.h>
#include <string.h>

#include "backend.h"
#include "channels.h"
#include "finish.h"
#include "general.h"
#include "groups.h"
#include "integers.h"

enum {
    FORWARD_ELEMENTS = 32,        /* a thread holds of its rows */
    FORWARD_MOST_LANES = 1024,    /* of a row in one block */
    FORWARD_DIRECT_LANES = 256,   /* the same, without a ring */
    FORWARD_MOST_VECS = 6,        /* of 16 bits, with all of FORWARD_DIRECT_LANES */
    FORWARD_THREE_LANES = 320,    /* of 16 bits, without a ring: three blocks */
    FORWARD_SHORT_LANES = 512,    /* the same: two blocks */
    FORWARD_TURNS = 2,            /* rows a team takes with a ring, where there are enough */
    FORWARD_THREADS = 1024,       /* in a multiprocessor: 64 registers each */
    FORWARD_MANY_THREADS = 1536,  /* the same, with up to two chunks each */
    FORWARD_NARROW_THREADS = 768, /* the same, rows within warps */
    FORWARD_WARPS = 4,            /* of a block whose rows are within warps */
    CENTRED_COLS = 512,           /* longest row that is (centred_words.cu) */
    CENTRED_ELEMENTS = 32,        /* a thread holds of it */
    CENTRED_ALL_ELEMENTS = 64,    /* of all its rows */
    CENTRED_ROWS = 4,             /* of a thread */
    CENTRED_WARPS = 2,            /* of a block */
    CENTRED_THREADS = 512,        /* in a multiprocessor */
    CENTRED_MANY_THREADS = 640,   /* the same, of fewer elements or addresses */
    SEGMENT_BYTES = 64,           /* shortest run of bytes at full speed */
    BACKWARD_THREADS = 512,
    BACKWARD_FEW_THREADS = 384,    /* with BACKWARD_MOST_ELEMENTS */
    BACKWARD_ELEMENTS = 16,        /* columns a thread sums */
    BACKWARD_MOST_ELEMENTS = 32,   /* the same, for rows that fill a cluster of 16 */
    BACKWARD_BLOCK_COLS = 2048,    /* of a row in one block, where clusters are */
    BACKWARD_CLUSTER_COLS = 8192,  /* shortest row for a cluster */
    BACKWARD_SPREAD_COLS = 2560,   /* longest row that is left as it is by improve_spread */
    BACKWARD_HOLD_COLS = 131072,   /* longest row that is read from the ring twice */
    LONG_WARPS = 8,                /* of a block of the kernels for long rows */
    LONG_BLOCKS = 4,               /* of these in a multiprocessor */
    BACKWARD_IN_FLIGHT = 46 << 10, /* bytes under way in a multiprocessor; more is slower */
    GROUP_ROW_CHUNKS = 1536,       /* longest row of a group in registers */
    GROUP_ROW_THREADS = 1344,      /* in a multiprocessor, of longer ones */
    GROUP_ROW_BLOCKS = 3,          /* in a multiprocessor, of longer ones, rather than more */
    GROUP_ROW_VECS = 7,            /* chunks of a thread, the same */
    WIDE_BACKWARD_COLS = 65537,    /* shortest row for groups of blocks */
    WIDE_VECS = 4,                 /* chunks a thread holds weights of */
    WIDE_SUMMED_VECS = 2,          /* chunks a thread sums columns of, 16 bits */
    WIDE_F32_VECS = 3,             /* the same, f32 */
    WIDE_THREADS = 512,            /* in a multiprocessor */
    WIDE_STAGES = 6,               /* rows in a ring */
    WIDE_FEW_STAGES = 4,           /* the same, where an exchange takes two turns */
};

/* Lanes, in whole warps, that take `vecs` chunks each. */
static int in_warps(int chunks, int vecs) {
    return 32 * ceil_div(chunks, 32 * vecs);
}

unsigned cuda_spec_threads(const cuda_spec *s) {
    if (s->kernel == CUDA_FINISH)
        return 32u * (unsigned)s->constant[C_SLICES];
    const int exchanges =
        s->constant[C_GROUP] > 1 && s->kernel != CUDA_STRIPS; /* a warp of its own */
    return 32u * (unsigned)(s->constant[C_WARPS] + exchanges);
}

int64_t cuda_plan_groups(const cuda_plan *plan) {
    const int32_t *c = plan->wide.constant;
    int64_t n = (int64_t)plan->limits.multiprocessors * c[C_MIN_BLOCKS] / c[C_GROUP];
    if (n > plan->rows)
        n = plan->rows;
    return n > 0 ? n : 1;
}

size_t cuda_spec_mail_bytes(const cuda_spec *s) {
    const int32_t *c = s->constant;
    /* Words of an entry and lines of a group, as the kernels have them. */
    int x_bytes = constant_bytes(c, C_X_TYPE);
    int is_forward = s->kernel == CUDA_FORWARD, in_double = is_forward && x_bytes == 4;
    size_t words = in_double ? 6 : 4, lines = is_forward ? 2 : 1;
    return 8 * words * lines * (size_t)c[C_GROUP] * (size_t)(2 * c[C_DELAY] + 2);
}

size_t cuda_plan_workspace(const cuda_plan *plan) {
    const int32_t *c = plan->main.constant;
    size_t row = (size_t)plan->cols * (size_t)(c[C_WANT_DWEIGHT] + c[C_WANT_DBIAS]) * real_bytes(c);
    size_t bytes = (size_t)plan->partials * row;
    if (plan->main.kernel == CUDA_APPLY)
        bytes += (size_t)plan->rows * 4 * real_bytes(c) *
                 (size_t)((plan->cols + CUDA_LONG_PIECE - 1) / CUDA_LONG_PIECE);
    if (plan->wide.kernel >= 0) {
        size_t wide = (size_t)cuda_plan_groups(plan) * (cuda_spec_mail_bytes(&plan->wide) + row);
        bytes = bytes > wide ? bytes : wide;
    }
    return bytes;
}

size_t cuda_spec_shared_bytes(const cuda_spec *s) {
    const int32_t *c = s->constant;
    if (s->kernel == CUDA_CHANNELS)
        return channels_shared_bytes(s);
    if (cuda_spec_is_groups(s))
        return groups_shared_bytes(s);
    size_t threads = 32 * (size_t)c[C_WARPS], vecs = (size_t)c[C_VECS];
    size_t x = (size_t)c[C_WIDTH] * (size_t)constant_bytes(c, C_X_TYPE);
    if (s->kernel == CUDA_FORWARD) {
        int slots = c[C_HOLD] == 1 && c[C_GROUP] == 1 ? 1 : c[C_HOLD] == 2 ? 0 : c[C_STAGES];
        return (size_t)slots * (size_t)c[C_ROWS] * threads * vecs * x;
    }
    if (s->kernel == CUDA_BACKWARD) {
        size_t g = (size_t)c[C_WIDTH] * (size_t)constant_bytes(c, C_G_TYPE);
        size_t w = (size_t)c[C_WIDTH] * (size_t)constant_bytes(c, C_W_TYPE);
        size_t ring = (size_t)c[C_STAGES] * (size_t)c[C_ROWS] * vecs * threads * (x + g);
        if (c[C_HOLD] == 1 && c[C_STAGES] && c[C_GROUP] == 1)
            ring += vecs * threads * w;
        size_t sums =
            (size_t)c[C_TEAMS] * (size_t)c[C_LANES] * vecs * (size_t)c[C_WIDTH] * real_bytes(c);
        size_t all = 32 * 8 * (size_t)c[C_WARPS]; /* where the blocks add them up themselves */
        if (sums < all)
            sums = all;
        if (!c[C_WANT_DWEIGHT] && !c[C_WANT_DBIAS])
            sums = 0;
        return ring > sums ? ring : sums;
    }
    return 0;
}

int cuda_spec_rows_at_a_time(const cuda_spec *s) {
    const int32_t *c = s->constant;
    if (c[C_LANES] <= 32)
        return c[C_WARPS] * (32 / c[C_LANES]) * c[C_ROWS];
    if (c[C_GROUP] > 1)
        return 1;
    return s->kernel == CUDA_BACKWARD ? c[C_TEAMS] : s->kernel == CUDA_FORWARD ? c[C_ROWS] : 1;
}

/* Elements of a chunk: a power of two that divides the row, at most 16 bytes of `bytes` each. */
static int chunk_width(int64_t cols, int bytes, int most_elements) {
    int width = least(16 / bytes, most_elements);
    while (cols % width)
        width /= 2;
    return width;
}

/*
 * Lanes and chunks of a row that fits a warp, by the least work per row: `fixed` instructions for
 * the exchange, `each` for an element, over the rows a warp takes at once. 0 if none fits.
 */
static int lanes_within_warp(int chunks, int width, int chunk_bytes, int most_elements, int roomy,
                             int fixed, int each, int *vecs) {
    int fewest = least(chunks, least(32, ceil_div(SEGMENT_BYTES, chunk_bytes)));
    int best = 0;
    double best_cost = 0;
    for (int lanes = fewest; lanes <= 32; lanes++) {
        int v = ceil_div(chunks, lanes);
        if (v * width > most_elements || (v > 1 && (v - 1) * lanes >= chunks))
            continue;
        double uneven = lanes & (lanes - 1) ? 1.1 : 1.0; /* longer trees */
        /* Many columns in a thread take its registers, and so warps. */
        double crowded = v * width <= roomy ? 1 : v * width <= roomy * 3 / 2 ? 1.15 : 1.125;
        const int rows_of_warp = 32 / lanes;
        double cost = crowded * (fixed * uneven + each * v * width) / rows_of_warp;
        if (!best || cost < best_cost) {
            best = lanes;
            best_cost = cost;
            *vecs = v;
        }
    }
    return best;
}

/* Lanes (whole warps) of a block that shares a row with cluster - 1 others, and chunks per lane. */
static int lanes_of_block(int chunks, int width, int cluster, int most_elements, int most_lanes,
                          int *vecs) {
    int most_vecs = most(1, most_elements / width);
    int fewest = ceil_div(chunks, cluster * most_vecs * 32), best = 0;
    double best_cost = 0;
    for (int warps = most(fewest, 1); warps <= most_lanes / 32 && warps <= 2 * fewest; warps++) {
        int v = ceil_div(chunks, cluster * warps * 32);
        double waste = (double)v * cluster * warps * 32 / chunks;
        double cost = waste + 0.01 * (warps - fewest);
        if (!best || cost < best_cost) {
            best = 32 * warps;
            best_cost = cost;
            *vecs = v;
        }
    }
    return best;
}

/* The same for whole chunks of 16-bit rows in a block, as measured; 0: too long. Full warps of four
 * chunks each do best; fewer than three warps a block do not, and from 10240 to 12288 columns
 * blocks of more chunks do better than fewer of more threads. */
static int lanes_of_short_row(int chunks, int *vecs) {
    int least_lanes = chunks <= 192 ? 96 : 128, lanes = most(least_lanes, in_warps(chunks, 4));
    if (lanes > FORWARD_THREE_LANES && chunks <= FORWARD_DIRECT_LANES * FORWARD_MOST_VECS)
        lanes = FORWARD_DIRECT_LANES;
    *vecs = ceil_div(chunks, lanes);
    return lanes <= FORWARD_SHORT_LANES ? lanes : 0;
}

/* A few chunks: a lane for each. Else a power of two of lanes, so that as few as possible go
 * without a chunk; of two such, the more lanes (bench/results/gpu-7/centred-lanes.csv has every
 * number of chunks). */
static void centred_geometry(int32_t *c, int chunks, int arch) {
    const int width = c[C_WIDTH], fewest = SEGMENT_BYTES / (2 * width);
    int lanes = least(chunks, 32), vecs = ceil_div(chunks, lanes), slots = 0;
    for (int l = fewest; chunks > 5 && l <= 32; l *= 2) {
        const int v = ceil_div(chunks, l);
        if (v * width > CENTRED_ELEMENTS || (v == 1 && l != chunks) || (slots && l == 32))
            continue;
        if (!slots || l * v <= slots) {
            lanes = l;
            vecs = v;
            slots = l * v;
        }
    }
    const int elements = vecs * width;
    /* Narrow chunks take registers for their addresses. */
    const int few = vecs <= 2 || (width == 8 && vecs == 3 && arch >= 90);
    c[C_LANES] = lanes;
    c[C_VECS] = vecs;
    c[C_WARPS] = CENTRED_WARPS;
    c[C_ROWS] = least(width == 8 || vecs <= 2 ? CENTRED_ROWS
                      : vecs <= 8             ? 2
                                              : 1,
                      CENTRED_ALL_ELEMENTS / elements);
    c[C_MIN_BLOCKS] = (few && elements * c[C_ROWS] < CENTRED_ALL_ELEMENTS ? CENTRED_MANY_THREADS
                                                                          : CENTRED_THREADS) /
                      (32 * CENTRED_WARPS);
}

static void forward_geometry(cuda_plan *plan, int cols, int x_bytes, int is_double,
                             const cuda_limits *limits) {
    int32_t *c = plan->main.constant;
    int wide_range = c[C_X_TYPE] == DTYPE_F32 || c[C_X_TYPE] == DTYPE_BF16;
    int elements = is_double ? 8 : x_bytes == 4 ? FORWARD_ELEMENTS / 2 : FORWARD_ELEMENTS;
    int width = chunk_width(cols, x_bytes, is_double ? 4 : 8), chunks = cols / width, vecs = 1;
    int in_shared = 0;
    c[C_WIDTH] = width;
    c[C_CLUSTER] = c[C_ROWS] = 1;
    c[C_HOLD] = 0;
    if (x_bytes == 2 && !is_double && !c[C_GROUPS] && cols <= CENTRED_COLS) {
        centred_geometry(c, chunks, limits->arch);
        return;
    }
    int lanes = lanes_within_warp(chunks, width, width * x_bytes, elements, elements, 40, 8, &vecs);
    if (lanes) {
        if (lanes == 8 && vecs == 4 && x_bytes == 2)
            lanes = ceil_div(chunks, vecs); /* 7: no lane without a chunk */
        c[C_WARPS] = FORWARD_WARPS;
        /* Several rows at once until each thread has its share of loads under way. */
        /* The scaled sums of types that leave float's range take registers of their own. */
        c[C_ROWS] = most(1, least(wide_range ? 2 : 4, elements / (vecs * width)));
    } else {
        int cluster = 1;
        if (x_bytes == 2 && width == 8 && !is_double)
            lanes = lanes_of_short_row(chunks, &vecs);
        if (lanes > FORWARD_THREE_LANES && chunks < 4 * FORWARD_SHORT_LANES && !wide_range) {
            /* In shared memory, which leaves registers for more blocks. */
            c[C_HOLD] = in_shared = 1;
            lanes = chunks <= 5 * FORWARD_THREE_LANES ? FORWARD_THREE_LANES : FORWARD_SHORT_LANES;
            vecs = ceil_div(chunks, lanes);
        }
        if (!lanes)
            lanes = lanes_of_block(chunks, width, 1, elements, FORWARD_MOST_LANES, &vecs);
        while (!lanes && cluster < limits->max_cluster)
            lanes =
                lanes_of_block(chunks, width, cluster *= 2, elements, FORWARD_MOST_LANES, &vecs);
        if (!lanes) {
            lanes = 512;
            vecs = ceil_div(chunks, cluster * lanes);
            int room = limits->shared_per_block - (20 << 10); /* less the exchange's */
            c[C_HOLD] = width * x_bytes >= 4 && vecs <= room / (lanes * width * x_bytes) ? 1 : 2;
        }
        c[C_WARPS] = lanes / 32;
        c[C_CLUSTER] = cluster;
    }
    c[C_LANES] = lanes;
    c[C_VECS] = vecs;
    /* As many blocks as registers allow without a spill: what is exposed of a row's exchange is
     * hidden by other rows, so this is worth more than anything else here. */
    int threads = FORWARD_THREADS;
    const int halves = x_bytes == 2 && width == 8 && !wide_range; /* in whole chunks */
    const int whole_warp = limits->arch >= 90 && lanes == 32 && halves;
    /* Rows of 104 to 256 and of 512 columns do better without a ring, and those of 128, 256 and
     * 512, where no lane waits for another's chunks, in more blocks. */
    const int full = halves && vecs * lanes == chunks && !(lanes & (lanes - 1));
    const int quarter = lanes >= 4 && lanes <= (full ? 16 : 8) && x_bytes == 2 && width == 8 &&
                        vecs * width == elements && limits->arch >= 89 && limits->arch < 100;
    const int even = quarter && full;
    if (x_bytes == 2 && width == 8 && lanes > 32 && vecs <= 2)
        threads = FORWARD_MANY_THREADS;
    else if (in_shared)
        threads = lanes == FORWARD_SHORT_LANES ? FORWARD_MANY_THREADS : 4 * lanes;
    else if (even || (vecs == 1 && lanes < 32 && halves && limits->arch < 100))
        threads = FORWARD_THREADS;
    else if (c[C_HOLD] || is_double || width * x_bytes < 4)
        threads = 512;
    else if (width * x_bytes < 16)
        threads = 640;
    else if (vecs * width > elements || (lanes <= 32 && !whole_warp))
        threads = FORWARD_NARROW_THREADS;
    /* A ring where few rows are under way in a multiprocessor; else its slots cost more than the
     * wait they save. */
    const int direct = x_bytes == 2 && width == 8 ? FORWARD_SHORT_LANES : FORWARD_DIRECT_LANES;
    c[C_STAGES] =
        c[C_HOLD] == 0 && width * x_bytes >= 4 && !is_double &&
        (lanes > direct || (lanes <= 32 && vecs * width >= elements && !whole_warp && !quarter));
    /* Without Hopper's addressing the ring takes a few registers more. */
    if (limits->arch < 90 && lanes > FORWARD_DIRECT_LANES) {
        threads = 512;
        c[C_STAGES] = c[C_STAGES] && lanes <= 512;
    }
    /* One block in a multiprocessor is not to be started anew. */
    plan->turns = in_shared                                          ? 1
                  : c[C_STAGES] && c[C_CLUSTER] == 1 && lanes <= 512 ? FORWARD_TURNS
                                                                     : 0;
    c[C_MIN_BLOCKS] = most(1, least(16, threads / (32 * c[C_WARPS])));
}

/*
 * How a row of the backward is spread: over `cluster` blocks, in each over `lanes` threads that
 * take `vecs` chunks, by as many teams of a block as registers allow.
 */
typedef struct spread {
    int cluster, lanes, vecs, threads; /* threads: the most of a block, over all its teams */
} spread;

/* What a multiprocessor has under way at once, less what lanes without a chunk cost. The time that
 * is left over the memory's own goes with its inverse (docs/notebook-gpu.md, run 14). */
static double spread_score(const spread *s, int chunks) {
    const int teams = s->threads / s->lanes;
    const double part = (double)chunks / s->cluster;
    return teams * part * (1 + part / (s->lanes * s->vecs)) * (teams > 1 ? 1.02 : 1);
}

/* Four teams of 128 lanes, or five of 96, over clusters of a few blocks, where they leave hardly a
 * lane idle; two teams of 224 where there would be one. As measured: more teams hide more of the
 * exchange, and what a cluster adds to it is less. */
static void many_teams(spread *s, int chunks) {
    static const spread some[] = {{2, 128, 2, 512}, {3, 128, 2, 512}, {4, 128, 2, 512},
                                  {5, 128, 2, 512}, {2, 96, 2, 512},  {3, 96, 2, 512},
                                  {2, 224, 2, 512}, {4, 224, 2, 512}};
    static const double fill[] = {.87, .87, .87, .93, .99, .99, .92, .92};
    const bool one_team = 2 * s->lanes > s->threads;
    for (int i = 0; i < (int)(sizeof some / sizeof *some); i++) {
        const int room = some[i].cluster * some[i].lanes * some[i].vecs;
        if (chunks <= room && chunks >= fill[i] * room && (some[i].lanes < 224 || one_team)) {
            *s = some[i];
            return;
        }
    }
}

/* Another spread of 16-bit rows in whole chunks, where it is better by far. Three
 * chunks of bf16 spill but for 128 lanes. */
static void improve_spread(spread *s, int chunks, int max_cluster, dtype x) {
    double best = 1.25 * spread_score(s, chunks);
    for (int cluster = 1; cluster <= least(8, max_cluster); cluster *= 2)
        for (int vecs = 2; vecs <= 3; vecs++) {
            spread o = {.cluster = cluster,
                        .lanes = in_warps(ceil_div(chunks, cluster), vecs),
                        .vecs = vecs,
                        .threads = vecs == 3 ? BACKWARD_FEW_THREADS : BACKWARD_THREADS};
            const int spills = vecs == 3 && x == DTYPE_BF16 && o.lanes != 128;
            if (o.lanes > o.threads || spills || spread_score(&o, chunks) <= best)
                continue;
            best = spread_score(&o, chunks);
            *s = o;
        }
}

/* The spread of a long 16-bit row that is read from the ring twice: three or four chunks a thread,
 * whichever leaves fewer threads without, three if neither does. */
static spread hold_spread(int chunks) {
    const int cluster = chunks <= 8 * 128 * 3 ? 8 : 16; /* of four teams at least */
    spread best = {0};
    double most_busy = 0;
    for (int vecs = 3; vecs <= 4; vecs++) {
        const int lanes = most(64, in_warps(ceil_div(chunks, cluster), vecs));
        const int threads = BACKWARD_THREADS / lanes * lanes;
        const double busy = (double)threads * chunks / (cluster * lanes * vecs);
        if (busy > most_busy) {
            most_busy = busy;
            best = (spread){cluster, lanes, vecs, BACKWARD_THREADS};
        }
    }
    return best;
}

static int backward_geometry(int32_t *c, int cols, int x_bytes, int g_bytes, int is_double,
                             const cuda_limits *limits) {
    int bytes = most(x_bytes, g_bytes);
    int width = chunk_width(cols, bytes, is_double ? 2 : 8), chunks = cols / width, vecs = 1;
    c[C_WIDTH] = width;
    c[C_CLUSTER] = c[C_ROWS] = c[C_STAGES] = c[C_MIN_BLOCKS] = 1;
    int most_elements = is_double ? 10 : bytes == 4 || width == 8 ? 24 : 32;
    int lanes = lanes_within_warp(chunks, width, width * bytes, most_elements, bytes == 2 ? 16 : 8,
                                  60, 14, &vecs);
    if (lanes) {
        int held = vecs * width * (is_double ? 4 : bytes == 4 ? 2 : width * bytes < 4 ? 3 : 1);
        c[C_WARPS] = held <= 8 ? 8 : held <= 16 ? 16 : held <= 24 && limits->arch < 100 ? 12 : 8;
        c[C_MIN_BLOCKS] = held <= 8 ? 2 : 1;
        c[C_TEAMS] = c[C_WARPS];
        int row = 32 * c[C_WARPS] * c[C_MIN_BLOCKS] * vecs * width * (x_bytes + g_bytes);
        c[C_ROWS] = most(1, least(2, BACKWARD_IN_FLIGHT / row));
        c[C_STAGES] = c[C_ROWS] == 1 ? 2 : 1;
    } else {
        /* Columns a thread can sum without a spill, with 512 threads in a multiprocessor. */
        int wide_weight = constant_bytes(c, C_W_TYPE) == 4;
        int elements = is_double ? 4 : bytes == 4 || wide_weight ? 8 : BACKWARD_ELEMENTS;
        int cluster = 1;
        int longest = least(BACKWARD_CLUSTER_COLS - 1, BACKWARD_THREADS * elements);
        int block_cols = is_double ? BACKWARD_BLOCK_COLS / 2 : BACKWARD_BLOCK_COLS;
        if (elements == BACKWARD_ELEMENTS &&
            (cols <= BACKWARD_CLUSTER_COLS || cols > 2 * BACKWARD_CLUSTER_COLS))
            block_cols *= 2; /* in between that would leave threads without columns */
        if (cols > longest)
            while (cluster < limits->max_cluster && cluster * block_cols < cols)
                cluster *= 2;
        int threads = BACKWARD_THREADS;
        if (cluster == 1 && !is_double &&
            (bytes == 4 || (width == 8 && chunks > 320 && chunks <= 384 && limits->arch < 100))) {
            /* Fewer threads of more columns each. */
            lanes = lanes_of_block(chunks, width, 1, bytes == 4 ? 16 : 24, bytes == 4 ? 192 : 128,
                                   &vecs);
            if (lanes)
                threads = BACKWARD_FEW_THREADS;
        }
        if (!lanes)
            lanes = lanes_of_block(chunks, width, cluster, elements, BACKWARD_THREADS, &vecs);
        if (!lanes && bytes == 2)
            lanes = lanes_of_block(chunks, width, cluster, BACKWARD_MOST_ELEMENTS,
                                   BACKWARD_FEW_THREADS, &vecs);
        if (!lanes)
            return 0;
        if (elements == BACKWARD_ELEMENTS && width == 8 && cols > BACKWARD_SPREAD_COLS &&
            cols < 2 * BACKWARD_CLUSTER_COLS && limits->arch >= 90 && limits->arch < 100) {
            spread s = {cluster, lanes, vecs, threads};
            improve_spread(&s, chunks, limits->max_cluster, (dtype)c[C_X_TYPE]);
            if (limits->max_cluster >= 8)
                many_teams(&s, chunks);
            cluster = s.cluster, lanes = s.lanes, vecs = s.vecs, threads = s.threads;
        }
        if (elements == BACKWARD_ELEMENTS && width == 8 && cols > 2 * BACKWARD_CLUSTER_COLS &&
            cols <= BACKWARD_HOLD_COLS && limits->max_cluster >= 16 && limits->arch < 100) {
            spread s = hold_spread(chunks);
            cluster = s.cluster, lanes = s.lanes, vecs = s.vecs;
            c[C_HOLD] = 1;
        }
        /* More columns in a thread need more registers: one team of fewer threads. */
        c[C_TEAMS] = threads == BACKWARD_THREADS && vecs * width > elements && !c[C_HOLD]
                         ? 1
                         : least(8, most(1, threads / lanes));
        c[C_WARPS] = c[C_TEAMS] * lanes / 32;
        c[C_CLUSTER] = cluster;
        int stage = 32 * c[C_WARPS] * vecs * width * (x_bytes + g_bytes);
        c[C_STAGES] =
            c[C_HOLD] || (stage <= 32 << 10 && threads == BACKWARD_THREADS && lanes > 64) ? 2 : 1;
    }
    c[C_LANES] = lanes;
    c[C_VECS] = vecs;
    return 1;
}

/*
 * Rows over groups of blocks: those too long for a block, where the machine is large enough.
 * `bytes` is the larger element of those read.
 */
static void wide_geometry(cuda_plan *plan, int bytes, const cuda_limits *limits) {
    const int32_t *m = plan->main.constant;
    const int forward = plan->main.kernel == CUDA_FORWARD;
    const int inputs = forward ? 1 : 2, width = m[C_WIDTH], chunks = (int)plan->cols / width;
    const int in_a_block = FORWARD_MOST_LANES * (FORWARD_ELEMENTS / 8);
    if (m[C_REAL_DOUBLE] || !limits->cooperative || width * bytes != 16 ||
        (forward ? chunks <= in_a_block : m[C_HOLD] || plan->cols < WIDE_BACKWARD_COLS))
        return;
    const int most_vecs = forward ? WIDE_VECS : bytes == 4 ? WIDE_F32_VECS : WIDE_SUMMED_VECS;
    /* In the backward of 16 bits two blocks hide what each other waits for; f32 rows take so much
     * shared memory that one with more turns under way does better. */
    const int blocks = forward || bytes == 4 ? 1 : 2, most_lanes = WIDE_THREADS / blocks;
    const int held = limits->multiprocessors * blocks;
    int group = ceil_div(chunks, most_lanes * most_vecs), vecs = 1;
    /* Groups are to take nearly all multiprocessors. */
    while (forward && group < held && held % group > held / 32)
        group++;
    if (group < 2 || group > held)
        return;
    int lanes = lanes_of_block(chunks, width, group, most_vecs * width, most_lanes, &vecs);
    int slot = lanes * vecs * 16 * inputs;
    /* Less what every block takes of a multiprocessor, and the exchange. */
    int room = (limits->shared_per_block + 1024) / blocks - 2048;
    int stages = least(bytes == 2 && forward ? WIDE_FEW_STAGES : WIDE_STAGES, room / slot);
    if (!lanes || stages < 3)
        return;
    plan->wide = plan->main;
    plan->wide.kernel = forward ? CUDA_FORWARD : CUDA_BACKWARD;
    int32_t *c = plan->wide.constant;
    c[C_LANES] = lanes;
    c[C_WARPS] = lanes / 32;
    c[C_VECS] = vecs;
    c[C_GROUP] = group;
    c[C_ROWS] = c[C_CLUSTER] = c[C_TEAMS] = c[C_HOLD] = c[C_EARLY] = 1;
    c[C_STAGES] = stages;
    c[C_DELAY] = !forward && bytes == 4 ? stages - 1 : stages / 2;
    c[C_MIN_BLOCKS] = blocks;
}

/* Whether the problem is dense rows one stride apart; rows of one element have no reduced axis. */
static int is_rows(const problem *p) {
    if (p->kept_count > 1)
        return 0;
    if (p->reduced_count == 0)
        return p->cols == 1 && p->affine <= 1;
    return problem_is_rows(p);
}

static void backward_plan(cuda_plan *plan, const problem *p) {
    const cuda_limits *limits = &plan->limits;
    int32_t *c = plan->main.constant;
    int is_double = problem_is_double(p), cols = (int)p->cols;
    int x_bytes = dtype_bytes(p->dtypes[ROLE_X]), g_bytes = dtype_bytes(p->dtypes[ROLE_DY]);
    plan->main.kernel = CUDA_BACKWARD;
    c[C_CORRECT] = !problem_hides_rounding(p);
    c[C_WANT_DWEIGHT] = has(p, ROLE_DWEIGHT);
    c[C_WANT_DBIAS] = has(p, ROLE_DBIAS);
    if (backward_geometry(c, cols, x_bytes, g_bytes, is_double, limits)) {
        plan->partials = most(1, limits->multiprocessors * c[C_MIN_BLOCKS] / c[C_CLUSTER]);
    } else {
        plan->main.kernel = CUDA_APPLY;
        c[C_WARPS] = LONG_WARPS;
        c[C_CLUSTER] = c[C_MIN_BLOCKS] = c[C_ROWS] = c[C_VECS] = c[C_TEAMS] = 1;
        c[C_LANES] = 32 * LONG_WARPS;
        int strips = ceil_div(cols, c[C_LANES] * c[C_WIDTH]);
        plan->partials = most(1, LONG_BLOCKS * limits->multiprocessors / strips);
        if (plan->partials > p->rows)
            plan->partials = p->rows > 0 ? p->rows : 1;
    }
    if (c[C_WANT_DWEIGHT] || c[C_WANT_DBIAS])
        cuda_plan_finish(plan, p, cols, plan->partials);
    wide_geometry(plan, most(x_bytes, g_bytes), limits);
}

/* Long rows that are groups of channels wait in shared memory for their output: several independent
 * blocks do better than rows over clusters or groups of blocks. */
static void group_rows_geometry(cuda_plan *plan, int x_bytes) {
    int32_t *c = plan->main.constant;
    const int chunks = (int)plan->cols / c[C_WIDTH];
    const int room = plan->limits.shared_per_block + 1024;
    if (c[C_WIDTH] * x_bytes != 16 || chunks <= GROUP_ROW_CHUNKS || 16 * chunks > room - (8 << 10))
        return;
    const int fit = least(room / (16 * chunks + 2048), GROUP_ROW_BLOCKS);
    /* The scaled sums of bf16 take registers of their own. */
    const int threads = c[C_X_TYPE] == DTYPE_BF16 ? FORWARD_THREADS : GROUP_ROW_THREADS;
    const int most_lanes = least(FORWARD_MOST_LANES, threads / fit / 32 * 32);
    int vecs = GROUP_ROW_VECS;
    while (in_warps(chunks, vecs) > most_lanes)
        vecs++;
    plan->wide.kernel = -1;
    plan->turns = 1;
    c[C_CLUSTER] = c[C_ROWS] = c[C_HOLD] = 1;
    c[C_STAGES] = c[C_EARLY] = 0;
    c[C_LANES] = in_warps(chunks, vecs);
    c[C_WARPS] = c[C_LANES] / 32;
    c[C_VECS] = vecs;
    c[C_MIN_BLOCKS] = fit;
}

/* Dense rows plan->stride apart. */
static void rows_plan(cuda_plan *plan, const problem *p) {
    int32_t *c = plan->main.constant;
    cuda_spec_describe(&plan->main, p);
    c[C_REAL_DOUBLE] = problem_is_double(p);
    c[C_COLS] = (int)p->cols;
    c[C_GROUP] = 1;
    if (p->pass == PLANISH_FORWARD) {
        int x_bytes = dtype_bytes(p->dtypes[ROLE_X]);
        plan->main.kernel = CUDA_FORWARD;
        forward_geometry(plan, (int)p->cols, x_bytes, c[C_REAL_DOUBLE], &plan->limits);
        wide_geometry(plan, x_bytes, &plan->limits);
        if (c[C_GROUPS])
            group_rows_geometry(plan, x_bytes);
    } else {
        backward_plan(plan, p);
    }
    plan->workspace_bytes = cuda_plan_workspace(plan);
}

/* Groups whose pixels are dense, one stride from each to the next: rows that have weights of their
 * own. */
static bool group_rows_plan(cuda_plan *plan, const problem *p, const image_view *v) {
    static const role full[] = {ROLE_X, ROLE_Y};
    if (p->pass != PLANISH_FORWARD || v->last)
        return false;
    for (int i = 0; i < 2; i++)
        if (v->images > 1 && v->groups > 1 && v->stride[full[i]] != v->groups * p->cols)
            return false;
    for (int r = 0; r < ROLE_COUNT; r++)
        plan->stride[r] = v->stride[r];
    for (int i = 0; i < 2; i++)
        if (v->groups > 1)
            plan->stride[full[i]] = p->cols;
    plan->main.constant[C_GROUPS] = (int)v->groups;
    plan->main.constant[C_PIXELS] = (int)v->pixels;
    rows_plan(plan, p);
    return true;
}

static bool fast_plan(cuda_plan *plan, const problem *p) {
    image_view v;
    if ((p->pass != PLANISH_FORWARD && p->pass != PLANISH_BACKWARD) || p->cols < 1 ||
        p->cols > 1 << 30)
        return false;
    if (is_rows(p)) {
        for (int r = 0; r < ROLE_COUNT; r++)
            plan->stride[r] = p->kept_count ? p->kept[0].stride[r] : 0;
        rows_plan(plan, p);
        return true;
    }
    if (channels_plan_make(plan, p))
        return true;
    memset(&plan->main, 0, sizeof plan->main);
    return images_of_groups(&v, p) &&
           (group_rows_plan(plan, p, &v) || groups_plan_make(plan, p, &v));
}

planish_status cuda_plan_make(cuda_plan *plan, const problem *p, const cuda_limits *limits,
                              message error) {
    (void)error; /* nothing is refused */
    memset(plan, 0, offsetof(cuda_plan, axis));
    plan->limits = *limits;
    plan->rows = p->rows;
    plan->cols = p->cols;
    plan->eps = p->eps;
    plan->finish.kernel = plan->wide.kernel = -1;
    if (!fast_plan(plan, p)) {
        memset(&plan->main, 0, sizeof plan->main);
        general_plan_make(plan, p);
    }
    return PLANISH_OK;
}

int cuda_plan_is_general(const cuda_plan *plan) {
    return plan->main.kernel == CUDA_GENERAL_ROWS;
}

int cuda_plan_describe(const cuda_plan *plan, char *text, size_t bytes) {
    if (plan->main.kernel == CUDA_GENERAL_ROWS)
        return general_plan_describe(plan, text, bytes);
    if (plan->main.kernel == CUDA_CHANNELS)
        return channels_plan_describe(plan, text, bytes);
    if (cuda_spec_is_groups(&plan->main))
        return groups_plan_describe(plan, text, bytes);
    const cuda_spec *spec = plan->wide.kernel >= 0 ? &plan->wide : &plan->main;
    const int32_t *c = spec->constant;
    return snprintf(text, bytes,
                    "cuda %s %s %lldx%lld: %d lanes x %d chunks of %d, %d rows at a time, "
                    "%d warps, cluster %d, group %d",
                    c[C_GROUPS] ? "groups" : "rows",
                    spec->kernel == CUDA_FORWARD ? "forward"
                    : spec->kernel == CUDA_APPLY ? "backward (two reads)"
                                                 : "backward",
                    (long long)plan->rows, (long long)plan->cols, c[C_LANES], c[C_VECS], c[C_WIDTH],
                    cuda_spec_rows_at_a_time(spec), c[C_WARPS], c[C_CLUSTER], c[C_GROUP]);
}
