/* A launch on the emulated device: its blocks are made, run some at a time, and ended. */
#include "device_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CLUSTERS_AT_ONCE = 2 /* where the schedule is shuffled */ };

/* Fibers outlive launches: each runs one thread after the other. */
typedef struct worker {
    fiber *fiber;
    thread *thread;
} worker;

static worker **workers;
static size_t worker_count;

static void work(void *context) {
    worker *self = context;
    for (;;) {
        thread *t = self->thread;
        device.launch->entry(device.launch->args);
        t->finished = true;
        t->block->running--;
        fiber_leave();
    }
}

static worker *worker_at(size_t i) {
    if (i >= worker_count) {
        worker **more = device_allocate((i + 64) * sizeof *more);
        if (workers)
            memcpy(more, workers, worker_count * sizeof *more);
        free(workers);
        workers = more;
        for (; worker_count < i + 64; worker_count++) {
            workers[worker_count] = device_allocate(sizeof *workers[0]);
            workers[worker_count]->fiber = fiber_make(work, workers[worker_count]);
            if (!workers[worker_count]->fiber) {
                fputs("emulation: no memory for stacks\n", stderr);
                abort();
            }
        }
    }
    return workers[i];
}

static void start_block(block *b, cluster *c, unsigned rank, int64_t x, unsigned y, size_t *next) {
    const emulated_launch *l = device.launch;
    *b = (block){.cluster = c, .rank = rank, .running = l->threads};
    b->threads = device_allocate(l->threads * sizeof *b->threads);
    b->warps = device_allocate(l->threads / WARP_LANES * sizeof *b->warps);
    b->variables[0] = (variable){0, 0, device_allocate(l->shared_bytes), l->shared_bytes};
    memset(b->variables[0].data, l->shared_fill, l->shared_bytes);
    b->variable_count = 1;
    for (unsigned i = 0; i < l->threads / WARP_LANES; i++)
        device.warps[device.warp_count++] = &b->warps[i];
    for (unsigned i = 0; i < l->threads; i++) {
        thread *t = &b->threads[i];
        worker *w = worker_at((*next)++);
        w->thread = t;
        *t = (thread){.words = {{i, 0, 0},
                                {(unsigned)(x + rank), y, 0},
                                {l->threads, 1, 1},
                                {(unsigned)l->blocks_x, l->blocks_y, 1}},
                      .fiber = w->fiber,
                      .block = b,
                      .id = i,
                      .cluster_turn = -1};
        thread_make_ready(t);
    }
}

static void end_block(block *b) {
    for (int i = 0; i < b->variable_count; i++)
        free(b->variables[i].data);
    for (unsigned i = 0; i < device.launch->threads; i++)
        free(b->threads[i].copies);
    free(b->threads);
    free(b->warps);
}

static void step(void) {
    bool arrives = device.message_count && (!device.ready_count || device_draw() % 3 == 0);
    if (arrives) {
        device_deliver_one();
        return;
    }
    thread *t = thread_take_ready();
    emulation_now = &t->words;
    fiber_enter(t->fiber);
}

/* What the threads that are left wait for. */
static void report_standstill(const cluster *c, int64_t clusters) {
    const emulated_launch *l = device.launch;
    for (int64_t i = 0; i < clusters * l->cluster; i++)
        for (unsigned k = 0; k < l->threads; k++) {
            const thread *t = &c[i / l->cluster].blocks[i % l->cluster].threads[k];
            if (t->finished)
                continue;
            snprintf(device.error, sizeof device.error,
                     "block %u,%u thread %u waits for ever for %s", t->words.block.x,
                     t->words.block.y, t->id, t->waits_for ? t->waits_for : "its turn");
            device.failed = true;
            return;
        }
}

/* Runs `count` clusters together: those at order[0] and on. */
static void run_clusters(const int64_t *order, int64_t count) {
    const emulated_launch *l = device.launch;
    const int64_t wide = l->blocks_x / l->cluster;
    size_t next = 0;
    device.warp_count = device.steps_left = 0;
    cluster *clusters = device_allocate((size_t)count * sizeof *clusters);
    for (int64_t i = 0; i < count; i++) {
        clusters[i].blocks = device_allocate((size_t)l->cluster * sizeof *clusters[i].blocks);
        for (int r = 0; r < l->cluster; r++)
            start_block(&clusters[i].blocks[r], &clusters[i], (unsigned)r,
                        order[i] % wide * l->cluster, (unsigned)(order[i] / wide), &next);
    }
    while (!device.failed && (device.ready_count || device.message_count))
        step();
    if (!device.failed)
        report_standstill(clusters, count);
    for (int64_t i = 0; i < count; i++) {
        for (int r = 0; r < l->cluster; r++)
            end_block(&clusters[i].blocks[r]);
        free(clusters[i].blocks);
    }
    free(clusters);
}

static void begin_launch(const emulated_launch *l, int64_t at_once) {
    device.launch = l;
    device.random = l->seed;
    device.failed = false;
    device.room = (size_t)at_once * (size_t)l->cluster * l->threads;
    device.ready = device_allocate(device.room * sizeof *device.ready);
    device.warps = device_allocate(device.room / WARP_LANES * sizeof *device.warps);
    device.ready_first = device.ready_count = device.message_count = 0;
}

static void end_launch(void) {
    free(device.ready);
    free(device.warps);
    device.ready = NULL;
    device.warps = NULL;
    free(device.messages);
    device.messages = NULL;
    device.message_room = 0;
    if (device.failed) { /* stopped in the middle: their stacks are of no use */
        for (size_t i = 0; i < worker_count; i++) {
            free(workers[i]->fiber);
            free(workers[i]);
        }
        free(workers);
        workers = NULL;
        worker_count = 0;
    }
}

const char *emulate(const emulated_launch *l) {
    const int64_t count = l->blocks_x / l->cluster * l->blocks_y;
    int64_t at_once = l->resident ? count : l->schedule == SHUFFLED ? CLUSTERS_AT_ONCE : 1;
    if (at_once > count)
        at_once = count;
    begin_launch(l, at_once ? at_once : 1);
    int64_t *order = device_allocate((size_t)count * sizeof *order);
    for (int64_t i = 0; i < count; i++) {
        int64_t j = device_shuffles() ? (int64_t)(device_draw() % (uint64_t)(i + 1)) : i;
        order[i] = order[j];
        order[j] = i;
    }
    for (int64_t i = 0; i < count && !device.failed; i += at_once)
        run_clusters(order + i, i + at_once <= count ? at_once : count - i);
    free(order);
    end_launch();
    return device.failed ? device.error : NULL;
}
