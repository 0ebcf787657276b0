/*
 * Elements of a dtype that is known at run time to and from the compute type: dense spans of them,
 * and single vectors; for cpu/channels/channels.h and cpu/common/kernels_spans.c.
 */
#ifndef PLANISH_CPU_SPANS_H
#define PLANISH_CPU_SPANS_H

#include "cpu/common/unit.h"

#include <string.h>

static inline void widen_span_f32(float *to, const void *from, int64_t count) {
    memcpy(to, from, (size_t)count * sizeof *to);
}
static inline void narrow_span_f32(void *to, const float *from, int64_t count) {
    memcpy(to, from, (size_t)count * sizeof *from);
}
static inline void widen_span_f16(float *to, const void *from, int64_t count) {
    const uint16_t *halves = from;
    int64_t i = 0;
    for (; i + F32V_LANES <= count; i += F32V_LANES)
        f32v_store_f32(to + i, f32v_load_f16(halves + i));
    for (; i < count; i++)
        to[i] = f32_of_f16(halves[i]);
}
static inline void narrow_span_f16(void *to, const float *from, int64_t count) {
    uint16_t *halves = to;
    int64_t i = 0;
    for (; i + F32V_LANES <= count; i += F32V_LANES)
        f32v_store_f16(halves + i, f32v_load_f32(from + i));
    for (; i < count; i++)
        halves[i] = f16_of_f32(from[i]);
}
static inline void widen_span_bf16(float *to, const void *from, int64_t count) {
    const uint16_t *halves = from;
    int64_t i = 0;
    for (; i + F32V_LANES <= count; i += F32V_LANES)
        f32v_store_f32(to + i, f32v_load_bf16(halves + i));
    for (; i < count; i++)
        to[i] = f32_of_bf16(halves[i]);
}
static inline void narrow_span_bf16(void *to, const float *from, int64_t count) {
    uint16_t *halves = to;
    int64_t i = 0;
    for (; i + F32V_LANES <= count; i += F32V_LANES)
        f32v_store_bf16(halves + i, f32v_load_f32(from + i));
    for (; i < count; i++)
        halves[i] = bf16_of_f32(from[i]);
}

/* Dense elements of any dtype to and from the compute type. */
static inline void widen_span_to_f32(float *to, const void *from, dtype type, int64_t count) {
    if (type == DTYPE_F32)
        widen_span_f32(to, from, count);
    else if (type == DTYPE_F16)
        widen_span_f16(to, from, count);
    else
        widen_span_bf16(to, from, count);
}
static inline void narrow_span_to_f32(void *to, const float *from, dtype type, int64_t count) {
    if (type == DTYPE_F32)
        narrow_span_f32(to, from, count);
    else if (type == DTYPE_F16)
        narrow_span_f16(to, from, count);
    else
        narrow_span_bf16(to, from, count);
}
static inline void widen_span_to_f64(double *to, const void *from, dtype type, int64_t count) {
    if (type == DTYPE_F64)
        memcpy(to, from, (size_t)count * sizeof *to);
    else
        for (int64_t i = 0; i < count; i++)
            to[i] = element_load((const char *)from + i * dtype_bytes(type), type);
}
static inline void narrow_span_to_f64(void *to, const double *from, dtype type, int64_t count) {
    if (type == DTYPE_F64)
        memcpy(to, from, (size_t)count * sizeof *from);
    else
        for (int64_t i = 0; i < count; i++)
            element_store((char *)to + i * dtype_bytes(type), type, from[i]);
}

/* Adds a chunk's sums to a block's and sets them to 0. */
static inline void flush_span_f32(double *restrict sum, void *restrict chunk, int64_t count) {
    float *restrict values = chunk;
    for (int64_t i = 0; i < count; i++) {
        sum[i] += (double)values[i];
        values[i] = 0;
    }
}
static inline void flush_span_f64(double *restrict sum, void *restrict chunk, int64_t count) {
    double *restrict values = chunk;
    for (int64_t i = 0; i < count; i++) {
        sum[i] += values[i];
        values[i] = 0;
    }
}

/* A vector to memory of a dtype that is known where this is called. */
static inline void store_vector_f32(void *to, f32v v, dtype type) {
    if (type == DTYPE_F32)
        f32v_store_f32(to, v);
    else if (type == DTYPE_F16)
        f32v_store_f16(to, v);
    else
        f32v_store_bf16(to, v);
}
static inline void store_vector_part_f32(void *to, f32v v, int n, dtype type) {
    if (type == DTYPE_F32)
        f32v_store_part_f32(to, v, n);
    else if (type == DTYPE_F16)
        f32v_store_part_f16(to, v, n);
    else
        f32v_store_part_bf16(to, v, n);
}
static inline void store_vector_f64(void *to, f64v v, dtype type) {
    (void)type;
    f64v_store_f64(to, v);
}
static inline void store_vector_part_f64(void *to, f64v v, int n, dtype type) {
    (void)type;
    f64v_store_part_f64(to, v, n);
}

#endif
