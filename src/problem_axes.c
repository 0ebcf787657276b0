/* Lists of a problem's axes: neighbours that are one axis, and which there are once tensors are
 * gone.
 */
#include "problem_axes.h"

void axes_append(axis list[], int *count, const axis *next) {
    axis *last = *count ? &list[*count - 1] : NULL;
    bool merges = last && last->affine == next->affine && last->column == next->column &&
                  last->modulated == next->modulated &&
                  last->index_step == next->index_step * next->size;
    int64_t span; /* an empty tensor may have strides of any size */
    for (int r = 0; merges && r < ROLE_COUNT; r++)
        merges =
            !__builtin_mul_overflow(next->stride[r], next->size, &span) && last->stride[r] == span;
    if (!merges) {
        list[(*count)++] = *next;
        return;
    }
    last->size *= next->size;
    last->index_step = next->index_step;
    for (int r = 0; r < ROLE_COUNT; r++)
        last->stride[r] = next->stride[r];
}

int64_t axes_size(const axis list[], int count) {
    int64_t size = 1;
    for (int i = 0; i < count; i++)
        size *= list[i].size;
    return size;
}

/* A list without the stages' tensors and what follows from them. */
static void drop_stages(axis list[], int *count) {
    const int before = *count;
    *count = 0;
    for (int i = 0; i < before; i++) {
        axis left = {.size = list[i].size, .affine = list[i].affine};
        for (int r = 0; r < NORM_ROLES; r++)
            left.stride[r] = list[i].stride[r];
        axes_append(list, count, &left);
    }
}

void problem_drop_stages(problem *p) {
    for (int r = NORM_ROLES; r < ROLE_COUNT; r++)
        p->dtypes[r] = DTYPE_NONE;
    p->present &= ~STAGE_ROLES;
    p->outputs &= ~STAGE_ROLES;
    p->around = (stages){.sum = DTYPE_NONE, .blocks = 1};
    drop_stages(p->kept, &p->kept_count);
    drop_stages(p->reduced, &p->reduced_count);
}
