/* The vector vocabulary (see vec_portable.h) for AVX2 with FMA and F16C. */
#ifndef PLANISH_CPU_VEC_H
#define PLANISH_CPU_VEC_H

#include <immintrin.h>

#include "cpu/vectors/bits.h"
#include "cpu/vectors/transpose_x86.h"

#define F32V_LANES 8
#define F64V_LANES 4
#define U64V_LANES 4

typedef __m256 f32v;
typedef __m256d f64v;

/* The first n 32-bit lanes of a mask set, from a window that slides over ones and zeros. */
static inline __m256i first_lanes_32(int n) {
    static const int32_t window[16] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};
    return _mm256_loadu_si256((const __m256i *)(window + 8 - n));
}
static inline __m256i first_lanes_64(int n) {
    static const int64_t window[8] = {-1, -1, -1, -1, 0, 0, 0, 0};
    return _mm256_loadu_si256((const __m256i *)(window + 4 - n));
}

/* n < 8 elements of 16 bits, without touching the byte after the last. */
static inline __m128i load_part_16(const uint16_t *p, int n) {
    uint16_t part[8] = {0};
    int at = 0;
    if (n & 4) {
        memcpy(part, p, 8);
        at = 4;
    }
    if (n & 2) {
        memcpy(part + at, p + at, 4);
        at += 2;
    }
    if (n & 1)
        part[at] = p[at];
    return _mm_loadu_si128((const __m128i *)part);
}
static inline void store_part_16(uint16_t *p, __m128i v, int n) {
    uint16_t part[8];
    _mm_storeu_si128((__m128i *)part, v);
    int at = 0;
    if (n & 4) {
        memcpy(p, part, 8);
        at = 4;
    }
    if (n & 2) {
        memcpy(p + at, part + at, 4);
        at += 2;
    }
    if (n & 1)
        p[at] = part[at];
}

static inline f32v f32v_set1(float a) {
    return _mm256_set1_ps(a);
}
static inline f32v f32v_add(f32v a, f32v b) {
    return _mm256_add_ps(a, b);
}
static inline f32v f32v_sub(f32v a, f32v b) {
    return _mm256_sub_ps(a, b);
}
static inline f32v f32v_mul(f32v a, f32v b) {
    return _mm256_mul_ps(a, b);
}
static inline f32v f32v_fma(f32v a, f32v b, f32v c) {
    return _mm256_fmadd_ps(a, b, c);
}
static inline f32v f32v_div(f32v a, f32v b) {
    return _mm256_div_ps(a, b);
}
static inline f32v f32v_least(f32v a, f32v b) {
    return _mm256_min_ps(a, b);
}
static inline f32v f32v_most(f32v a, f32v b) {
    return _mm256_max_ps(a, b);
}
static inline f32v f32v_drop(f32v v, f32v a, f32v b) {
    return _mm256_and_ps(_mm256_cmp_ps(a, b, _CMP_NLE_UQ), v);
}
static inline f32v f32v_power(f32v a) {
    const __m256i one = _mm256_castps_si256(_mm256_set1_ps(1));
    const __m256i place = _mm256_slli_epi32(_mm256_castps_si256(a), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(place, one));
}
static inline f32v f32v_keep(f32v a, int n) {
    return _mm256_and_ps(a, _mm256_castsi256_ps(first_lanes_32(n)));
}
static inline f32v f32v_join(f32v a, f32v b, int n) {
    return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(first_lanes_32(n)));
}
static inline __m128 fold_once_f32(f32v a) {
    return _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
}
static inline void f32v_fold4(f32v a, f32v b, f32v c, f32v d, float out[4]) {
    const __m128 a4 = fold_once_f32(a), b4 = fold_once_f32(b);
    const __m128 c4 = fold_once_f32(c), d4 = fold_once_f32(d);
    const __m128 ab = _mm_add_ps(_mm_unpacklo_ps(a4, b4), _mm_unpackhi_ps(a4, b4));
    const __m128 cd = _mm_add_ps(_mm_unpacklo_ps(c4, d4), _mm_unpackhi_ps(c4, d4));
    _mm_storeu_ps(out, _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab)));
}

