/*
 * Geometry of the backward of dense rows: over how many blocks, lanes, chunks and teams. The limits
 * are from measurements (docs/notebook).
 */
#include "rows_backward.h"

#include "integers.h"
#include "lanes.h"

enum {
    BACKWARD_THREADS = 512,
    BACKWARD_FEW_THREADS = 384,   /* with BACKWARD_MOST_ELEMENTS */
    BACKWARD_ELEMENTS = 16,       /* columns a thread sums */
    BACKWARD_MOST_ELEMENTS = 32,  /* the same, for rows that fill a cluster of 16 */
    BACKWARD_BLOCK_COLS = 2048,   /* of a row in one block, where clusters are */
    BACKWARD_CLUSTER_COLS = 8192, /* shortest row for a cluster */
    BACKWARD_SPREAD_COLS = 2560,  /* longest row that is left as it is by improve_spread */
    BACKWARD_HOLD_COLS = 131072,  /* longest row that is read from the ring twice */
    TILED_COLS = 72,              /* longest row in tiles (kernels/backward_tiles.cu) */
    TILED_WHOLE_COLS = 16,   /* the same, that a thread takes whole; else two take a half each */
    TILED_WARPS = 8,         /* of a block */
    RUNS_LEAST_COLS = 147,   /* shortest row in runs (kernels/backward_runs.cu) */
    RUNS_QUARTER_COLS = 300, /* longest row of 8 lanes */
    RUNS_HALF_COLS = 544,    /* the same, of 16 */
    RUNS_WARPS = 8,          /* of a block */
    RUNS_BYTES = 150 << 10,  /* of three blocks; else two */
    RUNS_EACH = 4,           /* words of a row that a thread sums columns of, at most */
    BACKWARD_IN_FLIGHT = 46 << 10, /* bytes under way in a multiprocessor; more is slower */
};

/* What a thread does for a pair of rows besides its words, in words. */
static const double RUNS_PAIR = .4;

/*
 * How a row of the backward is spread: over `cluster` blocks, in each over `lanes` threads that
 * take `vecs` chunks, by as many teams of a block as registers allow.
 */
typedef struct spread {
    int cluster, lanes, vecs, threads; /* threads: the most of a block, over all its teams */
} spread;

/* What a multiprocessor has under way at once, less what lanes without a chunk cost. The time that
 * is left over the memory's own goes with its inverse (docs/notebook/008). */
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

/* The spread of a long 16-bit row that is read from the ring twice: three or `most_vecs` chunks a
 * thread, whichever leaves fewer threads without, three if neither does. */
