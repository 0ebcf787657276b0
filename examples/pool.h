/*
 * A pool of threads such as an engine has, for thread_pool.c and engine.c. pool_for has the form of
 * planish_exec.parallel_for.
 */
#ifndef EXAMPLES_POOL_H
#define EXAMPLES_POOL_H

#include <planish.h>
#include <pthread.h>

enum { THREADS = 4 };

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

/* Not 0: no thread could be started. */
static int pool_start(pool *p) {
    *p = (pool){.lock = PTHREAD_MUTEX_INITIALIZER,
                .wake = PTHREAD_COND_INITIALIZER,
                .done = PTHREAD_COND_INITIALIZER};
    for (int i = 0; i < THREADS - 1; i++)
        if (pthread_create(&p->threads[i], NULL, worker, p))
            return 1;
    return 0;
}

static void pool_stop(pool *p) {
    pthread_mutex_lock(&p->lock);
    p->stop = 1;
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < THREADS - 1; i++)
        pthread_join(p->threads[i], NULL);
}

#endif
