/* What is said here of a specialisation, its kernel says of itself: the two change together. */
#include "cuda/rows/rows_shape.h"

#include "cuda/common/integers.h"
#include "cuda/common/lanes.h"

bool rows_are_forward(const cuda_spec *s) {
    return s->kernel == CUDA_FORWARD || s->kernel == CUDA_FORWARD_PAIR ||
           s->kernel == CUDA_MODULATED_FORWARD || s->kernel == CUDA_STAGES_FORWARD;
}

bool rows_are_backward(const cuda_spec *s) {
    return s->kernel == CUDA_BACKWARD || s->kernel == CUDA_BACKWARD_PAIR ||
           s->kernel == CUDA_MODULATED_BACKWARD;
}

bool rows_are_parts(const cuda_spec *s) {
    return s->pass != PLANISH_FORWARD || s->type[ROLE_C2] != DTYPE_NONE;
}

bool rows_slices_are_last(const cuda_spec *s) {
    return s->kernel == CUDA_MODULATED_FORWARD || s->kernel == CUDA_MODULATED_BACKWARD;
}

unsigned rows_threads(const cuda_spec *s) {
    const int exchanges = s->cooperating_blocks > 1; /* a warp of its own */
    return WARP * (unsigned)(s->rows.warps + exchanges);
}

int rows_are_tiled(const cuda_spec *s) {
    return (rows_are_forward(s) || rows_are_backward(s)) && s->rows.variant != ROWS_PLAIN;
}

int64_t rows_plan_groups(const cuda_plan *plan) {
    const cuda_spec *spec = &plan->cooperative;
    int64_t n = (int64_t)plan->limits.multiprocessors * spec->min_blocks / spec->cooperating_blocks;
    if (n > plan->rows)
        n = plan->rows;
    return n > 0 ? n : 1;
}

size_t rows_mail_bytes(const cuda_spec *s) {
    const cuda_spec *spec = s;
    const rows_constants *c = &spec->rows;
    /* Words of an entry and lines of a group, as the kernels have them. */
    int x_bytes = role_bytes(spec, ROLE_X);
    int is_forward = rows_are_forward(s), in_double = is_forward && x_bytes == 4;
    size_t words = in_double ? 6 : 4, lines = is_forward ? 2 : 1;
    return 8 * words * lines * (size_t)spec->cooperating_blocks * (size_t)(2 * c->delay + 2);
}

size_t rows_plan_workspace(const cuda_plan *plan) {
    const cuda_spec *spec = &plan->main;
    size_t row =
        (size_t)plan->cols * (size_t)(spec->want_dweight + spec->want_dbias) * real_bytes(spec);
    size_t bytes = (size_t)plan->partials * row;
    if (plan->main.kernel == CUDA_APPLY)
        bytes += (size_t)plan->rows * 4 * real_bytes(spec) *
                 (size_t)((plan->cols + CUDA_LONG_PIECE - 1) / CUDA_LONG_PIECE);
    if (plan->cooperative.kernel >= 0) {
        size_t cooperative =
            (size_t)rows_plan_groups(plan) * (rows_mail_bytes(&plan->cooperative) + row);
        bytes = bytes > cooperative ? bytes : cooperative;
    }
    return bytes;
}

size_t rows_shared_bytes(const cuda_spec *s) {
    const cuda_spec *spec = s;
    const rows_constants *c = &spec->rows;
    size_t threads = WARP * (size_t)c->warps, vecs = (size_t)c->chunks_per_thread;
    size_t x = (size_t)c->width * (size_t)role_bytes(spec, ROLE_X);
    size_t tiles = rows_are_tiled(s) ? (size_t)rows_at_a_time(s) * (size_t)c->cols * 2 : 0;
    if (tiles && c->variant == ROWS_IN_RUNS) /* lanes read a run that ends behind the last row */
        tiles = round_up(tiles + 4 * (size_t)run_words(c->cols, c->threads_per_row) + 4);
    if (tiles && rows_are_forward(s))
        return tiles;
    if (rows_are_forward(s)) {
        const bool alone = c->hold == HOLD_IN_SHARED && spec->cooperating_blocks == 1;
        int slots = alone ? 1 : c->hold == READ_AGAIN ? 0 : c->ring_slots;
        return (size_t)slots * (size_t)c->rows * threads * vecs * x;
    }
    if (rows_are_backward(s)) {
        size_t g = (size_t)c->width * (size_t)role_bytes(spec, ROLE_DY);
        size_t ring = (size_t)c->ring_slots * (size_t)c->rows * vecs * threads * (x + g);
        if (tiles)
            ring = 2 * (size_t)c->ring_slots * tiles;
        if (c->dsum_in_ring && spec->cooperating_blocks == 1)
            ring += (size_t)c->ring_slots * (size_t)c->rows * vecs * threads * (size_t)c->width *
                    (size_t)role_bytes(spec, ROLE_DSUM);
        if (c->hold == HOLD_IN_RING && c->ring_slots &&
            spec->cooperating_blocks == 1) /* the weights, converted */
            ring += vecs * threads * (size_t)c->width * real_bytes(spec);
        size_t sums = (size_t)c->teams * (size_t)c->threads_per_row * vecs * (size_t)c->width *
                      real_bytes(spec);
        if (c->variant == ROWS_IN_RUNS)
            sums = 2 * (size_t)c->planes * (size_t)c->cols * real_bytes(spec);
        if (!spec->want_dweight && !spec->want_dbias)
            sums = 0;
        return ring > sums ? ring : sums;
    }
    return 0;
}

int rows_at_a_time(const cuda_spec *s) {
    const cuda_spec *spec = s;
    const rows_constants *c = &spec->rows;
    if (c->threads_per_row <= WARP)
        return c->warps * (WARP / c->threads_per_row) * c->rows;
    if (spec->cooperating_blocks > 1)
        return 1;
    return rows_are_backward(s) ? c->teams : rows_are_forward(s) ? c->rows : 1;
}

int64_t rows_units(const cuda_plan *plan, const cuda_spec *spec) {
    int64_t at_a_time = rows_at_a_time(spec);
    return (plan->rows + at_a_time - 1) / at_a_time;
}

int64_t rows_resident(const cuda_plan *plan, const cuda_spec *spec) {
    int64_t n = (int64_t)plan->limits.multiprocessors * spec->min_blocks / spec->cluster;
    return n > 0 ? n : 1;
}
