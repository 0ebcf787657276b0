#include "cuda/batch/batch_view.h"

enum { MOST_ROW_STEPS = 1 << 30 }; /* kernels count a row's steps in 31 bits */

/* An axis, or one of size 1 that stands for an axis that is not there. */
static const axis *or_one(const axis *a) {
    static const axis one = {.size = 1};
    return a ? a : &one;
}

typedef struct row_axes {
    const axis *outer, *inner; /* kept */
    const axis *run, *element; /* reduced */
} row_axes;

/* Whether an axis has neighbours in every tensor of x's shape. */
static bool is_dense(const problem *p, const axis *a) {
    for (role r = 0; r < ROLE_COUNT; r++)
        if (has(p, r) && axes_of(r) == AXES_FULL && axis_stride(p, a, r) != 1)
            return false;
    return true;
}

/* Whether no weight varies along a row, and each sum over columns is that of a row. */
static bool has_weights_of_rows(const problem *p) {
    if (!(p->present & AFFINE_ROLES))
        return true;
    for (int k = 0; k < p->reduced_count; k++)
        if (p->reduced[k].affine)
            return false;
    for (int k = 0; k < p->kept_count; k++)
        if (!p->kept[k].affine && (has(p, ROLE_DWEIGHT) || has(p, ROLE_DBIAS)))
            return false;
    return true;
}

static void set_places(batch_view *v, const problem *p, const row_axes *a) {
    for (role r = 0; r < ROLE_COUNT; r++) {
        const int64_t bytes = has(p, r) ? dtype_bytes(p->dtypes[r]) : 0;
        const axis *const axes[] = {a->outer, a->inner, a->run};
        int64_t stride[3];
        for (int k = 0; k < 3; k++)
            stride[k] = bytes && axes[k]->size > 1 ? bytes * axis_stride(p, axes[k], r) : 0;
        v->at[r] = (batch_place){stride[0], stride[1], stride[2]};
    }
}

/* Whether runs of neighbours on this axis follow each other in every tensor of x's shape. */
static bool has_slabs(const problem *p, const row_axes *a) {
    for (role r = 0; r < ROLE_COUNT; r++)
        if (has(p, r) && axes_of(r) == AXES_FULL && axis_stride(p, a->inner, r) != a->element->size)
            return false;
    return p->kept_count == 1 && p->reduced_count == 2;
}

bool batch_view_of(batch_view *v, const problem *p) {
    if (p->rows < 1 || p->cols < 1 || p->cols > MOST_ROW_STEPS || p->kept_count < 1 ||
        p->kept_count > 2 || p->reduced_count < 1 || p->reduced_count > 2 ||
        !has_weights_of_rows(p))
        return false;
    const axis *const inner = &p->kept[p->kept_count - 1];
    const axis *const element = &p->reduced[p->reduced_count - 1];
    row_axes a = {or_one(p->kept_count > 1 ? &p->kept[0] : NULL), inner,
                  or_one(p->reduced_count > 1 ? &p->reduced[0] : NULL), element};
    *v = (batch_view){.rows = p->rows, .inner_rows = inner->size, .run = element->size};
    const bool is_channel = p->kept_count == 1 || !is_dense(p, element);
    if (p->reduced_count == 1 && is_channel && is_dense(p, inner)) {
        v->last = true;
        v->run = 1;
        a.run = element;
    } else if (!is_dense(p, element)) {
        return false;
    }
    v->has_slabs = !v->last && has_slabs(p, &a);
    set_places(v, p, &a);
    return true;
}

void batch_view_by_place(batch_view *v) {
    for (role r = 0; r < ROLE_COUNT; r++)
        if (axes_of(r) == AXES_FULL)
            v->at[r].inner /= v->run;
    v->rows *= v->run;
    v->inner_rows = v->rows;
    v->run = 1;
}
