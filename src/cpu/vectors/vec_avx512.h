/*
 * The vector vocabulary (see vec_portable.h) for AVX-512 (F, BW, VL, DQ), with BF16's instruction
 * where the compiler has it. That one flushes subnormals, the one thing in which its bits differ
 * from round to nearest even: vectors with a subnormal are narrowed with integers.
 */
#ifndef PLANISH_CPU_VEC_H
#define PLANISH_CPU_VEC_H

#include <immintrin.h>

#include "cpu/vectors/bits.h"
#include "cpu/vectors/transpose_x86.h"

#define F32V_LANES 16
#define F64V_LANES 8
#define U64V_LANES 8

typedef __m512 f32v;
typedef __m512d f64v;

static inline __mmask16 first_lanes_32(int n) {
    return (__mmask16)((1u << n) - 1);
}
static inline __mmask8 first_lanes_64(int n) {
    return (__mmask8)((1u << n) - 1);
}

static inline f32v f32v_set1(float a) {
    return _mm512_set1_ps(a);
}
static inline f32v f32v_add(f32v a, f32v b) {
    return _mm512_add_ps(a, b);
}
static inline f32v f32v_sub(f32v a, f32v b) {
    return _mm512_sub_ps(a, b);
}
static inline f32v f32v_mul(f32v a, f32v b) {
    return _mm512_mul_ps(a, b);
}
static inline f32v f32v_fma(f32v a, f32v b, f32v c) {
    return _mm512_fmadd_ps(a, b, c);
}
static inline f32v f32v_div(f32v a, f32v b) {
    return _mm512_div_ps(a, b);
}
static inline f32v f32v_least(f32v a, f32v b) {
    return _mm512_min_ps(a, b);
}
static inline f32v f32v_most(f32v a, f32v b) {
    return _mm512_max_ps(a, b);
}
static inline f32v f32v_drop(f32v v, f32v a, f32v b) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_NLE_UQ), v);
}
static inline f32v f32v_power(f32v a) {
    const __m512i one = _mm512_castps_si512(_mm512_set1_ps(1));
    const __m512i place = _mm512_slli_epi32(_mm512_castps_si512(a), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(place, one));
}
static inline f32v f32v_keep(f32v a, int n) {
    return _mm512_maskz_mov_ps(first_lanes_32(n), a);
}
static inline f32v f32v_join(f32v a, f32v b, int n) {
    return _mm512_mask_blend_ps(first_lanes_32(n), b, a);
}
static inline __m128 fold_twice_f32(f32v a) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    return _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
}
static inline void f32v_fold4(f32v a, f32v b, f32v c, f32v d, float out[4]) {
    const __m128 a4 = fold_twice_f32(a), b4 = fold_twice_f32(b);
    const __m128 c4 = fold_twice_f32(c), d4 = fold_twice_f32(d);
    const __m128 ab = _mm_add_ps(_mm_unpacklo_ps(a4, b4), _mm_unpackhi_ps(a4, b4));
    const __m128 cd = _mm_add_ps(_mm_unpacklo_ps(c4, d4), _mm_unpackhi_ps(c4, d4));
    _mm_storeu_ps(out, _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab)));
}
/* Halves, quarters and eighths of two vectors folded, so that one vector has those of both. */
static inline f32v fold_halves_f32(f32v a, f32v b) {
    return _mm512_add_ps(_mm512_mask_blend_ps(0xff00, a, b), _mm512_shuffle_f32x4(a, b, 0x4e));
}
static inline f32v fold_quarters_f32(f32v a, f32v b) {
    const __m512i others =
        _mm512_setr_epi32(4, 5, 6, 7, 16, 17, 18, 19, 12, 13, 14, 15, 24, 25, 26, 27);
    return _mm512_add_ps(_mm512_mask_blend_ps(0xf0f0, a, b), _mm512_permutex2var_ps(a, others, b));
}
static inline f32v fold_eighths_f32(f32v a, f32v b) {
    return _mm512_add_ps(_mm512_mask_blend_ps(0xcccc, a, b), _mm512_shuffle_ps(a, b, 0x4e));
}
static inline void f32v_fold8(const f32v v[8], float out[8]) {
    const f32v a = fold_halves_f32(v[0], v[1]), b = fold_halves_f32(v[2], v[3]);
    const f32v c = fold_halves_f32(v[4], v[5]), d = fold_halves_f32(v[6], v[7]);
    const f32v all = fold_eighths_f32(fold_quarters_f32(a, b), fold_quarters_f32(c, d));
    const f32v sums = _mm512_add_ps(all, _mm512_permute_ps(all, 0xb1));
    const __m512i places = _mm512_setr_epi32(0, 8, 4, 12, 2, 10, 6, 14, 0, 0, 0, 0, 0, 0, 0, 0);
    _mm256_storeu_ps(out, _mm512_castps512_ps256(_mm512_permutexvar_ps(places, sums)));
}

