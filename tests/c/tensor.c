/* Tensors for tests; see tensor.h. */
#define _DEFAULT_SOURCE
#include "tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

guard guard_side = GUARD_END;

enum { PATTERN = 0xa5 };

guarded guarded_make(size_t bytes, size_t alignment) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t body = (bytes + alignment + page - 1) / page * page;
    guarded g = {.bytes = bytes, .mapping_bytes = body + 2 * page};
    g.mapping = mmap(NULL, g.mapping_bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (g.mapping == MAP_FAILED) {
        perror("mmap");
        exit(2);
    }
    unsigned char *first = (unsigned char *)g.mapping + page;
    mprotect(g.mapping, page, PROT_NONE);
    mprotect(first + body, page, PROT_NONE);
    g.data = guard_side == GUARD_START ? first : first + (body - bytes) / alignment * alignment;
    memset(g.data, PATTERN, bytes);
    return g;
}

void guarded_free(guarded *g) {
    if (g->mapping)
        munmap(g->mapping, g->mapping_bytes);
    *g = (guarded){0};
}

static const char *const layout_names[LAYOUT_COUNT] = {
    "dense",          "explicit",        "padded",         "inner stride 2", "reversed",
    "reversed first", "permuted",        "channels last",  "misaligned",     "packed",
    "packed heads",   "broadcast first", "broadcast last", "broadcast all",
};

const char *layout_name(layout l) {
    return layout_names[l];
}

bool layout_is_broadcast(layout l) {
    return l == BROADCAST_FIRST || l == BROADCAST_LAST || l == BROADCAST_ALL;
}

/* Strides for the axes taken from innermost to outermost in this order. */
static void strides_in_order(tensor *t, const int *order, int64_t padding) {
    int64_t stride = 1;
    for (int i = 0; i < t->dl.ndim; i++) {
        t->strides[order[i]] = stride;
        stride *= t->shape[order[i]] + (i == 0 ? padding : 0);
    }
}

static void set_strides(tensor *t, layout l) {
    int ndim = t->dl.ndim, order[PLANISH_MAX_NDIM], n = 0;
    const bool between = l == PACKED_HEADS && ndim > 2;
    if (between) {
        order[n++] = ndim - 1;
        order[n++] = ndim - 3;
        order[n++] = ndim - 2;
        for (int i = ndim - 4; i >= 0; i--)
            order[n++] = i;
    } else if (l == PERMUTED) {
        for (int i = 0; i < ndim; i++)
            order[n++] = i;
    } else {
        const int channel_axes = l != CHANNELS_LAST || ndim < 2 ? 0 : ndim == 5 ? 2 : 1;
        for (int i = channel_axes; i > 0; i--)
            order[n++] = i;
        for (int i = ndim - 1; i >= 0; i--)
            if (i < 1 || i > channel_axes)
                order[n++] = i;
    }
    strides_in_order(t, order, l == PADDED ? 3 : 0);
    for (int i = 0; i < ndim; i++) {
        const bool outside = i < ndim - 2 || (ndim < 3 && i < ndim - 1);
        if (between ? i == ndim - 2 || i < ndim - 3 : (l == PACKED || l == PACKED_HEADS) && outside)
            t->strides[i] *= 3;
        if (l == INNER_STRIDE_2)
            t->strides[i] *= 2;
        if (l == REVERSED || (l == REVERSED_FIRST && i == 0))
            t->strides[i] *= -1;
        if (l == BROADCAST_ALL || (l == BROADCAST_FIRST && i == 0) ||
            (l == BROADCAST_LAST && i == ndim - 1))
            t->strides[i] = 0;
    }
}

