#include "cpu/stretch.h"

void stretch_gather(const planish_plan *plan, void *dense, const char *from, int64_t stride,
                    dtype type, int64_t count) {
    const int64_t step = stride * dtype_bytes(type);
    if (plan->is_double) {
        double *to = dense;
        for (int64_t i = 0; i < count; i++)
            to[i] = element_load(from + i * step, type);
    } else if (stride == 1) {
        plan->kernels->widen[type](dense, from, count);
    } else {
        float *to = dense;
        for (int64_t i = 0; i < count; i++)
            to[i] = (float)element_load(from + i * step, type);
    }
}

void stretch_scatter(const planish_plan *plan, char *to, const void *dense, int64_t stride,
                     dtype type, int64_t count) {
    const int64_t step = stride * dtype_bytes(type);
    if (plan->is_double) {
        const double *from = dense;
        for (int64_t i = 0; i < count; i++)
            element_store(to + i * step, type, from[i]);
    } else if (stride == 1) {
        plan->kernels->narrow[type](to, dense, count);
    } else {
        const float *from = dense;
        for (int64_t i = 0; i < count; i++)
            element_store(to + i * step, type, from[i]);
    }
}
