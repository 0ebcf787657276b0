/*
 * A lock-free table of plans; see kept_plans.h. A plan is found by everything that it depends on,
 * in one of two ways: norms without stages of dense tensors by what their axes come to, so that all
 * shapes of as many rows share one plan; any other call by every field of the operator, and the
 * dtype, the sizes and the strides of every tensor.
 */
#include "kept_plans.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "devices.h"
#include "roles.h"
#include "views.h"

enum {
    ROOM = 2048, /* a power of two */
    PROBES = 8,
    WORDS = 192 /* of a key; a pass with ten tensors of three axes has about 90 */
};

/* With this many elements the work takes longer than the planning, on the CPU. On a GPU the caller
 * does not wait for the work. */
static const int64_t small = 1 << 17;

/* What the axes of dense tensors come to; the first word of a key. */
typedef enum plan_form {
    FORM_ANY,          /* none of these: the key says how each tensor lies */
    FORM_ROWS,         /* rows, cols */
    FORM_GROUPS,       /* batch, groups, channels of a group, pixels; dense in this order */
    FORM_CHANNELS_LAST /* the same, dense as batch, pixels, groups, channels of a group */
} plan_form;

typedef struct plan_key {
    int count; /* more than WORDS: it has no room */
    uint64_t words[WORDS];
} plan_key;

typedef struct plan_entry {
    planish_plan *plan;
    uint64_t hash;
    int count;
    uint64_t words[];
} plan_entry;

static _Atomic(const plan_entry *) table[ROOM];

/* ---- What a key is made of ------------------------------------------------------------------ */

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

/* 0: the CPU, else a GPU's number + 1. */
static uint64_t device_word(DLDevice device) {
    return device_kind_of(device) == DEVICE_CPU ? 0 : (uint64_t)device.device_id + 1;
}

/* ---- Dense tensors -------------------------------------------------------------------------- */

static bool is_dense(const DLTensor *view) {
    return !view || view_is_contiguous(view);
}

/* The same with axes 1 and 2, the channels, inside the pixels. */
static bool is_channels_last(const DLTensor *view) {
    if (!view)
        return true;
    int64_t stride = 1;
    for (int32_t i = 0; i < view->ndim; i++) {
        /* 2, 1, the pixels from the last to the first, 0 */
        int32_t axis = i < 2 ? 2 - i : i < view->ndim - 1 ? view->ndim + 1 - i : 0;
        if (view->shape[axis] != 1 && view->strides[axis] != stride)
            return false;
        stride *= view->shape[axis];
    }
    return true;
}

/* Whether a tensor, if it is there, has these axes of x: their sizes in order, or x's rank with 1
 * elsewhere; and is where x is. */
static bool has_axes(const DLTensor *view, const DLTensor *x, uint64_t axes) {
    if (!view)
        return true;
    const bool packed = view->ndim == __builtin_popcountll(axes);
    if (!device_is_same(view->device, x->device) || (!packed && view->ndim != x->ndim))
        return false;
    for (int32_t i = 0, next = 0; i < x->ndim; i++) {
        const bool varies = axes >> i & 1;
        if (packed && !varies)
            continue;
        if (view->shape[packed ? next++ : i] != (varies ? x->shape[i] : 1))
            return false;
    }
    return true;
}

/* Whether all that callers give goes with x: a key of a form has the sizes and the device of x
 * alone. Gradients and, forward, the statistics were made for it. */
static bool fits(const planish_norm *op, planish_pass pass, const planish_tensors *t) {
    const uint64_t all = PLANISH_AXIS(t->x->ndim) - 1, kept = all & ~op->reduce_axes;
    return has_axes(t->weight, t->x, op->affine_axes) && has_axes(t->bias, t->x, op->affine_axes) &&
           has_axes(t->y, t->x, all) && has_axes(t->dy, t->x, all) &&
           (pass == PLANISH_FORWARD ||
            (has_axes(t->mean, t->x, kept) && has_axes(t->rstd, t->x, kept)));
}

/* Inputs may come with any strides. dweight, dbias and, forward, the statistics were made dense. */
static bool parameters_are_dense(planish_pass pass, const planish_tensors *t) {
    return is_dense(t->weight) && is_dense(t->bias) &&
           (pass == PLANISH_FORWARD || (is_dense(t->mean) && is_dense(t->rstd)));
}

/* Whether the last axes are reduced, and weighted. */
static bool is_rows(const planish_norm *op, int32_t ndim) {
    uint64_t all = PLANISH_AXIS(ndim) - 1, first = op->reduce_axes & -op->reduce_axes;
    return first && op->reduce_axes == op->affine_axes && op->reduce_axes == (all & ~(first - 1));
}

static bool is_groups(const planish_norm *op, int32_t ndim) {
    planish_norm groups = planish_group_norm_op(ndim, 0);
    return ndim > 2 && op->reduce_axes == groups.reduce_axes &&
           op->affine_axes == groups.affine_axes;
}

/* Whether the forms know too little of this norm: it has stages, or weights around zero. */
static bool is_staged(const planish_norm *op, const DLTensor *const list[ROLE_COUNT]) {
    if (op->weight_offset || op->rounding || op->dropout_p > 0)
        return true;
    for (int r = NORM_ROLES; r < ROLE_COUNT; r++)
        if (list[r])
            return true;
    return false;
}

