/*
 * Where modulated rows are cut otherwise than plain ones: fewer blocks to a row, and as many
 * threads as registers allow beside the addresses of a sample. docs/notebook/033 has the figures.
 */
#include "cuda/stages/modulated_fit.h"

#include "cuda/common/integers.h"

/* Rows over two blocks at most, of fewer teams and as many threads: a device has no room for 16
 * clusters of eight (docs/notebook/013), and 15 among eight samples leave many idle. */
void modulated_fit_clusters(const cuda_limits *limits, cuda_spec *spec) {
    rows_constants *c = &spec->rows;
    while (spec->cluster > limits->tuning->stages.modulated_cluster && spec->cluster % 2 == 0 &&
           c->teams % 2 == 0) {
        spec->cluster /= 2;
        c->threads_per_row *= 2;
        c->teams /= 2;
    }
}

/* What registers allow beside the addresses of a sample. On sm_90 rows of a whole warp leave room
 * for as many blocks in bf16, too, as plain rows of f16 have, so that 4096 of them are under way at
 * once; other assemblers take a few registers more, and spill where those of a thread are filled to
 * the last. */
void modulated_fit_registers(cuda_plan *plan) {
    const rows_forward_tuning *t = &plan->limits.tuning->rows_forward;
    cuda_spec *spec = &plan->main;
    const bool is_roomy = plan->limits.tuning->stages.has_room;
    rows_constants *c = &spec->rows;
    if (spec->type[ROLE_X] != DTYPE_BF16 || c->variant != ROWS_PLAIN || c->width != 8 ||
        c->hold != HOLD_IN_REGISTERS || c->width * c->chunks_per_thread != t->elements)
        return;
    if (c->threads_per_row > WARP && !is_roomy && spec->min_blocks > 2)
        spec->min_blocks = spec->min_blocks * 7 / 8;
    const int bytes = most(role_bytes(spec, ROLE_WEIGHT), role_bytes(spec, ROLE_BIAS));
    if (c->threads_per_row == WARP && is_roomy && bytes <= 2 &&
        spec->activation == PLANISH_IDENTITY) {
        c->ring_slots = 0;
        spec->min_blocks = t->threads / (WARP * c->warps);
    }
}
