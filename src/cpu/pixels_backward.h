/* Backward of strips of groups; part of cpu/pixels.h. */

/* Adds xhat, dy and dy * xhat of a vector of channels of a quad to the block's sums. */
INLINE void NAME(add_gradient_vector)(const char *x, int64_t x_pitch, const char *dy,
                                      int64_t dy_pitch, const int count, int64_t left, VEC mean,
                                      VEC rstd, REAL *sum_xhat, REAL *sum_dy, REAL *sum_product,
                                      const bool rms) {
    VEC v[NAME(QUAD)], d[NAME(QUAD)];
    NAME(load_quad)(x, x_pitch, count, left, v);
    NAME(load_quad)(dy, dy_pitch, count, left, d);
    UNROLL for (int k = 0; k < NAME(QUAD); k++) {
        if (k < count)
            v[k] = V(mul)(rms ? v[k] : V(sub)(v[k], mean), rstd);
    }
    if (!rms)
        NAME(add_to_channels)(sum_xhat, NAME(quad_sum)(v), left);
    NAME(add_to_channels)(sum_dy, NAME(quad_sum)(d), left);
    NAME(add_to_channels)(sum_product, NAME(quad_dot)(d, v), left);
}

INLINE void NAME(add_gradient_quad)(const strip_backward_args *a, const NAME(strip_channels) * s,
                                    int64_t p, const int count, const bool rms) {
    const int64_t channels = a->groups * a->depth, bytes = sizeof(ELEMENT_T);
    const char *const x = a->x + p * a->x_pitch, *const dy = a->dy + p * a->dy_pitch;
    const int64_t x_pitch = a->x_pitch, dy_pitch = a->dy_pitch;
    const REAL *const mean = s->factor[NAME(F_MEAN)], *const rstd = s->factor[NAME(F_RSTD)];
    const int64_t ahead = NAME(pixels_ahead)(channels);
    REAL *const sum0 = s->block[0], *const sum1 = s->block[1], *const sum2 = s->block[2];
    int64_t c = 0;
    for (int k = 0; k < count; k++) {
        NAME(ask_for_row)((const ELEMENT_T *)(x + k * x_pitch), ahead * x_pitch, channels, a->asks,
                          0);
        NAME(ask_for_row)((const ELEMENT_T *)(dy + k * dy_pitch), ahead * dy_pitch, channels,
                          a->asks, 0);
    }
    for (; c + VEC_LANES <= channels; c += VEC_LANES)
        NAME(add_gradient_vector)(x + c * bytes, x_pitch, dy + c * bytes, dy_pitch, count,
                                  VEC_LANES, LOAD_REAL(mean + c), LOAD_REAL(rstd + c), sum0 + c,
                                  sum1 + c, sum2 + c, rms);
    if (c < channels)
        NAME(add_gradient_vector)(x + c * bytes, x_pitch, dy + c * bytes, dy_pitch, count,
                                  channels - c, NAME(load_channels)(mean + c, channels - c),
                                  NAME(load_channels)(rstd + c, channels - c), sum0 + c, sum1 + c,
                                  sum2 + c, rms);
}

INLINE void NAME(strip_gradient_sums)(const strip_backward_args *a, const NAME(strip_channels) * s,
                                      const bool rms) {
    const int64_t channels = a->groups * a->depth;
    for (int i = 0; i < 3; i++)
        memset(s->sums[i], 0, (size_t)channels * sizeof(double));
    for (int64_t first = 0; first < a->pixels; first += NAME(PIXEL_BLOCK)) {
        const int64_t last = NAME(min)(first + NAME(PIXEL_BLOCK), a->pixels);
        int64_t p = first;
        for (int i = 0; i < 3; i++)
            memset(s->block[i], 0, (size_t)channels * sizeof(REAL));
        for (; p + NAME(QUAD) <= last; p += NAME(QUAD))
            NAME(add_gradient_quad)(a, s, p, NAME(QUAD), rms);
        for (; p < last; p++)
            NAME(add_gradient_quad)(a, s, p, 1, rms);
        for (int i = 0; i < 3; i++)
            for (int64_t c = 0; c < channels; c++)
                s->sums[i][c] += s->block[i][c];
    }
}

