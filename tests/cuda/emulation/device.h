/*
 * A GPU in small, for tests: blocks of threads that take turns on one thread of the host, with
 * warps, barriers, shared memory, asynchronous copies and clusters as the kernels use them. The
 * same schedule always gives the same order of events, and another schedule another order, so that
 * a missing barrier shows as other bits.
 *
 * What a kernel does wrong stops its launch with a sentence: an access that is misaligned or
 * outside its shared variable, lanes of a warp that meet at different instructions, threads that
 * wait for what never comes. Wrong addresses in global memory are for the sanitizers and for
 * unmapped pages.
 */
#ifndef EMULATION_DEVICE_H
#define EMULATION_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- For the test ---------------------------------------------------------------------------- */

typedef enum schedule {
    IN_ORDER, /* threads, blocks and copies one after the other, each as early as it can be */
    SHUFFLED  /* threads, blocks and copies in a random order, several clusters at a time */
} schedule;

typedef struct emulated_launch {
    void (*entry)(const void *args);
    const void *args;
    int64_t blocks_x;
    unsigned blocks_y;
    int cluster;
    unsigned threads;    /* of a block */
    size_t shared_bytes; /* dynamic, of a block */
    size_t shared_limit; /* of a block, with its variables */
    bool resident;       /* all blocks at once: they wait for each other */
    schedule schedule;
    uint64_t seed;             /* SHUFFLED */
    unsigned char shared_fill; /* every byte of shared memory before it is written */
} emulated_launch;

/* NULL, or what went wrong. */
const char *emulate(const emulated_launch *launch);

/* ---- For kernels: the words of CUDA ---------------------------------------------------------- */

typedef struct emulated_index {
    unsigned x, y, z;
} emulated_index;

typedef struct emulated_thread {
    emulated_index thread, block, block_size, grid;
} emulated_thread;

extern emulated_thread *emulation_now;

/* Stops the launch; does not return. */
__attribute__((noreturn, format(printf, 1, 2))) void emulation_fail(const char *format, ...);

/* Whether all blocks of the launch run at once. */
int emulation_is_resident(void);

/* Lets other threads go first; with IN_ORDER returns at once. */
void emulation_pause(void);
/* The same in any order: for threads that ask again and again. */
void emulation_yield(void);

/* The block's variable of this place in the text, made at its first use. */
void *emulation_variable(int line, int place, size_t bytes);
unsigned char *emulation_dynamic_shared(void);

/* Shared addresses are 32 bits: block in the cluster, variable, offset. */
uint32_t emulation_address(const void *pointer);
uint32_t emulation_address_in(uint32_t address, uint32_t rank);
/* What `bytes` at this address, aligned to themselves, are on the host. */
unsigned char *emulation_at(uint32_t address, size_t bytes);

void emulation_barrier(int id, unsigned threads); /* 0: all of the block */

/* All 32 lanes give `bytes` (at most 8); each gets lane `from`'s. `what` names the instruction. */
void emulation_exchange(const char *what, const void *mine, void *theirs, size_t bytes, int from);
unsigned emulation_ballot(const char *what, bool vote);

void emulation_copy_async(unsigned char *to, const void *from, size_t bytes, bool there);
void emulation_copy_commit(void);
void emulation_copy_wait(int pending);

uint32_t emulation_cluster_rank(void);
void emulation_cluster_arrive(void);
void emulation_cluster_wait(void);

/* Barriers that count bytes (mbarrier with one arrival). */
void emulation_bytes_init(uint32_t barrier);
void emulation_bytes_expect(uint32_t barrier, uint32_t bytes);
void emulation_bytes_wait(uint32_t barrier, uint32_t parity);
/* Both addresses are of the block that receives. */
void emulation_send(uint32_t to, uint32_t barrier, const void *data, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
