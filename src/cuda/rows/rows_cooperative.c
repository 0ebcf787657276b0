/* Rows over groups of blocks. What they are cut by is in tuning.h. */
#include "cuda/rows/rows_cooperative.h"

#include "cuda/common/integers.h"
#include "cuda/common/lanes.h"

void cooperative_geometry(cuda_plan *plan, int bytes, const cuda_limits *limits) {
    const rows_cooperative_tuning *t = &limits->tuning->rows_cooperative;
    const rows_forward_tuning *row = &limits->tuning->rows_forward;
    const cuda_spec *main = &plan->main;
    const int forward = plan->main.kernel == CUDA_FORWARD;
    const int inputs = forward ? 1 : 2, width = main->rows.width, chunks = (int)plan->cols / width;
    const int fewest = bytes == 2 ? t->chunks : row->most_lanes * (row->elements / 8) + 1;
    if (main->real_double || !limits->cooperative || width * bytes != 16 ||
        (forward ? chunks < fewest
                 : main->rows.hold != HOLD_IN_THREAD || plan->cols < t->backward_cols))
        return;
    int most_vecs = forward ? t->vecs : bytes == 4 ? t->f32_vecs : t->summed_vecs;
    /* In the backward of 16 bits two blocks hide what each other waits for; f32 rows take so much
     * shared memory that one with more turns under way does better. */
    const int blocks = forward || bytes == 4 ? 1 : 2;
    const int most_lanes = (forward ? t->threads : t->summed_threads) / blocks;
    const int held = limits->multiprocessors * blocks;
    int group = ceil_div(chunks, most_lanes * most_vecs), vecs = 1;
    if (forward && main->kind != PLANISH_LAYER && bytes == 4 && group > t->few_blocks) {
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
    const int useful = !forward     ? t->summed_ring_slots
                       : bytes == 2 ? t->few_ring_slots
                                    : t->ring_slots;
    int ring_slots = least(useful, room / slot);
    if (!lanes || ring_slots < 3)
        return;
    plan->cooperative = plan->main;
    plan->cooperative.kernel = forward ? CUDA_FORWARD : CUDA_BACKWARD;
    cuda_spec *spec = &plan->cooperative;
    rows_constants *c = &spec->rows;
    c->threads_per_row = lanes;
    c->warps = lanes / WARP;
    c->chunks_per_thread = vecs;
    spec->cooperating_blocks = group;
    c->rows = spec->cluster = c->teams = c->early = 1;
    c->hold = forward ? (int)HOLD_IN_SHARED : (int)HOLD_IN_RING;
    c->ring_slots = ring_slots;
    /* As measured; an exchange of f32 backward rows takes three turns. */
    c->delay = !forward          ? bytes == 4 ? ring_slots - 1 : ring_slots / 2
               : ring_slots == 6 ? 4
                                 : (ring_slots + 1) / 2;
    if (!forward && bytes == 4)
        c->hold = HOLD_THE_NEXT; /* for a ring has room for no row but that and those under way */
    spec->min_blocks = blocks;
}
