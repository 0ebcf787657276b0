#include "cpu/batch/batch_run.h"
#include "cpu/batch/batch_numbers.h"

/* ---- What a problem wants -------------------------------------------------------------------- */

static bool is_in_parts(const batch_cut *cut) {
    return cut->by_pixel || cut->parts > 1;
}
/* Whether elements are summed at all. */
static bool sums(const problem *p) {
    if (batch_is_backward(p))
        return !problem_is_given(p) || has(p, ROLE_DWEIGHT) || has(p, ROLE_DBIAS);
    return p->pass != PLANISH_APPLY;
}
/* Whether elements are written. */
static bool writes(const problem *p) {
    return has(p, ROLE_DX) || has(p, ROLE_DADDEND) || (!batch_is_backward(p) && has(p, ROLE_Y));
}
static bool is_fixed(const problem *p) {
    return batch_is_backward(p) && has(p, ROLE_RUNNING_MEAN);
}

static const batch_kernels *kernels_of(const cpu_job *job) {
    return job->plan->kernels->batch[job->problem->dtypes[ROLE_X]];
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
                        job->plan->traffic != TRAFFIC_CACHED};
}

static batch_through through_of(const problem *p) {
    return problem_masks_by_y(p)               ? THROUGH_MASK
           : p->activation == PLANISH_IDENTITY ? THROUGH_NOTHING
           : p->activation == PLANISH_RELU     ? THROUGH_RELU
                                               : THROUGH_ACTIVATION;
}

