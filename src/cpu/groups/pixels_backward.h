/* Backward of strips of groups; part of cpu/groups/pixels.h. */
#include "cpu/common/saved_mean.h"

#include "cpu/groups/pixels_gradient_sums.h"

/* The saved mean and rstd of every channel, its weight, and its bias where an activation follows.
 */
INLINE void NAME(load_strip)(const strip_backward_args *a, const NAME(strip_channels) * s,
                             const bool rms, const planish_activation f) {
    const REAL *const weights = a->weight, *const biases = a->bias;
    for (int64_t g = 0; g < a->groups; g++) {
        const REAL mean = rms ? 0 : (REAL)stat_load(&a->mean, g),
                   rstd = (REAL)stat_load(&a->rstd, g);
        for (int64_t c = g * a->depth; c < (g + 1) * a->depth; c++) {
            s->factor[NAME(F_MEAN)][c] = mean;
            s->factor[NAME(F_RSTD)][c] = rstd;
            s->factor[NAME(F_WEIGHT)][c] = weights ? weights[c] + (REAL)a->weight_offset : 1;
            if (f != PLANISH_IDENTITY)
                s->factor[NAME(F_ACTIVE_BIAS)][c] = biases ? biases[c] : (REAL)-0.0;
        }
    }
}

/* What the saved mean of a group lacks, from the sum of its xhat by it. */
INLINE double NAME(strip_mean_rest)(const strip_backward_args *a, const NAME(strip_channels) * s,
                                    int64_t group, double sum) {
    const mean_reach reach = mean_reach_of(a->mean.type, DTYPE_OF(REAL_TOKEN) == DTYPE_F64);
    const int64_t first = group * a->depth;
    return rest_of_mean(&reach, &a->mean, group, sum / (double)(a->depth * a->pixels),
                        s->factor[NAME(F_MEAN)][first], s->factor[NAME(F_RSTD)][first]);
}

/* What the saved means lack, which an activation wants before anything is summed. */
OUTLINE void NAME(load_deltas)(const strip_backward_args *a, const NAME(strip_channels) * s,
                               bool rms) {
    const bool known = rms || (a->mean.type == DTYPE_F64 && NAME(REAL_BYTES) < 8);
    strip_backward_args of_x = *a;
    of_x.dy = a->x;
    of_x.dy_pitch = a->x_pitch;
    if (!known)
        NAME(strip_gradient_sums)(&of_x, s, false, PLANISH_IDENTITY);
    for (int64_t g = 0; g < a->groups; g++) {
        const int64_t first = g * a->depth, last = first + a->depth;
        double sum = 0, rest = 0;
        for (int64_t c = first; c < last && !known; c++)
            NAME(add_keeping)(&sum, &rest, s->sums[0][c]);
        const double delta = rms ? 0 : NAME(strip_mean_rest)(a, s, g, sum + rest);
        for (int64_t c = first; c < last; c++)
            s->factor[NAME(F_MINUS_DELTA)][c] = (REAL)-delta;
    }
}

