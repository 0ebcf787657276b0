#include "cpu/batch/batch_run.h"
#include "cpu/batch/batch_kernels.h"
#include "cpu/common/running.h"

/* ---- Channels' numbers ----------------------------------------------------------------------- */

/* Arrays, one element for each of some rows. */
typedef struct numbers {
    double *record[RECORDS];
    double *mean, *rstd, *c1, *c2, *dweight, *dbias;
    char *weight, *bias, *factor[BATCH_FACTORS]; /* real */
    unsigned char *wide;
} numbers;

/* The same of one tile that is done at once. */
typedef struct tile_room {
    double doubles[RECORDS + 6][BATCH_TILE_CHANNELS];
    double reals[2 + BATCH_FACTORS][BATCH_TILE_CHANNELS];
    unsigned char wide[BATCH_TILE_CHANNELS];
} tile_room;

static size_t real_bytes(const cpu_job *job) {
    return job->plan->is_double ? sizeof(double) : sizeof(float);
}

static numbers numbers_in(double *at, double *records, int64_t rows, size_t real) {
    numbers n = {0};
    double **const doubles[] = {&n.mean, &n.rstd, &n.c1, &n.c2, &n.dweight, &n.dbias};
    for (int k = 0; k < RECORDS; k++)
        n.record[k] = records + k * rows;
    for (int k = 0; k < 6; k++, at += rows)
        *doubles[k] = at;
    char *reals = (char *)at;
    const size_t bytes = (size_t)rows * real;
    n.weight = reals;
    n.bias = reals + bytes;
    for (int k = 0; k < BATCH_FACTORS; k++)
        n.factor[k] = reals + (size_t)(k + 2) * bytes;
    n.wide = (unsigned char *)reals + (BATCH_FACTORS + 2) * bytes;
    return n;
}

/* Those of all rows, in the workspace. */
static numbers numbers_of_all(const cpu_job *job) {
    const batch_cut *cut = &job->plan->cut.batch;
    char *const at = job->workspace;
    return numbers_in((double *)(at + cut->numbers_offset), (double *)at, job->problem->rows,
                      real_bytes(job));
}

static numbers numbers_of_tile(tile_room *room, const cpu_job *job) {
    (void)job;
    return numbers_in(room->doubles[RECORDS], room->doubles[0], BATCH_TILE_CHANNELS,
                      sizeof(double));
}

/* From row `first` on. */
static numbers numbers_at(const numbers *all, int64_t first, size_t real) {
    numbers n = *all;
    double **const doubles[] = {&n.mean, &n.rstd, &n.c1, &n.c2, &n.dweight, &n.dbias};
    for (int k = 0; k < RECORDS; k++)
        n.record[k] += first;
    for (int k = 0; k < 6; k++)
        *doubles[k] += first;
    n.weight += (size_t)first * real;
    n.bias += (size_t)first * real;
    for (int k = 0; k < BATCH_FACTORS; k++)
        n.factor[k] += (size_t)first * real;
    n.wide += first;
    return n;
}

/* ---- What a problem wants -------------------------------------------------------------------- */

static bool is_backward(const problem *p) {
    return p->pass == PLANISH_BACKWARD;
}
static bool is_in_parts(const batch_cut *cut) {
    return cut->by_pixel || cut->parts > 1;
}
/* Whether elements are summed at all. */
static bool sums(const problem *p) {
    if (is_backward(p))
        return !problem_is_given(p) || has(p, ROLE_DWEIGHT) || has(p, ROLE_DBIAS);
    return p->pass != PLANISH_APPLY;
}
/* Whether elements are written. */
static bool writes(const problem *p) {
    return has(p, ROLE_DX) || has(p, ROLE_DADDEND) || (!is_backward(p) && has(p, ROLE_Y));
}
static bool is_fixed(const problem *p) {
    return is_backward(p) && has(p, ROLE_RUNNING_MEAN);
}

static const batch_kernels *kernels_of(const cpu_job *job) {
    return job->plan->kernels->batch[job->problem->dtypes[ROLE_X]];
}

/* ---- Rows' numbers from and to tensors ------------------------------------------------------- */

static void load_reals(const cpu_job *job, const row_run *run, role r, char *to) {
    const row_stat from = run_stat(job->problem, run, r);
    for (int64_t i = 0; from.data && i < run->rows; i++)
        if (job->plan->is_double)
            ((double *)to)[i] = stat_load(&from, i);
        else
            ((float *)to)[i] = (float)stat_load(&from, i);
}

static void load_stats(const problem *p, const row_run *run, role r, double to[]) {
    const row_stat from = run_stat(p, run, r);
    if (from.data)
        stat_load_rows(&from, 0, (int)run->rows, to);
}

