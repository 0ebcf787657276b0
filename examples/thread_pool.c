/*
 * planish on the caller's own threads: a small pool handed over as planish_exec.parallel_for. The
 * result has the same bits as on one thread.
 *
 *     cc -pthread thread_pool.c $(pkg-config --cflags --libs planish)
 */
#include <planish.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 4, ROWS = 2000, COLS = 512 };

/* Workers sleep until there is a loop, then take its chunks one by one until none is left. */
typedef struct pool {
    pthread_mutex_t lock;
    pthread_cond_t wake, done;
    pthread_t threads[THREADS - 1]; /* the caller is the last one */
    planish_task task;
    void *task_data;
    int64_t next, count, unfinished;
    int loops, stop;
} pool;

/* Runs chunks of the current loop; called and left with the lock held. */
static void take_chunks(pool *p) {
    while (p->next < p->count) {
        int64_t chunk = (p->count + 4 * THREADS - 1) / (4 * THREADS);
        int64_t begin = p->next, end = begin + chunk < p->count ? begin + chunk : p->count;
        p->next = end;
        planish_task task = p->task;
        void *task_data = p->task_data;
        pthread_mutex_unlock(&p->lock);
        task(task_data, begin, end);
        pthread_mutex_lock(&p->lock);
        p->unfinished -= end - begin;
        if (!p->unfinished)
            pthread_cond_signal(&p->done);
    }
}

static void *worker(void *context) {
    pool *p = context;
    pthread_mutex_lock(&p->lock);
    while (!p->stop) {
        take_chunks(p);
        if (!p->stop)
            pthread_cond_wait(&p->wake, &p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static void pool_for(void *context, int64_t count, planish_task task, void *task_data) {
    pool *p = context;
    pthread_mutex_lock(&p->lock);
    p->task = task;
    p->task_data = task_data;
    p->next = 0;
    p->count = p->unfinished = count;
    p->loops++;
    pthread_cond_broadcast(&p->wake);
    take_chunks(p);
    while (p->unfinished)
        pthread_cond_wait(&p->done, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

int main(void) {
    static pool p = {.lock = PTHREAD_MUTEX_INITIALIZER,
                     .wake = PTHREAD_COND_INITIALIZER,
                     .done = PTHREAD_COND_INITIALIZER};
    for (int i = 0; i < THREADS - 1; i++)
        if (pthread_create(&p.threads[i], NULL, worker, &p))
            return 1;

    size_t bytes = (size_t)ROWS * COLS * sizeof(float);
    float *x = malloc(bytes), *alone = malloc(bytes), *pooled = malloc(bytes);
    if (!x || !alone || !pooled)
        return 1;
    for (int i = 0; i < ROWS * COLS; i++)
        x[i] = (float)(i % 1009);

    int64_t shape[] = {ROWS, COLS};
    DLTensor tx = {
        .data = x, .device = {kDLCPU, 0}, .ndim = 2, .dtype = {kDLFloat, 32, 1}, .shape = shape};
    DLTensor ty = tx;
    planish_exec exec = {
        .struct_size = sizeof exec, .parallel_for = pool_for, .parallel_context = &p};
    ty.data = alone;
    int failed = planish_layer_norm_forward(1, 1e-5, &tx, NULL, NULL, &ty, NULL, NULL, NULL) != 0;
    ty.data = pooled;
    failed |= planish_layer_norm_forward(1, 1e-5, &tx, NULL, NULL, &ty, NULL, NULL, &exec) != 0;

    pthread_mutex_lock(&p.lock);
    p.stop = 1;
    pthread_cond_broadcast(&p.wake);
    pthread_mutex_unlock(&p.lock);
    for (int i = 0; i < THREADS - 1; i++)
        pthread_join(p.threads[i], NULL);

    int same = !memcmp(alone, pooled, bytes);
    printf("%d loops on %d threads: %s bits\n", p.loops, THREADS, same ? "the same" : "other");
    free(x);
    free(alone);
    free(pooled);
    return failed || !same || !p.loops;
}