/* A group's constants and its channels' sums for dweight and dbias; false where out of range. */
INLINE bool NAME(strip_constants)(const strip_backward_args *a, const NAME(strip_channels) * s,
                                  int64_t group, const bool rms, const planish_activation f) {
    const int64_t first = group * a->depth, last = first + a->depth;
    const double inverse = a->rule.inverse;
    double delta = 0, c1 = 0, c2 = 0, rest[3] = {0};
    for (int64_t c = first; c < last; c++) {
        NAME(add_keeping)(&delta, &rest[0], s->sums[0][c]);
        NAME(add_keeping)(&c1, &rest[1], s->factor[NAME(F_WEIGHT)][c] * s->sums[1][c]);
        NAME(add_keeping)(&c2, &rest[2], s->factor[NAME(F_WEIGHT)][c] * s->sums[2][c]);
    }
    delta += rest[0], c1 += rest[1], c2 += rest[2];
    /* What an activation was found by stays. */
    delta = rms                     ? 0
            : f == PLANISH_IDENTITY ? NAME(strip_mean_rest)(a, s, group, delta)
                                    : -(double)s->factor[NAME(F_MINUS_DELTA)][first];
    c1 = rms ? 0 : c1 * inverse;
    c2 = rule_c2(&a->rule, c2 * inverse - c1 * delta, s->factor[NAME(F_RSTD)][first]);
    for (int64_t c = first; c < last; c++) {
        a->dweight[c] = s->sums[2][c] - delta * s->sums[1][c];
        a->dbias[c] = s->sums[1][c];
        s->factor[NAME(F_MINUS_DELTA)][c] = (REAL)-delta;
        s->factor[NAME(F_C1)][c] = (REAL)c1;
        s->factor[NAME(F_MINUS_C2)][c] = (REAL)-c2;
    }
    return fabs(delta) < BIG && fabs(c1) < BIG && fabs(c2) < BIG;
}

/* dx of a vector of channels of up to QUAD pixels, by its packed factors. */
INLINE void NAME(gradient_vector)(const char *x, int64_t x_pitch, const char *dy, int64_t dy_pitch,
                                  const char *dsum, int64_t dsum_pitch, char *dx, int64_t dx_pitch,
                                  const int count, int64_t left, const REAL *factors,
                                  const bool rms, const planish_activation f) {
    const NAME(normalizer) s = NAME(packed_normalizer)(factors);
    NAME(epilogue) then = {f, LOAD_REAL(factors + NAME(F_WEIGHT) * VEC_LANES), V(set1)(0)};
    const VEC c1 = LOAD_REAL(factors + NAME(F_C1) * VEC_LANES);
    const VEC minus_c2 = LOAD_REAL(factors + NAME(F_MINUS_C2) * VEC_LANES);
    if (f != PLANISH_IDENTITY)
        then.bias = LOAD_REAL(factors + NAME(F_ACTIVE_BIAS) * VEC_LANES);
    UNROLL for (int k = 0; k < count; k++) {
        const VEC v = NAME(load_x)((const ELEMENT_T *)(x + k * x_pitch), left);
        const char *const at = dy + k * dy_pitch;
        const VEC d = f == KEPT_GRADIENT ? NAME(load_channels)((const REAL *)at, left)
                                         : NAME(load_x)((const ELEMENT_T *)at, left);
        const VEC xhat = NAME(normalize)(v, s, rms);
        VEC g = V(mul)(NAME(through)(then, d, xhat), then.weight);
        if (!rms)
            g = V(sub)(g, c1);
        const VEC made = V(mul)(V(fma)(xhat, minus_c2, g), s.rstd);
        const ELEMENT_T *const more = dsum ? (const ELEMENT_T *)(dsum + k * dsum_pitch) : NULL;
        NAME(store_x)((ELEMENT_T *)(dx + k * dx_pitch), NAME(with_sum)(made, more, left), left);
    }
}

/* dsum is added where it is not a constant NULL. */
INLINE void NAME(gradient_pixels)(const char *x, int64_t x_pitch, const char *dy, int64_t dy_pitch,
                                  const char *dsum, int64_t dsum_pitch, char *dx, int64_t dx_pitch,
                                  const int count, int64_t channels, const REAL *factors,
                                  const bool rms, const planish_activation f) {
    const int64_t bytes = sizeof(ELEMENT_T), dy_bytes = NAME(gradient_bytes)(f);
    const int64_t step = NAME(gradient_factors)(f) * VEC_LANES;
    int64_t c = 0;
    for (; c + VEC_LANES <= channels; c += VEC_LANES, factors += step)
        NAME(gradient_vector)(x + c * bytes, x_pitch, dy + c * dy_bytes, dy_pitch,
                              dsum ? dsum + c * bytes : NULL, dsum_pitch, dx + c * bytes, dx_pitch,
                              count, VEC_LANES, factors, rms, f);
    if (c < channels)
        NAME(gradient_vector)(x + c * bytes, x_pitch, dy + c * dy_bytes, dy_pitch,
                              dsum ? dsum + c * bytes : NULL, dsum_pitch, dx + c * bytes, dx_pitch,
                              count, channels - c, factors, rms, f);
}

