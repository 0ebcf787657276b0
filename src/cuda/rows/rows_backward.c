/*
 * Geometry of the backward of dense rows: over how many blocks, lanes, chunks and teams. What they
 * are cut by is in tuning.h.
 */
#include "cuda/rows/rows_backward.h"

#include "cuda/common/integers.h"
#include "cuda/common/lanes.h"
#include "cuda/rows/rows_shape.h"

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

/* One of the architecture's own, whose lanes it leaves hardly one idle; those of more than 192
 * where there would be one team. */
static void many_teams(const rows_backward_tuning *t, spread *s, int chunks) {
    const bool one_team = 2 * s->lanes > s->threads;
    for (int i = 0; i < t->spread_count; i++) {
        const backward_spread *b = &t->spreads[i];
        const int room = b->cluster * b->lanes * b->vecs;
        if (chunks <= room && chunks >= b->fill * room && (b->lanes < 224 || one_team)) {
            *s = (spread){b->cluster, b->lanes, b->vecs, b->threads};
            return;
        }
    }
}

/* Another spread of 16-bit rows in whole chunks, where it is better by far. Three
 * chunks of bf16 spill but for 128 lanes. */
static void improve_spread(const rows_backward_tuning *t, spread *s, int chunks, int max_cluster,
                           dtype x) {
    double best = t->spread_gain * spread_score(s, chunks);
    for (int cluster = 1; cluster <= least(8, max_cluster); cluster *= 2)
        for (int vecs = 2; vecs <= 3; vecs++) {
            spread o = {.cluster = cluster,
                        .lanes = in_warps(ceil_div(chunks, cluster), vecs),
                        .vecs = vecs,
                        .threads = vecs == 3 ? t->few_threads : t->threads};
            const int spills = vecs == 3 && x == DTYPE_BF16 && o.lanes != 128;
            if (o.lanes > o.threads || spills || spread_score(&o, chunks) <= best)
                continue;
            best = spread_score(&o, chunks);
            *s = o;
        }
}

/* The spread of a long 16-bit row that is read from the ring twice: three or `most_vecs` chunks a
 * thread, whichever leaves fewer threads without, three if neither does. */
static spread hold_spread(const rows_backward_tuning *t, int chunks, int most_vecs) {
    const int cluster = chunks <= 8 * 128 * 3 ? 8 : 16; /* of four teams at least */
    spread best = {0};
    double most_busy = 0;
    for (int vecs = 3; vecs <= most_vecs; vecs++) {
        const int lanes = most(64, in_warps(ceil_div(chunks, cluster), vecs));
        const int threads = t->threads / lanes * lanes;
        const double busy = (double)threads * chunks / (cluster * lanes * vecs);
        if (busy > most_busy) {
            most_busy = busy;
            best = (spread){cluster, lanes, vecs, t->threads};
        }
    }
    return best;
}

static int is_of_halves(const cuda_spec *spec) {
    static const role roles[] = {ROLE_X, ROLE_DY, ROLE_DX};
    for (int i = 0; i < 3; i++)
        if (role_bytes(spec, roles[i]) != 2 &&
            (roles[i] != ROLE_DX || spec->type[ROLE_DX] != DTYPE_NONE))
            return 0;
    return 1;
}

/* 16-bit rows of chunks of 2 or 4 bytes, of which a warp's lanes would leave most idle. */
static int is_tiled(const rows_backward_tuning *t, const cuda_spec *spec, int cols) {
    const rows_constants *c = &spec->rows;
    return is_of_halves(spec) && cols <= t->tiled_cols && c->width <= 2 && cols > c->width;
}

static void tiled_geometry(const rows_backward_tuning *t, cuda_spec *spec, int cols) {
    rows_constants *c = &spec->rows;
    c->variant = ROWS_TILED;
    c->threads_per_row = cols <= t->tiled_whole_cols ? 1 : 2;
    c->chunks_per_thread = ceil_div(cols / c->width, c->threads_per_row);
    c->warps = c->teams = t->tiled_warps;
    spec->min_blocks = 2;
    c->ring_slots = 2;
}

/* Rows of an odd length, where one thread can copy whole tiles; two blocks are to fit a
 * multiprocessor. */
static int is_in_runs(const cuda_spec *spec, int cols, const cuda_limits *limits) {
    const rows_constants *c = &spec->rows;
    const rows_backward_tuning *t = &limits->tuning->rows_backward;
    return is_of_halves(spec) && t->has_runs && c->width == 1 && cols >= t->runs_least_cols &&
           66 * cols + 2048 <= limits->shared_per_block / 2;
}

