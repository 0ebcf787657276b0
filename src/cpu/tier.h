/*
 * The kernel table of one tier. Included by kernels_<tier>.c after the tier's vector header, with
 * TIER set to its name; defines cpu_kernels_<tier>. Where TIER_BELOW names a tier that differs in
 * what it does to bf16 alone, rows and groups of other dtypes are that one's.
 */
#include "cpu/exact.h"
#include "cpu/rows_doubles.h"
#include "cpu/spans.h"
#include "cpu/vec_pairs.h"
#include "cpu/words.h"

#include <math.h>
#include <stddef.h>

/*
 * Rows up to these sizes are taken in groups: by the forward, which finds x in a near cache again;
 * by the forward where y is written past the cache; by the backward where elements are converted,
 * and where not.
 */
enum {
    GROUP_ROW_BYTES = 16384,
    PAST_ROW_BYTES = 131072,
    BACKWARD_GROUP_BYTES = 32768,
    BACKWARD_LONG_BYTES = 262144
};

/* How many bytes on y is asked for where it goes through the cache: fewer come too late, with more
 * x leaves the first-level cache. */
enum { WRITE_AHEAD = 4096 };

/* What was tuned on CPUs with AVX-512, and is left off where it was not timed. */
enum { WIDE_VECTORS = sizeof(f32v) == 64 };

/* The longest rows whose y is asked for a group at a time, and those that are taken in turn at
 * most: two groups and a y are in a first-level cache of 48 KB. */
enum { ASKED_ROW_BYTES = 3072, TURN_ROW_BYTES = WIDE_VECTORS ? 4096 : 2048 };

/*
 * Writes whole lines past the cache. Results are made in a piece of the stack and then written at
 * once, but for TRAFFIC_LINES: on AMD's Zen 3 a load waits for a store past the cache that is on
 * its way to the same place of another page, so that with loads between the stores a norm took six
 * times longer wherever y lay a little behind x or weight, modulo 4096 bytes.
 */
static inline void stream_lines(void *to, const void *from, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64)
        stream_line((char *)to + i, (const char *)from + i);
}

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

#if !defined(TIER_BELOW)
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
#endif

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
        {group_forward_layer_##suffix, group_forward_rms_##suffix, group_forward_active_##suffix}, \
            {group_backward_layer_##suffix, group_backward_rms_##suffix,                           \
             group_backward_active_##suffix},                                                      \
            {strip_forward_layer_##suffix, strip_forward_rms_##suffix,                             \
             strip_forward_active_##suffix},                                                       \
        {                                                                                          \
            strip_backward_layer_##suffix, strip_backward_rms_##suffix,                            \
                strip_backward_active_##suffix                                                     \
        }                                                                                          \
    }
#define ROW_KERNELS(suffix)                                                                        \
    {                                                                                              \
        {forward_layer_##suffix, forward_rms_##suffix}, {                                          \
            backward_layer_##suffix, backward_rms_##suffix                                         \
        }                                                                                          \
    }
/* And those with weights of f32. */
#define ELEMENT_KERNELS(suffix, with_f32)                                                          \
    {{ROW_KERNELS(suffix), ROW_KERNELS(with_f32)},                                                 \
     GROUP_KERNELS(suffix),                                                                        \
     activate_row_##suffix,                                                                        \
     through_row_##suffix}
#define TABLE_(tier) cpu_kernels_##tier
#define TABLE(tier) TABLE_(tier)
#define OF_(dtype, tier) cpu_##dtype##_##tier
#define OF(dtype, tier) OF_(dtype, tier)
#define TEXT_(tier) #tier
#define TEXT(tier) TEXT_(tier)

#if defined(TIER_BELOW)
#define REST TIER_BELOW
extern const element_kernels OF(f32, REST), OF(f16, REST), OF(f64, REST);
#else
#define REST TIER
const element_kernels OF(f32, TIER), OF(f16, TIER), OF(f64, TIER);
const element_kernels OF(f32, TIER) = ELEMENT_KERNELS(f32, f32);
const element_kernels OF(f16, TIER) = ELEMENT_KERNELS(f16, f16_weight_f32);
const element_kernels OF(f64, TIER) = ELEMENT_KERNELS(f64, f64);
#endif
static const element_kernels bf16_kernels = ELEMENT_KERNELS(bf16, bf16_weight_f32);

const cpu_kernels TABLE(TIER);
const cpu_kernels TABLE(TIER) = {
    .tier = TEXT(TIER),
    .of = {[DTYPE_F32] = &OF(f32, REST),
           [DTYPE_F16] = &OF(f16, REST),
           [DTYPE_BF16] = &bf16_kernels,
           [DTYPE_F64] = &OF(f64, REST)},
    .channels = {CHANNEL_KERNELS(f32), CHANNEL_KERNELS(f64)},
    .planes = {{channel_gather_planes_f32, channel_scatter_planes_f32},
               {channel_gather_planes_f64, channel_scatter_planes_f64}},
    .widen = {[DTYPE_F32] = widen_span_f32,
              [DTYPE_F16] = widen_span_f16,
              [DTYPE_BF16] = widen_span_bf16},
    .narrow = {[DTYPE_F32] = narrow_span_f32,
               [DTYPE_F16] = narrow_span_f16,
               [DTYPE_BF16] = narrow_span_bf16},
    .flush = {flush_span_f32, flush_span_f64},
};