/* The same of one pixel, by non-temporal stores. */
INLINE void NAME(gradient_streamed)(const char *x, const char *dy, const char *dsum, char *dx,
                                    int64_t channels, const REAL *factors, const bool rms,
                                    const planish_activation f) {
    const int64_t bytes = sizeof(ELEMENT_T);
    _Alignas(64) ELEMENT_T piece[NAME(PIECE)];
    for (int64_t c = 0; c < channels; c += NAME(PIECE)) {
        const int64_t n = NAME(min)(channels - c, NAME(PIECE));
        NAME(gradient_pixels)(x + c * bytes, 0, dy + c * NAME(gradient_bytes)(f), 0,
                              dsum ? dsum + c * bytes : NULL, 0, (char *)piece, 0, 1, n,
                              factors + c * NAME(gradient_factors)(f), rms, f);
        stream_lines(dx + c * bytes, piece, n * bytes);
    }
}

/* dx of channels [first, last) of every pixel. */
INLINE void NAME(strip_gradient)(const strip_backward_args *a, const NAME(strip_channels) * s,
                                 int64_t first, int64_t last, const bool rms,
                                 const planish_activation f, const bool summed) {
    const int64_t channels = last - first, offset = first * (int64_t)sizeof(ELEMENT_T);
    const char *x = a->x + offset, *dy = a->dy + offset, *dsum = summed ? a->dsum + offset : NULL;
    int64_t dy_pitch = a->dy_pitch;
    char *dx = a->dx + offset;
    if (f == KEPT_GRADIENT) {
        dy = (const char *)(s->kept + first);
        dy_pitch = a->groups * a->depth * (int64_t)sizeof(REAL);
    }
    const bool lines = NAME(strip_is_lines)(a->traffic, dx, a->dx_pitch, channels);
    const bool prefetches = a->hints->prefetch_groups && a->traffic != TRAFFIC_CACHED;
    const int64_t ahead = NAME(pixels_ahead)(channels);
    NAME(pack_factors)(s, first, last, NAME(gradient_factors)(f));
    for (int64_t p = 0; p < a->pixels;) {
        const int count = a->pixels - p >= NAME(QUAD) && !lines ? NAME(QUAD) : 1;
        for (int k = 0; k < count; k++) {
            NAME(prefetch_row)((const ELEMENT_T *)(x + k * a->x_pitch), ahead * a->x_pitch,
                               channels, prefetches, 0);
            NAME(prefetch_row)((const ELEMENT_T *)(dy + k * dy_pitch), ahead * dy_pitch, channels,
                               prefetches, 0);
            if (summed)
                NAME(prefetch_row)((const ELEMENT_T *)(dsum + k * a->dsum_pitch),
                                   ahead * a->dsum_pitch, channels, prefetches, 0);
        }
        if (lines)
            NAME(gradient_streamed)(x, dy, dsum, dx, channels, s->packed, rms, f);
        else if (count == NAME(QUAD))
            NAME(gradient_pixels)(x, a->x_pitch, dy, dy_pitch, dsum, a->dsum_pitch, dx, a->dx_pitch,
                                  NAME(QUAD), channels, s->packed, rms, f);
        else
            NAME(gradient_pixels)(x, a->x_pitch, dy, dy_pitch, dsum, a->dsum_pitch, dx, a->dx_pitch,
                                  1, channels, s->packed, rms, f);
        p += count;
        x += count * a->x_pitch;
        dsum = summed ? dsum + count * a->dsum_pitch : NULL;
        dy += count * dy_pitch;
        dx += count * a->dx_pitch;
    }
}

