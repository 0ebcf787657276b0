#include "buffers.h"

/* The bytes from `low` up to `high` that a tensor may touch, over some of its axes. */
typedef struct extent {
    intptr_t low, high;
} extent;

static void widen(extent *e, const axis *a, role r, int bytes) {
    int64_t reach = (a->size - 1) * a->stride[r] * bytes;
    *(reach < 0 ? &e->low : &e->high) += reach;
}

static extent extent_of(const problem *p, role r, const void *data, int skip_kept) {
    const int bytes = dtype_bytes(p->dtypes[r]);
    extent e = {(intptr_t)data, (intptr_t)data + bytes};
    for (int i = 0; i < p->kept_count; i++)
        if (i != skip_kept)
            widen(&e, &p->kept[i], r, bytes);
    for (int i = 0; i < p->reduced_count; i++)
        widen(&e, &p->reduced[i], r, bytes);
    return e;
}

static bool same_layout(const problem *p, role a, role b) {
    if (p->dtypes[a] != p->dtypes[b])
        return false;
    for (int i = 0; i < p->kept_count; i++)
        if (p->kept[i].stride[a] != p->kept[i].stride[b])
            return false;
    for (int i = 0; i < p->reduced_count; i++)
        if (p->reduced[i].stride[a] != p->reduced[i].stride[b])
            return false;
    return true;
}

/* Whether a and b are columns of one wider buffer: the same row pitch, and side by side within it.
 */
static bool side_by_side(const problem *p, role a, role b, void *const buffers[]) {
    for (int i = 0; i < p->kept_count; i++) {
        int64_t pitch = p->kept[i].stride[a] * dtype_bytes(p->dtypes[a]);
        if (pitch <= 0 || pitch != p->kept[i].stride[b] * dtype_bytes(p->dtypes[b]))
            continue;
        extent ea = extent_of(p, a, buffers[a], i), eb = extent_of(p, b, buffers[b], i);
        intptr_t from_a = ((eb.low - ea.low) % pitch + pitch) % pitch;
        if (from_a >= ea.high - ea.low && from_a + (eb.high - eb.low) <= pitch)
            return true;
    }
    return false;
}

static bool may_alias(role output, role other) {
    return (output == ROLE_Y && other == ROLE_X) ||
           (output == ROLE_DX && (other == ROLE_X || other == ROLE_DY || other == ROLE_Y));
}

planish_status buffers_check(const problem *p, void *const buffers[ROLE_COUNT], message error) {
    const bool empty = !p->rows || !p->cols;
    extent extents[ROLE_COUNT];
    int present[ROLE_COUNT], count = 0;
    for (int r = 0; r < ROLE_COUNT; r++) {
        if (!has(p, r))
            continue;
        present[count++] = r;
        const int bytes = dtype_bytes(p->dtypes[r]);
        int64_t elements = ROLE_BIT(r) & FULL_ROLES     ? p->rows * p->cols
                           : ROLE_BIT(r) & AFFINE_ROLES ? p->affine
                                                        : p->rows;
        if (elements && !buffers[r])
            return fail(error, PLANISH_ERROR_NULL_POINTER, "%s has no data; wanted %lld elements",
                        role_name(r), (long long)elements);
        if ((uintptr_t)buffers[r] & (uintptr_t)(bytes - 1))
            return fail(error, PLANISH_ERROR_STRIDES,
                        "%s starts at an address that is not a multiple of %d; wanted one that is",
                        role_name(r), bytes);
        if (!empty)
            extents[r] = extent_of(p, r, buffers[r], -1);
    }
    for (int i = 0; i < count && !empty; i++) {
        const int a = present[i];
        if (!(roles_of_pass(p->pass).outputs & ROLE_BIT(a)))
            continue;
        for (int j = 0; j < count; j++) {
            const int b = present[j];
            if (b == a || extents[a].high <= extents[b].low || extents[b].high <= extents[a].low)
                continue;
            if (may_alias(a, b) && buffers[a] == buffers[b] && same_layout(p, a, b))
                continue;
            if (side_by_side(p, a, b, buffers))
                continue;
            return fail(error, PLANISH_ERROR_OVERLAP,
                        "%s shares memory with %s; wanted separate memory%s", role_name(a),
                        role_name(b),
                        may_alias(a, b) ? ", or the same data, dtype and strides" : "");
        }
    }
    return PLANISH_OK;
}