/* weight and bias, and the statistics that are given. */
static void load_rows(const cpu_job *job, const row_run *run, const numbers *n) {
    const problem *p = job->problem;
    load_reals(job, run, ROLE_WEIGHT, n->weight);
    load_reals(job, run, ROLE_BIAS, n->bias);
    load_stats(p, run, ROLE_C1, n->c1);
    load_stats(p, run, ROLE_C2, n->c2);
    if (!is_backward(p) && p->pass != PLANISH_APPLY)
        return;
    load_stats(p, run, ROLE_MEAN, n->mean);
    load_stats(p, run, ROLE_RSTD, n->rstd);
    if (!has(p, ROLE_RUNNING_MEAN))
        return;
    load_stats(p, run, ROLE_RUNNING_MEAN, n->mean);
    load_stats(p, run, ROLE_RUNNING_VAR, n->rstd);
    for (int64_t i = 0; i < run->rows; i++)
        n->rstd[i] = running_rstd(n->rstd[i], p->eps);
}

static void store_rows(const problem *p, const row_run *run, const numbers *n) {
    const struct {
        role r;
        const double *values;
    } stored[2][3] = {{{ROLE_MEAN, n->mean}, {ROLE_RSTD, n->rstd}, {ROLE_M2, n->record[RECORD_M2]}},
                      {{ROLE_DWEIGHT, n->dweight}, {ROLE_DBIAS, n->dbias}, {ROLE_COUNT, NULL}}};
    if (p->pass == PLANISH_APPLY)
        return;
    for (int k = 0; k < 3 && stored[is_backward(p)][k].values; k++) {
        const row_stat to = run_stat(p, run, stored[is_backward(p)][k].r);
        stat_store_rows(&to, 0, (int)run->rows, stored[is_backward(p)][k].values);
    }
    for (int64_t i = 0; p->pass == PLANISH_FORWARD && i < run->rows; i++)
        running_update(p, run, i, n->mean[i], n->record[RECORD_M2][i]);
}

/* ---- Kernels' arguments ---------------------------------------------------------------------- */

/* Rows [row, row + rows) of a run, of pieces [first, first + pieces). */
typedef struct tile_place {
    row_run run;
    int64_t first, pieces;
} tile_place;

static int64_t piece_pitch(const cpu_job *job, role r) {
    const problem *p = job->problem;
    const bool apart = job->plan->cut.batch.by_pixel || p->reduced_count == 2;
    return apart ? reduced_stride(p, 0, r) * dtype_bytes(p->dtypes[r]) : 0;
}

static batch_side side_of(const cpu_job *job, const tile_place *at, role r, int64_t channel) {
    if (!at->run.data[r])
        return (batch_side){0};
    const int64_t piece = piece_pitch(job, r);
    return (batch_side){at->run.data[r] + channel * at->run.pitch[r] + at->first * piece,
                        at->run.pitch[r], piece};
}

static batch_tile tile_of(const cpu_job *job, const tile_place *at, int64_t channels) {
    const batch_cut *cut = &job->plan->cut.batch;
    return (batch_tile){channels, at->pieces, cut->span, cut->by_pixel,
                        job->plan->traffic == TRAFFIC_STREAM};
}

static batch_through through_of(const problem *p) {
    return problem_masks_by_y(p)               ? THROUGH_MASK
           : p->activation == PLANISH_IDENTITY ? THROUGH_NOTHING
           : p->activation == PLANISH_RELU     ? THROUGH_RELU
                                               : THROUGH_ACTIVATION;
}

/* Of channels from `channel` of the tile on, whose numbers these are. */
static batch_gradient_args gradient_args(const cpu_job *job, const tile_place *at, int64_t channel,
                                         int64_t channels, const numbers *n, void *scratch) {
    const problem *p = job->problem;
    batch_gradient_args a = {
        .tile = tile_of(job, at, channels),
        .x = side_of(job, at, ROLE_X, channel),
        .dy = side_of(job, at, ROLE_DY, channel),
        .y = side_of(job, at, ROLE_Y, channel),
        .addend = side_of(job, at, ROLE_ADDEND, channel),
        .dx = side_of(job, at, ROLE_DX, channel),
        .daddend = side_of(job, at, ROLE_DADDEND, channel),
        .activation = p->activation,
        .through = through_of(p),
        .least = rounds_to_zero(p->dtypes[ROLE_DY]),
        .fixed = is_fixed(p),
        .traffic = job->plan->traffic,
        .scratch = scratch,
    };
    for (int k = 0; k < BATCH_FACTORS; k++)
        a.factor[k] = n->factor[k];
    for (int k = 0; k < RECORDS; k++)
        a.record[k] = n->record[k];
    return a;
}