/* The lower half of a and the upper one of b added to the others. */
static inline __m256 fold_halves_f32(f32v a, f32v b) {
    return _mm256_add_ps(_mm256_blend_ps(a, b, 0xf0), _mm256_permute2f128_ps(a, b, 0x21));
}
static inline __m256 fold_pairs_f32(__m256 a, __m256 b) {
    return _mm256_add_ps(_mm256_blend_ps(a, b, 0xcc), _mm256_shuffle_ps(a, b, 0x4e));
}
static inline void f32v_fold8(const f32v v[8], float out[8]) {
    const __m256 a = fold_halves_f32(v[0], v[4]), b = fold_halves_f32(v[1], v[5]);
    const __m256 c = fold_halves_f32(v[2], v[6]), d = fold_halves_f32(v[3], v[7]);
    const __m256 ab = fold_pairs_f32(a, b), cd = fold_pairs_f32(c, d);
    _mm256_storeu_ps(
        out, _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x88), _mm256_shuffle_ps(ab, cd, 0xdd)));
}

static inline f32v widen_f16(__m128i halves) {
    return _mm256_cvtph_ps(halves);
}
static inline f32v widen_bf16(__m128i halves) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
static inline __m128i narrow_f16(f32v a) {
    return _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline __m128i narrow_bf16(f32v a) {
    const __m256i bits = _mm256_castps_si256(a), high = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    /* A NaN that arithmetic made is quiet: cut off without rounding it stays one. */
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    const __m256i half =
        _mm256_andnot_si256(is_nan, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i r = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
}

static inline f32v f32v_load_f32(const float *p) {
    return _mm256_loadu_ps(p);
}
static inline f32v f32v_load_f16(const uint16_t *p) {
    return widen_f16(_mm_loadu_si128((const __m128i *)p));
}
static inline f32v f32v_load_bf16(const uint16_t *p) {
    return widen_bf16(_mm_loadu_si128((const __m128i *)p));
}
static inline f32v f32v_load_part_f32(const float *p, int n) {
    return _mm256_maskload_ps(p, first_lanes_32(n));
}
static inline f32v f32v_load_part_f16(const uint16_t *p, int n) {
    return widen_f16(load_part_16(p, n));
}
static inline f32v f32v_load_part_bf16(const uint16_t *p, int n) {
    return widen_bf16(load_part_16(p, n));
}
static inline void f32v_store_f32(float *p, f32v a) {
    _mm256_storeu_ps(p, a);
}
static inline void f32v_store_f16(uint16_t *p, f32v a) {
    _mm_storeu_si128((__m128i *)p, narrow_f16(a));
}
static inline void f32v_store_bf16(uint16_t *p, f32v a) {
    _mm_storeu_si128((__m128i *)p, narrow_bf16(a));
}
static inline void f32v_store_part_f32(float *p, f32v a, int n) {
    _mm256_maskstore_ps(p, first_lanes_32(n), a);
}
static inline void f32v_store_part_f16(uint16_t *p, f32v a, int n) {
    store_part_16(p, narrow_f16(a), n);
}
static inline void f32v_store_part_bf16(uint16_t *p, f32v a, int n) {
    store_part_16(p, narrow_bf16(a), n);
}

/* Pairs (vec_pairs.h): the elements at even places in one vector, those at odd ones in the other.
 */
#define F32V_PAIRS
static inline void f32v_load_pair_bf16(const uint16_t *p, f32v v[2]) {
    const __m256i words = _mm256_loadu_si256((const __m256i *)p);
    v[0] = _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
    v[1] = _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32((int)0xffff0000)));
}
static inline void f32v_load_pair_f32(const float *p, f32v v[2]) {
    const f32v a = _mm256_loadu_ps(p), b = _mm256_loadu_ps(p + F32V_LANES);
    const __m256d even = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88));
    const __m256d odd = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0xdd));
    v[0] = _mm256_castpd_ps(_mm256_permute4x64_pd(even, 0xd8));
    v[1] = _mm256_castpd_ps(_mm256_permute4x64_pd(odd, 0xd8));
}
static inline void f32v_in_order(f32v v[2]) {
    const f32v low = _mm256_unpacklo_ps(v[0], v[1]), high = _mm256_unpackhi_ps(v[0], v[1]);
    v[0] = _mm256_permute2f128_ps(low, high, 0x20);
    v[1] = _mm256_permute2f128_ps(low, high, 0x31);
}
static __attribute__((noinline, cold)) __m256i narrow_pair_with_nan(f32v even, f32v odd) {
    const __m256i low = _mm256_cvtepu16_epi32(narrow_bf16(even));
    const __m256i high = _mm256_cvtepu16_epi32(narrow_bf16(odd));
    return _mm256_or_si256(low, _mm256_slli_epi32(high, 16));
}
static inline __m256i round_to_bf16(f32v a) {
    const __m256i bits = _mm256_castps_si256(a);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
}
static inline void f32v_store_pair_bf16(uint16_t *p, const f32v v[2]) {
    __m256i words;
    if (__builtin_expect(_mm256_movemask_ps(_mm256_cmp_ps(v[0], v[1], _CMP_UNORD_Q)), 0))
        words = narrow_pair_with_nan(v[0], v[1]);
    else
        words = _mm256_blend_epi16(_mm256_srli_epi32(round_to_bf16(v[0]), 16), round_to_bf16(v[1]),
                                   0xaa);
    _mm256_storeu_si256((__m256i *)p, words);
}

