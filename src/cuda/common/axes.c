#include "cuda/common/axes.h"

#include <stdlib.h>

void cuda_axes_of(cuda_axes *list, const problem *p) {
    list->problem = p;
    list->count = 0;
    for (int k = 0; k < p->kept_count; k++)
        list->axis[list->count++] = (cuda_axis){&p->kept[k], false};
    for (int k = 0; k < p->reduced_count; k++)
        list->axis[list->count++] = (cuda_axis){&p->reduced[k], true};
}

void cuda_axes_by(cuda_axes *list, const problem *p, role by) {
    cuda_axes_of(list, p);
    for (int k = 1; k < list->count; k++) {
        const cuda_axis next = list->axis[k];
        const int64_t stride = llabs(axis_stride(p, next.of, by));
        int at = k;
        for (; at > 0 && llabs(axis_stride(p, list->axis[at - 1].of, by)) < stride; at--)
            list->axis[at] = list->axis[at - 1];
        list->axis[at] = next;
    }
}

int64_t cuda_axis_bytes(const cuda_axes *list, const cuda_axis *a, role r) {
    return axis_stride(list->problem, a->of, r) * dtype_bytes(list->problem->dtypes[r]);
}

int64_t cuda_axes_rows_behind(const cuda_axes *list, int k) {
    int64_t rows = 1;
    for (int i = k + 1; i < list->count; i++)
        rows *= list->axis[i].reduced ? 1 : list->axis[i].of->size;
    return rows;
}