static plan_form form_of(const planish_norm *op, planish_pass pass, const planish_tensors *t,
                         const DLTensor *const list[ROLE_COUNT]) {
    if (is_staged(op, list) || !parameters_are_dense(pass, t) || !fits(op, pass, t))
        return FORM_ANY;
    bool rows = is_rows(op, t->x->ndim);
    if (!rows && !is_groups(op, t->x->ndim))
        return FORM_ANY;
    if (is_dense(t->x) && is_dense(t->y) && is_dense(t->dy) && is_dense(t->dx))
        return rows ? FORM_ROWS : FORM_GROUPS;
    bool last = is_channels_last(t->x) && is_channels_last(t->y) && is_channels_last(t->dy) &&
                is_channels_last(t->dx);
    return !rows && last ? FORM_CHANNELS_LAST : FORM_ANY;
}

static void add_sizes(plan_key *key, const planish_norm *op, const DLTensor *x, plan_form form) {
    int32_t first = form == FORM_ROWS ? __builtin_ctzll(op->reduce_axes) : 0;
    uint64_t sizes[4] = {1, 1, 1, 1};
    for (int32_t i = 0; i < x->ndim; i++)
        sizes[form == FORM_ROWS ? i >= first : i < 3 ? i : 3] *= (uint64_t)x->shape[i];
    for (int i = 0; i < 4; i++)
        add(key, sizes[i]);
}

/* 1, 2, 4 and 5 for f16, f32, f64 and bf16. */
static uint64_t dtype_code(const DLTensor *view) {
    return (uint64_t)view->dtype.bits / 16 + 4 * (view->dtype.code == kDLBfloat);
}

/* Of the norm's tensors, in the order of the roles; 0: absent. */
static uint64_t dtype_codes(const DLTensor *const list[ROLE_COUNT]) {
    enum { CODE_BITS = 4 };
    _Static_assert(NORM_ROLES * CODE_BITS <= 64, "the codes are one word");
    uint64_t codes = 0;
    for (int r = 0; r < NORM_ROLES; r++)
        codes |= list[r] ? dtype_code(list[r]) << r * CODE_BITS : 0;
    return codes;
}

static void add_dense(plan_key *key, const planish_norm *op, planish_pass pass,
                      const DLTensor *const list[ROLE_COUNT], plan_form form) {
    const DLTensor *x = list[ROLE_X];
    add_sizes(key, op, x, form);
    add_number(key, op->eps);
    add(key, (uint64_t)op->activation << 6 | (uint64_t)op->kind << 4 | (uint64_t)pass);
    add(key, dtype_codes(list));
}

/* ---- Any tensors ---------------------------------------------------------------------------- */

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
    add_number(key, op->momentum);
}

static void add_tensor(plan_key *key, const DLTensor *t) {
    add(key, (uint64_t)t->dtype.code | (uint64_t)t->dtype.bits << 8 | (uint64_t)t->ndim << 16 |
                 (uint64_t)t->device.device_type << 24 | (uint64_t)t->device.device_id << 32);
    for (int32_t i = 0; i < t->ndim; i++) {
        add(key, (uint64_t)t->shape[i]);
        add(key, (uint64_t)t->strides[i]);
    }
}

static void add_all(plan_key *key, const planish_norm *op, planish_pass pass,
                    const DLTensor *const list[ROLE_COUNT]) {
    role_set present = 0;
    add_op(key, op, pass);
    for (int r = 0; r < ROLE_COUNT; r++)
        present |= list[r] ? ROLE_BIT(r) : 0;
    add(key, present);
    for (role_set rest = present; rest; rest &= rest - 1)
        add_tensor(key, list[first_role(rest)]);
}

/* ---- The key -------------------------------------------------------------------------------- */

/* False: no plan is kept for such a call. */
static bool make_key(plan_key *key, const planish_norm *op, planish_pass pass,
                     const planish_tensors *tensors) {
    const DLTensor *list[ROLE_COUNT];
    const uint64_t device = device_word(tensors->x->device);
    const int64_t elements = view_elements(tensors->x);
    if (elements == 0 || (elements > small && !device))
        return false;
    tensors_by_role(tensors, list);
    const plan_form form = form_of(op, pass, tensors, list);
    key->count = 0;
    add(key, (uint64_t)form | device << 8);
    if (form == FORM_ANY)
        add_all(key, op, pass, list);
    else
        add_dense(key, op, pass, list, form);
    return key->count <= WORDS;
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

/* ---- The table ------------------------------------------------------------------------------ */

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

const planish_plan *kept_plan_for(const planish_norm *op, planish_pass pass,
                                  const planish_tensors *tensors) {
    plan_key key;
    if (!make_key(&key, op, pass, tensors))
        return NULL;
    const uint64_t hash = hash_of(&key);
    for (int i = 0; i < PROBES; i++) {
        const plan_entry *entry = atomic_load(&table[(hash + (uint64_t)i) % ROOM]);
        if (!entry) { /* a plan holds for other tensors of this key, too: they come to the same */
            planish_plan *plan = NULL;
            planish_status made = planish_plan_create(op, pass, tensors, &plan, NULL, 0);
            return keep(&key, hash, made == PLANISH_OK ? plan : NULL);
        }
        if (is_of(entry, &key, hash))
            return entry->plan;
    }
    return NULL;
}
