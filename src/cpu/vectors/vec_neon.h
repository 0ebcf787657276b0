/* The vector vocabulary (see vec_portable.h) for aarch64 NEON, which has f16 conversions from the
 * start. */
#ifndef PLANISH_CPU_VEC_H
#define PLANISH_CPU_VEC_H

#include <arm_neon.h>

#include "cpu/vectors/bits.h"

#define F32V_LANES 4
#define F64V_LANES 2
#define U64V_LANES 2
#define F32V_BLOCK 4
#define F64V_BLOCK 2

typedef float32x4_t f32v;
typedef float64x2_t f64v;

/* n < 4 elements, without touching the byte after the last. */
static inline uint16x4_t load_part_16(const uint16_t *p, int n) {
    uint16_t part[4] = {0};
    for (int i = 0; i < n; i++)
        part[i] = p[i];
    return vld1_u16(part);
}
static inline void store_part_16(uint16_t *p, uint16x4_t v, int n) {
    uint16_t part[4];
    vst1_u16(part, v);
    for (int i = 0; i < n; i++)
        p[i] = part[i];
}
static inline uint32x4_t first_lanes_32(int n) {
    static const uint32_t index[4] = {0, 1, 2, 3};
    return vcltq_u32(vld1q_u32(index), vdupq_n_u32((uint32_t)n));
}

static inline f32v f32v_set1(float a) {
    return vdupq_n_f32(a);
}
static inline f32v f32v_add(f32v a, f32v b) {
    return vaddq_f32(a, b);
}
static inline f32v f32v_sub(f32v a, f32v b) {
    return vsubq_f32(a, b);
}
static inline f32v f32v_mul(f32v a, f32v b) {
    return vmulq_f32(a, b);
}
static inline f32v f32v_fma(f32v a, f32v b, f32v c) {
    return vfmaq_f32(c, a, b);
}
static inline f32v f32v_div(f32v a, f32v b) {
    return vdivq_f32(a, b);
}
static inline f32v f32v_least(f32v a, f32v b) {
    return vbslq_f32(vcltq_f32(a, b), a, b);
}
static inline f32v f32v_most(f32v a, f32v b) {
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}
static inline f32v f32v_drop(f32v v, f32v a, f32v b) {
    return vbslq_f32(vcleq_f32(a, b), vdupq_n_f32(0), v);
}
static inline f32v f32v_power(f32v a) {
    const uint32x4_t one = vreinterpretq_u32_f32(vdupq_n_f32(1));
    return vreinterpretq_f32_u32(vaddq_u32(vshlq_n_u32(vreinterpretq_u32_f32(a), 23), one));
}
static inline f32v f32v_keep(f32v a, int n) {
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(a), first_lanes_32(n)));
}
static inline f32v f32v_join(f32v a, f32v b, int n) {
    return vbslq_f32(first_lanes_32(n), a, b);
}
static inline float32x2_t fold_once_f32(f32v a) {
    return vadd_f32(vget_low_f32(a), vget_high_f32(a));
}
static inline void f32v_fold4(f32v a, f32v b, f32v c, f32v d, float out[4]) {
    vst1_f32(out, vpadd_f32(fold_once_f32(a), fold_once_f32(b)));
    vst1_f32(out + 2, vpadd_f32(fold_once_f32(c), fold_once_f32(d)));
}

static inline void f32v_fold8(const f32v v[8], float out[8]) {
    f32v_fold4(v[0], v[1], v[2], v[3], out);
    f32v_fold4(v[4], v[5], v[6], v[7], out + 4);
}

static inline f32v widen_f16(uint16x4_t halves) {
    return vcvt_f32_f16(vreinterpret_f16_u16(halves));
}
static inline f32v widen_bf16(uint16x4_t halves) {
    return vreinterpretq_f32_u32(vshll_n_u16(halves, 16));
}
static inline uint16x4_t narrow_f16(f32v a) {
    return vreinterpret_u16_f16(vcvt_f16_f32(a));
}
static inline uint16x4_t narrow_bf16(f32v a) {
    const uint32x4_t bits = vreinterpretq_u32_f32(a), high = vshrq_n_u32(bits, 16);
    const uint32x4_t odd = vandq_u32(high, vdupq_n_u32(1));
    const uint32x4_t rounded =
        vshrq_n_u32(vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff))), 16);
    const uint32x4_t quiet_nan = vorrq_u32(high, vdupq_n_u32(0x40));
    return vmovn_u32(vbslq_u32(vceqq_f32(a, a), rounded, quiet_nan));
}

static inline f32v f32v_load_f32(const float *p) {
    return vld1q_f32(p);
}
static inline f32v f32v_load_f16(const uint16_t *p) {
    return widen_f16(vld1_u16(p));
}
static inline f32v f32v_load_bf16(const uint16_t *p) {
    return widen_bf16(vld1_u16(p));
}
static inline f32v f32v_load_part_f32(const float *p, int n) {
    float part[4] = {0};
    for (int i = 0; i < n; i++)
        part[i] = p[i];
    return vld1q_f32(part);
}
static inline f32v f32v_load_part_f16(const uint16_t *p, int n) {
    return widen_f16(load_part_16(p, n));
}
static inline f32v f32v_load_part_bf16(const uint16_t *p, int n) {
    return widen_bf16(load_part_16(p, n));
}
static inline void f32v_store_f32(float *p, f32v a) {
    vst1q_f32(p, a);
}
static inline void f32v_store_f16(uint16_t *p, f32v a) {
    vst1_u16(p, narrow_f16(a));
}
static inline void f32v_store_bf16(uint16_t *p, f32v a) {
    vst1_u16(p, narrow_bf16(a));
}
static inline void f32v_store_part_f32(float *p, f32v a, int n) {
    float part[4];
    vst1q_f32(part, a);
    for (int i = 0; i < n; i++)
        p[i] = part[i];
}
static inline void f32v_store_part_f16(uint16_t *p, f32v a, int n) {
    store_part_16(p, narrow_f16(a), n);
}
static inline void f32v_store_part_bf16(uint16_t *p, f32v a, int n) {
    store_part_16(p, narrow_bf16(a), n);
}

