/* Work items of groups: rows, or tiles of them by one of two ways. */
#include "cpu/groups/groups_run.h"
#include "cpu/groups/groups_planes.h"
#include "cpu/groups/groups_row.h"
#include "cpu/groups/groups_strip.h"

/* Tiles of rows along the innermost kept axis. */
void group_tile_blocks(void *data, int64_t begin, int64_t end) {
    cpu_job *job = data;
    const group_tiles_cut *cut = &job->plan->cut.tiles;
    const int64_t run = cut->run_rows;
    const int64_t all = job->problem->rows / run * cut->run_tiles;
    const int64_t last = end * cut->block_tiles < all ? end * cut->block_tiles : all;
    const int slot = slot_take(job);
    for (int64_t tile = begin * cut->block_tiles, next; tile < last; tile = next) {
        const int64_t in_run = tile % cut->run_tiles, first = in_run * cut->tile_rows;
        next = tile - in_run + cut->run_tiles; /* where the run ends */
        next = next < last ? next : last;
        next = next - tile < cut->joined_tiles ? next : tile + cut->joined_tiles;
        const int64_t all_rows = (next - tile) * cut->tile_rows;
        const int64_t rows = run - first < all_rows ? run - first : all_rows;
        const int64_t row = tile / cut->run_tiles * run + first;
        job_make_x(job, row, rows);
        if (job->plan->path == PATH_PIXELS)
            group_strip(job, slot, row, rows);
        else
            group_planes(job, slot, row, rows);
    }
    slot_return(job, slot);
}

void group_row_blocks(void *data, int64_t begin, int64_t end) {
    cpu_job *job = data;
    const problem *p = job->problem;
    const group_rows_cut *cut = &job->plan->cut.group_rows;
    const int64_t last = end * cut->block_rows < p->rows ? end * cut->block_rows : p->rows;
    const int64_t block = cut->block_rows > cut->together ? cut->block_rows : cut->together;
    const int slot = cut->slots.bytes ? slot_take(job) : -1;
    void *const kept = slot < 0 ? NULL : slot_data(job, &cut->slots, slot);
    for (int64_t row = begin * cut->block_rows; row < last;) {
        row_run run = row_run_at(job, row, job->make_x && last - row > block ? row + block : last);
        const int64_t behind = row + run.rows;
        job_make_x(job, row, run.rows);
        for (int count; row < behind; row += count) {
            count = behind - row < cut->together ? (int)(behind - row) : cut->together;
            group_rows(job, p->dtypes[ROLE_X], row, count, &run, job->plan->traffic, kept);
            for (int r = 0; r < ROLE_COUNT; r++)
                run.data[r] = run.data[r] ? run.data[r] + count * run.pitch[r] : NULL;
        }
    }
    if (slot >= 0)
        slot_return(job, slot);
}
