/*
 * The vector vocabulary in plain C and GNU's vector types, which any machine has: what every other
 * vec_*.h provides under the same names.
 *
 *     f32v, F32V_LANES, f64v, F64V_LANES
 *     set1, add, sub, mul, fma(a, b, c) = a * b + c rounded once
 *     keep(v, n)            v with every lane from n on set to 0
 *     join(a, b, n)         the first n lanes of a and the others of b
 *     div(a, b)             rounded once
 *     least(a, b)           b where a is not less: NaN of b stays
 *     most(a, b)            b where a is not greater: the same
 *     drop(v, a, b)         v with 0 in the lanes where a <= b
 *     power(a)              2^n, where a is 1.5 * 2^23 + n (f64: 1.5 * 2^52 + n) and 2^n is normal
 *     fold4(a, b, c, d, o)  o[0..3] = the sums of the lanes of a, b, c, d, by halves: lane j and
 *                           lane j + L/2
 *     fold8(v, o)           the same for eight vectors
 *     load_T, load_part_T   from memory of type T; a part reads n elements only and fills up with 0
 *     store_T, store_part_T
 *
 *     transpose(to, to_pitch, from, from_pitch)  F32V_BLOCK or F64V_BLOCK elements each way:
 *                           to[j * to_pitch + i] = from[i * from_pitch + j]
 *
 *     u64v, U64V_LANES      words of which the low halves count, but in high
 *     from(a)               a, a + 1, ... in an order of its own
 *     mul_low(a, b)         the products of the low halves, all of them
 *     high(a)               the high halves, below
 *     xor3(a, b, c)
 *     store_low4(p, a, b, c, d)  the low halves of a, b, c and d: the four of a place together,
 *                           places in the order of from
 *
 * and stream_line(to, from): 64 bytes by a non-temporal store, both addresses aligned to that. Who
 * calls the kernels puts a fence behind the last (cpu/run.c).
 */
#ifndef PLANISH_CPU_VEC_H
#define PLANISH_CPU_VEC_H

#include "cpu/vectors/bits.h"

/* For machines that no tier is made for: loops stay loops, and rows of few columns go the way of
 * all others, which makes a third of the text. */
#define VEC_SMALL_TEXT

#define F32V_LANES 4
#define F64V_LANES 2
#define U64V_LANES 1
#define F32V_BLOCK 4
#define F64V_BLOCK 2

/* Not in line: these are long. */
#define CALLED static __attribute__((noinline, unused))

typedef float f32v __attribute__((vector_size(16)));
typedef double f64v __attribute__((vector_size(16)));

#define EACH(n) for (int i = 0; i < (n); i++)

static inline f32v f32v_set1(float a) {
    return (f32v){a, a, a, a};
}
static inline f32v f32v_add(f32v a, f32v b) {
    return a + b;
}
static inline f32v f32v_sub(f32v a, f32v b) {
    return a - b;
}
static inline f32v f32v_mul(f32v a, f32v b) {
    return a * b;
}
CALLED f32v f32v_fma(f32v a, f32v b, f32v c) {
    EACH(F32V_LANES) a[i] = fma_f32(a[i], b[i], c[i]);
    return a;
}
static inline f32v f32v_div(f32v a, f32v b) {
    return a / b;
}
static inline f32v f32v_least(f32v a, f32v b) {
    EACH(F32V_LANES) a[i] = a[i] < b[i] ? a[i] : b[i];
    return a;
}
static inline f32v f32v_most(f32v a, f32v b) {
    EACH(F32V_LANES) a[i] = a[i] > b[i] ? a[i] : b[i];
    return a;
}
static inline f32v f32v_drop(f32v v, f32v a, f32v b) {
    EACH(F32V_LANES) v[i] = a[i] <= b[i] ? 0 : v[i];
    return v;
}
static inline f32v f32v_power(f32v a) {
    typedef uint32_t bits __attribute__((vector_size(16)));
    const f32v one = f32v_set1(1);
    return (f32v)(((bits)a << 23) + (bits)one);
}
static inline f32v f32v_keep(f32v a, int n) {
    EACH(F32V_LANES) a[i] = i < n ? a[i] : 0;
    return a;
}
static inline f32v f32v_join(f32v a, f32v b, int n) {
    EACH(F32V_LANES) a[i] = i < n ? a[i] : b[i];
    return a;
}
static inline float f32v_fold(f32v a) {
    return (a[0] + a[2]) + (a[1] + a[3]);
}
static inline void f32v_fold4(f32v a, f32v b, f32v c, f32v d, float out[4]) {
    out[0] = f32v_fold(a);
    out[1] = f32v_fold(b);
    out[2] = f32v_fold(c);
    out[3] = f32v_fold(d);
}
static inline void f32v_fold8(const f32v v[8], float out[8]) {
    for (int i = 0; i < 8; i++)
        out[i] = f32v_fold(v[i]);
}
CALLED f32v f32v_load_part_f32(const float *p, int n) {
    f32v r = f32v_set1(0);
    EACH(n) r[i] = p[i];
    return r;
}
CALLED f32v f32v_load_part_f16(const uint16_t *p, int n) {
    f32v r = f32v_set1(0);
    EACH(n) r[i] = f32_of_f16(p[i]);
    return r;
}
CALLED f32v f32v_load_part_bf16(const uint16_t *p, int n) {
    f32v r = f32v_set1(0);
    EACH(n) r[i] = f32_of_bf16(p[i]);
    return r;
}
CALLED void f32v_store_part_f32(float *p, f32v a, int n) {
    EACH(n) p[i] = a[i];
}
CALLED void f32v_store_part_f16(uint16_t *p, f32v a, int n) {
    EACH(n) p[i] = f16_of_f32(a[i]);
}
CALLED void f32v_store_part_bf16(uint16_t *p, f32v a, int n) {
    EACH(n) p[i] = bf16_of_f32(a[i]);
}
static inline f32v f32v_load_f32(const float *p) {
    return f32v_load_part_f32(p, F32V_LANES);
}
static inline f32v f32v_load_f16(const uint16_t *p) {
    return f32v_load_part_f16(p, F32V_LANES);
}
static inline f32v f32v_load_bf16(const uint16_t *p) {
    return f32v_load_part_bf16(p, F32V_LANES);
}
static inline void f32v_store_f32(float *p, f32v a) {
    f32v_store_part_f32(p, a, F32V_LANES);
}
static inline void f32v_store_f16(uint16_t *p, f32v a) {
    f32v_store_part_f16(p, a, F32V_LANES);
}
static inline void f32v_store_bf16(uint16_t *p, f32v a) {
    f32v_store_part_bf16(p, a, F32V_LANES);
}

