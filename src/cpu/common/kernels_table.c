/*
 * The table of the kernels of one tier, from what its units export (cpu/common/exports.h).
 * meson.build compiles it once for each TIER. Where it names a TIER_BELOW, these tiers differ in
 * what they do to bf16 alone, and the kernels of other dtypes are that one's.
 */
#include "cpu/batch/batch_kernels.h"
#include "cpu/common/exports.h"

#if defined(TIER_BELOW)
#define REST TIER_BELOW
#else
#define REST TIER
#endif

DECLARE_ROWS(f32, f32, REST)
DECLARE_ROWS(f64, f64, REST)
DECLARE_ROWS(f16, f16, REST)
DECLARE_ROWS(f16, f32, REST)
DECLARE_ROWS(bf16, bf16, TIER)
DECLARE_ROWS(bf16, f32, TIER)
DECLARE_GROUPS(f32, f32, REST)
DECLARE_GROUPS(f64, f64, REST)
DECLARE_GROUPS(f16, f32, REST)
DECLARE_GROUPS(bf16, f32, TIER)
DECLARE_BATCH(f32, f32, REST)
DECLARE_BATCH(f64, f64, REST)
DECLARE_BATCH(f16, f32, REST)
DECLARE_BATCH(bf16, f32, TIER)
DECLARE_REAL(f32, TIER)
DECLARE_REAL(f32, REST)
DECLARE_REAL(f64, REST)

#define ROW_KERNELS(element, weight, tier)                                                         \
    {UNIT(rows_forward, element, weight, tier), UNIT(rows_backward, element, weight, tier),        \
     UNIT(rows_halves, element, weight, tier)}
#define GROUP_KERNELS(element, real, tier)                                                         \
    {UNIT(group_forward, element, real, tier), UNIT(group_backward, element, real, tier),          \
     UNIT(strip_forward, element, real, tier), UNIT(strip_backward, element, real, tier)}
/* With weights of the same dtype, and with weights of the compute type. */
#define ELEMENT_KERNELS(element, real, tier)                                                       \
    {{ROW_KERNELS(element, element, tier), ROW_KERNELS(element, real, tier)},                      \
     GROUP_KERNELS(element, real, tier)}
#define TABLE_(tier) cpu_kernels_##tier
#define TABLE(tier) TABLE_(tier)
#define TEXT_(tier) #tier
#define TEXT(tier) TEXT_(tier)

const cpu_kernels TABLE(TIER);
const cpu_kernels TABLE(TIER) = {
    .tier = TEXT(TIER),
    .of = {[DTYPE_F32] = ELEMENT_KERNELS(f32, f32, REST),
           [DTYPE_F16] = ELEMENT_KERNELS(f16, f32, REST),
           [DTYPE_BF16] = ELEMENT_KERNELS(bf16, f32, TIER),
           [DTYPE_F64] = ELEMENT_KERNELS(f64, f64, REST)},
    .channels = {&UNIT(channels, f32, f32, TIER), &UNIT(channels, f64, f64, REST)},
    .planes = {&UNIT(planes, f32, f32, TIER), &UNIT(planes, f64, f64, REST)},
    .spans = &UNIT(spans, f32, f32, TIER),
    .stages = {&UNIT(stages, f32, f32, TIER), &UNIT(stages, f64, f64, REST)},
    .stages_backward = {&UNIT(stages_backward, f32, f32, REST),
                        &UNIT(stages_backward, f64, f64, REST)},
    .batch = {[DTYPE_F32] = &UNIT(batch, f32, f32, REST),
              [DTYPE_F16] = &UNIT(batch, f16, f32, REST),
              [DTYPE_BF16] = &UNIT(batch, bf16, f32, TIER),
              [DTYPE_F64] = &UNIT(batch, f64, f64, REST)},
};
