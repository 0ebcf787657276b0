/* Backward of strips of groups: the sums of every channel; part of cpu/groups/pixels_backward.h. */

/* In place of an activation: what was kept of the gradient is taken for dy. */
#define KEPT_GRADIENT ((planish_activation) - 1)

/* How many factors of a channel its gradient takes, and the bytes of an element of dy. */
INLINE int NAME(gradient_factors)(const planish_activation f) {
    return NAME(FACTORS) + (f != PLANISH_IDENTITY);
}
INLINE int64_t NAME(gradient_bytes)(const planish_activation f) {
    return f == KEPT_GRADIENT ? NAME(REAL_BYTES) : NAME(ELEMENT_BYTES);
}

/* Takes a quad of gradients, where an activation follows, to what went into it, and keeps that.
 * `of` is the first of these channels of the strip. */
INLINE void NAME(quad_through)(VEC d[NAME(QUAD)], const VEC v[NAME(QUAD)], const int count,
                               int64_t left, const NAME(strip_channels) * s, int64_t of, VEC mean,
                               VEC rstd, REAL *kept, int64_t kept_pitch,
                               const planish_activation f) {
    const NAME(normalizer)
        s_of = {mean, rstd, NAME(load_channels)(s->factor[NAME(F_MINUS_DELTA)] + of, left)};
    const NAME(epilogue) then = {f, NAME(load_channels)(s->factor[NAME(F_WEIGHT)] + of, left),
                                 NAME(load_channels)(s->factor[NAME(F_ACTIVE_BIAS)] + of, left)};
    UNROLL for (int k = 0; k < NAME(QUAD); k++) {
        if (k < count)
            d[k] = NAME(through)(then, d[k], NAME(normalize)(v[k], s_of, false));
        if (k < count && kept)
            NAME(store_channels)(kept + k * kept_pitch, d[k], left);
    }
}

/* Adds xhat, dy and dy * xhat of a vector of channels of a quad to the block's sums; of dy behind
 * an activation what quad_through makes of it. */
INLINE void NAME(add_gradient_vector)(const char *x, int64_t x_pitch, const char *dy,
                                      int64_t dy_pitch, const int count, int64_t left, VEC mean,
                                      VEC rstd, REAL *sum_xhat, REAL *sum_dy, REAL *sum_product,
                                      const bool rms, const NAME(strip_channels) * s, int64_t of,
                                      REAL *kept, int64_t kept_pitch, const planish_activation f) {
    VEC v[NAME(QUAD)], d[NAME(QUAD)];
    NAME(load_quad)(x, x_pitch, count, left, v);
    NAME(load_quad)(dy, dy_pitch, count, left, d);
    if (f != PLANISH_IDENTITY)
        NAME(quad_through)(d, v, count, left, s, of, mean, rstd, kept, kept_pitch, f);
    UNROLL for (int k = 0; k < NAME(QUAD); k++) {
        if (k < count)
            v[k] = V(mul)(rms ? v[k] : V(sub)(v[k], mean), rstd);
    }
    if (!rms)
        NAME(add_to_channels)(sum_xhat, NAME(quad_sum)(v), left);
    NAME(add_to_channels)(sum_dy, NAME(quad_sum)(d), left);
    NAME(add_to_channels)(sum_product, NAME(quad_dot)(d, v), left);
}

/* Adds the same of pixel k of a quad, p, for all channels; half a quad's sums wait in scratch. The
 * additions are those of a quad, and their order. */
INLINE void NAME(add_pixel_of_quad)(const strip_backward_args *a, const NAME(strip_channels) * s,
                                    int64_t p, const int k, const bool rms,
                                    const planish_activation f) {
    const int64_t channels = a->groups * a->depth;
    const ELEMENT_T *const x = (const ELEMENT_T *)(a->x + p * a->x_pitch);
    const ELEMENT_T *const dy = (const ELEMENT_T *)(a->dy + p * a->dy_pitch);
    REAL *const *const half = s->half[k / 2];
    for (int64_t c = 0; c < channels; c += VEC_LANES) {
        const int64_t left = channels - c;
        const VEC mean = NAME(load_channels)(s->factor[NAME(F_MEAN)] + c, left);
        const VEC rstd = NAME(load_channels)(s->factor[NAME(F_RSTD)] + c, left);
        VEC v[NAME(QUAD)] = {NAME(load_x)(x + c, left)},
            d[NAME(QUAD)] = {NAME(load_x)(dy + c, left)};
        if (f != PLANISH_IDENTITY)
            NAME(quad_through)(d, v, 1, left, s, c, mean, rstd,
                               s->kept ? s->kept + p * channels + c : NULL, channels, f);
        const VEC xhat = V(mul)(rms ? v[0] : V(sub)(v[0], mean), rstd);
        VEC sum[3] = {xhat, d[0], d[0]};
        if (k % 2 == 0)
            sum[2] = V(mul)(d[0], xhat);
        else
            sum[2] = V(fma)(d[0], xhat, NAME(load_channels)(half[2] + c, left));
        for (int i = rms; i < 3; i++) {
            if (k % 2 && i < 2)
                sum[i] = V(add)(NAME(load_channels)(half[i] + c, left), sum[i]);
            if (k + 1 < NAME(QUAD))
                NAME(store_channels)(half[i] + c, sum[i], left);
            else
                NAME(add_to_channels)(s->block[i] + c,
                                      V(add)(NAME(load_channels)(s->half[0][i] + c, left), sum[i]),
                                      left);
        }
    }
}

