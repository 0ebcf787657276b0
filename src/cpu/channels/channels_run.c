/*
 * Work items of PATH_CHANNELS: which tiles a block has, where their pixels are, and where the
 * thread keeps them. What is done with a tile is cpu/channels/channels.h.
 */
#include "cpu/channels/channels_run.h"
#include "cpu/common/affine.h"
#include "cpu/common/sums.h"

/* What a thread needs for any tile of the problem. */
typedef struct channel_thread {
    const cpu_job *job;
    const channel_kernels *kernels;
    const void *weight, *bias;
    void *rows, *scratch;
} channel_thread;

static void *dense_weights(const cpu_job *job, role r, char *to) {
    if (!has(job->problem, r))
        return NULL;
    load_affine(job, r, to);
    return to;
}

static channel_thread thread_of(const cpu_job *job, int slot) {
    const cpu_plan *plan = job->plan;
    const thread_slots *slots = &plan->cut.channels.slots;
    const int64_t row = job->problem->cols * (plan->is_double ? 8 : 4);
    char *at = slot_data(job, slots, slot);
    const int64_t tiles = (int64_t)slots->bytes / row - 5;
    channel_thread thread = {.job = job, .kernels = plan->kernels->channels[plan->is_double]};
    thread.scratch = at;
    at += tiles * row;
    thread.weight = dense_weights(job, ROLE_WEIGHT, at);
    thread.bias = dense_weights(job, ROLE_BIAS, at + row);
    thread.rows = at + 2 * row;
    return thread;
}

static int64_t run_size(const problem *p) {
    return p->kept[p->kept_count - 1].size;
}

/* The first pixel of tile `index`, counted over all runs; and all of them. */
static int64_t first_row(const cpu_job *job, int64_t index) {
    const channels_cut *cut = &job->plan->cut.channels;
    return index / cut->run_tiles * run_size(job->problem) +
           index % cut->run_tiles * cut->tile_pixels;
}
static row_run tile_at(const cpu_job *job, int64_t index) {
    const int64_t row = first_row(job, index), size = run_size(job->problem);
    const int64_t left = size - row % size, most = job->plan->cut.channels.tile_pixels;
    return row_run_at(job, row, row + (left < most ? left : most));
}

/* The first pixel of what is read after this tile; NULL where nothing is. */
static const char *next_of(const cpu_job *job, role r, int64_t tile, int64_t last) {
    return tile + 1 < last ? tile_at(job, tile + 1).data[r] : NULL;
}

static tile_side side_of(const problem *p, const row_run *run, role r) {
    const int bytes = dtype_bytes(p->dtypes[r]);
    return (tile_side){run->data[r], run->pitch[r], reduced_stride(p, 0, r) * bytes, p->dtypes[r]};
}

static channel_tile tile_of(const cpu_job *job, int64_t pixels) {
    return (channel_tile){
        .channels = job->problem->cols,
        .pixels = pixels,
        .padded = (pixels + TILE_STEP - 1) / TILE_STEP * TILE_STEP,
        /* Not a power of two: the channels of a pixel would share few lines of the cache. */
        .pitch = job->plan->cut.channels.tile_pixels + TILE_STEP,
    };
}

static void forward_tile(const channel_thread *thread, int64_t tile, int64_t last) {
    const problem *p = thread->job->problem;
    const row_run run = tile_at(thread->job, tile);
    job_make_x(thread->job, first_row(thread->job, tile), run.rows);
    const channel_forward_args args = {
        .tile = tile_of(thread->job, run.rows),
        .x = side_of(p, &run, ROLE_X),
        .y = side_of(p, &run, ROLE_Y),
        .next_x = next_of(thread->job, ROLE_X, tile, last),
        .weight = thread->weight,
        .bias = thread->bias,
        .weight_offset = p->weight_offset,
        .rule = p->rule,
        .mean = run_stat(p, &run, ROLE_MEAN),
        .rstd = run_stat(p, &run, ROLE_RSTD),
        .m2 = run_stat(p, &run, ROLE_M2),
        .given = p->pass == PLANISH_APPLY,
        .traffic = thread->job->plan->traffic,
        .scratch = thread->scratch,
        .rows = thread->rows,
        .kind = p->kind,
        .activation = p->activation,
    };
    thread->kernels->forward[kernel_kind(p->kind, p->activation)](&args);
}

static void backward_tile(const channel_thread *thread, int64_t tile, int64_t last,
                          const block_space *space) {
    const problem *p = thread->job->problem;
    const row_run run = tile_at(thread->job, tile);
    const channel_backward_args args = {
        .tile = tile_of(thread->job, run.rows),
        .x = side_of(p, &run, ROLE_X),
        .dy = side_of(p, &run, ROLE_DY),
        .dx = side_of(p, &run, ROLE_DX),
        .dsum = side_of(p, &run, ROLE_DSUM),
        .next_x = next_of(thread->job, ROLE_X, tile, last),
        .next_dy = next_of(thread->job, ROLE_DY, tile, last),
        .weight = thread->weight,
        .weight_offset = p->weight_offset,
        .rule = p->rule,
        .mean = run_stat(p, &run, ROLE_MEAN),
        .rstd = run_stat(p, &run, ROLE_RSTD),
        .traffic = thread->job->plan->traffic,
        .scratch = thread->scratch,
        .rows = thread->rows,
        .dweight_sum = space->sum[0],
        .dbias_sum = space->sum[1],
        .dweight = space->chunk[0],
        .dbias = space->chunk[1],
        .kind = p->kind,
        .activation = p->activation,
        .bias = thread->bias,
    };
    thread->kernels->backward[kernel_kind(p->kind, p->activation)](&args);
}

static void backward_block(const channel_thread *thread, int64_t block, int64_t tile,
                           int64_t last) {
    const block_slices *slices = &thread->job->plan->slices;
    const block_space space = block_space_of(thread->job, block);
    for (int i = 0; i < 2; i++)
        if (space.chunk[i]) {
            memset(space.chunk[i], 0, slices->chunk_bytes);
            memset(space.sum[i], 0, slices->sum_bytes);
        }
    for (; tile < last; tile++)
        backward_tile(thread, tile, last, &space);
    for (int i = 0; i < 2; i++)
        if (space.chunk[i])
            flush_dense(thread->job, space.chunk[i], space.sum[i]);
}

void channel_blocks(void *data, int64_t begin, int64_t end) {
    cpu_job *job = data;
    const problem *p = job->problem;
    const channels_cut *cut = &job->plan->cut.channels;
    const int64_t tiles = p->rows / p->kept[p->kept_count - 1].size * cut->run_tiles;
    const int slot = slot_take(job);
    const channel_thread thread = thread_of(job, slot);
    for (int64_t block = begin; block < end; block++) {
        const int64_t first = block * cut->block_tiles;
        const int64_t last = first + cut->block_tiles < tiles ? first + cut->block_tiles : tiles;
        if (p->pass == PLANISH_BACKWARD)
            backward_block(&thread, block, first, last);
        else
            for (int64_t tile = first; tile < last; tile++)
                forward_tile(&thread, tile, last);
    }
    slot_return(job, slot);
}
