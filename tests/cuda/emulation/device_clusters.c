/* What blocks of a cluster share on the emulated device: their barrier, and bytes they send. */
#include "device_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint32_t emulation_cluster_rank(void) {
    return thread_now()->block->rank;
}

void emulation_cluster_arrive(void) {
    thread *t = thread_now();
    cluster *c = t->block->cluster;
    if (t->cluster_turn >= 0)
        emulation_fail("arrives a second time at the cluster's barrier");
    t->cluster_turn = c->turn;
    if (++c->arrived == device.launch->threads * (unsigned)device.launch->cluster) {
        c->arrived = 0;
        c->turn++;
        threads_wake(&c->waiting);
    }
}

void emulation_cluster_wait(void) {
    thread *t = thread_now();
    cluster *c = t->block->cluster;
    if (t->cluster_turn < 0)
        emulation_fail("waits at the cluster's barrier without having arrived");
    if (c->turn == t->cluster_turn)
        thread_wait_in(&c->waiting, "the cluster's barrier");
    t->cluster_turn = -1;
}

static byte_barrier *find_byte_barrier(block *b, uint32_t address) {
    address = address_in_block(address);
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
    block *b = thread_now()->block;
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
    threads_wake(&bar->waiting);
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
        thread_wait_in(&bar->waiting, "bytes from the cluster");
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
    if (!device_shuffles()) {
        deliver(&m);
        return;
    }
    if (device.message_count == device.message_room) {
        size_t room = device.message_room ? 2 * device.message_room : 256;
        message_under_way *more = device_allocate(room * sizeof *more);
        if (device.messages)
            memcpy(more, device.messages, device.message_count * sizeof *more);
        free(device.messages);
        device.messages = more;
        device.message_room = room;
    }
    device.messages[device.message_count++] = m;
}

/* Any one of the messages under way arrives. */
void device_deliver_one(void) {
    size_t i = device_draw() % device.message_count;
    message_under_way m = device.messages[i];
    device.messages[i] = device.messages[--device.message_count];
    deliver(&m);
}
