#include "cuda/stages/samples.h"

#include "cuda/common/integers.h"

enum {
    ROWS_AT_ONCE = 8, /* of partial sums, under way for a lane */
    MOST_SLICES = 16,
    FEW_BLOCKS = 264, /* two for each multiprocessor of a large GPU */
    MOST_GRID_Y = 65535,
    MOST_WAVES = 8,
};

void samples_describe(cuda_spec *spec, const cuda_spec *main, int cols, int64_t samples,
                      int64_t parts) {
    *spec = (cuda_spec){.kernel = CUDA_STAGES_SAMPLES,
                        .real_double = main->real_double,
                        .weight_offset = main->weight_offset,
                        .want_dweight = main->want_dweight,
                        .want_dbias = main->want_dbias,
                        .cluster = 1,
                        .cooperating_blocks = 1,
                        .min_blocks = 1};
    for (role r = 0; r < ROLE_COUNT; r++)
        spec->type[r] = main->type[r];
    finish_constants *f = &spec->finish;
    f->cols = cols;
    f->slices = 1;
    f->rows = (int32_t)least_i64(ROWS_AT_ONCE, most_i64(1, parts));
    while (f->slices < MOST_SLICES && f->slices * f->rows < parts)
        f->slices *= 2;
    f->lanes = samples * cols / 64 < FEW_BLOCKS ? 32 : 64;
}

void samples_grid(cuda_launch *l, int64_t samples) {
    l->blocks_x = ceil_div(l->spec.finish.cols, l->spec.finish.lanes);
    l->blocks_y = (unsigned)least_i64(samples, MOST_GRID_Y);
}

unsigned samples_threads(const cuda_spec *spec) {
    return (unsigned)(spec->finish.lanes * spec->finish.slices);
}

/* Of what the device could do while such a launch lasts, the share that it does. A wave of blocks
 * costs its start and its row of sums. */
static double busy(int64_t samples, int64_t rows, int64_t block_rows, int64_t resident,
                   int64_t parts) {
    const int64_t waves = ceil_div_i64(samples * parts, resident);
    const int64_t turns = ceil_div_i64(rows, parts * block_rows);
    const double all = (double)waves * (double)resident * (double)turns * (double)block_rows;
    return (double)samples * (double)rows / all / (1 + .05 * (double)waves);
}

int64_t samples_parts(int64_t samples, int64_t rows, int64_t block_rows, int64_t resident) {
    int64_t best = 1;
    double most_busy = busy(samples, rows, block_rows, resident, best);
    for (int64_t waves = 1; waves <= MOST_WAVES; waves++) {
        int64_t parts = most_i64(1, waves * resident / samples);
        const int64_t turns = ceil_div_i64(rows, parts * block_rows);
        parts = ceil_div_i64(rows, turns * block_rows); /* the fewest that take no more turns */
        const double now = busy(samples, rows, block_rows, resident, parts);
        if (now > most_busy) {
            most_busy = now;
            best = parts;
        }
    }
    return best;
}
