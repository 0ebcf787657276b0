/*
 * A lock-free table of plans by their whole description; see exact_plans.h.
 */
#include "exact_plans.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "../roles.h"
#include "tensor.h"

enum {
    ROOM = 1024, /* a power of two */
    PROBES = 8,
    WORDS = 192 /* of a key; a pass with ten tensors of three axes has about 90 */
};

/* With this many elements the work takes longer than the planning, on the CPU. On a GPU the caller
 * does not wait for the work. */
static const int64_t small = 1 << 17;

typedef struct plan_key {
    int count; /* 0: no key */
    uint64_t words[WORDS];
} plan_key;

typedef struct plan_entry {
    planish_plan *plan;
    uint64_t hash;
    int count;
    uint64_t words[];
} plan_entry;

static _Atomic(const plan_entry *) table[ROOM];

bool is_staged(const planish_norm *op, const planish_tensors *tensors) {
    if (op->weight_offset || op->rounding)
        return true;
    const DLTensor *list[ROLE_COUNT];
    tensors_by_role(tensors, list);
    for (int r = NORM_ROLES; r < ROLE_COUNT; r++)
        if (list[r])
            return true;
    return false;
}

static void add(plan_key *key, uint64_t word) {
    if (key->count < WORDS)
        key->words[key->count] = word;
    key->count++;
}

static void add_number(plan_key *key, double number) {
    uint64_t word;
    memcpy(&word, &number, sizeof word);
    add(key, word);
}

static void add_op(plan_key *key, const planish_norm *op, planish_pass pass) {
    add(key, (uint64_t)pass | (uint64_t)op->kind << 4 | (uint64_t)op->weight_offset << 8 |
                 (uint64_t)op->activation << 12 | (uint64_t)op->gate << 20 |
                 (uint64_t)op->rounding << 24 | (uint64_t)op->scale_format << 28);
    add(key, op->reduce_axes | op->affine_axes << PLANISH_MAX_NDIM |
                 op->modulation_axes << 2 * PLANISH_MAX_NDIM |
                 op->column_axes << 3 * PLANISH_MAX_NDIM);
    add_number(key, op->eps);
    add_number(key, op->dropout_p);
    add(key, (uint64_t)op->scale_block);
    add_number(key, op->scale_least);
    add_number(key, op->scale_most);
}

static void add_tensor(plan_key *key, const DLTensor *t) {
    add(key, (uint64_t)t->dtype.code | (uint64_t)t->dtype.bits << 8 | (uint64_t)t->ndim << 16 |
                 (uint64_t)t->device.device_type << 24 | (uint64_t)t->device.device_id << 32);
    for (int32_t i = 0; i < t->ndim; i++) {
        add(key, (uint64_t)t->shape[i]);
        add(key, (uint64_t)t->strides[i]);
    }
}

static void make_key(plan_key *key, const planish_norm *op, planish_pass pass,
                     const planish_tensors *tensors) {
    const DLTensor *list[ROLE_COUNT], *x = tensors->x;
    uint64_t present = 0;
    key->count = 0;
    const bool on_gpu = x->device.device_type == kDLCUDA;
    const int64_t elements = view_elements(x);
    if (elements == 0 || (elements > small && !on_gpu))
        return;
    tensors_by_role(tensors, list);
    add_op(key, op, pass);
    add(key, on_gpu ? (uint64_t)x->device.device_id + 1 : 0);
    for (int r = 0; r < ROLE_COUNT; r++)
        present |= list[r] ? 1ull << r : 0;
    add(key, present);
    for (int r = 0; r < ROLE_COUNT; r++)
        if (list[r])
            add_tensor(key, list[r]);
    if (key->count > WORDS)
        key->count = 0;
}

static uint64_t hash_of(const plan_key *key) {
    uint64_t h = (uint64_t)key->count;
    for (int i = 0; i < key->count; i++) {
        h = (h ^ key->words[i]) * 0x9E3779B97F4A7C15u;
        h ^= h >> 29; /* the upper bits of a word reach the lower bits of the hash */
    }
    h *= 0xC2B2AE3D27D4EB4Fu;
    return h >> 32;
}

static bool is_of(const plan_entry *entry, const plan_key *key, uint64_t hash) {
    return entry->hash == hash && entry->count == key->count &&
           !memcmp(entry->words, key->words, (size_t)key->count * sizeof *key->words);
}

/* Puts a new plan in the first free slot; another thread's, if it was first with the same. */
static const planish_plan *keep(const plan_key *key, uint64_t hash, planish_plan *plan) {
    const size_t bytes = (size_t)key->count * sizeof *key->words;
    plan_entry *entry = plan ? malloc(sizeof *entry + bytes) : NULL;
    if (entry) {
        *entry = (plan_entry){plan, hash, key->count};
        memcpy(entry->words, key->words, bytes);
        for (int i = 0; i < PROBES; i++) {
            const plan_entry *found = NULL;
            if (atomic_compare_exchange_strong(&table[(hash + (uint64_t)i) % ROOM], &found,
                                               (const plan_entry *)entry))
                return plan;
            if (is_of(found, key, hash)) {
                planish_plan_destroy(plan);
                free(entry);
                return found->plan;
            }
        }
        free(entry);
    }
    planish_plan_destroy(plan);
    return NULL;
}

const planish_plan *exact_plan_for(const planish_norm *op, planish_pass pass,
                                   const planish_tensors *tensors) {
    plan_key key;
    make_key(&key, op, pass, tensors);
    if (!key.count)
        return NULL;
    const uint64_t hash = hash_of(&key);
    for (int i = 0; i < PROBES; i++) {
        const plan_entry *entry = atomic_load(&table[(hash + (uint64_t)i) % ROOM]);
        if (!entry) {
            planish_plan *plan = NULL;
            planish_status made = planish_plan_create(op, pass, tensors, &plan, NULL, 0);
            return keep(&key, hash, made == PLANISH_OK ? plan : NULL);
        }
        if (is_of(entry, &key, hash))
            return entry->plan;
    }
    return NULL;
}
