/*
 * The kernel table of one tier. Included by kernels_<tier>.c after the tier's vector header, with
 * TIER set to its name; defines cpu_kernels_<tier>.
 */
#include "cpu/rows_doubles.h"

#include <math.h>
#include <stddef.h>

/* Rows up to these sizes are taken in groups, by the forward and the backward kernel. */
enum { GROUP_ROW_BYTES = 16384, BACKWARD_GROUP_BYTES = 32768 };

/*
 * Writes whole lines past the cache. Results are made in a piece of the stack and then written at
 * once: on AMD's Zen 3 a load waits for a store past the cache that is on its way to the same place
 * of another page, so that with loads between the stores a norm took six times longer wherever y
 * lay a little behind x or weight, modulo 4096 bytes.
 */
static inline void stream_lines(void *to, const void *from, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64)
        stream_line((char *)to + i, (const char *)from + i);
}

#define ELEMENT f32
#define ELEMENT_T float
#define WEIGHT f32
#define WEIGHT_T float
#define NAME(f) f##_f32
#define WITH_GROUPS
#include "cpu/compute_f32.h"

#define ELEMENT f16
#define ELEMENT_T uint16_t
#define WEIGHT f16
#define WEIGHT_T uint16_t
#define NAME(f) f##_f16
#define WITH_GROUPS
#include "cpu/compute_f32.h"

#define ELEMENT f16
#define ELEMENT_T uint16_t
#define WEIGHT f32
#define WEIGHT_T float
#define NAME(f) f##_f16_weight_f32
#include "cpu/compute_f32.h"

#define ELEMENT bf16
#define ELEMENT_T uint16_t
#define WEIGHT bf16
#define WEIGHT_T uint16_t
#define NAME(f) f##_bf16
#define WITH_GROUPS
#include "cpu/compute_f32.h"

#define ELEMENT bf16
#define ELEMENT_T uint16_t
#define WEIGHT f32
#define WEIGHT_T float
#define NAME(f) f##_bf16_weight_f32
#include "cpu/compute_f32.h"

#define ELEMENT f64
#define ELEMENT_T double
#define WEIGHT f64
#define WEIGHT_T double
#define REAL double
#define REAL_TOKEN f64
#define VEC f64v
#define VEC_LANES F64V_LANES
#define LANES 16
#define BIG 1e300
#define TINY_VAR 1e-280
#define TINY_EPS 1e-260
#define NAME(f) f##_f64
#define WITH_GROUPS
#include "cpu/rows.h"

static void widen_span_f32(float *to, const void *from, int64_t count) {
    memcpy(to, from, (size_t)count * sizeof *to);
}
static void narrow_span_f32(void *to, const float *from, int64_t count) {
    memcpy(to, from, (size_t)count * sizeof *from);
}
static void widen_span_f16(float *to, const void *from, int64_t count) {
    const uint16_t *halves = from;
    int64_t i = 0;
    for (; i + F32V_LANES <= count; i += F32V_LANES)
        f32v_store_f32(to + i, f32v_load_f16(halves + i));
    for (; i < count; i++)
        to[i] = f32_of_f16(halves[i]);
}
static void narrow_span_f16(void *to, const float *from, int64_t count) {
    uint16_t *halves = to;
    int64_t i = 0;
    for (; i + F32V_LANES <= count; i += F32V_LANES)
        f32v_store_f16(halves + i, f32v_load_f32(from + i));
    for (; i < count; i++)
        halves[i] = f16_of_f32(from[i]);
}
static void widen_span_bf16(float *to, const void *from, int64_t count) {
    const uint16_t *halves = from;
    int64_t i = 0;
    for (; i + F32V_LANES <= count; i += F32V_LANES)
        f32v_store_f32(to + i, f32v_load_bf16(halves + i));
    for (; i < count; i++)
        to[i] = f32_of_bf16(halves[i]);
}
static void narrow_span_bf16(void *to, const float *from, int64_t count) {
    uint16_t *halves = to;
    int64_t i = 0;
    for (; i + F32V_LANES <= count; i += F32V_LANES)
        f32v_store_bf16(halves + i, f32v_load_f32(from + i));
    for (; i < count; i++)
        halves[i] = bf16_of_f32(from[i]);
}