/* Of channels from `channel` of the tile on, whose numbers these are. */
static batch_gradient_args gradient_args(const cpu_job *job, const tile_place *at, int64_t channel,
                                         int64_t channels, const batch_numbers *n, void *scratch) {
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
static void sum_tile_of_part(const cpu_job *job, const tile_place *at, const batch_numbers *n,
                             void *scratch) {
    if (batch_is_backward(job->problem)) {
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
static void results_of_tile(const cpu_job *job, const tile_place *at, const batch_numbers *n,
                            void *scratch) {
    const problem *p = job->problem;
    for (int64_t c = 0, end; writes(p) && c < at->run.rows; c = end) {
        for (end = c; end < at->run.rows && !n->wide[end]; end++) {
        }
        if (end == c) {
            end++;
            continue;
        }
        const batch_numbers own = batch_numbers_at(job, n, c);
        if (batch_is_backward(p)) {
            const batch_gradient_args a = gradient_args(job, at, c, end - c, &own, scratch);
            kernels_of(job)->gradient(&a);
            continue;
        }
        const batch_apply_args a = {
            .tile = tile_of(job, at, end - c),
            .x = side_of(job, at, ROLE_X, c),
            .y = side_of(job, at, ROLE_Y, c),
            .addend = side_of(job, at, ROLE_ADDEND, c),
            .factor = {own.factor[FACTOR_MEAN], own.factor[FACTOR_SCALE],
                       own.factor[FACTOR_OFFSET]},
            .activation = p->activation,
            .traffic = job->plan->traffic,
            .scratch = scratch,
        };
        kernels_of(job)->apply(&a);
    }
}

static batch_finish_args finish_args(const cpu_job *job, const batch_numbers *n, int64_t rows) {
    const problem *p = job->problem;
    const batch_cut *cut = &job->plan->cut.batch;
    batch_finish_args a = {
        .channels = rows,
        .parts = cut->parts,
        .part_step = RECORDS * p->rows,
        .part_count = cut->part_pieces * cut->span,
        .last_count = p->cols - (cut->parts - 1) * cut->part_pieces * cut->span,
        .eps = p->rule.eps,
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
static void factors_of_given(const cpu_job *job, const batch_numbers *n, int64_t rows) {
    const batch_finish_args a = finish_args(job, n, rows);
    kernels_of(job)->finish_forward(&a);
}

/* What follows from the sums. */
static void finish(const cpu_job *job, const batch_numbers *n, int64_t rows) {
    batch_finish_args a = finish_args(job, n, rows);
    for (int k = 0; k < RECORDS && sums(job->problem); k++)
        a.record[k] = a.total[k] = n->record[k];
    if (batch_is_backward(job->problem))
        kernels_of(job)->finish_backward(&a);
    else
        kernels_of(job)->finish_forward(&a);
}

/* Rows that left the range, all of each, from `row` on; their results and numbers. */
static void do_wide_rows(const cpu_job *job, int64_t row, int64_t rows, const batch_numbers *n) {
    const problem *p = job->problem;
    for (int64_t i = 0; i < rows; i++) {
        if (!n->wide[i])
            continue;
        if (batch_is_backward(p))
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
    batch_tile_room room;
    const batch_numbers n = batch_numbers_of_tile(&room);
    batch_load_rows(job, &at.run, &n);
    if (batch_is_backward(p))
        factors_of_given(job, &n, at.run.rows);
    if (sums(p))
        sum_tile_of_part(job, &at, &n, NULL);
    finish(job, &n, at.run.rows);
    results_of_tile(job, &at, &n, NULL);
    do_wide_rows(job, row, at.run.rows, &n);
    batch_store_rows(p, &at.run, &n);
}

/* ---- Tiles in parts -------------------------------------------------------------------------- */

/* Scratch of the thread that does some blocks; by channel none. */
static int room_take(cpu_job *job) {
    return job->plan->cut.batch.by_pixel ? slot_take(job) : -1;
}
static void *room_data(const cpu_job *job, int slot) {
    return slot < 0 ? NULL : slot_data(job, &job->plan->cut.batch.slots, slot);
}
static void room_return(cpu_job *job, int slot) {
    if (slot >= 0)
        slot_return(job, slot);
}

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
    const batch_numbers all = batch_numbers_of_all(job);
    for (int64_t row = 0; row < p->rows;) {
        const row_run run = row_run_at(job, row, p->rows);
        const batch_numbers n = batch_numbers_at(job, &all, row);
        batch_load_rows(job, &run, &n);
        row += run.rows;
    }
    if (batch_is_backward(p))
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
    const batch_numbers all = batch_numbers_of_all(job);
    const int slot = room_take(job);
    void *const scratch = room_data(job, slot);
    for (int64_t block = begin; block < end; block++) {
        int64_t row, part;
        const tile_place at = block_place(job, block, &row, &part);
        batch_numbers n = batch_numbers_at(job, &all, row);
        for (int k = 0; k < RECORDS; k++)
            n.record[k] += part * RECORDS * job->problem->rows;
        sum_tile_of_part(job, &at, &n, scratch);
    }
    room_return(job, slot);
}

bool batch_goes_on(const cpu_job *job) {
    const problem *p = job->problem;
    if (!is_in_parts(&job->plan->cut.batch))
        return false;
    const batch_numbers all = batch_numbers_of_all(job);
    finish(job, &all, p->rows);
    return writes(p);
}

/* From the last block to the first: what was summed last is near. */
void batch_results(void *data, int64_t begin, int64_t end) {
    cpu_job *job = data;
    const batch_numbers all = batch_numbers_of_all(job);
    const int slot = room_take(job);
    void *const scratch = room_data(job, slot);
    for (int64_t block = end - 1; block >= begin; block--) {
        int64_t row, part;
        const tile_place at = block_place(job, block, &row, &part);
        const batch_numbers n = batch_numbers_at(job, &all, row);
        results_of_tile(job, &at, &n, scratch);
    }
    room_return(job, slot);
#if defined(__SSE2__)
    if (job->plan->traffic == TRAFFIC_STREAM)
        __builtin_ia32_sfence();
#endif
}

void batch_end(const cpu_job *job) {
    const problem *p = job->problem;
    if (!is_in_parts(&job->plan->cut.batch))
        return;
    const batch_numbers all = batch_numbers_of_all(job);
    do_wide_rows(job, 0, p->rows, &all);
    for (int64_t row = 0; row < p->rows;) {
        const row_run run = row_run_at(job, row, p->rows);
        const batch_numbers n = batch_numbers_at(job, &all, row);
        batch_store_rows(p, &run, &n);
        row += run.rows;
    }
}
