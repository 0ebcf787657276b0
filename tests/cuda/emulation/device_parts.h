/*
 * The parts of the emulated device (device.h), and what its files ask of each other. device_turns.c
 * has the threads and how they take turns, device_shared.c shared memory and copies to it,
 * device_clusters.c what passes between the blocks of a cluster, device.c the launch.
 */
#ifndef EMULATION_DEVICE_PARTS_H
#define EMULATION_DEVICE_PARTS_H

#include "device.h"
#include "fiber.h"

#pragma GCC visibility push(hidden) /* kernels see device.h alone */

enum { WARP_LANES = 32, MOST_VARIABLES = 64, MOST_BARRIERS = 16, MOST_BYTE_BARRIERS = 256 };

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
    thread *ready[WARP_LANES]; /* SHUFFLED */
    unsigned ready_count;
    meeting meeting;
    const char *what[2][WARP_LANES];
    unsigned char value[2][WARP_LANES][8];
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

typedef struct emulated_device {
    const emulated_launch *launch;
    size_t ready_count;
    thread **ready; /* IN_ORDER: a ring of `room` */
    size_t ready_first, room;
    /* SHUFFLED: all there are, those that go first first, until they are drawn anew. */
    warp **warps;
    size_t warp_count;
    unsigned steps_left;
    message_under_way *messages;
    size_t message_count, message_room;
    uint64_t random;
    bool failed;
    char error[600];
} emulated_device;

extern emulated_device device;

/* ---- device_turns.c -------------------------------------------------------------------------- */

/* The next of the launch's random numbers. */
uint64_t device_draw(void);
bool device_shuffles(void);

/* Memory of zeros; ends the program where there is none. */
void *device_allocate(size_t bytes);

/* The thread that runs. */
thread *thread_now(void);

void thread_make_ready(thread *t);
/* The one whose turn it is; some thread must be ready. */
thread *thread_take_ready(void);

/* The running thread waits in a list, until that is woken. */
void thread_wait_in(thread **list, const char *why);
void threads_wake(thread **list);

/* The running thread waits for the others of a meeting. */
void threads_meet(meeting *m, unsigned expected, const char *why);

/* ---- device_clusters.c ----------------------------------------------------------------------- */

/* Any one of the messages under way arrives. */
void device_deliver_one(void);

/* ---- device_shared.c ------------------------------------------------------------------------- */

/* The block that a shared address is of, and the address without it. */
block *block_of(uint32_t address);
uint32_t address_in_block(uint32_t address);

#pragma GCC visibility pop

#endif
