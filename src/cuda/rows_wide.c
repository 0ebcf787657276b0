/* Rows over groups of blocks. The limits are from measurements (docs/notebook). */
#include "rows_wide.h"

#include "integers.h"
#include "lanes.h"
#include "rows_forward.h"

enum {
    WIDE_BACKWARD_COLS = 65537, /* shortest row for groups of blocks; */
    WIDE_CHUNKS = 3328,         /* the same, in the forward of 16 bits */
    WIDE_VECS = 8,              /* chunks a thread holds weights of, */
    WIDE_RMS_VECS = 16,         /* RMSNorm of f32 whose groups had more blocks than */
    WIDE_FEW_BLOCKS = 64,
    WIDE_SUMMED_VECS = 2,      /* chunks a thread sums columns of, 16 bits */
    WIDE_F32_VECS = 3,         /* the same, f32 */
    WIDE_THREADS = 256,        /* in a multiprocessor: the fewer warps, the fewer sums to add up; */
    WIDE_SUMMED_THREADS = 512, /* in the backward, of registers for the columns */
    WIDE_STAGES = 7,           /* rows in a ring, */
    WIDE_FEW_STAGES = 6,       /* of 16 bits in the forward, */
    WIDE_SUMMED_STAGES = 6,    /* in the backward */
};

void wide_geometry(cuda_plan *plan, int bytes, const cuda_limits *limits) {
    const int32_t *m = plan->main.constant;
    const int forward = plan->main.kernel == CUDA_FORWARD;
    const int inputs = forward ? 1 : 2, width = m[C_WIDTH], chunks = (int)plan->cols / width;
    const int fewest = bytes == 2 ? WIDE_CHUNKS : FORWARD_MOST_LANES * (FORWARD_ELEMENTS / 8) + 1;
    if (m[C_REAL_DOUBLE] || !limits->cooperative || width * bytes != 16 ||
        (forward ? chunks < fewest : m[C_HOLD] || plan->cols < WIDE_BACKWARD_COLS))
        return;
    int most_vecs = forward ? WIDE_VECS : bytes == 4 ? WIDE_F32_VECS : WIDE_SUMMED_VECS;
    /* In the backward of 16 bits two blocks hide what each other waits for; f32 rows take so much
     * shared memory that one with more turns under way does better. */
    const int blocks = forward || bytes == 4 ? 1 : 2;
    const int most_lanes = (forward ? WIDE_THREADS : WIDE_SUMMED_THREADS) / blocks;
    const int held = limits->multiprocessors * blocks;
    int group = ceil_div(chunks, most_lanes * most_vecs), vecs = 1;
    if (forward && m[C_KIND] == PLANISH_RMS && bytes == 4 && group > WIDE_FEW_BLOCKS) {
        most_vecs = WIDE_RMS_VECS;
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
    c[C_DELAY] = !forward      ? bytes == 4 ? stages - 1 : stages / 2
                 : stages == 6 ? 4
                               : (stages + 1) / 2;
    if (!forward && bytes == 4)
        c[C_HOLD] = 2; /* for a ring has room for no row but that and those under way */
    c[C_MIN_BLOCKS] = blocks;
}