/* Dense elements of any dtype to and from the compute type. */
static void widen_span_to_f32(float *to, const void *from, dtype type, int64_t count) {
    if (type == DTYPE_F32)
        widen_span_f32(to, from, count);
    else if (type == DTYPE_F16)
        widen_span_f16(to, from, count);
    else
        widen_span_bf16(to, from, count);
}
static void narrow_span_to_f32(void *to, const float *from, dtype type, int64_t count) {
    if (type == DTYPE_F32)
        narrow_span_f32(to, from, count);
    else if (type == DTYPE_F16)
        narrow_span_f16(to, from, count);
    else
        narrow_span_bf16(to, from, count);
}
static void widen_span_to_f64(double *to, const void *from, dtype type, int64_t count) {
    if (type == DTYPE_F64)
        memcpy(to, from, (size_t)count * sizeof *to);
    else
        for (int64_t i = 0; i < count; i++)
            to[i] = element_load((const char *)from + i * dtype_bytes(type), type);
}
static void narrow_span_to_f64(void *to, const double *from, dtype type, int64_t count) {
    if (type == DTYPE_F64)
        memcpy(to, from, (size_t)count * sizeof *from);
    else
        for (int64_t i = 0; i < count; i++)
            element_store((char *)to + i * dtype_bytes(type), type, from[i]);
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

#define REAL float
#define REAL_TOKEN f32
#define REAL_DTYPE DTYPE_F32
#define VEC f32v
#define VEC_LANES F32V_LANES
#define LANES 32
#define BIG 3e38
#define TINY_VAR 1e-30
#define TINY_EPS 1e-22
#define BLOCK F32V_BLOCK
#define NAME(f) channel_##f##_f32
#include "cpu/channels.h"

#define REAL double
#define REAL_TOKEN f64
#define REAL_DTYPE DTYPE_F64
#define VEC f64v
#define VEC_LANES F64V_LANES
#define LANES 16
#define BIG 1e300
#define TINY_VAR 1e-280
#define TINY_EPS 1e-260
#define BLOCK F64V_BLOCK
#define NAME(f) channel_##f##_f64
#include "cpu/channels.h"

#define CHANNEL_KERNELS(real)                                                                      \
    {                                                                                              \
        {channel_forward_layer_##real, channel_forward_rms_##real}, {                              \
            channel_backward_layer_##real, channel_backward_rms_##real                             \
        }                                                                                          \
    }
#define GROUP_KERNELS(suffix)                                                                      \
    {                                                                                              \
        {group_forward_layer_##suffix, group_forward_rms_##suffix}, {                              \
            group_backward_layer_##suffix, group_backward_rms_##suffix                             \
        }                                                                                          \
    }
#define ROW_KERNELS(suffix)                                                                        \
    {                                                                                              \
        {forward_layer_##suffix, forward_rms_##suffix}, {                                          \
            backward_layer_##suffix, backward_rms_##suffix                                         \
        }                                                                                          \
    }
#define TABLE_(tier) cpu_kernels_##tier
#define TABLE(tier) TABLE_(tier)
#define TEXT_(tier) #tier
#define TEXT(tier) TEXT_(tier)

const cpu_kernels TABLE(TIER);
const cpu_kernels TABLE(TIER) = {
    .tier = TEXT(TIER),
    .rows =
        {
            [DTYPE_F32] = {ROW_KERNELS(f32), ROW_KERNELS(f32)},
            [DTYPE_F16] = {ROW_KERNELS(f16), ROW_KERNELS(f16_weight_f32)},
            [DTYPE_BF16] = {ROW_KERNELS(bf16), ROW_KERNELS(bf16_weight_f32)},
            [DTYPE_F64] = {ROW_KERNELS(f64)},
        },
    .groups = {[DTYPE_F32] = GROUP_KERNELS(f32),
               [DTYPE_F16] = GROUP_KERNELS(f16),
               [DTYPE_BF16] = GROUP_KERNELS(bf16),
               [DTYPE_F64] = GROUP_KERNELS(f64)},
    .channels = {CHANNEL_KERNELS(f32), CHANNEL_KERNELS(f64)},
    .widen = {[DTYPE_F32] = widen_span_f32,
              [DTYPE_F16] = widen_span_f16,
              [DTYPE_BF16] = widen_span_bf16},
    .narrow = {[DTYPE_F32] = narrow_span_f32,
               [DTYPE_F16] = narrow_span_f16,
               [DTYPE_BF16] = narrow_span_bf16},
};
