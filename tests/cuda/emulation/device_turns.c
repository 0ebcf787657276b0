/* Threads of the emulated device: how they take turns, and meet in warps and at barriers. */
#include "device_parts.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_STEPS = 4000 /* for which the same warps go first */ };

emulated_thread *emulation_now;
emulated_device device;

/* ---- Taking turns ---------------------------------------------------------------------------- */

uint64_t device_draw(void) { /* splitmix64 */
    uint64_t z = device.random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

bool device_shuffles(void) {
    return device.launch->schedule == SHUFFLED;
}

thread *thread_now(void) {
    return (thread *)emulation_now;
}

void *device_allocate(size_t bytes) {
    void *p = calloc(1, bytes ? bytes : 1);
    if (!p) {
        fputs("emulation: no memory\n", stderr);
        abort();
    }
    return p;
}

void emulation_fail(const char *format, ...) {
    const thread *t = thread_now();
    if (!device.failed) {
        int n = snprintf(device.error, sizeof device.error,
                         "block %u,%u thread %u: ", t->words.block.x, t->words.block.y, t->id);
        va_list list;
        va_start(list, format);
        vsnprintf(device.error + n, sizeof device.error - (size_t)n, format, list);
        va_end(list);
    }
    device.failed = true;
    for (;;) /* never entered again */
        fiber_leave();
}

void thread_make_ready(thread *t) {
    t->waits_for = NULL;
    if (device_shuffles()) {
        warp *w = &t->block->warps[t->id / WARP_LANES];
        w->ready[w->ready_count++] = t;
    } else {
        device.ready[(device.ready_first + device.ready_count) % device.room] = t;
    }
    device.ready_count++;
}

/* Some warps run far ahead of others for a while: that is what a missing barrier does not stand. */
static thread *take_any(void) {
    if (!device.steps_left--) {
        for (size_t i = device.warp_count; i > 1; i--) {
            size_t j = device_draw() % i;
            warp *w = device.warps[j];
            device.warps[j] = device.warps[i - 1];
            device.warps[i - 1] = w;
        }
        device.steps_left = (unsigned)(device_draw() % MOST_STEPS);
    }
    warp **w = device.warps;
    while (!(*w)->ready_count)
        w++;
    size_t lane = device_draw() % (*w)->ready_count;
    thread *t = (*w)->ready[lane];
    (*w)->ready[lane] = (*w)->ready[--(*w)->ready_count];
    return t;
}

thread *thread_take_ready(void) {
    size_t first = device.ready_first;
    device.ready_count--;
    if (device_shuffles())
        return take_any();
    device.ready_first = (first + 1) % device.room;
    return device.ready[first];
}

void thread_wait_in(thread **list, const char *why) {
    thread *t = thread_now();
    t->waits_for = why;
    t->next = *list;
    *list = t;
    fiber_leave();
}

void threads_wake(thread **list) {
    thread *t = *list;
    thread *ordered = NULL;
    *list = NULL;
    while (t) { /* those that waited longest first */
        thread *next = t->next;
        t->next = ordered;
        ordered = t;
        t = next;
    }
    for (; ordered; ordered = ordered->next)
        thread_make_ready(ordered);
}

void threads_meet(meeting *m, unsigned expected, const char *why) {
    if (m->arrived && m->expected != expected)
        emulation_fail("%s of %u threads: others came to it as one of %u", why, expected,
                       m->expected);
    m->expected = expected;
    if (++m->arrived < expected) {
        thread_wait_in(&m->waiting, why);
        return;
    }
    m->arrived = 0;
    threads_wake(&m->waiting);
}

int emulation_is_resident(void) {
    return device.launch->resident;
}

void emulation_yield(void) {
    thread_make_ready(thread_now());
    fiber_leave();
}

void emulation_pause(void) {
    if (device_shuffles() && device_draw() % 16 == 0)
        emulation_yield();
}

/* ---- Blocks and warps ------------------------------------------------------------------------ */

void emulation_barrier(int id, unsigned threads) {
    if (id < 0 || id >= MOST_BARRIERS || threads % WARP_LANES || threads > device.launch->threads ||
        !threads)
        emulation_fail("barrier %d of %u threads: wanted 0 to %d, and whole warps", id, threads,
                       MOST_BARRIERS - 1);
    threads_meet(&thread_now()->block->barriers[id], threads, "a barrier");
}

/* Puts a value in this lane's place and meets the warp; returns the places of all. */
static unsigned char (*gather(const char *what, const void *mine, size_t bytes))[8] {
    thread *t = thread_now();
    warp *w = &t->block->warps[t->id / WARP_LANES];
    /* Two rooms in turn: who comes to the next exchange has read in this one. */
    unsigned room = t->exchanges++ & 1, lane = t->id % WARP_LANES;
    w->what[room][lane] = what;
    memcpy(w->value[room][lane], mine, bytes);
    threads_meet(&w->meeting, WARP_LANES, what);
    if (strcmp(w->what[room][0], what))
        emulation_fail("%s where the first lane of the warp is at %s", what, w->what[room][0]);
    return w->value[room];
}

void emulation_exchange(const char *what, const void *mine, void *theirs, size_t bytes, int from) {
    unsigned char (*values)[8] = gather(what, mine, bytes);
    memcpy(theirs, values[from], bytes);
}

unsigned emulation_ballot(const char *what, bool vote) {
    unsigned char mine = vote, (*values)[8] = gather(what, &mine, 1);
    unsigned votes = 0;
    for (int l = 0; l < WARP_LANES; l++)
        votes |= (unsigned)values[l][0] << l;
    return votes;
}