/* The saved mean and rstd of every channel, and its weight. */
INLINE void NAME(load_strip)(const strip_backward_args *a, const NAME(strip_channels) * s,
                             const bool rms) {
    const REAL *const weights = a->weight;
    for (int64_t g = 0; g < a->groups; g++) {
        const REAL mean = rms ? 0 : (REAL)stat_load(&a->mean, g),
                   rstd = (REAL)stat_load(&a->rstd, g);
        for (int64_t c = g * a->depth; c < (g + 1) * a->depth; c++) {
            s->factor[NAME(F_MEAN)][c] = mean;
            s->factor[NAME(F_RSTD)][c] = rstd;
            s->factor[NAME(F_WEIGHT)][c] = weights ? weights[c] + (REAL)a->weight_offset : 1;
        }
    }
}

/* A group's constants and its channels' sums for dweight and dbias; false where out of range. */
INLINE bool NAME(strip_constants)(const strip_backward_args *a, const NAME(strip_channels) * s,
                                  int64_t group, const bool rms) {
    const int64_t first = group * a->depth, last = first + a->depth;
    const double inverse = 1.0 / (double)(a->depth * a->pixels);
    double delta = 0, c1 = 0, c2 = 0;
    for (int64_t c = first; c < last; c++) {
        delta += s->sums[0][c];
        c1 += s->factor[NAME(F_WEIGHT)][c] * s->sums[1][c];
        c2 += s->factor[NAME(F_WEIGHT)][c] * s->sums[2][c];
    }
    delta = rms ? 0 : delta * inverse;
    c1 = rms ? 0 : c1 * inverse;
    c2 = c2 * inverse - c1 * delta;
    for (int64_t c = first; c < last; c++) {
        a->dweight[c] = s->sums[2][c] - delta * s->sums[1][c];
        a->dbias[c] = s->sums[1][c];
        s->factor[NAME(F_SHIFT)][c] = (REAL)-delta;
        s->factor[NAME(F_C1)][c] = (REAL)c1;
        s->factor[NAME(F_MINUS_C2)][c] = (REAL)-c2;
    }
    return fabs(delta) < BIG && fabs(c1) < BIG && fabs(c2) < BIG;
}

/* dx of a vector of channels of up to QUAD pixels, by its packed factors. */
INLINE void NAME(gradient_vector)(const char *x, int64_t x_pitch, const char *dy, int64_t dy_pitch,
                                  char *dx, int64_t dx_pitch, const int count, int64_t left,
                                  const REAL *factors, const bool rms) {
    const VEC mean = LOAD_REAL(factors + NAME(F_MEAN) * VEC_LANES);
    const VEC rstd = LOAD_REAL(factors + NAME(F_RSTD) * VEC_LANES);
    const VEC shift = LOAD_REAL(factors + NAME(F_SHIFT) * VEC_LANES);
    const VEC weight = LOAD_REAL(factors + NAME(F_WEIGHT) * VEC_LANES);
    const VEC c1 = LOAD_REAL(factors + NAME(F_C1) * VEC_LANES);
    const VEC minus_c2 = LOAD_REAL(factors + NAME(F_MINUS_C2) * VEC_LANES);
    UNROLL for (int k = 0; k < count; k++) {
        const VEC v = NAME(load_x)((const ELEMENT_T *)(x + k * x_pitch), left);
        const VEC d = NAME(load_x)((const ELEMENT_T *)(dy + k * dy_pitch), left);
        const VEC xhat = rms ? V(mul)(v, rstd) : V(fma)(V(sub)(v, mean), rstd, shift);
        VEC g = V(mul)(d, weight);
        if (!rms)
            g = V(sub)(g, c1);
        NAME(store_x)((ELEMENT_T *)(dx + k * dx_pitch), V(mul)(V(fma)(xhat, minus_c2, g), rstd),
                      left);
    }
}

INLINE void NAME(gradient_pixels)(const char *x, int64_t x_pitch, const char *dy, int64_t dy_pitch,
                                  char *dx, int64_t dx_pitch, const int count, int64_t channels,
                                  const REAL *factors, const bool rms) {
    const int64_t bytes = sizeof(ELEMENT_T);
    int64_t c = 0;
    for (; c + VEC_LANES <= channels; c += VEC_LANES, factors += NAME(FACTORS) * VEC_LANES)
        NAME(gradient_vector)(x + c * bytes, x_pitch, dy + c * bytes, dy_pitch, dx + c * bytes,
                              dx_pitch, count, VEC_LANES, factors, rms);
    if (c < channels)
        NAME(gradient_vector)(x + c * bytes, x_pitch, dy + c * bytes, dy_pitch, dx + c * bytes,
                              dx_pitch, count, channels - c, factors, rms);
}

