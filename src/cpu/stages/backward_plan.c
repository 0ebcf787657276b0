/* How the backward of a norm with stages around it is cut; see backward.h. */
#include "cpu/common/affine.h"
#include "cpu/common/integers.h"
#include "cpu/stages/backward.h"
#include "cpu/stages/backward_rows.h"
#include "cpu/stages/backward_sums.h"

enum {
    MOST_BLOCKS = SLOTS,  /* each thread has a slot */
    BLOCK_ROWS = 128,     /* fewest rows in one of them, where there are many */
    BATCH_BYTES = 3 << 16 /* of the rows that are in scratch together, where they are short */
};

/* The sums of all blocks, and scratch of all, stay below this as long as there is one block. */
static const size_t scratch_limit = (size_t)256 << 20;

/* Whether rows one behind the other have different weights. */
static bool weight_varies(const problem *p) {
    for (int k = 0; k < p->kept_count; k++)
        if (p->kept[k].affine)
            return true;
    return false;
}

/* The sums of dweight and dbias are made by the row kernels for a batch at once: its rows are of
 * one chunk. */
static int64_t batch_rows(const problem *p, size_t row_bytes) {
    const int64_t most = BATCH_BYTES / BATCH_KINDS / (int64_t)row_bytes / TOGETHER * TOGETHER;
    const int64_t rows = most > CHUNK_ROWS ? CHUNK_ROWS : most < 1 ? 1 : most;
    return weight_varies(p) ? 1 : rows < p->rows ? rows : p->rows;
}

void stages_plan_backward(cpu_plan *plan, const problem *p) {
    stages_cut *cut = &plan->cut.stages;
    const size_t real_bytes = plan->is_double ? sizeof(double) : sizeof(float);
    gradient_sum sums[GRADIENT_SUMS];
    plan->sums = gradient_sums_of(p, sums);
    plan->slices = (block_slices){0};
    for (int i = 0; i < plan->sums; i++)
        plan->slices.bytes += gradient_sum_bytes(&sums[i], p->cols, real_bytes);
    cut->batch_rows = batch_rows(p, cut->row_bytes);
    const int64_t rows = BATCH_KINDS * cut->batch_rows + __builtin_popcount(scratch_rows_of(p));
    const size_t slot = round_up((size_t)rows * cut->row_bytes);
    const size_t most = scratch_limit / (slot + plan->slices.bytes);
    const int64_t blocks = most > MOST_BLOCKS ? MOST_BLOCKS : most ? (int64_t)most : 1;
    const int64_t even = ceil_div(p->rows, blocks);
    const int64_t least = p->rows > 8 * BLOCK_ROWS ? BLOCK_ROWS : CHUNK_ROWS;
    cut->block_rows = ceil_div(even > least ? even : least, CHUNK_ROWS) * CHUNK_ROWS;
    plan->blocks = ceil_div(p->rows, cut->block_rows);
    cut->slots = (thread_slots){(size_t)plan->blocks * plan->slices.bytes, slot};
    plan->workspace_bytes = cut->slots.offset + (size_t)plan->blocks * slot;
}

static int64_t tiles_of(const gradient_sum *s) {
    return s->sums ? ceil_div(s->width, SUM_TILE) : 0;
}

int64_t stages_backward_sum_tiles(const problem *p) {
    gradient_sum sums[GRADIENT_SUMS];
    const int count = gradient_sums_of(p, sums);
    int64_t tiles = 0;
    for (int i = 0; i < count; i++)
        tiles += tiles_of(&sums[i]);
    return tiles;
}

void stages_backward_sums(void *data, int64_t begin, int64_t end) {
    const cpu_job *job = data;
    const cpu_plan *plan = job->plan;
    const problem *p = job->problem;
    const size_t real_bytes = plan->is_double ? sizeof(double) : sizeof(float);
    gradient_sum sums[GRADIENT_SUMS];
    const int count = gradient_sums_of(p, sums);
    const char *at = job->workspace;
    int64_t tile = 0; /* the first one of sums[i] */
    for (int i = 0; i < count; i++) {
        const int64_t tiles = tiles_of(&sums[i]);
        for (int64_t t = begin > tile ? begin : tile; t < end && t < tile + tiles; t++) {
            const int64_t first = (t - tile) * SUM_TILE, rest = sums[i].width - first;
            gradient_sum_store(job, &sums[i], at, plan->slices.bytes, plan->cut.stages.block_rows,
                               first, rest < SUM_TILE ? rest : SUM_TILE);
        }
        tile += tiles;
        at += gradient_sum_bytes(&sums[i], p->cols, real_bytes);
    }
}