static inline f32v widen_f16(__m256i halves) {
    return _mm512_cvtph_ps(halves);
}
static inline f32v widen_bf16(__m256i halves) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}
static inline __m256i narrow_f16(f32v a) {
    return _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline __m256i narrow_bf16_by_integers(f32v a) {
    const __m512i bits = _mm512_castps_si512(a), high = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_srli_epi32(
        _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(
        _mm512_mask_or_epi32(rounded, is_nan, high, _mm512_set1_epi32(0x40)));
}

static inline __m256i narrow_bf16(f32v a) {
#if defined(__AVX512BF16__)
    enum { SUBNORMAL = 0x20 };
    if (__builtin_expect(!_mm512_fpclass_ps_mask(a, SUBNORMAL), 1))
        return (__m256i)_mm512_cvtneps_pbh(a);
#endif
    return narrow_bf16_by_integers(a);
}

static inline f32v f32v_load_f32(const float *p) {
    return _mm512_loadu_ps(p);
}
static inline f32v f32v_load_f16(const uint16_t *p) {
    return widen_f16(_mm256_loadu_si256((const __m256i *)p));
}
static inline f32v f32v_load_bf16(const uint16_t *p) {
    return widen_bf16(_mm256_loadu_si256((const __m256i *)p));
}
static inline f32v f32v_load_part_f32(const float *p, int n) {
    return _mm512_maskz_loadu_ps(first_lanes_32(n), p);
}
static inline f32v f32v_load_part_f16(const uint16_t *p, int n) {
    return widen_f16(_mm256_maskz_loadu_epi16(first_lanes_32(n), p));
}
static inline f32v f32v_load_part_bf16(const uint16_t *p, int n) {
    return widen_bf16(_mm256_maskz_loadu_epi16(first_lanes_32(n), p));
}
static inline void f32v_store_f32(float *p, f32v a) {
    _mm512_storeu_ps(p, a);
}
static inline void f32v_store_f16(uint16_t *p, f32v a) {
    _mm256_storeu_si256((__m256i *)p, narrow_f16(a));
}
static inline void f32v_store_bf16(uint16_t *p, f32v a) {
    _mm256_storeu_si256((__m256i *)p, narrow_bf16(a));
}
static inline void f32v_store_part_f32(float *p, f32v a, int n) {
    _mm512_mask_storeu_ps(p, first_lanes_32(n), a);
}
static inline void f32v_store_part_f16(uint16_t *p, f32v a, int n) {
    _mm256_mask_storeu_epi16(p, first_lanes_32(n), narrow_f16(a));
}
static inline void f32v_store_part_bf16(uint16_t *p, f32v a, int n) {
    _mm256_mask_storeu_epi16(p, first_lanes_32(n), narrow_bf16(a));
}

/* Pairs (vec_pairs.h): the elements at even places in one vector, those at odd ones in the other.
 */
#define F32V_PAIRS
static inline void f32v_load_pair_bf16(const uint16_t *p, f32v v[2]) {
    const __m512i words = _mm512_loadu_si512(p);
    v[0] = _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
    v[1] = _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32((int)0xffff0000)));
}
static inline void f32v_load_pair_f32(const float *p, f32v v[2]) {
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd =
        _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    const f32v a = _mm512_loadu_ps(p), b = _mm512_loadu_ps(p + F32V_LANES);
    v[0] = _mm512_permutex2var_ps(a, even, b);
    v[1] = _mm512_permutex2var_ps(a, odd, b);
}
static inline void f32v_in_order(f32v v[2]) {
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high =
        _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    const f32v even = v[0], odd = v[1];
    v[0] = _mm512_permutex2var_ps(even, low, odd);
    v[1] = _mm512_permutex2var_ps(even, high, odd);
}
/* What the quick ways leave: numbers narrowed one vector at a time. */
static __attribute__((noinline, cold)) __m512i narrow_pair_slowly(f32v even, f32v odd) {
    const __m512i low = _mm512_cvtepu16_epi32(narrow_bf16_by_integers(even));
    const __m512i high = _mm512_cvtepu16_epi32(narrow_bf16_by_integers(odd));
    return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}
static inline __m512i round_to_bf16(f32v a) {
    const __m512i bits = _mm512_castps_si512(a);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    return _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
}
static inline __m512i narrow_pair(f32v even, f32v odd) {
#if defined(__AVX512BF16__)
    /* A result that is 0 may have been a subnormal. */
    const __m512i words = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
    if (__builtin_expect(_mm512_testn_epi16_mask(words, _mm512_set1_epi16(0x7fff)) != 0, 0))
        return narrow_pair_slowly(even, odd);
    const __m512i places =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(places, words);
#else
    if (__builtin_expect(_mm512_cmp_ps_mask(even, odd, _CMP_UNORD_Q) != 0, 0))
        return narrow_pair_slowly(even, odd);
    const __m512i low = _mm512_srli_epi32(round_to_bf16(even), 16);
    return _mm512_mask_blend_epi16(0xaaaaaaaa, low, round_to_bf16(odd));
#endif
}
static inline void f32v_store_pair_bf16(uint16_t *p, const f32v v[2]) {
    _mm512_storeu_si512(p, narrow_pair(v[0], v[1]));
}