/*
 * Whether pixels are read one behind the other, and not four beside each other: a CPU that fetches
 * by itself does so nearly twice as fast from beyond its caches. Only where a pixel is some lines,
 * and all sums on the way leave room in a first-level cache.
 */
INLINE bool NAME(goes_by_pixel)(const strip_backward_args *a) {
    enum { LEAST = 512, MOST = 1536 };
    const int64_t bytes = a->groups * a->depth * (int64_t)sizeof(REAL);
    return a->hints->by_pixel && a->traffic != TRAFFIC_CACHED && bytes >= LEAST && bytes <= MOST;
}

INLINE void NAME(add_gradient_quad)(const strip_backward_args *a, const NAME(strip_channels) * s,
                                    int64_t p, const int count, const bool rms,
                                    const planish_activation f) {
    const int64_t channels = a->groups * a->depth, bytes = sizeof(ELEMENT_T);
    const char *const x = a->x + p * a->x_pitch, *const dy = a->dy + p * a->dy_pitch;
    const int64_t x_pitch = a->x_pitch, dy_pitch = a->dy_pitch;
    const REAL *const mean = s->factor[NAME(F_MEAN)], *const rstd = s->factor[NAME(F_RSTD)];
    const int64_t ahead = NAME(pixels_ahead)(channels);
    REAL *const sum0 = s->block[0], *const sum1 = s->block[1], *const sum2 = s->block[2];
    REAL *const kept = s->kept ? s->kept + p * channels : NULL;
    int64_t c = 0;
    if (count == NAME(QUAD) && NAME(goes_by_pixel)(a)) {
        NAME(add_pixel_of_quad)(a, s, p, 0, rms, f);
        NAME(add_pixel_of_quad)(a, s, p + 1, 1, rms, f);
        NAME(add_pixel_of_quad)(a, s, p + 2, 2, rms, f);
        NAME(add_pixel_of_quad)(a, s, p + 3, 3, rms, f);
        return;
    }
    for (int k = 0; k < count; k++) {
        NAME(prefetch_row)((const ELEMENT_T *)(x + k * x_pitch), ahead * x_pitch, channels,
                           a->hints->prefetch_groups, 0);
        NAME(prefetch_row)((const ELEMENT_T *)(dy + k * dy_pitch), ahead * dy_pitch, channels,
                           a->hints->prefetch_groups, 0);
    }
    for (; c + VEC_LANES <= channels; c += VEC_LANES)
        NAME(add_gradient_vector)(x + c * bytes, x_pitch, dy + c * bytes, dy_pitch, count,
                                  VEC_LANES, LOAD_REAL(mean + c), LOAD_REAL(rstd + c), sum0 + c,
                                  sum1 + c, sum2 + c, rms, s, c, kept ? kept + c : NULL, channels,
                                  f);
    if (c < channels)
        NAME(add_gradient_vector)(x + c * bytes, x_pitch, dy + c * bytes, dy_pitch, count,
                                  channels - c, NAME(load_channels)(mean + c, channels - c),
                                  NAME(load_channels)(rstd + c, channels - c), sum0 + c, sum1 + c,
                                  sum2 + c, rms, s, c, kept ? kept + c : NULL, channels, f);
}

INLINE void NAME(strip_gradient_sums)(const strip_backward_args *a, const NAME(strip_channels) * s,
                                      const bool rms, const planish_activation f) {
    const int64_t channels = a->groups * a->depth;
    for (int i = 0; i < 3; i++) {
        memset(s->sums[i], 0, (size_t)channels * sizeof(double));
        if (sizeof(REAL) == 8)
            memset(s->rests[i], 0, (size_t)channels * sizeof(double));
    }
    for (int64_t first = 0; first < a->pixels; first += NAME(PIXEL_BLOCK)) {
        const int64_t last = NAME(min)(first + NAME(PIXEL_BLOCK), a->pixels);
        int64_t p = first;
        for (int i = 0; i < 3; i++)
            memset(s->block[i], 0, (size_t)channels * sizeof(REAL));
        for (; p + NAME(QUAD) <= last; p += NAME(QUAD))
            NAME(add_gradient_quad)(a, s, p, NAME(QUAD), rms, f);
        for (; p < last; p++)
            NAME(add_gradient_quad)(a, s, p, 1, rms, f);
        for (int i = 0; i < 3; i++)
            for (int64_t c = 0; c < channels; c++)
                NAME(add_keeping)(&s->sums[i][c], &s->rests[i][c], s->block[i][c]);
    }
    for (int i = 0; i < 3 && sizeof(REAL) == 8; i++)
        for (int64_t c = 0; c < channels; c++)
            s->sums[i][c] += s->rests[i][c];
}
