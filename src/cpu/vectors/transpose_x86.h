/* The transpose of the vector vocabulary (see vec_portable.h) for x86 tiers from AVX2 on. */
#ifndef PLANISH_CPU_TRANSPOSE_X86_H
#define PLANISH_CPU_TRANSPOSE_X86_H

#include <immintrin.h>
#include <stdint.h>

#define F32V_BLOCK 8
#define F64V_BLOCK 4

/* Four floats of row i and four of row i + 4, side by side. */
static inline __m256 two_rows_f32(const float *from, int64_t pitch, int i) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(from + i * pitch)),
                                _mm_loadu_ps(from + (i + 4) * pitch), 1);
}

/* Four columns of eight rows. */
static inline void transpose_half_f32(float *to, int64_t to_pitch, const float *from,
                                      int64_t from_pitch) {
    const __m256 r0 = two_rows_f32(from, from_pitch, 0), r1 = two_rows_f32(from, from_pitch, 1);
    const __m256 r2 = two_rows_f32(from, from_pitch, 2), r3 = two_rows_f32(from, from_pitch, 3);
    const __m256 a = _mm256_unpacklo_ps(r0, r1), b = _mm256_unpackhi_ps(r0, r1);
    const __m256 c = _mm256_unpacklo_ps(r2, r3), d = _mm256_unpackhi_ps(r2, r3);
    _mm256_storeu_ps(to, _mm256_shuffle_ps(a, c, 0x44));
    _mm256_storeu_ps(to + to_pitch, _mm256_shuffle_ps(a, c, 0xee));
    _mm256_storeu_ps(to + 2 * to_pitch, _mm256_shuffle_ps(b, d, 0x44));
    _mm256_storeu_ps(to + 3 * to_pitch, _mm256_shuffle_ps(b, d, 0xee));
}
static inline void f32v_transpose(float *to, int64_t to_pitch, const float *from,
                                  int64_t from_pitch) {
    transpose_half_f32(to, to_pitch, from, from_pitch);
    transpose_half_f32(to + 4 * to_pitch, to_pitch, from + 4, from_pitch);
}

static inline void f64v_transpose(double *to, int64_t to_pitch, const double *from,
                                  int64_t from_pitch) {
    const __m256d r0 = _mm256_loadu_pd(from), r1 = _mm256_loadu_pd(from + from_pitch);
    const __m256d r2 = _mm256_loadu_pd(from + 2 * from_pitch);
    const __m256d r3 = _mm256_loadu_pd(from + 3 * from_pitch);
    const __m256d a = _mm256_unpacklo_pd(r0, r1), b = _mm256_unpackhi_pd(r0, r1);
    const __m256d c = _mm256_unpacklo_pd(r2, r3), d = _mm256_unpackhi_pd(r2, r3);
    _mm256_storeu_pd(to, _mm256_permute2f128_pd(a, c, 0x20));
    _mm256_storeu_pd(to + to_pitch, _mm256_permute2f128_pd(b, d, 0x20));
    _mm256_storeu_pd(to + 2 * to_pitch, _mm256_permute2f128_pd(a, c, 0x31));
    _mm256_storeu_pd(to + 3 * to_pitch, _mm256_permute2f128_pd(b, d, 0x31));
}

#endif
