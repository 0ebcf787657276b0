/*
 * A lock-free table of plans; see plans.h.
 */
#include "plans.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "../roles.h"
#include "tensor.h"

enum {
    ROOM = 1024, /* a power of two */
    PROBES = 8,
    CODE_BITS = 4, /* of a dtype in a key */
    CODES = 64 / CODE_BITS,
    CODE_WORDS = (ROLE_COUNT + CODES - 1) / CODES
};

/* With this many elements the work takes longer than the planning, on the CPU. On a GPU the caller
 * does not wait for the work. */
static const int64_t small = 1 << 17;

/* What the axes of dense tensors come to. */
typedef enum plan_form {
    FORM_NONE,         /* not one of these */
    FORM_ROWS,         /* rows, cols */
    FORM_GROUPS,       /* batch, groups, channels of a group, pixels; dense in this order */
    FORM_CHANNELS_LAST /* the same, dense as batch, pixels, groups, channels of a group */
} plan_form;

/* Everything a plan for dense tensors depends on. */
typedef struct plan_key {
    int64_t sizes[4];
    uint64_t form;
    uint64_t eps_bits;
    uint64_t kinds;              /* operator and pass */
    uint64_t dtypes[CODE_WORDS]; /* of each tensor, in the order of the roles; 0: absent */
    uint64_t device;             /* 0: the CPU, else a GPU's number + 1 */
} plan_key;

typedef struct plan_entry {
    plan_key key;
    planish_plan *plan;
} plan_entry;

static _Atomic(const plan_entry *) table[ROOM];

/* 1, 2, 4 and 5 for f16, f32, f64 and bf16. */
static uint64_t dtype_code(const DLTensor *view) {
    return (uint64_t)view->dtype.bits / 16 + 4 * (view->dtype.code == kDLBfloat);
}

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

static bool on_same_device(const DLTensor *a, const DLTensor *b) {
    return a->device.device_type == b->device.device_type &&
           a->device.device_id == b->device.device_id;
}

static bool is_like(const DLTensor *view, const DLTensor *x) {
    return !view || (on_same_device(view, x) && same_shape(view, x));
}

/* Whether a tensor has these axes of x: their sizes in order, or x's rank with 1 elsewhere. */
static bool has_axes(const DLTensor *view, const DLTensor *x, uint64_t axes) {
    if (!view)
        return true;
    if (!on_same_device(view, x))
        return false;
    const bool packed = view->ndim == __builtin_popcountll(axes);
    if (!packed && view->ndim != x->ndim)
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

/* Whether all that callers give has the sizes and the device that go with x: a key holds those of x
 * alone, and a plan that is found looks at no other. Gradients were made for x. */
static bool fits(const planish_norm *op, planish_pass pass, const planish_tensors *t) {
    const uint64_t kept = (PLANISH_AXIS(t->x->ndim) - 1) & ~op->reduce_axes;
    return has_axes(t->weight, t->x, op->affine_axes) && has_axes(t->bias, t->x, op->affine_axes) &&
           is_like(t->y, t->x) && is_like(t->dy, t->x) &&
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

static plan_form form_of(const planish_norm *op, const planish_tensors *t) {
    if (op->weight_offset)
        return FORM_NONE;
    bool rows = is_rows(op, t->x->ndim);
    if (!rows && !is_groups(op, t->x->ndim))
        return FORM_NONE;
    if (is_dense(t->x) && is_dense(t->y) && is_dense(t->dy) && is_dense(t->dx))
        return rows ? FORM_ROWS : FORM_GROUPS;
    bool last = is_channels_last(t->x) && is_channels_last(t->y) && is_channels_last(t->dy) &&
                is_channels_last(t->dx);
    return !rows && last ? FORM_CHANNELS_LAST : FORM_NONE;
}

/* Fills the sizes; returns their product. */
static int64_t measure(plan_key *key, const planish_norm *op, const DLTensor *x) {
    int32_t first = key->form == FORM_ROWS ? __builtin_ctzll(op->reduce_axes) : 0;
    int64_t elements = 1;
    for (int i = 0; i < 4; i++)
        key->sizes[i] = 1;
    for (int32_t i = 0; i < x->ndim; i++) {
        int place = key->form == FORM_ROWS ? i >= first : i < 3 ? i : 3;
        key->sizes[place] *= x->shape[i];
        elements *= x->shape[i];
    }
    return elements;
}

static bool make_key(plan_key *key, const planish_norm *op, planish_pass pass,
                     const planish_tensors *tensors) {
    const DLTensor *list[ROLE_COUNT], *x = tensors->x;
    key->form = form_of(op, tensors);
    if (key->form == FORM_NONE)
        return false;
    int64_t elements = measure(key, op, x);
    key->device = x->device.device_type == kDLCUDA ? (uint64_t)x->device.device_id + 1 : 0;
    bool large = elements > small && !key->device;
    if (elements == 0 || large || !parameters_are_dense(pass, tensors) || !fits(op, pass, tensors))
        return false;
    tensors_by_role(tensors, list);
    memcpy(&key->eps_bits, &op->eps, sizeof key->eps_bits);
    key->kinds = (uint64_t)op->activation << 5 | (uint64_t)op->kind << 4 | (uint64_t)pass;
    memset(key->dtypes, 0, sizeof key->dtypes);
    for (int r = 0; r < ROLE_COUNT; r++)
        if (list[r])
            key->dtypes[r / CODES] |= dtype_code(list[r]) << r % CODES * CODE_BITS;
    return true;
}

static uint64_t hash(const plan_key *key) {
    uint64_t h = key->form;
    for (int i = 0; i < 4; i++)
        h = (h ^ (uint64_t)key->sizes[i]) * 0x9E3779B97F4A7C15u;
    for (int i = 0; i < CODE_WORDS; i++)
        h = (h ^ key->dtypes[i]) * 0x9E3779B97F4A7C15u;
    h = (h ^ key->eps_bits) * 0xC2B2AE3D27D4EB4Fu ^ key->kinds ^ key->device << 56;
    h *= 0x9E3779B97F4A7C15u;
    return h >> 32;
}

static bool same_key(const plan_key *a, const plan_key *b) {
    return !memcmp(a->sizes, b->sizes, sizeof a->sizes) &&
           !memcmp(a->dtypes, b->dtypes, sizeof a->dtypes) && a->form == b->form &&
           a->kinds == b->kinds && a->eps_bits == b->eps_bits && a->device == b->device;
}

/* The plan holds for other tensors of this key too: they come to the same axes. */
static planish_plan *make_plan(const planish_norm *op, planish_pass pass,
                               const planish_tensors *tensors) {
    planish_plan *plan = NULL;
    return planish_plan_create(op, pass, tensors, &plan, NULL, 0) == PLANISH_OK ? plan : NULL;
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
    return room ? keep(&key, start, make_plan(op, pass, tensors)) : NULL;
}