static inline f64v f64v_set1(double a) {
    return (f64v){a, a};
}
static inline f64v f64v_add(f64v a, f64v b) {
    return a + b;
}
static inline f64v f64v_sub(f64v a, f64v b) {
    return a - b;
}
static inline f64v f64v_mul(f64v a, f64v b) {
    return a * b;
}
CALLED f64v f64v_fma(f64v a, f64v b, f64v c) {
    EACH(F64V_LANES) a[i] = __builtin_fma(a[i], b[i], c[i]);
    return a;
}
static inline f64v f64v_div(f64v a, f64v b) {
    return a / b;
}
static inline f64v f64v_least(f64v a, f64v b) {
    return (f64v){a[0] < b[0] ? a[0] : b[0], a[1] < b[1] ? a[1] : b[1]};
}
static inline f64v f64v_most(f64v a, f64v b) {
    return (f64v){a[0] > b[0] ? a[0] : b[0], a[1] > b[1] ? a[1] : b[1]};
}
static inline f64v f64v_drop(f64v v, f64v a, f64v b) {
    EACH(F64V_LANES) v[i] = a[i] <= b[i] ? 0 : v[i];
    return v;
}
static inline f64v f64v_power(f64v a) {
    typedef uint64_t bits __attribute__((vector_size(16)));
    const f64v one = f64v_set1(1);
    return (f64v)(((bits)a << 52) + (bits)one);
}
static inline f64v f64v_keep(f64v a, int n) {
    EACH(F64V_LANES) a[i] = i < n ? a[i] : 0;
    return a;
}
static inline f64v f64v_join(f64v a, f64v b, int n) {
    EACH(F64V_LANES) a[i] = i < n ? a[i] : b[i];
    return a;
}
static inline double f64v_fold(f64v a) {
    return a[0] + a[1];
}
static inline void f64v_fold4(f64v a, f64v b, f64v c, f64v d, double out[4]) {
    out[0] = f64v_fold(a);
    out[1] = f64v_fold(b);
    out[2] = f64v_fold(c);
    out[3] = f64v_fold(d);
}
static inline void f64v_fold8(const f64v v[8], double out[8]) {
    for (int i = 0; i < 8; i++)
        out[i] = f64v_fold(v[i]);
}
static inline f64v f64v_load_part_f64(const double *p, int n) {
    f64v r = f64v_set1(0);
    EACH(n) r[i] = p[i];
    return r;
}
static inline void f64v_store_part_f64(double *p, f64v a, int n) {
    EACH(n) p[i] = a[i];
}
static inline f64v f64v_load_f64(const double *p) {
    return f64v_load_part_f64(p, F64V_LANES);
}
static inline void f64v_store_f64(double *p, f64v a) {
    f64v_store_part_f64(p, a, F64V_LANES);
}

#undef EACH

static inline void f32v_transpose(float *to, int64_t to_pitch, const float *from,
                                  int64_t from_pitch) {
    for (int i = 0; i < F32V_BLOCK; i++)
        for (int j = 0; j < F32V_BLOCK; j++)
            to[j * to_pitch + i] = from[i * from_pitch + j];
}
static inline void f64v_transpose(double *to, int64_t to_pitch, const double *from,
                                  int64_t from_pitch) {
    for (int i = 0; i < F64V_BLOCK; i++)
        for (int j = 0; j < F64V_BLOCK; j++)
            to[j * to_pitch + i] = from[i * from_pitch + j];
}

typedef uint64_t u64v;

static inline u64v u64v_set1(uint64_t a) {
    return a;
}
static inline u64v u64v_from(uint64_t first) {
    return first;
}
static inline u64v u64v_mul_low(u64v a, u64v b) {
    return (uint64_t)(uint32_t)a * (uint32_t)b;
}
static inline u64v u64v_high(u64v a) {
    return a >> 32;
}
static inline u64v u64v_xor3(u64v a, u64v b, u64v c) {
    return a ^ b ^ c;
}
static inline void u64v_store_low4(uint32_t *p, u64v a, u64v b, u64v c, u64v d) {
    p[0] = (uint32_t)a;
    p[1] = (uint32_t)b;
    p[2] = (uint32_t)c;
    p[3] = (uint32_t)d;
}

static inline void stream_line(void *to, const void *from) {
    memcpy(to, from, 64);
}

#endif