static inline f64v f64v_set1(double a) {
    return _mm256_set1_pd(a);
}
static inline f64v f64v_add(f64v a, f64v b) {
    return _mm256_add_pd(a, b);
}
static inline f64v f64v_sub(f64v a, f64v b) {
    return _mm256_sub_pd(a, b);
}
static inline f64v f64v_mul(f64v a, f64v b) {
    return _mm256_mul_pd(a, b);
}
static inline f64v f64v_fma(f64v a, f64v b, f64v c) {
    return _mm256_fmadd_pd(a, b, c);
}
static inline f64v f64v_div(f64v a, f64v b) {
    return _mm256_div_pd(a, b);
}
static inline f64v f64v_least(f64v a, f64v b) {
    return _mm256_min_pd(a, b);
}
static inline f64v f64v_most(f64v a, f64v b) {
    return _mm256_max_pd(a, b);
}
static inline f64v f64v_drop(f64v v, f64v a, f64v b) {
    return _mm256_and_pd(_mm256_cmp_pd(a, b, _CMP_NLE_UQ), v);
}
static inline f64v f64v_power(f64v a) {
    const __m256i one = _mm256_castpd_si256(_mm256_set1_pd(1));
    const __m256i place = _mm256_slli_epi64(_mm256_castpd_si256(a), 52);
    return _mm256_castsi256_pd(_mm256_add_epi64(place, one));
}
static inline f64v f64v_keep(f64v a, int n) {
    return _mm256_and_pd(a, _mm256_castsi256_pd(first_lanes_64(n)));
}
static inline f64v f64v_join(f64v a, f64v b, int n) {
    return _mm256_blendv_pd(b, a, _mm256_castsi256_pd(first_lanes_64(n)));
}
static inline double fold_f64(f64v a) {
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1));
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
    return _mm256_loadu_pd(p);
}
static inline f64v f64v_load_part_f64(const double *p, int n) {
    return _mm256_maskload_pd(p, first_lanes_64(n));
}
static inline void f64v_store_f64(double *p, f64v a) {
    _mm256_storeu_pd(p, a);
}
static inline void f64v_store_part_f64(double *p, f64v a, int n) {
    _mm256_maskstore_pd(p, first_lanes_64(n), a);
}

typedef __m256i u64v;

static inline u64v u64v_set1(uint64_t a) {
    return _mm256_set1_epi64x((int64_t)a);
}
static inline u64v u64v_from(uint64_t first) {
    return _mm256_add_epi64(u64v_set1(first), _mm256_setr_epi64x(0, 2, 1, 3));
}
static inline u64v u64v_mul_low(u64v a, u64v b) {
    return _mm256_mul_epu32(a, b);
}
static inline u64v u64v_high(u64v a) {
    return _mm256_srli_epi64(a, 32);
}
static inline u64v u64v_xor3(u64v a, u64v b, u64v c) {
    return _mm256_xor_si256(_mm256_xor_si256(a, b), c);
}
static inline void u64v_store_low4(uint32_t *p, u64v a, u64v b, u64v c, u64v d) {
    enum { ODD = 0xaa };
    const u64v ab = _mm256_blend_epi32(a, _mm256_slli_epi64(b, 32), ODD);
    const u64v cd = _mm256_blend_epi32(c, _mm256_slli_epi64(d, 32), ODD);
    _mm256_storeu_si256((__m256i *)p, _mm256_unpacklo_epi64(ab, cd));
    _mm256_storeu_si256((__m256i *)(p + 8), _mm256_unpackhi_epi64(ab, cd));
}

static inline void stream_line(void *to, const void *from) {
    const __m256i a = _mm256_load_si256((const __m256i *)from);
    const __m256i b = _mm256_load_si256((const __m256i *)from + 1);
    _mm256_stream_si256((__m256i *)to, a);
    _mm256_stream_si256((__m256i *)to + 1, b);
}

#endif