OUTLINE void NAME(strip_wide_backward)(const strip_backward_args *a, int64_t group, bool rms) {
    const int64_t first = group * a->depth, bytes = first * (int64_t)sizeof(ELEMENT_T);
    const REAL *const weights = a->weight, *const biases = a->bias;
    const backward_args row = {
        .rows = 1,
        .cols = a->depth * a->pixels,
        .dy = a->dy + bytes,
        .dy_pitch = a->dy_pitch,
        .x = a->x + bytes,
        .x_pitch = a->x_pitch,
        .dx = a->dx ? a->dx + bytes : NULL,
        .dx_pitch = a->dx_pitch,
        .weight = weights ? weights + first : NULL,
        .weight_offset = a->weight_offset,
        .rule = a->rule,
        .mean = stat_at(&a->mean, group),
        .rstd = stat_at(&a->rstd, group),
        .weight_span = a->pixels,
        .by_pixel = true,
        .bias = biases ? biases + first : NULL,
        .activation = a->activation,
        .dsum = a->dsum ? a->dsum + bytes : NULL,
        .dsum_pitch = a->dsum_pitch,
    };
    overflow_backward_sums(&row, rms ? PLANISH_RMS : PLANISH_LAYER, DTYPE_OF(ELEMENT),
                           DTYPE_OF(REAL_TOKEN), a->dweight + first, a->dbias + first);
}

/* One text for all norms: dsum is read beside them. */
OUTLINE void NAME(strip_gradient_summed)(const strip_backward_args *a,
                                         const NAME(strip_channels) * s, int64_t first,
                                         int64_t last, bool rms) {
    if (a->activation == PLANISH_IDENTITY)
        NAME(strip_gradient)(a, s, first, last, rms, PLANISH_IDENTITY, true);
    else if (s->kept)
        NAME(strip_gradient)(a, s, first, last, false, KEPT_GRADIENT, true);
    else
        NAME(strip_gradient)(a, s, first, last, false, a->activation, true);
}

/* dx of channels [first, last), by what was kept where something was. */
INLINE void NAME(strip_dx)(const strip_backward_args *a, const NAME(strip_channels) * s,
                           int64_t first, int64_t last, const bool rms,
                           const planish_activation f) {
    if (__builtin_expect(a->dsum != NULL, 0))
        NAME(strip_gradient_summed)(a, s, first, last, rms);
    else if (f != PLANISH_IDENTITY && s->kept)
        NAME(strip_gradient)(a, s, first, last, false, KEPT_GRADIENT, false);
    else
        NAME(strip_gradient)(a, s, first, last, rms, f, false);
}

INLINE void NAME(strip_backward)(const strip_backward_args *a, const bool rms,
                                 const planish_activation f) {
    const bool plain_rms = rms && f == PLANISH_IDENTITY; /* as in group_forward */
    const int64_t channels = a->groups * a->depth;
    NAME(strip_channels) s = NAME(strip_layout)(a->scratch, channels);
    bool all_in_range = true;
    if (f != PLANISH_IDENTITY && a->keeps)
        s.kept = s.packed + (channels + VEC_LANES) * NAME(gradient_factors)(f);
    NAME(load_strip)(a, &s, rms, f);
    if (f != PLANISH_IDENTITY)
        NAME(load_deltas)(a, &s, rms);
    NAME(strip_gradient_sums)(a, &s, plain_rms, f);
    for (int64_t g = 0; g < a->groups; g++) {
        const bool in_range = NAME(strip_constants)(a, &s, g, rms, f);
        all_in_range &= in_range;
        s.sums[0][g] = in_range; /* the sums of this group are used up */
    }
    /* As in strip_forward. */
    const int64_t step = all_in_range ? channels : a->depth;
    for (int64_t first = 0; first < channels; first += step)
        if (!all_in_range && s.sums[0][first / a->depth] == 0)
            NAME(strip_wide_backward)(a, first / a->depth, rms);
        else if (a->dx)
            NAME(strip_dx)(a, &s, first, first + step, plain_rms, f);
}