static void runs_geometry(const rows_backward_tuning *t, cuda_spec *spec, int cols) {
    rows_constants *c = &spec->rows;
    const int lanes = cols <= t->runs_quarter_cols ? 8 : cols <= t->runs_half_cols ? 16 : WARP;
    const int pairs = t->runs_warps * (WARP / lanes) / 2, words = cols / 2;
    double least_cost = 0;
    int least_each = 1;
    c->variant = ROWS_IN_RUNS;
    c->threads_per_row = lanes;
    c->chunks_per_thread = ceil_div(cols, lanes);
    c->warps = c->teams = t->runs_warps;
    c->ring_slots = 2;
    /* The planes whose threads have the least to do: words, and what the sums of two rows come to.
     */
    for (int planes = 1; planes <= pairs; planes *= 2) {
        const int each = ceil_div(words * planes, WARP * t->runs_warps);
        const double cost = (double)pairs / planes * (each + t->runs_pair);
        if (!least_cost || (each <= t->runs_each && cost < least_cost)) {
            least_cost = cost;
            least_each = each;
            c->planes = planes;
        }
    }
    const int two_rows = 2 * 4 * 2 * pairs * cols; /* bytes of a block */
    spec->min_blocks =
        lanes < WARP && least_each < t->runs_each && 3 * two_rows <= t->runs_bytes ? 3 : 2;
}

/* A row as its geometry sees it. */
typedef struct backward_row {
    int cols, chunks, width;
    int bytes;     /* of an element of x or dy, whichever is larger */
    int all_bytes; /* of one of each */
    int is_double;
    bool in_parts; /* no output waits for the sums: a row keeps to one block where that holds it */
    const cuda_limits *limits;
} backward_row;

/* Within warps; 0: too long. */
static int warps_geometry(cuda_spec *spec, const backward_row *r) {
    rows_constants *c = &spec->rows;
    const rows_backward_tuning *t = &r->limits->tuning->rows_backward;
    const int most_elements = r->is_double ? 10 : r->bytes == 4 || r->width == 8 ? 24 : 32;
    int vecs = 1;
    c->threads_per_row = lanes_within_warp(r->chunks, r->width, r->width * r->bytes, most_elements,
                                           r->bytes == 2 ? 16 : 8, 60, 14, &vecs);
    if (!c->threads_per_row)
        return 0;
    const int held = vecs * r->width *
                     (r->is_double              ? 4
                      : r->bytes == 4           ? 2
                      : r->width * r->bytes < 4 ? 3
                                                : 1);
    c->chunks_per_thread = vecs;
    c->warps = held <= 8 ? 8 : held <= 16 ? 16 : held <= 24 ? t->most_warps : 8;
    /* Weights and biases of f32 beside dy through an activation, the normal distribution, and
     * slopes that jump where two comparisons say: more registers for a thread. */
    const planish_activation f = spec->activation;
    const bool slow = f == PLANISH_GELU || (f != PLANISH_RELU && slope_jumps(f));
    if (held > 8 && spec->activation != PLANISH_IDENTITY && r->bytes == 2 &&
        (role_bytes(spec, ROLE_WEIGHT) == 4 || slow))
        c->warps = 8;
    spec->min_blocks = held <= 8 ? 2 : 1;
    c->teams = c->warps;
    const int row = WARP * c->warps * spec->min_blocks * vecs * r->width * r->all_bytes;
    c->rows = most(1, least(2, t->in_flight / row));
    c->ring_slots = c->rows == 1 ? 2 : 1;
    return 1;
}

/* Columns that a thread can sum without a spill, with 512 threads in a multiprocessor. */
static int elements_of_thread(const cuda_spec *spec, const backward_row *r) {
    const rows_backward_tuning *t = &r->limits->tuning->rows_backward;
    const int wide_weight = role_bytes(spec, ROLE_WEIGHT) == 4;
    return r->is_double ? 4 : r->bytes == 4 || wide_weight ? 8 : t->elements;
}

/* Over whole warps, of one block or of the fewest that hold a row; lanes 0: none do. */
static spread even_spread(const backward_row *r, int elements) {
    const rows_backward_tuning *t = &r->limits->tuning->rows_backward;
    const cuda_limits *limits = r->limits;
    const int longest =
        least(r->in_parts ? t->cluster_cols : t->cluster_cols - 1, t->threads * elements);
    int block_cols = r->is_double ? t->block_cols / 2 : t->block_cols;
    if (elements == t->elements && (r->cols <= t->cluster_cols || r->cols > 2 * t->cluster_cols))
        block_cols *= 2; /* in between that would leave threads without columns */
    spread s = {.cluster = 1, .vecs = 1, .threads = t->threads};
    if (r->cols > longest)
        while (s.cluster < limits->max_cluster && s.cluster * block_cols < r->cols)
            s.cluster *= 2;
    if (s.cluster == 1 && !r->is_double &&
        (r->bytes == 4 ||
         (r->width == 8 && r->chunks >= t->few_least_chunks && r->chunks <= t->few_most_chunks))) {
        /* Fewer threads of more columns each. */
        s.lanes = lanes_of_block(r->chunks, r->width, 1, r->bytes == 4 ? 16 : 24,
                                 r->bytes == 4 ? 192 : 128, &s.vecs);
        if (s.lanes)
            s.threads = t->few_threads;
    }
    if (!s.lanes)
        s.lanes = lanes_of_block(r->chunks, r->width, s.cluster, elements, t->threads, &s.vecs);
    if (!s.lanes && r->bytes == 2)
        s.lanes = lanes_of_block(r->chunks, r->width, s.cluster, t->most_elements, t->few_threads,
                                 &s.vecs);
    return s;
}

