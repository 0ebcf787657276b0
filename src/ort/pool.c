#include "pool.h"

#include "graph.h"

/* The runtime does not say how many threads it has; whoever is free takes the next piece. */
enum { PIECES = 32 };

typedef struct work {
    planish_task task;
    void *data;
    int64_t count, pieces;
} work;

/* The first items that a piece has not. */
static int64_t begin_of(const work *w, int64_t piece) {
    return w->count / w->pieces * piece +
           (piece < w->count % w->pieces ? piece : w->count % w->pieces);
}

static void run_piece(void *data, size_t piece) {
    const work *w = data;
    w->task(w->data, begin_of(w, (int64_t)piece), begin_of(w, (int64_t)piece + 1));
}

void ort_pool_parallel_for(void *context, int64_t count, planish_task task, void *task_data) {
    const ort_pool *pool = context;
    work w = {task, task_data, count, count < PIECES ? count : PIECES};
    const size_t pieces = (size_t)w.pieces;
    /* It refuses before anything runs, or not at all. */
    if (!graph_ok(pool->api, pool->api->parallel_for(pool->context, run_piece, pieces, pieces, &w)))
        task(task_data, 0, count);
}
