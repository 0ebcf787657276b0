/* Shared memory of the emulated device: its variables, its addresses, copies on their way to it. */
#include "device_parts.h"

#include <stdlib.h>
#include <string.h>

enum {
    MOST_COPIES = 4096, /* of a thread, under way */
    /* Of an address. */
    OFFSET_BITS = 20,
    VARIABLE_BITS = 7
};

/* ---- Shared memory --------------------------------------------------------------------------- */

static void add_variable(block *b, int line, int place, size_t bytes) {
    if (b->variable_count == MOST_VARIABLES)
        emulation_fail("more than %d shared variables", MOST_VARIABLES);
    variable *v = &b->variables[b->variable_count++];
    *v = (variable){line, place, device_allocate(bytes), bytes};
    memset(v->data, device.launch->shared_fill, bytes);
}

void *emulation_variable(int line, int place, size_t bytes) {
    block *b = thread_now()->block;
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
    return thread_now()->block->variables[0].data;
}

/* The address holds variable + 1, so that 0 and small numbers are none. */
uint32_t emulation_address(const void *pointer) {
    const block *b = thread_now()->block;
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

block *block_of(uint32_t address) {
    uint32_t rank = address >> (OFFSET_BITS + VARIABLE_BITS);
    block *b = thread_now()->block;
    return rank ? &b->cluster->blocks[rank - 1] : b;
}

uint32_t address_in_block(uint32_t address) {
    return address & ((1u << (OFFSET_BITS + VARIABLE_BITS)) - 1);
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

/* ---- Asynchronous copies --------------------------------------------------------------------- */

static void perform(const copy *c) {
    if (c->there)
        memcpy(c->to, c->from, c->bytes);
    else
        memset(c->to, 0, c->bytes);
}

/* A copy may come at any time until it is waited for: at once, or not before. */
void emulation_copy_async(unsigned char *to, const void *from, size_t bytes, bool there) {
    thread *t = thread_now();
    copy c = {to, from, (unsigned)bytes, there, t->group};
    if (!device_shuffles() || device_draw() % 4 == 0) {
        perform(&c);
        return;
    }
    if (t->copy_count == t->copy_room) {
        t->copy_room = t->copy_room ? 2 * t->copy_room : 64;
        if (t->copy_room > MOST_COPIES)
            emulation_fail("more than %d copies under way", MOST_COPIES);
        copy *more = device_allocate((size_t)t->copy_room * sizeof *more);
        if (t->copies)
            memcpy(more, t->copies, (size_t)t->copy_count * sizeof *more);
        free(t->copies);
        t->copies = more;
    }
    t->copies[t->copy_count++] = c;
}

void emulation_copy_commit(void) {
    thread_now()->group++;
}

void emulation_copy_wait(int pending) {
    thread *t = thread_now();
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
