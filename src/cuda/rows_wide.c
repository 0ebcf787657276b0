/* Rows over groups of blocks. What they are cut by is in tuning.h. */
#include "rows_wide.h"

#include "integers.h"
#include "lanes.h"

void wide_geometry(cuda_plan *plan, int bytes, const cuda_limits *limits) {
    const rows_wide_tuning *t = &limits->tuning->rows_wide;
    const rows_forward_tuning *row = &limits->tuning->rows_forward;
    const int32_t *m = plan->main.constant;
    const int forward = plan->main.kernel == CUDA_FORWARD;
    const int inputs = forward ? 1 : 2, width = m[C_WIDTH], chunks = (int)plan->cols / width;
    const int fewest = bytes == 2 ? t->chunks : row->most_lanes * (row->elements / 8) + 1;
    if (m[C_REAL_DOUBLE] || !limits->cooperative || width * bytes != 16 ||
        (forward ? chunks < fewest : m[C_HOLD] || plan->cols < t->backward_cols))
        return;
    int most_vecs = forward ? t->vecs : bytes == 4 ? t->f32_vecs : t->summed_vecs;
    /* In the backward of 16 bits two blocks hide what each other waits for; f32 rows take so much
     * shared memory that one with more turns under way does better. */
    const int blocks = forward || bytes == 4 ? 1 : 2;
    const int most_lanes = (forward ? t->threads : t->summed_threads) / blocks;
    const int held = limits->multiprocessors * blocks;
    int group = ceil_div(chunks, most_lanes * most_vecs), vecs = 1;
    if (forward && m[C_KIND] == PLANISH_RMS && bytes == 4 && group > t->few_blocks) {
        most_vecs = t->rms_vecs;
        group = ceil_div(chunks, most_lanes * most_vecs);
    }
    /* Groups are to take nearly all multiprocessors. */
    while (forward && group < held && held % group > held / 32)
        group++;
    if (group < 2 || group > held)
        return;
    int lanes = lanes_of_block(chunks, width, group, most_vecs * width, most_lanes, &vecs);
    int slot = lanes * vecs * 16 * inputs;
    /* Less what every block takes of a multiprocessor, and the exchange. */
    int room = (limits->shared_per_block + 1024) / blocks - 2048;
    const int useful = !forward ? t->summed_stages : bytes == 2 ? t->few_stages : t->stages;
    int stages = least(useful, room / slot);
    if (!lanes || stages < 3)
        return;
    plan->wide = plan->main;
    plan->wide.kernel = forward ? CUDA_FORWARD : CUDA_BACKWARD;
    int32_t *c = plan->wide.constant;
    c[C_LANES] = lanes;
    c[C_WARPS] = lanes / 32;
    c[C_VECS] = vecs;
    c[C_GROUP] = group;
    c[C_ROWS] = c[C_CLUSTER] = c[C_TEAMS] = c[C_HOLD] = c[C_EARLY] = 1;
    c[C_STAGES] = stages;
    /* As measured; an exchange of f32 backward rows takes three turns. */
    c[C_DELAY] = !forward      ? bytes == 4 ? stages - 1 : stages / 2
                 : stages == 6 ? 4
                               : (stages + 1) / 2;
    if (!forward && bytes == 4)
        c[C_HOLD] = 2; /* for a ring has room for no row but that and those under way */
    c[C_MIN_BLOCKS] = blocks;
}
