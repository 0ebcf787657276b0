#include "device.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fiber.h"

enum {
    LANES = 32,
    MOST_VARIABLES = 64,
    MOST_BARRIERS = 16,
    MOST_BYTE_BARRIERS = 256,
    MOST_COPIES = 4096, /* of a thread, under way */
    OFFSET_BITS = 20,
    VARIABLE_BITS = 7,
    CLUSTERS_AT_ONCE = 2, /* where the schedule is shuffled */
    MOST_STEPS = 4000     /* for which the same warps go first */
};

typedef struct thread thread;
typedef struct block block;
typedef struct cluster cluster;

/* Where threads wait for each other. */
typedef struct meeting {
    unsigned arrived, expected;
    thread *waiting;
} meeting;

typedef struct copy {
    unsigned char *to;
    const void *from;
    unsigned bytes;
    bool there;
    int64_t group;
} copy;

struct thread {
    emulated_thread words; /* first: what the kernel sees */
    fiber *fiber;
    block *block;
    unsigned id;
    bool finished;
    const char *waits_for; /* NULL: ready, or running */
    thread *next;          /* of those that wait at the same place */
    copy *copies;
    int copy_count, copy_room;
    int64_t group; /* of copies, not committed yet */
    unsigned exchanges;
    int64_t cluster_turn; /* that cluster_wait() waits for; -1: has not arrived */
};

typedef struct warp {
    thread *ready[LANES]; /* SHUFFLED */
    unsigned ready_count;
    meeting meeting;
    const char *what[2][LANES];
    unsigned char value[2][LANES][8];
} warp;

typedef struct variable {
    int line, place;
    unsigned char *data; /* exactly as large as the variable */
    size_t bytes;
} variable;

typedef struct byte_barrier {
    uint32_t address;
    int64_t turn; /* completed ones */
    int pending;
    int64_t bytes; /* to come */
    thread *waiting;
} byte_barrier;

struct block {
    cluster *cluster;
    unsigned rank, running;
    thread *threads;
    warp *warps;
    meeting barriers[MOST_BARRIERS];
    variable variables[MOST_VARIABLES]; /* 0: the dynamic shared memory */
    int variable_count;
    byte_barrier byte_barriers[MOST_BYTE_BARRIERS];
    int byte_barrier_count;
};

struct cluster {
    block *blocks;
    unsigned arrived;
    int64_t turn;
    thread *waiting;
};

typedef struct message_under_way {
    block *to;
    unsigned char *at;
    uint32_t barrier;
    unsigned char data[16];
    size_t bytes;
} message_under_way;

emulated_thread *emulation_now;

static struct {
    const emulated_launch *launch;
    size_t ready_count;
    thread **ready; /* IN_ORDER: a ring of `room` */
    size_t ready_first, room;
    warp *
        *warps; /* SHUFFLED: all there are, those that go first first, until they are drawn anew */
    size_t warp_count;
    unsigned steps_left;
    message_under_way *messages;
    size_t message_count, message_room;
    uint64_t random;
    bool failed;
    char error[600];
} device;

/* ---- Threads ----------------------------------------------------------------------------------
 */