/* The sums of a tile of a part, to its records. */
static void sum_tile_of_part(const cpu_job *job, const tile_place *at, const numbers *n,
                             void *scratch) {
    if (is_backward(job->problem)) {
        const batch_gradient_args a = gradient_args(job, at, 0, at->run.rows, n, scratch);
        kernels_of(job)->sums(&a);
        return;
    }
    const batch_moments_args a = {
        .tile = tile_of(job, at, at->run.rows),
        .x = side_of(job, at, ROLE_X, 0),
        .record = {n->record[0], n->record[1], n->record[2]},
        .scratch = scratch,
    };
    kernels_of(job)->moments(&a);
}

/* y, or dx and daddend, of channels that are in range: the longest runs of them. */
static void results_of_tile(const cpu_job *job, const tile_place *at, const numbers *n) {
    const problem *p = job->problem;
    for (int64_t c = 0, end; writes(p) && c < at->run.rows; c = end) {
        for (end = c; end < at->run.rows && !n->wide[end]; end++) {
        }
        if (end == c) {
            end++;
            continue;
        }
        const numbers own = numbers_at(n, c, real_bytes(job));
        if (is_backward(p)) {
            const batch_gradient_args a = gradient_args(job, at, c, end - c, &own, NULL);
            kernels_of(job)->gradient(&a);
            continue;
        }
        const batch_apply_args a = {
            .tile = tile_of(job, at, end - c),
            .x = side_of(job, at, ROLE_X, c),
            .y = side_of(job, at, ROLE_Y, c),
            .addend = side_of(job, at, ROLE_ADDEND, c),
            .factor = {own.factor[FACTOR_MEAN], own.factor[FACTOR_SCALE], own.factor[FACTOR_SHIFT]},
            .activation = p->activation,
            .traffic = job->plan->traffic,
        };
        kernels_of(job)->apply(&a);
    }
}

static batch_finish_args finish_args(const cpu_job *job, const numbers *n, int64_t rows) {
    const problem *p = job->problem;
    const batch_cut *cut = &job->plan->cut.batch;
    batch_finish_args a = {
        .channels = rows,
        .parts = cut->parts,
        .part_step = RECORDS * p->rows,
        .part_count = cut->part_pieces * cut->span,
        .last_count = p->cols - (cut->parts - 1) * cut->part_pieces * cut->span,
        .eps = p->eps,
        .mean = n->mean,
        .rstd = n->rstd,
        .weight = has(p, ROLE_WEIGHT) ? n->weight : NULL,
        .bias = has(p, ROLE_BIAS) ? n->bias : NULL,
        .weight_offset = p->weight_offset,
        .wide = n->wide,
        .reach = mean_reach_of(p->dtypes[ROLE_MEAN], job->plan->is_double),
        .c1 = has(p, ROLE_C2) ? n->c1 : NULL,
        .c2 = has(p, ROLE_C2) ? n->c2 : NULL,
        .fixed = is_fixed(p),
        .dweight = n->dweight,
        .dbias = n->dbias,
    };
    a.reach.is_exact |= problem_is_given(p);
    for (int k = 0; k < BATCH_FACTORS; k++)
        a.factor[k] = n->factor[k];
    return a;
}

/* The factors by given statistics: of an inference, or for the sums of a backward. */
static void factors_of_given(const cpu_job *job, const numbers *n, int64_t rows) {
    const batch_finish_args a = finish_args(job, n, rows);
    kernels_of(job)->finish_forward(&a);
}

/* What follows from the sums. */
static void finish(const cpu_job *job, const numbers *n, int64_t rows) {
    batch_finish_args a = finish_args(job, n, rows);
    for (int k = 0; k < RECORDS && sums(job->problem); k++)
        a.record[k] = a.total[k] = n->record[k];
    if (is_backward(job->problem))
        kernels_of(job)->finish_backward(&a);
    else
        kernels_of(job)->finish_forward(&a);
}

/* Rows that left the range, all of each, from `row` on; their results and numbers. */
static void do_wide_rows(const cpu_job *job, int64_t row, int64_t rows, const numbers *n) {
    const problem *p = job->problem;
    for (int64_t i = 0; i < rows; i++) {
        if (!n->wide[i])
            continue;
        if (is_backward(p))
            batch_wide_backward(job, row + i, n->mean[i], n->rstd[i], n->c1[i], n->c2[i],
                                &n->dweight[i], &n->dbias[i]);
        else
            batch_wide_forward(job, row + i, &n->mean[i], &n->rstd[i], &n->record[RECORD_M2][i]);
    }
}

/* ---- Tiles at once --------------------------------------------------------------------------- */