/* The same of one pixel, past the cache. */
INLINE void NAME(gradient_past_cache)(const char *x, const char *dy, char *dx, int64_t channels,
                                      const REAL *factors, const bool rms) {
    const int64_t bytes = sizeof(ELEMENT_T);
    _Alignas(64) ELEMENT_T piece[NAME(PIECE)];
    for (int64_t c = 0; c < channels; c += NAME(PIECE)) {
        const int64_t n = NAME(min)(channels - c, NAME(PIECE));
        NAME(gradient_pixels)(x + c * bytes, 0, dy + c * bytes, 0, (char *)piece, 0, 1, n,
                              factors + c * NAME(FACTORS), rms);
        stream_lines(dx + c * bytes, piece, n * bytes);
    }
}

/* dx of channels [first, last) of every pixel. */
INLINE void NAME(strip_gradient)(const strip_backward_args *a, const NAME(strip_channels) * s,
                                 int64_t first, int64_t last, const bool rms) {
    const int64_t channels = last - first, offset = first * (int64_t)sizeof(ELEMENT_T);
    const char *x = a->x + offset, *dy = a->dy + offset;
    char *dx = a->dx + offset;
    const bool lines = NAME(strip_is_lines)(a->traffic, dx, a->dx_pitch, channels);
    const bool asks = a->asks && a->traffic != TRAFFIC_CACHED;
    const int64_t ahead = NAME(pixels_ahead)(channels);
    NAME(pack_factors)(s, first, last);
    for (int64_t p = 0; p < a->pixels;) {
        const int count = a->pixels - p >= NAME(QUAD) && !lines ? NAME(QUAD) : 1;
        for (int k = 0; k < count; k++) {
            NAME(ask_for_row)((const ELEMENT_T *)(x + k * a->x_pitch), ahead * a->x_pitch, channels,
                              asks, 0);
            NAME(ask_for_row)((const ELEMENT_T *)(dy + k * a->dy_pitch), ahead * a->dy_pitch,
                              channels, asks, 0);
        }
        if (lines)
            NAME(gradient_past_cache)(x, dy, dx, channels, s->packed, rms);
        else if (count == NAME(QUAD))
            NAME(gradient_pixels)(x, a->x_pitch, dy, a->dy_pitch, dx, a->dx_pitch, NAME(QUAD),
                                  channels, s->packed, rms);
        else
            NAME(gradient_pixels)(x, a->x_pitch, dy, a->dy_pitch, dx, a->dx_pitch, 1, channels,
                                  s->packed, rms);
        p += count;
        x += count * a->x_pitch;
        dy += count * a->dy_pitch;
        dx += count * a->dx_pitch;
    }
    if (lines)
        VEC_FENCE();
}

OUTLINE void NAME(strip_wide_backward)(const strip_backward_args *a, int64_t group, bool rms) {
    const int64_t first = group * a->depth, bytes = first * (int64_t)sizeof(ELEMENT_T);
    const REAL *const weights = a->weight;
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
        .mean = stat_at(&a->mean, group),
        .rstd = stat_at(&a->rstd, group),
        .weight_span = a->pixels,
        .by_pixel = true,
    };
    wide_backward_sums(&row, rms ? PLANISH_RMS : PLANISH_LAYER, DTYPE_OF(ELEMENT),
                       DTYPE_OF(REAL_TOKEN), a->dweight + first, a->dbias + first);
}

INLINE void NAME(strip_backward)(const strip_backward_args *a, const bool rms) {
    const int64_t channels = a->groups * a->depth;
    const NAME(strip_channels) s = NAME(strip_layout)(a->scratch, channels);
    bool all_in_range = true;
    NAME(load_strip)(a, &s, rms);
    NAME(strip_gradient_sums)(a, &s, rms);
    for (int64_t g = 0; g < a->groups; g++) {
        const bool in_range = NAME(strip_constants)(a, &s, g, rms);
        all_in_range &= in_range;
        s.sums[0][g] = in_range; /* the sums of this group are used up */
    }
    if (__builtin_expect(all_in_range, 1)) {
        if (a->dx)
            NAME(strip_gradient)(a, &s, 0, channels, rms);
        return;
    }
    for (int64_t g = 0; g < a->groups; g++)
        if (s.sums[0][g] == 0)
            NAME(strip_wide_backward)(a, g, rms);
        else if (a->dx)
            NAME(strip_gradient)(a, &s, g * a->depth, (g + 1) * a->depth, rms);
}
