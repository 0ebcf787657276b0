/* Callbacks for planish_exec.parallel_for that do the work in unusual ways; see cases.h. */
#include <pthread.h>
#include <stdatomic.h>

#include "cases.h"

void backwards_for(void *context, int64_t count, planish_task task, void *task_data) {
    (void)context;
    for (int64_t i = count - 1; i >= 0; i--)
        task(task_data, i, i + 1);
}

enum { MAX_THREADS = 64 };

typedef struct work {
    int64_t count;
    planish_task task;
    void *task_data;
    atomic_llong next;
} work;

/* Takes ranges of 1, 2, 3, 1, 2, 3 ... items from the shared end until none is left. */
static void *worker(void *argument) {
    work *w = argument;
    for (int64_t turn = 0;; turn++) {
        int64_t want = 1 + turn % 3;
        int64_t begin = atomic_fetch_add(&w->next, want);
        if (begin >= w->count)
            return NULL;
        int64_t end = begin + want < w->count ? begin + want : w->count;
        w->task(w->task_data, begin, end);
    }
}

void threads_for(void *context, int64_t count, planish_task task, void *task_data) {
    int threads = *(const int *)context;
    work w = {.count = count, .task = task, .task_data = task_data};
    pthread_t started[MAX_THREADS];
    int running = 0;
    while (running < threads - 1 && !pthread_create(&started[running], NULL, worker, &w))
        running++;
    worker(&w);
    while (running)
        pthread_join(started[--running], NULL);
}

planish_exec exec_backwards(void) {
    return (planish_exec){.struct_size = sizeof(planish_exec), .parallel_for = backwards_for};
}

planish_exec exec_threads(int *threads) {
    return (planish_exec){.struct_size = sizeof(planish_exec),
                          .parallel_for = threads_for,
                          .parallel_context = threads};
}