/* Over blocks and clusters of them; 0: too long. */
static int blocks_geometry(cuda_spec *spec, const backward_row *r) {
    rows_constants *c = &spec->rows;
    const rows_backward_tuning *t = &r->limits->tuning->rows_backward;
    const cuda_limits *limits = r->limits;
    const int elements = elements_of_thread(spec, r);
    const int halves = elements == t->elements && r->width == 8; /* in whole chunks */
    spread s = even_spread(r, elements);
    if (!s.lanes)
        return 0;
    if (halves && r->cols > t->spread_cols && r->cols < 2 * t->cluster_cols && t->is_spread &&
        !(r->in_parts && s.cluster == 1)) {
        improve_spread(t, &s, r->chunks, limits->max_cluster, (dtype)spec->type[ROLE_X]);
        if (limits->max_cluster >= 8)
            many_teams(t, &s, r->chunks);
    }
    if (halves && r->cols > 2 * t->cluster_cols && r->cols <= t->hold_cols &&
        limits->max_cluster >= 16 && spec->activation == PLANISH_IDENTITY) {
        /* RMSNorm with dbias has no registers for four. */
        const bool few = (spec->kind != PLANISH_LAYER && spec->want_dbias) ||
                         spec->type[ROLE_DSUM] != DTYPE_NONE; /* whose ring takes its share */
        s = hold_spread(t, r->chunks, few ? 3 : 4);
        c->hold = HOLD_IN_RING;
    }
    /* More columns in a thread need more registers: one team of fewer threads. */
    c->teams = s.threads == t->threads && s.vecs * r->width > elements && !c->hold
                   ? 1
                   : least(8, most(1, s.threads / s.lanes));
    c->warps = c->teams * s.lanes / WARP;
    spec->cluster = s.cluster;
    c->threads_per_row = s.lanes;
    c->chunks_per_thread = s.vecs;
    const int stage = WARP * c->warps * s.vecs * r->width * r->all_bytes;
    const bool small = stage <= 32 << 10 && s.threads == t->threads && s.lanes > 64;
    c->ring_slots = c->hold || small ? 2 : 1;
    return 1;
}

int backward_geometry(cuda_spec *spec, int cols, int x_bytes, int dy_bytes, int is_double,
                      const cuda_limits *limits) {
    rows_constants *c = &spec->rows;
    const rows_backward_tuning *t = &limits->tuning->rows_backward;
    backward_row r = {.cols = cols,
                      .bytes = most(x_bytes, dy_bytes),
                      .all_bytes = x_bytes + dy_bytes,
                      .is_double = is_double,
                      .in_parts = rows_are_parts(spec),
                      .limits = limits};
    r.width = chunk_width(cols, r.bytes, is_double ? 2 : 8);
    r.chunks = cols / r.width;
    c->width = r.width;
    spec->cluster = c->rows = c->ring_slots = spec->min_blocks = 1;
    c->dsum_in_ring = 0;
    /* dy goes through an activation in registers; tiles have no room for dsum, and do not know of
     * halves of a backward. */
    const bool plain = spec->activation == PLANISH_IDENTITY &&
                       spec->type[ROLE_DSUM] == DTYPE_NONE && !rows_are_parts(spec);
    if (plain && !is_double && is_tiled(t, spec, cols)) {
        tiled_geometry(t, spec, cols);
        return 1;
    }
    if (plain && !is_double && is_in_runs(spec, cols, limits)) {
        runs_geometry(t, spec, cols);
        return 1;
    }
    if (!warps_geometry(spec, &r) && !blocks_geometry(spec, &r))
        return 0;
    if (spec->type[ROLE_DSUM] != DTYPE_NONE) {
        c->dsum_in_ring = 1;
        c->dsum_in_ring = rows_shared_bytes(spec) <= (size_t)limits->shared_per_block;
    }
    return 1;
}

/* Asynchronous copies need 4 bytes; but rows that are read twice go through registers to their
 * ring. */
void backward_fit(const cuda_plan *plan, cuda_spec *spec) {
    (void)plan;
    rows_constants *c = &spec->rows;
    const role read[] = {ROLE_X, ROLE_DY, ROLE_DSUM};
    bool narrow = false;
    for (int i = 0; i < (spec->type[ROLE_DSUM] == DTYPE_NONE ? 2 : 3); i++)
        narrow |= spec->access[read[i]] < 4 || c->width * role_bytes(spec, read[i]) < 4;
    if (c->variant == ROWS_PLAIN &&
        (spec->kernel == CUDA_APPLY || (narrow && c->hold == HOLD_IN_THREAD)))
        c->ring_slots = 0;
}
