#include "buffers.h"

static bool same_layout(const problem *p, role a, role b) {
    if (p->dtypes[a] != p->dtypes[b])
        return false;
    for (int i = 0; i < p->kept_count; i++)
        if (kept_stride(p, i, a) != kept_stride(p, i, b))
            return false;
    for (int i = 0; i < p->reduced_count; i++)
        if (reduced_stride(p, i, a) != reduced_stride(p, i, b))
            return false;
    return true;
}

/* Whether a and b are columns of one wider buffer: the same row pitch, and side by side within it.
 */
static bool side_by_side(const problem *p, role a, role b, void *const buffers[]) {
    for (int i = 0; i < p->kept_count; i++) {
        int64_t pitch = kept_stride(p, i, a) * dtype_bytes(p->dtypes[a]);
        if (pitch <= 0 || pitch != kept_stride(p, i, b) * dtype_bytes(p->dtypes[b]))
            continue;
        const reach ra = problem_reach(p, a, i), rb = problem_reach(p, b, i);
        const int64_t apart = ((intptr_t)buffers[b] + rb.low) - ((intptr_t)buffers[a] + ra.low);
        const int64_t from_a = (apart % pitch + pitch) % pitch;
        if (from_a >= ra.high - ra.low && from_a + (rb.high - rb.low) <= pitch)
            return true;
    }
    return false;
}

static int64_t elements_of(const problem *p, role r) {
    const int64_t elements[] = {[AXES_FULL] = p->rows * p->cols,
                                [AXES_AFFINE] = p->affine,
                                [AXES_KEPT] = p->rows,
                                [AXES_COLUMN] = p->stages.columns,
                                [AXES_MODULATION] = p->stages.modulations,
                                [AXES_BLOCKS] = p->rows * p->stages.blocks,
                                [AXES_ONE] = 1,
                                [AXES_PAIR] = 2};
    return elements[axes_of(r)];
}

/* Whether there is data of each tensor, at an address its dtype can have. */
static planish_status check_present(const problem *p, void *const buffers[], message error) {
    for (role_set rest = p->present; rest; rest &= rest - 1) {
        const role r = first_role(rest);
        const intptr_t address = (intptr_t)buffers[r];
        if (!address && elements_of(p, r))
            return fail(error, PLANISH_ERROR_NULL_POINTER, "%s has no data; wanted %lld elements",
                        role_name(r), (long long)elements_of(p, r));
        if (address & (dtype_bytes(p->dtypes[r]) - 1))
            return fail(error, PLANISH_ERROR_STRIDES,
                        "%s starts at an address that is not a multiple of %d; wanted one that is",
                        role_name(r), dtype_bytes(p->dtypes[r]));
    }
    return PLANISH_OK;
}

static planish_status check_apart(const problem *p, void *const buffers[], message error) {
    struct {
        intptr_t low, high;
    } touched[ROLE_COUNT];
    for (role_set rest = p->present; rest; rest &= rest - 1) {
        const role r = first_role(rest);
        const reach of_tensor = problem_touches(p, r);
        touched[r].low = (intptr_t)buffers[r] + of_tensor.low;
        touched[r].high = (intptr_t)buffers[r] + of_tensor.high;
    }
    for (role_set out = p->present & p->outputs; out; out &= out - 1) {
        const role a = first_role(out);
        for (role_set rest = p->present & ~ROLE_BIT(a); rest; rest &= rest - 1) {
            const role b = first_role(rest);
            if (touched[a].high <= touched[b].low || touched[b].high <= touched[a].low)
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

planish_status buffers_check(const problem *p, void *const buffers[ROLE_COUNT], bool apart,
                             message error) {
    const planish_status status = check_present(p, buffers, error);
    const bool empty = !p->rows || !p->cols;
    return status || apart || empty ? status : check_apart(p, buffers, error);
}

static void *data_of(const DLTensor *t) {
    return t && t->data ? (char *)t->data + t->byte_offset : NULL;
}

void buffers_of(const planish_tensors *t, void *buffers[ROLE_COUNT]) {
    const DLTensor *tensors[ROLE_COUNT];
    tensors_by_role(t, tensors);
    for (int r = 0; r < ROLE_COUNT; r++)
        buffers[r] = data_of(tensors[r]);
}
