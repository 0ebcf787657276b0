#include "cpu/common/stretch.h"

/* Dense elements of up to 32 bits to and from double, in vectors, by way of f32. */
enum { PIECE = 256 };

static void widen_dense(const cpu_plan *plan, double *to, const char *from, dtype type,
                        int64_t count) {
    float piece[PIECE];
    for (int64_t at = 0; at < count; at += PIECE) {
        const int64_t n = count - at < PIECE ? count - at : PIECE;
        plan->kernels->spans->widen[type](piece, from + at * dtype_bytes(type), n);
        for (int64_t i = 0; i < n; i++)
            to[at + i] = piece[i];
    }
}

static void narrow_dense(const cpu_plan *plan, char *to, const double *from, dtype type,
                         int64_t count) {
    float piece[PIECE];
    for (int64_t at = 0; at < count; at += PIECE) {
        const int64_t n = count - at < PIECE ? count - at : PIECE;
        for (int64_t i = 0; i < n && type == DTYPE_F32; i++)
            piece[i] = (float)from[at + i];
        for (int64_t i = 0; i < n && type != DTYPE_F32; i++)
            piece[i] = f32_to_odd(from[at + i]); /* so that 16 bits are rounded once */
        plan->kernels->spans->narrow[type](to + at * dtype_bytes(type), piece, n);
    }
}

void stretch_gather(const cpu_plan *plan, void *dense, const char *from, int64_t stride, dtype type,
                    int64_t count) {
    const int64_t step = stride * dtype_bytes(type);
    if (plan->is_double && stride == 1 && type != DTYPE_F64) {
        widen_dense(plan, dense, from, type, count);
    } else if (plan->is_double) {
        double *to = dense;
        for (int64_t i = 0; i < count; i++)
            to[i] = element_load(from + i * step, type);
    } else if (stride == 1) {
        plan->kernels->spans->widen[type](dense, from, count);
    } else {
        float *to = dense;
        for (int64_t i = 0; i < count; i++)
            to[i] = (float)element_load(from + i * step, type);
    }
}

void stretch_scatter(const cpu_plan *plan, char *to, const void *dense, int64_t stride, dtype type,
                     int64_t count) {
    const int64_t step = stride * dtype_bytes(type);
    if (plan->is_double && stride == 1 && type != DTYPE_F64) {
        narrow_dense(plan, to, dense, type, count);
    } else if (plan->is_double) {
        const double *from = dense;
        for (int64_t i = 0; i < count; i++)
            element_store(to + i * step, type, from[i]);
    } else if (stride == 1) {
        plan->kernels->spans->narrow[type](to, dense, count);
    } else {
        const float *from = dense;
        for (int64_t i = 0; i < count; i++)
            element_store(to + i * step, type, from[i]);
    }
}