static inline f64v f64v_set1(double a) {
    return _mm512_set1_pd(a);
}
static inline f64v f64v_add(f64v a, f64v b) {
    return _mm512_add_pd(a, b);
}
static inline f64v f64v_sub(f64v a, f64v b) {
    return _mm512_sub_pd(a, b);
}
static inline f64v f64v_mul(f64v a, f64v b) {
    return _mm512_mul_pd(a, b);
}
static inline f64v f64v_fma(f64v a, f64v b, f64v c) {
    return _mm512_fmadd_pd(a, b, c);
}
static inline f64v f64v_div(f64v a, f64v b) {
    return _mm512_div_pd(a, b);
}
static inline f64v f64v_least(f64v a, f64v b) {
    return _mm512_min_pd(a, b);
}
static inline f64v f64v_most(f64v a, f64v b) {
    return _mm512_max_pd(a, b);
}
static inline f64v f64v_drop(f64v v, f64v a, f64v b) {
    return _mm512_maskz_mov_pd(_mm512_cmp_pd_mask(a, b, _CMP_NLE_UQ), v);
}
static inline f64v f64v_power(f64v a) {
    const __m512i one = _mm512_castpd_si512(_mm512_set1_pd(1));
    const __m512i place = _mm512_slli_epi64(_mm512_castpd_si512(a), 52);
    return _mm512_castsi512_pd(_mm512_add_epi64(place, one));
}
static inline f64v f64v_keep(f64v a, int n) {
    return _mm512_maskz_mov_pd(first_lanes_64(n), a);
}
static inline f64v f64v_join(f64v a, f64v b, int n) {
    return _mm512_mask_blend_pd(first_lanes_64(n), b, a);
}
static inline double fold_f64(f64v a) {
    const __m256d four = _mm256_add_pd(_mm512_castpd512_pd256(a), _mm512_extractf64x4_pd(a, 1));
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}
static inline void f64v_fold4(f64v a, f64v b, f64v c, f64v d, double out[4]) {
    out[0] = fold_f64(a);
    out[1] = fold_f64(b);
    out[2] = fold_f64(c);
    out[3] = fold_f64(d);
}
static inline void f64v_fold8(const f64v v[8], double out[8]) {
    f64v_fold4(v[0], v[1], v[2], v[3], out);
    f64v_fold4(v[4], v[5], v[6], v[7], out + 4);
}
static inline f64v f64v_load_f64(const double *p) {
    return _mm512_loadu_pd(p);
}
static inline f64v f64v_load_part_f64(const double *p, int n) {
    return _mm512_maskz_loadu_pd(first_lanes_64(n), p);
}
static inline void f64v_store_f64(double *p, f64v a) {
    _mm512_storeu_pd(p, a);
}
static inline void f64v_store_part_f64(double *p, f64v a, int n) {
    _mm512_mask_storeu_pd(p, first_lanes_64(n), a);
}

typedef __m512i u64v;

static inline u64v u64v_set1(uint64_t a) {
    return _mm512_set1_epi64((int64_t)a);
}
static inline u64v u64v_from(uint64_t first) {
    return _mm512_add_epi64(u64v_set1(first), _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7));
}
static inline u64v u64v_mul_low(u64v a, u64v b) {
    return _mm512_mul_epu32(a, b);
}
static inline u64v u64v_high(u64v a) {
    return _mm512_srli_epi64(a, 32);
}
static inline u64v u64v_xor3(u64v a, u64v b, u64v c) {
    enum { XOR3 = 0x96 };
    return _mm512_ternarylogic_epi64(a, b, c, XOR3);
}
static inline void u64v_store_low4(uint32_t *p, u64v a, u64v b, u64v c, u64v d) {
    enum { ODD = 0xaaaa };
    const u64v ab = _mm512_mask_blend_epi32(ODD, a, _mm512_slli_epi64(b, 32));
    const u64v cd = _mm512_mask_blend_epi32(ODD, c, _mm512_slli_epi64(d, 32));
    _mm512_storeu_si512(p, _mm512_unpacklo_epi64(ab, cd));
    _mm512_storeu_si512(p + 16, _mm512_unpackhi_epi64(ab, cd));
}

static inline void stream_line(void *to, const void *from) {
    _mm512_stream_si512((__m512i *)to, _mm512_load_si512(from));
}

#endif
