/*
 * A lock-free table of plans; see plans.h.
 */
#include "plans.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "tensor.h"

enum {
    ROOM = 1024, /* a power of two */
    PROBES = 8,
    ROLES = 11
};

/* With this many elements the work takes longer than the planning, on the CPU. On a GPU the caller
 * does not wait for the work. */
static const int64_t small = 1 << 17;

/* Everything a plan for dense tensors depends on. */
typedef struct plan_key {
    int64_t rows, cols;
    uint64_t eps_bits;
    uint64_t kinds;  /* operator, pass, and which tensors there are with which dtype */
    uint64_t device; /* 0: the CPU, else a GPU's number + 1 */
} plan_key;

typedef struct plan_entry {
    plan_key key;
    planish_plan *plan;
} plan_entry;

static _Atomic(const plan_entry *) table[ROOM];

/* In the order of planish_tensors. */
static void list_tensors(const planish_tensors *t, const DLTensor *list[ROLES]) {
    const DLTensor *const all[ROLES] = {t->x,  t->weight, t->bias, t->y,       t->mean, t->rstd,
                                        t->m2, t->dy,     t->dx,   t->dweight, t->dbias};
    memcpy((void *)list, (const void *)all, sizeof all);
}

/* 1, 2, 4 and 5 for f16, f32, f64 and bf16. */
static uint64_t dtype_code(const DLTensor *view) {
    return (uint64_t)view->dtype.bits / 16 + 4 * (view->dtype.code == kDLBfloat);
}

static bool is_dense(const DLTensor *view) {
    return !view || view_is_contiguous(view);
}

/* Inputs may come with any strides; the outputs were made, and are dense where x is. */
static bool inputs_are_dense(planish_pass pass, const planish_tensors *t) {
    return is_dense(t->x) && is_dense(t->weight) && is_dense(t->bias) && is_dense(t->dy) &&
           (pass == PLANISH_FORWARD || (is_dense(t->mean) && is_dense(t->rstd)));
}

static bool make_key(plan_key *key, const planish_norm *op, planish_pass pass,
                     const planish_tensors *tensors) {
    const DLTensor *list[ROLES], *x = tensors->x;
    int32_t first = __builtin_ctzll(op->reduce_axes);
    uint64_t all = PLANISH_AXIS(x->ndim) - 1;
    if (op->reduce_axes != op->affine_axes || op->weight_offset ||
        op->reduce_axes != (all & ~(PLANISH_AXIS(first) - 1)))
        return false;
    key->rows = key->cols = 1;
    for (int32_t i = 0; i < x->ndim; i++)
        *(i < first ? &key->rows : &key->cols) *= x->shape[i];
    int64_t elements = key->rows * key->cols;
    key->device = x->device.device_type == kDLCUDA ? (uint64_t)x->device.device_id + 1 : 0;
    bool large = elements > small && !key->device;
    if (elements == 0 || large || !inputs_are_dense(pass, tensors))
        return false;
    list_tensors(tensors, list);
    memcpy(&key->eps_bits, &op->eps, sizeof key->eps_bits);
    key->kinds = (uint64_t)op->kind << 4 | (uint64_t)pass;
    for (int i = 0; i < ROLES; i++) {
        key->kinds <<= 3;
        if (list[i])
            key->kinds |= dtype_code(list[i]);
    }
    return true;
}

static uint64_t hash(const plan_key *key) {
    uint64_t h = (uint64_t)key->rows * 0x9E3779B97F4A7C15u ^ (uint64_t)key->cols;
    h = (h ^ key->eps_bits) * 0xC2B2AE3D27D4EB4Fu ^ key->kinds ^ key->device << 56;
    h *= 0x9E3779B97F4A7C15u;
    return h >> 32;
}

static bool same_key(const plan_key *a, const plan_key *b) {
    return a->rows == b->rows && a->cols == b->cols && a->kinds == b->kinds &&
           a->eps_bits == b->eps_bits && a->device == b->device;
}

/* The same tensors seen as (rows, cols), (cols) and (rows, 1). */
static planish_plan *make_plan(const plan_key *key, const planish_norm *op, planish_pass pass,
                               const planish_tensors *tensors) {
    int64_t full[2] = {key->rows, key->cols}, full_strides[2] = {key->cols, 1};
    int64_t statistic[2] = {key->rows, 1}, unit[2] = {1, 1};
    const DLTensor *list[ROLES];
    DLTensor flat[ROLES];
    list_tensors(tensors, list);
    for (int i = 0; i < ROLES; i++) {
        if (!list[i])
            continue;
        flat[i] = *list[i];
        bool affine = i == 1 || i == 2 || i >= 9, statistics = i >= 4 && i <= 6;
        flat[i].ndim = affine ? 1 : 2;
        flat[i].shape = affine ? full + 1 : statistics ? statistic : full;
        flat[i].strides = affine || statistics ? unit : full_strides;
        list[i] = &flat[i];
    }
    planish_tensors seen = {sizeof seen, list[0], list[1], list[2], list[3], list[4],
                            list[5],     list[6], list[7], list[8], list[9], list[10]};
    planish_norm rows_op = *op;
    rows_op.reduce_axes = rows_op.affine_axes = PLANISH_AXIS(1);
    planish_plan *plan = NULL;
    return planish_plan_create(&rows_op, pass, &seen, &plan, NULL, 0) == PLANISH_OK ? plan : NULL;
}

/* Puts a new plan in the first free slot; another thread's, if it was first with the same. */
static const planish_plan *keep(const plan_key *key, uint64_t start, planish_plan *plan) {
    plan_entry *entry = plan ? malloc(sizeof *entry) : NULL;
    if (entry) {
        *entry = (plan_entry){*key, plan};
        for (int i = 0; i < PROBES; i++) {
            const plan_entry *found = NULL;
            if (atomic_compare_exchange_strong(&table[(start + (uint64_t)i) % ROOM], &found,
                                               (const plan_entry *)entry))
                return plan;
            if (same_key(&found->key, key)) {
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

const planish_plan *plan_for(const planish_norm *op, planish_pass pass,
                             const planish_tensors *tensors) {
    plan_key key;
    if (!make_key(&key, op, pass, tensors))
        return NULL;
    uint64_t start = hash(&key);
    bool room = false;
    for (int i = 0; i < PROBES; i++) {
        const plan_entry *entry = atomic_load(&table[(start + (uint64_t)i) % ROOM]);
        if (!entry) {
            room = true;
            break;
        }
        if (same_key(&entry->key, &key))
            return entry->plan;
    }
    return room ? keep(&key, start, make_plan(&key, op, pass, tensors)) : NULL;
}