static inline f64v f64v_set1(double a) {
    return vdupq_n_f64(a);
}
static inline f64v f64v_add(f64v a, f64v b) {
    return vaddq_f64(a, b);
}
static inline f64v f64v_sub(f64v a, f64v b) {
    return vsubq_f64(a, b);
}
static inline f64v f64v_mul(f64v a, f64v b) {
    return vmulq_f64(a, b);
}
static inline f64v f64v_fma(f64v a, f64v b, f64v c) {
    return vfmaq_f64(c, a, b);
}
static inline f64v f64v_div(f64v a, f64v b) {
    return vdivq_f64(a, b);
}
static inline f64v f64v_least(f64v a, f64v b) {
    return vbslq_f64(vcltq_f64(a, b), a, b);
}
static inline f64v f64v_most(f64v a, f64v b) {
    return vbslq_f64(vcgtq_f64(a, b), a, b);
}
static inline f64v f64v_drop(f64v v, f64v a, f64v b) {
    return vbslq_f64(vcleq_f64(a, b), vdupq_n_f64(0), v);
}
static inline f64v f64v_power(f64v a) {
    const uint64x2_t one = vreinterpretq_u64_f64(vdupq_n_f64(1));
    return vreinterpretq_f64_u64(vaddq_u64(vshlq_n_u64(vreinterpretq_u64_f64(a), 52), one));
}
static inline f64v f64v_keep(f64v a, int n) {
    return n == 1 ? vsetq_lane_f64(0, a, 1) : n ? a : vdupq_n_f64(0);
}
static inline f64v f64v_join(f64v a, f64v b, int n) {
    return n == 1 ? vcopyq_laneq_f64(a, 1, b, 1) : n ? a : b;
}
static inline void f64v_fold4(f64v a, f64v b, f64v c, f64v d, double out[4]) {
    vst1q_f64(out, vpaddq_f64(a, b));
    vst1q_f64(out + 2, vpaddq_f64(c, d));
}
static inline void f64v_fold8(const f64v v[8], double out[8]) {
    f64v_fold4(v[0], v[1], v[2], v[3], out);
    f64v_fold4(v[4], v[5], v[6], v[7], out + 4);
}
static inline f64v f64v_load_f64(const double *p) {
    return vld1q_f64(p);
}
static inline f64v f64v_load_part_f64(const double *p, int n) {
    return n ? vsetq_lane_f64(*p, vdupq_n_f64(0), 0) : vdupq_n_f64(0);
}
static inline void f64v_store_f64(double *p, f64v a) {
    vst1q_f64(p, a);
}
static inline void f64v_store_part_f64(double *p, f64v a, int n) {
    if (n)
        *p = vgetq_lane_f64(a, 0);
}

/* No non-temporal stores here. */
static inline void f32v_transpose(float *to, int64_t to_pitch, const float *from,
                                  int64_t from_pitch) {
    const float32x4x2_t a = vzipq_f32(vld1q_f32(from), vld1q_f32(from + 2 * from_pitch));
    const float32x4x2_t b =
        vzipq_f32(vld1q_f32(from + from_pitch), vld1q_f32(from + 3 * from_pitch));
    const float32x4x2_t low = vzipq_f32(a.val[0], b.val[0]), high = vzipq_f32(a.val[1], b.val[1]);
    vst1q_f32(to, low.val[0]);
    vst1q_f32(to + to_pitch, low.val[1]);
    vst1q_f32(to + 2 * to_pitch, high.val[0]);
    vst1q_f32(to + 3 * to_pitch, high.val[1]);
}
static inline void f64v_transpose(double *to, int64_t to_pitch, const double *from,
                                  int64_t from_pitch) {
    const float64x2_t a = vld1q_f64(from), b = vld1q_f64(from + from_pitch);
    vst1q_f64(to, vzip1q_f64(a, b));
    vst1q_f64(to + to_pitch, vzip2q_f64(a, b));
}

typedef uint64x2_t u64v;

static inline u64v u64v_set1(uint64_t a) {
    return vdupq_n_u64(a);
}
static inline u64v u64v_from(uint64_t first) {
    return vcombine_u64(vcreate_u64(first), vcreate_u64(first + 1));
}
static inline u64v u64v_mul_low(u64v a, u64v b) {
    return vmull_u32(vmovn_u64(a), vmovn_u64(b));
}
static inline u64v u64v_high(u64v a) {
    return vshrq_n_u64(a, 32);
}
static inline u64v u64v_xor3(u64v a, u64v b, u64v c) {
    return veorq_u64(veorq_u64(a, b), c);
}
static inline void u64v_store_low4(uint32_t *p, u64v a, u64v b, u64v c, u64v d) {
    const u64v ab = vsliq_n_u64(a, b, 32), cd = vsliq_n_u64(c, d, 32);
    vst1q_u32(p, vreinterpretq_u32_u64(vzip1q_u64(ab, cd)));
    vst1q_u32(p + 4, vreinterpretq_u32_u64(vzip2q_u64(ab, cd)));
}

static inline void stream_line(void *to, const void *from) {
    memcpy(to, from, 64);
}

#endif
