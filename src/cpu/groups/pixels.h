/*
 * Groups of channels of an image stored by pixel, its channels neighbours (GroupNorm and
 * InstanceNorm, channels last); part of cpu/rows/rows.h, whose parameters and helpers it uses, once
 * for each element dtype. A strip is some groups beside each other, with all pixels. Every sum is
 * one channel's first: of QUAD pixels by a fixed tree, of the quads of a block in their order, of
 * the blocks in f64. So it depends neither on how groups are cut into strips nor on the vectors.
 */

/* A block of a strip stays near while it is summed twice. Of f64 it is as short as its sums want:
 * eight quads one after the other. */
enum { NAME(PIXEL_BLOCK) = sizeof(REAL) == 8 ? 32 : 128, NAME(QUAD) = 4 };

/* What is known of a strip's channels, an array each, in its scratch. */
typedef struct NAME(strip_channels) {
    double *sums[3];  /* forward: mean, m2, in range; backward: sums of xhat, dy, dy * xhat */
    double *rests[3]; /* what the blocks of these lost, of f64 */
    REAL *factor[7];  /* mean, rstd, minus_delta, weight, then bias, or c1 and -c2, then bias */
    REAL *block[3];   /* sums of a block */
    REAL *half[2][3]; /* backward: of the halves of a quad */
    REAL *packed;     /* the factors of a vector of channels side by side, for every vector */
    REAL *kept;       /* of every pixel, where backward keeps it (group_backward_args); or NULL */
} NAME(strip_channels);

enum { NAME(F_MEAN), NAME(F_RSTD), NAME(F_MINUS_DELTA), NAME(F_WEIGHT), NAME(F_BIAS) };
/* Backward has one more where an activation follows, the bias. */
enum {
    NAME(F_C1) = NAME(F_BIAS),
    NAME(F_MINUS_C2),
    NAME(FACTORS),
    NAME(F_ACTIVE_BIAS) = NAME(FACTORS)
};

INLINE NAME(strip_channels) NAME(strip_layout)(void *scratch, int64_t channels) {
    NAME(strip_channels) s;
    double *at = scratch;
    for (int i = 0; i < 3; i++, at += channels)
        s.sums[i] = at;
    for (int i = 0; i < 3; i++, at += sizeof(REAL) == 8 ? channels : 0)
        s.rests[i] = at;
    REAL *real = (REAL *)at;
    for (int i = 0; i <= NAME(FACTORS); i++, real += channels)
        s.factor[i] = real;
    for (int i = 0; i < 3; i++, real += channels)
        s.block[i] = real;
    for (int i = 0; i < 6; i++, real += channels)
        s.half[i / 3][i % 3] = real;
    s.packed = real;
    s.kept = NULL;
    return s;
}

/* Packs the first `count` factors of channels [first, last). */
INLINE void NAME(pack_factors)(const NAME(strip_channels) * s, int64_t first, int64_t last,
                               const int count) {
    REAL *to = s->packed;
    for (int64_t c = first; c < last; c += VEC_LANES)
        for (int i = 0; i < count; i++, to += VEC_LANES)
            memcpy(to, s->factor[i] + c, (size_t)NAME(min)(last - c, VEC_LANES) * sizeof *to);
}

/* What normalises a vector of channels, by its packed factors. */
INLINE NAME(normalizer) NAME(packed_normalizer)(const REAL *factors) {
    return (NAME(normalizer)){LOAD_REAL(factors + NAME(F_MEAN) * VEC_LANES),
                              LOAD_REAL(factors + NAME(F_RSTD) * VEC_LANES),
                              LOAD_REAL(factors + NAME(F_MINUS_DELTA) * VEC_LANES)};
}

/* Adds to a sum of channels or of blocks. Of f64, whose roundings nothing hides, it keeps what they
 * lose: those of numbers that are all alike do not cancel. */
INLINE void NAME(add_keeping)(double *sum, double *rest, double value) {
    if (sizeof(REAL) == 8)
        exact_add(sum, rest, value);
    else
        *sum += value;
}

/* How many pixels on the next ones are prefetched: some KB of the strip's. */
INLINE int64_t NAME(pixels_ahead)(int64_t channels) {
    enum { LEAST = 8, BYTES = 8192 };
    const int64_t pixels = BYTES / (channels * (int64_t)sizeof(ELEMENT_T));
    return pixels < LEAST ? LEAST : pixels;
}

/* A vector of channels of which `left` are left, from and to arrays of the compute type. */
INLINE VEC NAME(load_channels)(const REAL *p, int64_t left) {
    return left >= VEC_LANES ? LOAD_REAL(p) : LOAD_REAL_PART(p, (int)left);
}
INLINE void NAME(store_channels)(REAL *p, VEC v, int64_t left) {
    if (left >= VEC_LANES)
        STORE_REAL(p, v);
    else
        STORE_REAL_PART(p, v, (int)left);
}
INLINE void NAME(add_to_channels)(REAL *p, VEC v, int64_t left) {
    if (left >= VEC_LANES)
        STORE_REAL(p, V(add)(LOAD_REAL(p), v));
    else
        STORE_REAL_PART(p, V(add)(LOAD_REAL_PART(p, (int)left), v), (int)left);
}

/* The vectors of a quad's pixels that are there, of `count`; 0 for the others. */
INLINE void NAME(load_quad)(const char *data, int64_t pitch, const int count, int64_t left,
                            VEC v[NAME(QUAD)]) {
    UNROLL for (int k = 0; k < NAME(QUAD); k++) v[k] =
        k < count ? NAME(load_x)((const ELEMENT_T *)(data + k * pitch), left) : V(set1)(0);
}
INLINE VEC NAME(quad_sum)(const VEC v[NAME(QUAD)]) {
    return V(add)(V(add)(v[0], v[1]), V(add)(v[2], v[3]));
}
/* The sum of products. */
INLINE VEC NAME(quad_dot)(const VEC a[NAME(QUAD)], const VEC b[NAME(QUAD)]) {
    return V(add)(V(fma)(a[1], b[1], V(mul)(a[0], b[0])), V(fma)(a[3], b[3], V(mul)(a[2], b[2])));
}

/* Whether channels of every pixel are whole lines that non-temporal stores may take. */
INLINE bool NAME(strip_is_lines)(traffic t, const char *output, int64_t pitch, int64_t channels) {
    const int64_t bytes = channels * (int64_t)sizeof(ELEMENT_T);
    return t == TRAFFIC_STREAM &&
           ((uintptr_t)output | (uintptr_t)pitch | (uintptr_t)bytes) % 64 == 0;
}

#include "cpu/groups/pixels_forward.h"

#include "cpu/groups/pixels_backward.h"

static void NAME(strip_forward_layer)(const strip_forward_args *a) {
    NAME(strip_forward)(a, false, PLANISH_IDENTITY);
}
static void NAME(strip_forward_rms)(const strip_forward_args *a) {
    NAME(strip_forward)(a, true, PLANISH_IDENTITY);
}
static void NAME(strip_forward_activated)(const strip_forward_args *a) {
    NAME(strip_forward)(a, a->kind == PLANISH_RMS, a->activation);
}
static void NAME(strip_backward_layer)(const strip_backward_args *a) {
    NAME(strip_backward)(a, false, PLANISH_IDENTITY);
}
static void NAME(strip_backward_rms)(const strip_backward_args *a) {
    NAME(strip_backward)(a, true, PLANISH_IDENTITY);
}
static void NAME(strip_backward_activated)(const strip_backward_args *a) {
    NAME(strip_backward)(a, a->kind == PLANISH_RMS, a->activation);
}
