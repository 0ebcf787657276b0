/* Rows over groups of blocks. The limits are from measurements (docs/notebook-gpu.md). */
#include "rows_wide.h"

#include "integers.h"
#include "lanes.h"
#include "rows_forward.h"

enum {
    WIDE_BACKWARD_COLS = 65537, /* shortest row for groups of blocks */
    WIDE_VECS = 4,              /* chunks a thread holds weights of */
    WIDE_SUMMED_VECS = 2,       /* chunks a thread sums columns of, 16 bits */
    WIDE_F32_VECS = 3,          /* the same, f32 */
    WIDE_THREADS = 512,         /* in a multiprocessor */
    WIDE_STAGES = 7,            /* rows in a ring, */
    WIDE_FEW_STAGES = 5,        /* of 16 bits in the forward, */
    WIDE_SUMMED_STAGES = 6,     /* in the backward */
};

void wide_geometry(cuda_plan *plan, int bytes, const cuda_limits *limits) {
    const int32_t *m = plan->main.constant;
    const int forward = plan->main.kernel == CUDA_FORWARD;
    const int inputs = forward ? 1 : 2, width = m[C_WIDTH], chunks = (int)plan->cols / width;
    const int in_a_block = FORWARD_MOST_LANES * (FORWARD_ELEMENTS / 8);
    if (m[C_REAL_DOUBLE] || !limits->cooperative || width * bytes != 16 ||
        (forward ? chunks <= in_a_block : m[C_HOLD] || plan->cols < WIDE_BACKWARD_COLS))
        return;
    const int most_vecs = forward ? WIDE_VECS : bytes == 4 ? WIDE_F32_VECS : WIDE_SUMMED_VECS;
    /* In the backward of 16 bits two blocks hide what each other waits for; f32 rows take so much
     * shared memory that one with more turns under way does better. */
    const int blocks = forward || bytes == 4 ? 1 : 2, most_lanes = WIDE_THREADS / blocks;
    const int held = limits->multiprocessors * blocks;
    int group = ceil_div(chunks, most_lanes * most_vecs), vecs = 1;
    /* Groups are to take nearly all multiprocessors. */
    while (forward && group < held && held % group > held / 32)
        group++;
    if (group < 2 || group > held)
        return;
    int lanes = lanes_of_block(chunks, width, group, most_vecs * width, most_lanes, &vecs);
    int slot = lanes * vecs * 16 * inputs;
    /* Less what every block takes of a multiprocessor, and the exchange. */
    int room = (limits->shared_per_block + 1024) / blocks - 2048;
    const int useful = !forward ? WIDE_SUMMED_STAGES : bytes == 2 ? WIDE_FEW_STAGES : WIDE_STAGES;
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
    c[C_DELAY] = forward ? (stages + 1) / 2 : bytes == 4 ? stages - 1 : stages / 2;
    c[C_MIN_BLOCKS] = blocks;
}