static spread hold_spread(int chunks, int most_vecs) {
    const int cluster = chunks <= 8 * 128 * 3 ? 8 : 16; /* of four teams at least */
    spread best = {0};
    double most_busy = 0;
    for (int vecs = 3; vecs <= most_vecs; vecs++) {
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

static int is_of_halves(const int32_t *c) {
    static const cuda_constant types[] = {C_X_TYPE, C_G_TYPE, C_D_TYPE};
    for (int i = 0; i < 3; i++)
        if (constant_bytes(c, types[i]) != 2 && (types[i] != C_D_TYPE || c[C_D_TYPE] != DTYPE_NONE))
            return 0;
    return 1;
}

/* 16-bit rows of chunks of 2 or 4 bytes, of which a warp's lanes would leave most idle. */
static int is_tiled(const int32_t *c, int cols) {
    return is_of_halves(c) && cols <= TILED_COLS && c[C_WIDTH] <= 2 && cols > c[C_WIDTH];
}

static void tiled_geometry(int32_t *c, int cols) {
    c[C_TILE] = 1;
    c[C_LANES] = cols <= TILED_WHOLE_COLS ? 1 : 2;
    c[C_VECS] = ceil_div(cols / c[C_WIDTH], c[C_LANES]);
    c[C_WARPS] = c[C_TEAMS] = TILED_WARPS;
    c[C_MIN_BLOCKS] = 2;
    c[C_STAGES] = 2;
}

/* Rows of an odd length, where one thread can copy whole tiles; two blocks are to fit a
 * multiprocessor. */
static int is_in_runs(const int32_t *c, int cols, const cuda_limits *limits) {
    return is_of_halves(c) && limits->arch >= 90 && limits->arch < 120 && c[C_WIDTH] == 1 &&
           cols >= RUNS_LEAST_COLS && 66 * cols + 2048 <= limits->shared_per_block / 2;
}

static void runs_geometry(int32_t *c, int cols) {
    const int lanes = cols <= RUNS_QUARTER_COLS ? 8 : cols <= RUNS_HALF_COLS ? 16 : 32;
    const int pairs = RUNS_WARPS * (32 / lanes) / 2, words = cols / 2;
    double least_cost = 0;
    int least_each = 1;
    c[C_TILE] = 2;
    c[C_LANES] = lanes;
    c[C_VECS] = ceil_div(cols, lanes);
    c[C_WARPS] = c[C_TEAMS] = RUNS_WARPS;
    c[C_STAGES] = 2;
    /* The planes whose threads have the least to do: words, and what the sums of two rows come to.
     */
    for (int planes = 1; planes <= pairs; planes *= 2) {
        const int each = ceil_div(words * planes, 32 * RUNS_WARPS);
        const double cost = (double)pairs / planes * (each + RUNS_PAIR);
        if (!least_cost || (each <= RUNS_EACH && cost < least_cost)) {
            least_cost = cost;
            least_each = each;
            c[C_PLANES] = planes;
        }
    }
    const int stages = 2 * 4 * 2 * pairs * cols; /* bytes of a block */
    c[C_MIN_BLOCKS] = lanes < 32 && least_each < RUNS_EACH && 3 * stages <= RUNS_BYTES ? 3 : 2;
}

/* A row as its geometry sees it. */
typedef struct backward_row {
    int cols, chunks, width;
    int bytes;     /* of an element of x or dy, whichever is larger */
    int all_bytes; /* of one of each */
    int is_double;
    const cuda_limits *limits;
} backward_row;

/* Within warps; 0: too long. */
static int warps_geometry(int32_t *c, const backward_row *r) {
    const int most_elements = r->is_double ? 10 : r->bytes == 4 || r->width == 8 ? 24 : 32;
    int vecs = 1;
    c[C_LANES] = lanes_within_warp(r->chunks, r->width, r->width * r->bytes, most_elements,
                                   r->bytes == 2 ? 16 : 8, 60, 14, &vecs);
    if (!c[C_LANES])
        return 0;
    const int held = vecs * r->width *
                     (r->is_double              ? 4
                      : r->bytes == 4           ? 2
                      : r->width * r->bytes < 4 ? 3
                                                : 1);
    c[C_VECS] = vecs;
    c[C_WARPS] = held <= 8 ? 8 : held <= 16 ? 16 : held <= 24 && r->limits->arch < 100 ? 12 : 8;
    /* Weights and biases of f32 beside dy through an activation: more registers for a thread. */
    if (held > 8 && c[C_ACTIVATION] != PLANISH_IDENTITY && r->bytes == 2 &&
        constant_bytes(c, C_W_TYPE) == 4)
        c[C_WARPS] = 8;
    c[C_MIN_BLOCKS] = held <= 8 ? 2 : 1;
    c[C_TEAMS] = c[C_WARPS];
    const int row = 32 * c[C_WARPS] * c[C_MIN_BLOCKS] * vecs * r->width * r->all_bytes;
    c[C_ROWS] = most(1, least(2, BACKWARD_IN_FLIGHT / row));
    c[C_STAGES] = c[C_ROWS] == 1 ? 2 : 1;
    return 1;
}

/* Columns that a thread can sum without a spill, with 512 threads in a multiprocessor. */
static int elements_of_thread(const int32_t *c, const backward_row *r) {
    const int wide_weight = constant_bytes(c, C_W_TYPE) == 4;
    return r->is_double ? 4 : r->bytes == 4 || wide_weight ? 8 : BACKWARD_ELEMENTS;
}

/* Over whole warps, of one block or of the fewest that hold a row; lanes 0: none do. */
static spread even_spread(const backward_row *r, int elements) {
    const cuda_limits *limits = r->limits;
    const int longest = least(BACKWARD_CLUSTER_COLS - 1, BACKWARD_THREADS * elements);
    int block_cols = r->is_double ? BACKWARD_BLOCK_COLS / 2 : BACKWARD_BLOCK_COLS;
    if (elements == BACKWARD_ELEMENTS &&
        (r->cols <= BACKWARD_CLUSTER_COLS || r->cols > 2 * BACKWARD_CLUSTER_COLS))
        block_cols *= 2; /* in between that would leave threads without columns */
    spread s = {.cluster = 1, .vecs = 1, .threads = BACKWARD_THREADS};
    if (r->cols > longest)
        while (s.cluster < limits->max_cluster && s.cluster * block_cols < r->cols)
            s.cluster *= 2;
    if (s.cluster == 1 && !r->is_double &&
        (r->bytes == 4 ||
         (r->width == 8 && r->chunks > 320 && r->chunks <= 384 && limits->arch < 100))) {
        /* Fewer threads of more columns each. */
        s.lanes = lanes_of_block(r->chunks, r->width, 1, r->bytes == 4 ? 16 : 24,
                                 r->bytes == 4 ? 192 : 128, &s.vecs);
        if (s.lanes)
            s.threads = BACKWARD_FEW_THREADS;
    }
    if (!s.lanes)
        s.lanes =
            lanes_of_block(r->chunks, r->width, s.cluster, elements, BACKWARD_THREADS, &s.vecs);
    if (!s.lanes && r->bytes == 2)
        s.lanes = lanes_of_block(r->chunks, r->width, s.cluster, BACKWARD_MOST_ELEMENTS,
                                 BACKWARD_FEW_THREADS, &s.vecs);
    return s;
}

/* Over blocks and clusters of them; 0: too long. */
static int blocks_geometry(int32_t *c, const backward_row *r) {
    const cuda_limits *limits = r->limits;
    const int elements = elements_of_thread(c, r);
    const int halves = elements == BACKWARD_ELEMENTS && r->width == 8; /* in whole chunks */
    spread s = even_spread(r, elements);
    if (!s.lanes)
        return 0;
    if (halves && r->cols > BACKWARD_SPREAD_COLS && r->cols < 2 * BACKWARD_CLUSTER_COLS &&
        limits->arch >= 90 && limits->arch < 100) {
        improve_spread(&s, r->chunks, limits->max_cluster, (dtype)c[C_X_TYPE]);
        if (limits->max_cluster >= 8)
            many_teams(&s, r->chunks);
    }
    if (halves && r->cols > 2 * BACKWARD_CLUSTER_COLS && r->cols <= BACKWARD_HOLD_COLS &&
        limits->max_cluster >= 16 && limits->arch < 100 && c[C_ACTIVATION] == PLANISH_IDENTITY) {
        /* RMSNorm with dbias has no registers for four. */
        s = hold_spread(r->chunks, c[C_KIND] == PLANISH_RMS && c[C_WANT_DBIAS] ? 3 : 4);
        c[C_HOLD] = 1;
    }
    /* More columns in a thread need more registers: one team of fewer threads. */
    c[C_TEAMS] = s.threads == BACKWARD_THREADS && s.vecs * r->width > elements && !c[C_HOLD]
                     ? 1
                     : least(8, most(1, s.threads / s.lanes));
    c[C_WARPS] = c[C_TEAMS] * s.lanes / 32;
    c[C_CLUSTER] = s.cluster;
    c[C_LANES] = s.lanes;
    c[C_VECS] = s.vecs;
    const int stage = 32 * c[C_WARPS] * s.vecs * r->width * r->all_bytes;
    const bool small = stage <= 32 << 10 && s.threads == BACKWARD_THREADS && s.lanes > 64;
    c[C_STAGES] = c[C_HOLD] || small ? 2 : 1;
    return 1;
}

int backward_geometry(int32_t *c, int cols, int x_bytes, int g_bytes, int is_double,
                      const cuda_limits *limits) {
    backward_row r = {.cols = cols,
                      .bytes = most(x_bytes, g_bytes),
                      .all_bytes = x_bytes + g_bytes,
                      .is_double = is_double,
                      .limits = limits};
    r.width = chunk_width(cols, r.bytes, is_double ? 2 : 8);
    r.chunks = cols / r.width;
    c[C_WIDTH] = r.width;
    c[C_CLUSTER] = c[C_ROWS] = c[C_STAGES] = c[C_MIN_BLOCKS] = 1;
    /* dy goes through an activation in registers. */
    const bool plain = c[C_ACTIVATION] == PLANISH_IDENTITY;
    if (plain && !is_double && is_tiled(c, cols)) {
        tiled_geometry(c, cols);
        return 1;
    }
    if (plain && !is_double && is_in_runs(c, cols, limits)) {
        runs_geometry(c, cols);
        return 1;
    }
    return warps_geometry(c, &r) || blocks_geometry(c, &r);
}