static uint64_t draw(void) { /* splitmix64 */
    uint64_t z = device.random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static bool shuffled(void) {
    return device.launch->schedule == SHUFFLED;
}

static thread *now(void) {
    return (thread *)emulation_now;
}

static void *allocate(size_t bytes) {
    void *p = calloc(1, bytes ? bytes : 1);
    if (!p) {
        fputs("emulation: no memory\n", stderr);
        abort();
    }
    return p;
}

void emulation_fail(const char *format, ...) {
    const thread *t = now();
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

static void make_ready(thread *t) {
    t->waits_for = NULL;
    if (shuffled()) {
        warp *w = &t->block->warps[t->id / LANES];
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
            size_t j = draw() % i;
            warp *w = device.warps[j];
            device.warps[j] = device.warps[i - 1];
            device.warps[i - 1] = w;
        }
        device.steps_left = (unsigned)(draw() % MOST_STEPS);
    }
    warp **w = device.warps;
    while (!(*w)->ready_count)
        w++;
    size_t lane = draw() % (*w)->ready_count;
    thread *t = (*w)->ready[lane];
    (*w)->ready[lane] = (*w)->ready[--(*w)->ready_count];
    return t;
}

static thread *take_ready(void) {
    size_t first = device.ready_first;
    device.ready_count--;
    if (shuffled())
        return take_any();
    device.ready_first = (first + 1) % device.room;
    return device.ready[first];
}

static void wait_in(thread **list, const char *why) {
    thread *t = now();
    t->waits_for = why;
    t->next = *list;
    *list = t;
    fiber_leave();
}

static void wake(thread **list) {
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
        make_ready(ordered);
}

static void meet(meeting *m, unsigned expected, const char *why) {
    if (m->arrived && m->expected != expected)
        emulation_fail("%s of %u threads: others came to it as one of %u", why, expected,
                       m->expected);
    m->expected = expected;
    if (++m->arrived < expected) {
        wait_in(&m->waiting, why);
        return;
    }
    m->arrived = 0;
    wake(&m->waiting);
}

int emulation_is_resident(void) {
    return device.launch->resident;
}

void emulation_yield(void) {
    make_ready(now());
    fiber_leave();
}

void emulation_pause(void) {
    if (shuffled() && draw() % 16 == 0)
        emulation_yield();
}

/* ---- Shared memory ----------------------------------------------------------------------------
 */

static void add_variable(block *b, int line, int place, size_t bytes) {
    if (b->variable_count == MOST_VARIABLES)
        emulation_fail("more than %d shared variables", MOST_VARIABLES);
    variable *v = &b->variables[b->variable_count++];
    *v = (variable){line, place, allocate(bytes), bytes};
    memset(v->data, device.launch->shared_fill, bytes);
}

void *emulation_variable(int line, int place, size_t bytes) {
    block *b = now()->block;
    size_t all = b->variables[0].bytes;
    for (int i = 1; i < b->variable_count; i++) {
        if (b->variables[i].line == line && b->variables[i].place == place)
            return b->variables[i].data;
        all += b->variables[i].bytes;
    }
    if (all + bytes > device.launch->shared_limit)
        emulation_fail("%zu bytes of shared memory: a block has %zu", all + bytes,
                       device.launch->shared_limit);
    add_variable(b, line, place, bytes);
    return b->variables[b->variable_count - 1].data;
}

unsigned char *emulation_dynamic_shared(void) {
    return now()->block->variables[0].data;
}

/* The address holds variable + 1, so that 0 and small numbers are none. */
uint32_t emulation_address(const void *pointer) {
    const block *b = now()->block;
    const unsigned char *p = pointer;
    for (int i = 0; i < b->variable_count; i++) {
        const variable *v = &b->variables[i];
        if (p >= v->data && p <= v->data + v->bytes)
            return (uint32_t)(i + 1) << OFFSET_BITS | (uint32_t)(p - v->data);
    }
    emulation_fail("the address of something that is not in shared memory");
}

uint32_t emulation_address_in(uint32_t address, uint32_t rank) {
    if (rank >= (uint32_t)device.launch->cluster)
        emulation_fail("block %u of a cluster of %d", rank, device.launch->cluster);
    return address | (rank + 1) << (OFFSET_BITS + VARIABLE_BITS);
}

static block *block_of(uint32_t address) {
    uint32_t rank = address >> (OFFSET_BITS + VARIABLE_BITS);
    block *b = now()->block;
    return rank ? &b->cluster->blocks[rank - 1] : b;
}

unsigned char *emulation_at(uint32_t address, size_t bytes) {
    const block *b = block_of(address);
    int index = (int)(address >> OFFSET_BITS & ((1u << VARIABLE_BITS) - 1)) - 1;
    size_t offset = address & ((1u << OFFSET_BITS) - 1);
    if (index < 0 || index >= b->variable_count)
        emulation_fail("the shared address %x is in no variable", address);
    const variable *v = &b->variables[index];
    if (offset % bytes)
        emulation_fail("%zu bytes at the misaligned shared offset %zu", bytes, offset);
    if (offset + bytes > v->bytes)
        emulation_fail("%zu bytes at offset %zu of a shared variable of %zu (line %d)", bytes,
                       offset, v->bytes, v->line);
    return v->data + offset;
}

/* ---- Blocks and warps -------------------------------------------------------------------------
 */

void emulation_barrier(int id, unsigned threads) {
    if (id < 0 || id >= MOST_BARRIERS || threads % LANES || threads > device.launch->threads ||
        !threads)
        emulation_fail("barrier %d of %u threads: wanted 0 to %d, and whole warps", id, threads,
                       MOST_BARRIERS - 1);
    meet(&now()->block->barriers[id], threads, "a barrier");
}

/* Puts a value in this lane's place and meets the warp; returns the places of all. */
static unsigned char (*gather(const char *what, const void *mine, size_t bytes))[8] {
    thread *t = now();
    warp *w = &t->block->warps[t->id / LANES];
    /* Two rooms in turn: who comes to the next exchange has read in this one. */
    unsigned room = t->exchanges++ & 1, lane = t->id % LANES;
    w->what[room][lane] = what;
    memcpy(w->value[room][lane], mine, bytes);
    meet(&w->meeting, LANES, what);
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
    for (int l = 0; l < LANES; l++)
        votes |= (unsigned)values[l][0] << l;
    return votes;
}

/* ---- Asynchronous copies ----------------------------------------------------------------------
 */

static void perform(const copy *c) {
    if (c->there)
        memcpy(c->to, c->from, c->bytes);
    else
        memset(c->to, 0, c->bytes);
}

/* A copy may come at any time until it is waited for: at once, or not before. */
void emulation_copy_async(unsigned char *to, const void *from, size_t bytes, bool there) {
    thread *t = now();
    copy c = {to, from, (unsigned)bytes, there, t->group};
    if (!shuffled() || draw() % 4 == 0) {
        perform(&c);
        return;
    }
    if (t->copy_count == t->copy_room) {
        t->copy_room = t->copy_room ? 2 * t->copy_room : 64;
        if (t->copy_room > MOST_COPIES)
            emulation_fail("more than %d copies under way", MOST_COPIES);
        copy *more = allocate((size_t)t->copy_room * sizeof *more);
        if (t->copies)
            memcpy(more, t->copies, (size_t)t->copy_count * sizeof *more);
        free(t->copies);
        t->copies = more;
    }
    t->copies[t->copy_count++] = c;
}

void emulation_copy_commit(void) {
    now()->group++;
}

void emulation_copy_wait(int pending) {
    thread *t = now();
    int kept = 0;
    for (int i = 0; i < t->copy_count; i++) {
        if (t->copies[i].group < t->group - pending)
            perform(&t->copies[i]);
        else
            t->copies[kept++] = t->copies[i];
    }
    t->copy_count = kept;
    emulation_pause();
}

/* ---- Clusters ---------------------------------------------------------------------------------
 */

uint32_t emulation_cluster_rank(void) {
    return now()->block->rank;
}

void emulation_cluster_arrive(void) {
    thread *t = now();
    cluster *c = t->block->cluster;
    if (t->cluster_turn >= 0)
        emulation_fail("arrives a second time at the cluster's barrier");
    t->cluster_turn = c->turn;
    if (++c->arrived == device.launch->threads * (unsigned)device.launch->cluster) {
        c->arrived = 0;
        c->turn++;
        wake(&c->waiting);
    }
}

void emulation_cluster_wait(void) {
    thread *t = now();
    cluster *c = t->block->cluster;
    if (t->cluster_turn < 0)
        emulation_fail("waits at the cluster's barrier without having arrived");
    if (c->turn == t->cluster_turn)
        wait_in(&c->waiting, "the cluster's barrier");
    t->cluster_turn = -1;
}

static byte_barrier *find_byte_barrier(block *b, uint32_t address) {
    address &= (1u << (OFFSET_BITS + VARIABLE_BITS)) - 1;
    for (int i = 0; i < b->byte_barrier_count; i++)
        if (b->byte_barriers[i].address == address)
            return &b->byte_barriers[i];
    return NULL;
}

static byte_barrier *byte_barrier_at(uint32_t address) {
    byte_barrier *bar = find_byte_barrier(block_of(address), address);
    if (!bar)
        emulation_fail("a byte barrier that is not initialised");
    return bar;
}

void emulation_bytes_init(uint32_t address) {
    block *b = now()->block;
    emulation_at(address, 8);
    if (find_byte_barrier(b, address) || b->byte_barrier_count == MOST_BYTE_BARRIERS)
        emulation_fail("a byte barrier is initialised twice, or there are too many");
    b->byte_barriers[b->byte_barrier_count++] = (byte_barrier){.address = address, .pending = 1};
}

static void complete(byte_barrier *bar) {
    if (bar->pending || bar->bytes)
        return;
    bar->pending = 1;
    bar->turn++;
    wake(&bar->waiting);
}

void emulation_bytes_expect(uint32_t address, uint32_t bytes) {
    byte_barrier *bar = byte_barrier_at(address);
    if (!bar->pending)
        emulation_fail("a byte barrier is told twice in a turn what to expect");
    bar->bytes += bytes;
    bar->pending = 0;
    complete(bar);
}

void emulation_bytes_wait(uint32_t address, uint32_t parity) {
    byte_barrier *bar = byte_barrier_at(address);
    while ((bar->turn & 1) == (int64_t)parity)
        wait_in(&bar->waiting, "bytes from the cluster");
    emulation_pause();
}

static void deliver(const message_under_way *m) {
    if (!m->to->running) { /* said so here: no thread may be running */
        snprintf(device.error, sizeof device.error,
                 "bytes for block %u of a cluster, which has ended", m->to->rank);
        device.failed = true;
        return;
    }
    memcpy(m->at, m->data, m->bytes);
    byte_barrier *bar = find_byte_barrier(m->to, m->barrier);
    bar->bytes -= (int64_t)m->bytes;
    complete(bar);
}

void emulation_send(uint32_t to, uint32_t barrier, const void *data, size_t bytes) {
    message_under_way m = {block_of(to), emulation_at(to, bytes), barrier, {0}, bytes};
    memcpy(m.data, data, bytes);
    byte_barrier_at(barrier);
    if (block_of(barrier) != m.to)
        emulation_fail("bytes for one block and a barrier of another");
    if (!shuffled()) {
        deliver(&m);
        return;
    }
    if (device.message_count == device.message_room) {
        size_t room = device.message_room ? 2 * device.message_room : 256;
        message_under_way *more = allocate(room * sizeof *more);
        if (device.messages)
            memcpy(more, device.messages, device.message_count * sizeof *more);
        free(device.messages);
        device.messages = more;
        device.message_room = room;
    }
    device.messages[device.message_count++] = m;
}

/* Any one of the messages under way arrives. */
static void deliver_one(void) {
    size_t i = draw() % device.message_count;
    message_under_way m = device.messages[i];
    device.messages[i] = device.messages[--device.message_count];
    deliver(&m);
}

/* ---- Running ----------------------------------------------------------------------------------
 */

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
        worker **more = allocate((i + 64) * sizeof *more);
        if (workers)
            memcpy(more, workers, worker_count * sizeof *more);
        free(workers);
        workers = more;
        for (; worker_count < i + 64; worker_count++) {
            workers[worker_count] = allocate(sizeof *workers[0]);
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
    b->threads = allocate(l->threads * sizeof *b->threads);
    b->warps = allocate(l->threads / LANES * sizeof *b->warps);
    b->variables[0] = (variable){0, 0, allocate(l->shared_bytes), l->shared_bytes};
    memset(b->variables[0].data, l->shared_fill, l->shared_bytes);
    b->variable_count = 1;
    for (unsigned i = 0; i < l->threads / LANES; i++)
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
        make_ready(t);
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
    bool arrives = device.message_count && (!device.ready_count || draw() % 3 == 0);
    if (arrives) {
        deliver_one();
        return;
    }
    thread *t = take_ready();
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
    cluster *clusters = allocate((size_t)count * sizeof *clusters);
    for (int64_t i = 0; i < count; i++) {
        clusters[i].blocks = allocate((size_t)l->cluster * sizeof *clusters[i].blocks);
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
    device.ready = allocate(device.room * sizeof *device.ready);
    device.warps = allocate(device.room / LANES * sizeof *device.warps);
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
    int64_t *order = allocate((size_t)count * sizeof *order);
    for (int64_t i = 0; i < count; i++) {
        int64_t j = shuffled() ? (int64_t)(draw() % (uint64_t)(i + 1)) : i;
        order[i] = order[j];
        order[j] = i;
    }
    for (int64_t i = 0; i < count && !device.failed; i += at_once)
        run_clusters(order + i, i + at_once <= count ? at_once : count - i);
    free(order);
    end_launch();
    return device.failed ? device.error : NULL;
}
