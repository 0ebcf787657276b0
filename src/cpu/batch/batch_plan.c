/* How batch norms are cut. What sums are cut by decides their bits: it is a function of the problem
 * alone. */
#include "cpu/batch/batch_kernels.h"
#include "cpu/batch/batch_run.h"
#include "cpu/common/integers.h"

enum {
    RUN_BYTES_OF_TILE = 8192,     /* of neighbours in a tile by channel, or more; */
    RUN_BYTES_UNSUMMED = 1 << 17, /* where nothing is summed that should stay near */
    EVEN_TILES = 16,              /* by channel, where there are as many channels */
    FEW_TILES = 4,                /* are cut into parts, */
    PART_ELEMENTS = 65536,        /* of at least so many elements of a channel; by pixel of all */
    TILE_CHANNELS = 2048,         /* by pixel */
    LEAST_PIXELS = 64             /* parts by pixel are multiples of it */
};

static void cut_by_channel(batch_cut *cut, const problem *p) {
    const axis *span = &p->reduced[p->reduced_count - 1];
    const int64_t bytes = span->size * dtype_bytes(p->dtypes[ROLE_X]);
    int64_t tile = (p->pass == PLANISH_APPLY ? RUN_BYTES_UNSUMMED : RUN_BYTES_OF_TILE) / bytes;
    const int64_t even = p->rows / EVEN_TILES;
    tile = tile > even ? even : tile;
    tile = tile > BATCH_TILE_CHANNELS ? BATCH_TILE_CHANNELS : tile < 1 ? 1 : tile;
    cut->span = span->size;
    cut->pieces = p->cols / span->size;
    cut->tile_rows = tile > cut->run_rows ? cut->run_rows : tile;
    cut->parts = 1;
    if (ceil_div(p->rows, cut->tile_rows) < FEW_TILES && p->cols >= 2 * PART_ELEMENTS) {
        const int64_t pieces = ceil_div(PART_ELEMENTS, span->size);
        cut->parts = ceil_div(cut->pieces, pieces);
        cut->parts = cut->parts > EVEN_TILES ? EVEN_TILES : cut->parts;
    }
    cut->part_pieces = ceil_div(cut->pieces, cut->parts);
}

static void cut_by_pixel(batch_cut *cut, const problem *p) {
    cut->span = 1;
    cut->pieces = p->cols;
    cut->tile_rows = cut->run_rows > TILE_CHANNELS ? TILE_CHANNELS : cut->run_rows;
    const int64_t tiles = ceil_div(cut->run_rows, cut->tile_rows);
    const int64_t most = tiles < SLOTS ? SLOTS / tiles : 1; /* parts */
    int64_t pixels = ceil_div(PART_ELEMENTS, cut->tile_rows);
    if (pixels < ceil_div(p->cols, most))
        pixels = ceil_div(p->cols, most);
    cut->part_pieces = ceil_div(pixels, LEAST_PIXELS) * LEAST_PIXELS;
}

void batch_plan(cpu_plan *plan, const problem *p) {
    batch_cut *const cut = &plan->cut.batch;
    const size_t real_bytes = plan->is_double ? sizeof(double) : sizeof(float);
    *cut = (batch_cut){.by_pixel = problem_batch_layout(p) == BATCH_BY_PIXEL,
                       .run_rows = p->kept[p->kept_count - 1].size};
    (cut->by_pixel ? cut_by_pixel : cut_by_channel)(cut, p);
    cut->parts = ceil_div(cut->pieces, cut->part_pieces);
    cut->run_tiles = ceil_div(cut->run_rows, cut->tile_rows);
    cut->tiles = p->rows / cut->run_rows * cut->run_tiles;
    plan->blocks = cut->tiles * cut->parts;
    plan->sums = 0;
    plan->workspace_bytes = 0;
    if (!cut->by_pixel && cut->parts == 1)
        return;
    cut->numbers_offset = (size_t)(cut->parts * RECORDS * p->rows) * sizeof(double);
    const size_t of_channel = 6 * sizeof(double) + (BATCH_FACTORS + 2) * real_bytes + 1;
    plan->workspace_bytes = cut->numbers_offset + round_up((size_t)p->rows * of_channel);
    if (cut->by_pixel) {
        const int64_t slots = plan->blocks < SLOTS ? plan->blocks : SLOTS;
        cut->slots =
            (thread_slots){plan->workspace_bytes, round_up((size_t)cut->tile_rows * BATCH_SCRATCH)};
        plan->workspace_bytes += (size_t)slots * cut->slots.bytes;
    }
}
