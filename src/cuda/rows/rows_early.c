/*
 * Where weight and bias of the forward of dense rows are asked for before the statistics, so that a
 * row does not wait for its sums and then, chunk by chunk, for them. By length and kind the fastest
 * of what was timed (docs/notebook/034).
 */
#include "cuda/rows/rows_early.h"

#include "cuda/common/integers.h"

/* Rows of a warp with nothing behind the norm. */
static void warp_geometry(cuda_spec *spec, const rows_forward_tuning *t, int bytes) {
    rows_constants *c = &spec->rows;
    int threads = t->threads;
    if (role_bytes(spec, ROLE_X) != 2 || c->width != 8 || spec->activation != PLANISH_IDENTITY)
        return;
    if (spec->kind != PLANISH_LAYER && spec->type[ROLE_BIAS] == DTYPE_NONE) {
        c->early = EARLY_IN_REGISTERS;
        threads = bytes > 2 ? t->early_threads : threads;
    } else {
        c->early = EARLY_TO_L1;
    }
    c->ring_slots = 0;
    spec->min_blocks = most(1, threads / (WARP * c->warps));
}

void rows_early_geometry(cuda_plan *plan) {
    const rows_forward_tuning *t = &plan->limits.tuning->rows_forward;
    cuda_spec *spec = &plan->main;
    rows_constants *c = &spec->rows;
    const int bytes = most(role_bytes(spec, ROLE_WEIGHT), role_bytes(spec, ROLE_BIAS));
    if (!t->early || !bytes || spec->real_double || c->groups || c->sliced || c->levels > 1 ||
        spec->cluster > 1 || c->hold != HOLD_IN_REGISTERS || c->variant != ROWS_PLAIN)
        return;
    if (c->threads_per_row > WARP)
        c->early = EARLY_TO_L1;
    else if (c->threads_per_row == WARP && c->cols > t->centred_cols)
        warp_geometry(spec, t, bytes);
}

bool rows_early_can_be_brought(const cuda_spec *spec) {
    return (spec->type[ROLE_WEIGHT] == DTYPE_NONE || spec->access[ROLE_WEIGHT] >= 4) &&
           (spec->type[ROLE_BIAS] == DTYPE_NONE || spec->access[ROLE_BIAS] >= 4);
}
