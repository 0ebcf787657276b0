/*
 * Work items of PATH_CHANNELS: which tiles a block has, where their pixels are, and where the
 * thread keeps them. What is done with a tile is cpu/channels.h.
 */
#include "cpu/channels_run.h"
#include "cpu/affine.h"
#include "cpu/sums.h"

/* What a thread needs for any tile of the problem. */
typedef struct channel_thread {
    const cpu_job *job;
    const channel_kernels *kernels;
    const void *weight, *bias;
    void *rows, *scratch;
} channel_thread;

static void *dense_weights(const cpu_job *job, role r, char *to) {
    if (!has(&job->plan->problem, r))
        return NULL;
    load_affine(job, r, to);
    return to;
}

static channel_thread thread_of(const cpu_job *job, int slot) {
    const planish_plan *plan = job->plan;
    const int64_t row = plan->problem.cols * (plan->is_double ? 8 : 4);
    char *at = slot_data(job, slot);
    const int64_t tiles = (int64_t)plan->slot_bytes / row - 5;
    channel_thread thread = {.job = job, .kernels = plan->kernels->channels[plan->is_double]};
    thread.scratch = at;
    at += tiles * row;
    thread.weight = dense_weights(job, ROLE_WEIGHT, at);
    thread.bias = dense_weights(job, ROLE_BIAS, at + row);
    thread.rows = at + 2 * row;
    return thread;
}

/* The pixels of tile `index`, counted over all runs. */
static row_run tile_at(const cpu_job *job, int64_t index) {
    const planish_plan *plan = job->plan;
    const problem *p = &plan->problem;
    const int64_t size = p->kept[p->kept_count - 1].size;
    const int64_t first = index % plan->run_tiles * plan->tile_rows;
    const int64_t count = size - first < plan->tile_rows ? size - first : plan->tile_rows;
    const int64_t row = index / plan->run_tiles * size + first;
    return row_run_at(job, row, row + count);
}

/* The first pixel of what is read after this tile; NULL where nothing is. */
static const char *next_of(const cpu_job *job, role r, int64_t tile, int64_t last) {
    return tile + 1 < last ? tile_at(job, tile + 1).data[r] : NULL;
}

static tile_side side_of(const problem *p, const row_run *run, role r) {
    const int bytes = dtype_bytes(p->dtypes[r]);
    return (tile_side){run->data[r], run->pitch[r], p->reduced[0].stride[r] * bytes, p->dtypes[r]};
}

static channel_tile tile_of(const planish_plan *plan, int64_t pixels) {
    return (channel_tile){
        .channels = plan->problem.cols,
        .pixels = pixels,
        .padded = (pixels + TILE_STEP - 1) / TILE_STEP * TILE_STEP,
        /* Not a power of two: the channels of a pixel would share few lines of the cache. */
        .pitch = plan->tile_rows + TILE_STEP,
    };
}

static void forward_tile(const channel_thread *thread, int64_t tile, int64_t last) {
    const planish_plan *plan = thread->job->plan;
    const problem *p = &plan->problem;
    const row_run run = tile_at(thread->job, tile);
    const channel_forward_args args = {
        .tile = tile_of(plan, run.rows),
        .x = side_of(p, &run, ROLE_X),
        .y = side_of(p, &run, ROLE_Y),
        .next_x = next_of(thread->job, ROLE_X, tile, last),
        .weight = thread->weight,
        .bias = thread->bias,
        .weight_offset = p->weight_offset,
        .eps = p->eps,
        .mean = run_stat(p, &run, ROLE_MEAN),
        .rstd = run_stat(p, &run, ROLE_RSTD),
        .m2 = run_stat(p, &run, ROLE_M2),
        .given = p->pass == PLANISH_APPLY,
        .traffic = plan->traffic,
        .scratch = thread->scratch,
        .rows = thread->rows,
        .kind = p->kind,
        .activation = p->activation,
    };
    thread->kernels->forward[kernel_kind(p)](&args);
}

static void backward_tile(const channel_thread *thread, int64_t tile, int64_t last,
                          const block_space *space) {
    const planish_plan *plan = thread->job->plan;
    const problem *p = &plan->problem;
    const row_run run = tile_at(thread->job, tile);
    const channel_backward_args args = {
        .tile = tile_of(plan, run.rows),
        .x = side_of(p, &run, ROLE_X),
        .dy = side_of(p, &run, ROLE_DY),
        .dx = side_of(p, &run, ROLE_DX),
        .next_x = next_of(thread->job, ROLE_X, tile, last),
        .next_dy = next_of(thread->job, ROLE_DY, tile, last),
        .weight = thread->weight,
        .weight_offset = p->weight_offset,
        .mean = run_stat(p, &run, ROLE_MEAN),
        .rstd = run_stat(p, &run, ROLE_RSTD),
        .traffic = plan->traffic,
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
    thread->kernels->backward[kernel_kind(p)](&args);
}

static void backward_block(const channel_thread *thread, int64_t block, int64_t tile,
                           int64_t last) {
    const planish_plan *plan = thread->job->plan;
    const block_space space = block_space_of(thread->job, block);
    for (int i = 0; i < 2; i++)
        if (space.chunk[i]) {
            memset(space.chunk[i], 0, plan->chunk_bytes);
            memset(space.sum[i], 0, plan->sum_bytes);
        }
    for (; tile < last; tile++)
        backward_tile(thread, tile, last, &space);
    for (int i = 0; i < 2; i++)
        if (space.chunk[i])
            flush_dense(plan, space.chunk[i], space.sum[i]);
}

void channel_blocks(void *data, int64_t begin, int64_t end) {
    cpu_job *job = data;
    const planish_plan *plan = job->plan;
    const int64_t tiles = plan->problem.rows /
                          plan->problem.kept[plan->problem.kept_count - 1].size * plan->run_tiles;
    const int slot = slot_take(job);
    const channel_thread thread = thread_of(job, slot);
    for (int64_t block = begin; block < end; block++) {
        const int64_t first = block * plan->block_tiles;
        const int64_t last = first + plan->block_tiles < tiles ? first + plan->block_tiles : tiles;
        if (plan->problem.pass == PLANISH_BACKWARD)
            backward_block(&thread, block, first, last);
        else
            for (int64_t tile = first; tile < last; tile++)
                forward_tile(&thread, tile, last);
    }
    slot_return(job, slot);
}
