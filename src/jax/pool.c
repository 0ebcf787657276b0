/*
 * Work items are taken by whoever is there: the calling thread, and tasks of the pool that have
 * begun. The call returns when all items are done, and never waits for a task that the pool has not
 * begun, since the pool may be full of calls that wait like this one. A task that begins too late
 * finds no item left.
 */
#include "pool.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

/* So many pieces for each thread: what one thread does slowly, others take. */
enum { PIECES = 4 };

typedef struct work {
    planish_task task;
    void *data;
    int64_t count, piece;
    atomic_int_fast64_t next, done;
    atomic_int holders; /* the last one frees it */
} work;

static void let_go(work *w) {
    if (atomic_fetch_sub(&w->holders, 1) == 1)
        free(w);
}

static void take_pieces(work *w) {
    for (;;) {
        const int64_t begin = atomic_fetch_add(&w->next, w->piece);
        if (begin >= w->count)
            return;
        const int64_t end = w->count - begin < w->piece ? w->count : begin + w->piece;
        w->task(w->data, begin, end);
        atomic_fetch_add(&w->done, end - begin);
    }
}

static void help(void *data) {
    take_pieces(data);
    let_go(data);
}

static void drop_error(const xla_api *api, xla_error *error) {
    api->error_destroy(&(xla_error_destroy){sizeof(xla_error_destroy), NULL, error});
}

/* 1 where the pool does not say. */
static int64_t threads_of(const xla_frame *frame) {
    int64_t count = 1;
    if (!XLA_HAS(frame->api, thread_count))
        return 1;
    xla_error *error = frame->api->thread_count(
        &(xla_thread_count){sizeof(xla_thread_count), NULL, frame->context, &count});
    if (error) {
        drop_error(frame->api, error);
        return 1;
    }
    return count;
}

/* Asks the pool for so many helpers; fewer where it refuses. */
static void ask_for_help(const xla_frame *frame, work *w, int64_t helpers) {
    for (int64_t i = 0; i < helpers; i++) {
        atomic_fetch_add(&w->holders, 1);
        xla_error *error = frame->api->schedule(
            &(xla_schedule){sizeof(xla_schedule), NULL, frame->context, help, w});
        if (error) {
            drop_error(frame->api, error);
            let_go(w);
            return;
        }
    }
}

void pool_parallel_for(void *context, int64_t count, planish_task task, void *task_data) {
    const xla_frame *frame = context;
    const int64_t threads = threads_of(frame);
    work *w = threads > 1 && count > 1 ? malloc(sizeof *w) : NULL;
    if (!w) {
        task(task_data, 0, count);
        return;
    }
    const int64_t pieces = PIECES * threads;
    *w = (work){.task = task, .data = task_data, .count = count};
    w->piece = (count + pieces - 1) / pieces;
    atomic_init(&w->next, 0);
    atomic_init(&w->done, 0);
    atomic_init(&w->holders, 1);
    ask_for_help(frame, w, threads < count ? threads - 1 : count - 1);
    take_pieces(w);
    while (atomic_load(&w->done) < count)
        sched_yield();
    let_go(w);
}
