/* What is said here of a specialisation, its kernel says of itself: the two change together. */
#include "rows_shape.h"

#include "integers.h"
#include "lanes.h"

unsigned rows_threads(const cuda_spec *s) {
    const int exchanges = s->constant[C_GROUP] > 1; /* a warp of its own */
    return 32u * (unsigned)(s->constant[C_WARPS] + exchanges);
}

int rows_are_tiled(const cuda_spec *s) {
    return (s->kernel == CUDA_FORWARD || s->kernel == CUDA_BACKWARD) && s->constant[C_TILE];
}

int64_t rows_plan_groups(const cuda_plan *plan) {
    const int32_t *c = plan->wide.constant;
    int64_t n = (int64_t)plan->limits.multiprocessors * c[C_MIN_BLOCKS] / c[C_GROUP];
    if (n > plan->rows)
        n = plan->rows;
    return n > 0 ? n : 1;
}

size_t rows_mail_bytes(const cuda_spec *s) {
    const int32_t *c = s->constant;
    /* Words of an entry and lines of a group, as the kernels have them. */
    int x_bytes = constant_bytes(c, C_X_TYPE);
    int is_forward = s->kernel == CUDA_FORWARD, in_double = is_forward && x_bytes == 4;
    size_t words = in_double ? 6 : 4, lines = is_forward ? 2 : 1;
    return 8 * words * lines * (size_t)c[C_GROUP] * (size_t)(2 * c[C_DELAY] + 2);
}

size_t rows_plan_workspace(const cuda_plan *plan) {
    const int32_t *c = plan->main.constant;
    size_t row = (size_t)plan->cols * (size_t)(c[C_WANT_DWEIGHT] + c[C_WANT_DBIAS]) * real_bytes(c);
    size_t bytes = (size_t)plan->partials * row;
    if (plan->main.kernel == CUDA_APPLY)
        bytes += (size_t)plan->rows * 4 * real_bytes(c) *
                 (size_t)((plan->cols + CUDA_LONG_PIECE - 1) / CUDA_LONG_PIECE);
    if (plan->wide.kernel >= 0) {
        size_t wide = (size_t)rows_plan_groups(plan) * (rows_mail_bytes(&plan->wide) + row);
        bytes = bytes > wide ? bytes : wide;
    }
    return bytes;
}

size_t rows_shared_bytes(const cuda_spec *s) {
    const int32_t *c = s->constant;
    size_t threads = 32 * (size_t)c[C_WARPS], vecs = (size_t)c[C_VECS];
    size_t x = (size_t)c[C_WIDTH] * (size_t)constant_bytes(c, C_X_TYPE);
    size_t tiles = rows_are_tiled(s) ? (size_t)rows_at_a_time(s) * (size_t)c[C_COLS] * 2 : 0;
    if (tiles && c[C_TILE] == 2) /* lanes read a run that ends behind the last row */
        tiles = round_up(tiles + 4 * (size_t)run_words(c[C_COLS], c[C_LANES]) + 4);
    if (tiles && s->kernel == CUDA_FORWARD)
        return tiles;
    if (s->kernel == CUDA_FORWARD) {
        int slots = c[C_HOLD] == 1 && c[C_GROUP] == 1 ? 1 : c[C_HOLD] == 2 ? 0 : c[C_STAGES];
        return (size_t)slots * (size_t)c[C_ROWS] * threads * vecs * x;
    }
    if (s->kernel == CUDA_BACKWARD) {
        size_t g = (size_t)c[C_WIDTH] * (size_t)constant_bytes(c, C_G_TYPE);
        size_t ring = (size_t)c[C_STAGES] * (size_t)c[C_ROWS] * vecs * threads * (x + g);
        if (tiles)
            ring = 2 * (size_t)c[C_STAGES] * tiles;
        if (c[C_HOLD] == 1 && c[C_STAGES] && c[C_GROUP] == 1) /* the weights, converted */
            ring += vecs * threads * (size_t)c[C_WIDTH] * real_bytes(c);
        size_t sums =
            (size_t)c[C_TEAMS] * (size_t)c[C_LANES] * vecs * (size_t)c[C_WIDTH] * real_bytes(c);
        if (c[C_TILE] == 2)
            sums = 2 * (size_t)c[C_PLANES] * (size_t)c[C_COLS] * real_bytes(c);
        if (!c[C_WANT_DWEIGHT] && !c[C_WANT_DBIAS])
            sums = 0;
        return ring > sums ? ring : sums;
    }
    return 0;
}

int rows_at_a_time(const cuda_spec *s) {
    const int32_t *c = s->constant;
    if (c[C_LANES] <= 32)
        return c[C_WARPS] * (32 / c[C_LANES]) * c[C_ROWS];
    if (c[C_GROUP] > 1)
        return 1;
    return s->kernel == CUDA_BACKWARD ? c[C_TEAMS] : s->kernel == CUDA_FORWARD ? c[C_ROWS] : 1;
}
