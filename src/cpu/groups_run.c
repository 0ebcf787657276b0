/* Work items of PATH_GROUPS: rows, or tiles of them by one of two ways. */
#include "cpu/groups_run.h"
#include "cpu/groups_planes.h"
#include "cpu/groups_row.h"
#include "cpu/groups_strip.h"

/* Tiles of rows along the innermost kept axis. */
static void group_tiles(cpu_job *job, int64_t begin, int64_t end) {
    const planish_plan *plan = job->plan;
    const problem *p = &plan->problem;
    const int64_t run = plan->run_rows;
    const int64_t all = p->rows / run * plan->run_tiles;
    const int64_t last = end * plan->block_tiles < all ? end * plan->block_tiles : all;
    const int slot = slot_take(job);
    for (int64_t tile = begin * plan->block_tiles, next; tile < last; tile = next) {
        const int64_t in_run = tile % plan->run_tiles, first = in_run * plan->tile_rows;
        next = tile - in_run + plan->run_tiles; /* where the run ends */
        next = next < last ? next : last;
        next = next - tile < plan->joined_tiles ? next : tile + plan->joined_tiles;
        const int64_t all_rows = (next - tile) * plan->tile_rows;
        const int64_t rows = run - first < all_rows ? run - first : all_rows;
        const int64_t row = tile / plan->run_tiles * run + first;
        if (plan->by_pixel)
            group_strip(job, slot, row, rows);
        else
            group_planes(job, slot, row, rows);
    }
    slot_return(job, slot);
}

void group_blocks(void *data, int64_t begin, int64_t end) {
    cpu_job *job = data;
    const planish_plan *plan = job->plan;
    const problem *p = &plan->problem;
    if (plan->tile_rows) {
        group_tiles(job, begin, end);
        return;
    }
    const int64_t last = end * plan->block_rows < p->rows ? end * plan->block_rows : p->rows;
    const int slot = plan->slot_bytes ? slot_take(job) : -1;
    void *const kept = slot < 0 ? NULL : slot_data(job, slot);
    for (int64_t row = begin * plan->block_rows; row < last;) {
        row_run run = row_run_at(job, row, last);
        const int64_t behind = row + run.rows;
        for (int count; row < behind; row += count) {
            count = behind - row < plan->together ? (int)(behind - row) : plan->together;
            group_rows(job, p->dtypes[ROLE_X], row, count, &run, plan->traffic, kept);
            for (int r = 0; r < ROLE_COUNT; r++)
                run.data[r] = run.data[r] ? run.data[r] + count * run.pitch[r] : NULL;
        }
    }
    if (slot >= 0)
        slot_return(job, slot);
}