/* The rows of a tile, and their first one. */
static row_run tile_run(const cpu_job *job, int64_t tile, int64_t *row) {
    const batch_cut *cut = &job->plan->cut.batch;
    const int64_t begin = tile % cut->run_tiles * cut->tile_rows, end = begin + cut->tile_rows;
    const int64_t of_run = tile / cut->run_tiles * cut->run_rows;
    *row = of_run + begin;
    return row_run_at(job, *row, of_run + (end < cut->run_rows ? end : cut->run_rows));
}

static void whole_tile(const cpu_job *job, int64_t tile) {
    const problem *p = job->problem;
    int64_t row;
    tile_place at = {.run = tile_run(job, tile, &row), .pieces = job->plan->cut.batch.pieces};
    tile_room room;
    const numbers n = numbers_of_tile(&room, job);
    load_rows(job, &at.run, &n);
    if (is_backward(p))
        factors_of_given(job, &n, at.run.rows);
    if (sums(p))
        sum_tile_of_part(job, &at, &n, NULL);
    finish(job, &n, at.run.rows);
    results_of_tile(job, &at, &n);
    do_wide_rows(job, row, at.run.rows, &n);
    store_rows(p, &at.run, &n);
}

/* ---- Tiles in parts -------------------------------------------------------------------------- */

/* A block is a tile of a part; tiles go first. */
static tile_place block_place(const cpu_job *job, int64_t block, int64_t *row, int64_t *part) {
    const batch_cut *cut = &job->plan->cut.batch;
    tile_place at = {.run = tile_run(job, block % cut->tiles, row)};
    *part = block / cut->tiles;
    at.first = *part * cut->part_pieces;
    const int64_t left = cut->pieces - at.first;
    at.pieces = left < cut->part_pieces ? left : cut->part_pieces;
    return at;
}

void batch_begin(const cpu_job *job) {
    const problem *p = job->problem;
    if (!is_in_parts(&job->plan->cut.batch))
        return;
    const numbers all = numbers_of_all(job);
    for (int64_t row = 0; row < p->rows;) {
        const row_run run = row_run_at(job, row, p->rows);
        const numbers n = numbers_at(&all, row, real_bytes(job));
        load_rows(job, &run, &n);
        row += run.rows;
    }
    if (is_backward(p))
        factors_of_given(job, &all, p->rows);
}

void batch_blocks(void *data, int64_t begin, int64_t end) {
    cpu_job *job = data;
    const batch_cut *cut = &job->plan->cut.batch;
    if (!is_in_parts(cut)) {
        for (int64_t tile = begin; tile < end; tile++)
            whole_tile(job, tile);
        return;
    }
    if (!sums(job->problem))
        return;
    const numbers all = numbers_of_all(job);
    const int slot = cut->by_pixel ? slot_take(job) : -1;
    void *const scratch = slot < 0 ? NULL : slot_data(job, &cut->slots, slot);
    for (int64_t block = begin; block < end; block++) {
        int64_t row, part;
        const tile_place at = block_place(job, block, &row, &part);
        numbers n = numbers_at(&all, row, real_bytes(job));
        for (int k = 0; k < RECORDS; k++)
            n.record[k] += part * RECORDS * job->problem->rows;
        sum_tile_of_part(job, &at, &n, scratch);
    }
    if (slot >= 0)
        slot_return(job, slot);
}

bool batch_goes_on(const cpu_job *job) {
    const problem *p = job->problem;
    if (!is_in_parts(&job->plan->cut.batch))
        return false;
    const numbers all = numbers_of_all(job);
    finish(job, &all, p->rows);
    return writes(p);
}

/* From the last block to the first: what was summed last is near. */
void batch_results(void *data, int64_t begin, int64_t end) {
    const cpu_job *job = data;
    const numbers all = numbers_of_all(job);
    for (int64_t block = end - 1; block >= begin; block--) {
        int64_t row, part;
        const tile_place at = block_place(job, block, &row, &part);
        const numbers n = numbers_at(&all, row, real_bytes(job));
        results_of_tile(job, &at, &n);
    }
#if defined(__SSE2__)
    if (job->plan->traffic == TRAFFIC_STREAM)
        __builtin_ia32_sfence();
#endif
}

void batch_end(const cpu_job *job) {
    const problem *p = job->problem;
    if (!is_in_parts(&job->plan->cut.batch))
        return;
    const numbers all = numbers_of_all(job);
    do_wide_rows(job, 0, p->rows, &all);
    for (int64_t row = 0; row < p->rows;) {
        const row_run run = row_run_at(job, row, p->rows);
        const numbers n = numbers_at(&all, row, real_bytes(job));
        store_rows(p, &run, &n);
        row += run.rows;
    }
}