void tensor_make(tensor *t, element type, int ndim, const int64_t *shape, layout l) {
    memset(t, 0, sizeof *t);
    t->type = type;
    t->dl.device.device_type = kDLCPU;
    t->dl.ndim = ndim;
    t->dl.dtype = element_dtype(type);
    t->dl.shape = t->shape;
    if (l != DENSE && l != MISALIGNED)
        t->dl.strides = t->strides;
    for (int i = 0; i < ndim; i++)
        t->shape[i] = shape[i];
    t->count = element_count(&t->dl);
    set_strides(t, l);
    int64_t lowest = 0, highest = t->count ? 1 : 0;
    for (int i = 0; i < ndim && t->count; i++) {
        int64_t reach = (t->shape[i] - 1) * t->strides[i];
        *(reach < 0 ? &lowest : &highest) += reach;
    }
    if (l == MISALIGNED)
        lowest = -1;
    t->memory = guarded_make((size_t)(highest - lowest) * (size_t)element_bytes(type),
                             (size_t)element_bytes(type));
    t->dl.data = t->memory.data;
    t->dl.byte_offset = (uint64_t)(-lowest * element_bytes(type));
}

void tensor_free(tensor *t) {
    guarded_free(&t->memory);
}

void tensor_clear(tensor *t) {
    memset(t->memory.data, PATTERN, t->memory.bytes);
}

bool tensor_untouched(const tensor *t) {
    for (size_t i = 0; i < t->memory.bytes; i++)
        if (t->memory.data[i] != PATTERN)
            return false;
    return true;
}

bool tensor_intact(const tensor *t) {
    if ((size_t)t->count * (size_t)element_bytes(t->type) == t->memory.bytes)
        return true;
    unsigned char *owned = calloc(t->memory.bytes, 1);
    cursor c = cursor_begin(&t->dl);
    for (int64_t i = 0; i < t->count; i++, cursor_next(&c))
        memset(owned + (c.at - t->memory.data), 1, (size_t)element_bytes(t->type));
    bool intact = true;
    for (size_t i = 0; i < t->memory.bytes; i++)
        intact = intact && (owned[i] || t->memory.data[i] == PATTERN);
    free(owned);
    return intact;
}

int64_t element_count(const DLTensor *t) {
    int64_t count = 1;
    for (int i = 0; i < t->ndim; i++)
        count *= t->shape[i];
    return count;
}

static int64_t stride_of(const DLTensor *t, int axis) {
    if (t->strides)
        return t->strides[axis];
    int64_t stride = 1;
    for (int i = t->ndim - 1; i > axis; i--)
        stride *= t->shape[i];
    return stride;
}

cursor cursor_begin(const DLTensor *t) {
    return (cursor){.tensor = t, .at = (unsigned char *)t->data + t->byte_offset};
}

void cursor_next(cursor *c) {
    const DLTensor *t = c->tensor;
    int64_t bytes = t->dtype.bits / 8;
    if (!t->strides) {
        c->at += bytes;
        return;
    }
    for (int i = t->ndim - 1; i >= 0; i--) {
        c->at += stride_of(t, i) * bytes;
        if (++c->index[i] < t->shape[i])
            return;
        c->at -= t->shape[i] * stride_of(t, i) * bytes;
        c->index[i] = 0;
    }
}

void tensor_read(const DLTensor *t, real *values) {
    cursor c = cursor_begin(t);
    element type = element_of(t->dtype);
    for (int64_t i = 0, count = element_count(t); i < count; i++, cursor_next(&c))
        values[i] = element_read(type, c.at);
}

void tensor_write(const DLTensor *t, const real *values) {
    cursor c = cursor_begin(t);
    element type = element_of(t->dtype);
    for (int64_t i = 0, count = element_count(t); i < count; i++, cursor_next(&c))
        element_write(type, c.at, values[i]);
}

bool tensor_same_bits(const DLTensor *a, const DLTensor *b) {
    cursor p = cursor_begin(a), q = cursor_begin(b);
    size_t bytes = a->dtype.bits / 8;
    for (int64_t i = 0, count = element_count(a); i < count; i++) {
        if (memcmp(p.at, q.at, bytes))
            return false;
        cursor_next(&p);
        cursor_next(&q);
    }
    return true;
}

uint64_t random_bits(random_state *r) {
    uint64_t z = r->state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int64_t random_below(random_state *r, int64_t count) {
    return (int64_t)(random_bits(r) % (uint64_t)count);
}

double random_normal(random_state *r) {
    /* The sum of four uniform numbers has variance 4/12. */
    double sum = -2;
    for (int i = 0; i < 4; i++)
        sum += (double)(random_bits(r) >> 11) * 0x1p-53;
    return sum * 1.7320508075688772;
}
