/* Forward of strips of groups; part of cpu/groups/pixels.h. */

enum { NAME(OF_X), NAME(OF_SQUARES), NAME(ABOUT_CENTER) };

/* Adds a vector of channels of the quad at x, of `count` pixels, to the block's sums: of x, of
 * squares, or of both about the center. */
INLINE void NAME(add_quad_vector)(const char *x, int64_t pitch, const int count, int64_t left,
                                  REAL *sum, REAL *squares, const REAL *center, const int what) {
    VEC v[NAME(QUAD)];
    NAME(load_quad)(x, pitch, count, left, v);
    if (what == NAME(ABOUT_CENTER)) {
        const VEC c = NAME(load_channels)(center, left);
        UNROLL for (int k = 0; k < NAME(QUAD); k++) if (k < count) v[k] = V(sub)(v[k], c);
    }
    if (what != NAME(OF_SQUARES))
        NAME(add_to_channels)(sum, NAME(quad_sum)(v), left);
    if (what != NAME(OF_X))
        NAME(add_to_channels)(squares, NAME(quad_dot)(v, v), left);
}

INLINE void NAME(add_quad)(const char *x, int64_t pitch, const int count, int64_t channels,
                           const NAME(strip_channels) * s, int64_t ahead, const int what) {
    REAL *const sum = s->block[0], *const squares = s->block[1];
    const REAL *const center = s->block[2];
    const int64_t bytes = sizeof(ELEMENT_T);
    int64_t c = 0;
    for (int k = 0; k < count; k++)
        NAME(prefetch_row)((const ELEMENT_T *)(x + k * pitch), ahead, channels, ahead, 0);
    for (; c + VEC_LANES <= channels; c += VEC_LANES)
        NAME(add_quad_vector)(x + c * bytes, pitch, count, VEC_LANES, sum + c, squares + c,
                              center + c, what);
    if (c < channels)
        NAME(add_quad_vector)(x + c * bytes, pitch, count, channels - c, sum + c, squares + c,
                              center + c, what);
}

INLINE void NAME(sum_block)(const char *x, int64_t pitch, int64_t n, int64_t channels,
                            const NAME(strip_channels) * s, int64_t ahead, const int what) {
    memset(s->block[0], 0, (size_t)channels * sizeof(REAL));
    memset(s->block[1], 0, (size_t)channels * sizeof(REAL));
    int64_t p = 0;
    for (; p + NAME(QUAD) <= n; p += NAME(QUAD))
        NAME(add_quad)(x + p * pitch, pitch, NAME(QUAD), channels, s, ahead, what);
    for (; p < n; p++)
        NAME(add_quad)(x + p * pitch, pitch, 1, channels, s, ahead, what);
}

/*
 * The moments of every channel of a strip: its blocks', merged in order. Means are told as their
 * distance from a pivot (in `mean`), the center of the channel's first block: in f64 the digits
 * that squares are made of would be lost in the mean itself.
 */
INLINE void NAME(strip_moments)(const strip_forward_args *a, const NAME(strip_channels) * s,
                                const bool rms) {
    const int64_t channels = a->groups * a->depth, pitch = a->x_pitch;
    const int64_t ahead = a->hints->prefetch_groups ? NAME(pixels_ahead)(channels) * pitch : 0;
    double *const distance = s->sums[0], *const m2 = s->sums[1];
    REAL *const sum = s->block[0], *const squares = s->block[1], *const center = s->block[2];
    memset(m2, 0, (size_t)channels * sizeof *m2);
    if (sizeof(REAL) == 8)
        memset(s->rests[1], 0, (size_t)channels * sizeof *s->rests[1]);
    for (int64_t p = 0; p < a->pixels; p += NAME(PIXEL_BLOCK)) {
        const char *const x = a->x + p * pitch;
        const int64_t n = NAME(min)(NAME(PIXEL_BLOCK), a->pixels - p);
        if (rms) {
            NAME(sum_block)(x, pitch, n, channels, s, ahead, NAME(OF_SQUARES));
            for (int64_t c = 0; c < channels; c++)
                NAME(add_keeping)(&m2[c], &s->rests[1][c], squares[c]);
            continue;
        }
        const double share = (double)n / (double)(p + n);
        const double spread = (double)p * share;
        NAME(sum_block)(x, pitch, n, channels, s, ahead, NAME(OF_X));
        for (int64_t c = 0; c < channels; c++)
            center[c] = sum[c] * (REAL)(1.0 / (double)n);
        if (p == 0) {
            memcpy(s->factor[NAME(F_MEAN)], center, (size_t)channels * sizeof *center);
            memset(distance, 0, (size_t)channels * sizeof *distance);
        }
        NAME(sum_block)(x, pitch, n, channels, s, 0, NAME(ABOUT_CENTER));
        /* Divided, not times the inverse: equal pixels are to have exactly their mean. */
        for (int64_t c = 0; c < channels; c++) {
            const double rest = sum[c] / (double)n;
            const double step =
                ((double)center[c] - s->factor[NAME(F_MEAN)][c]) + rest - distance[c];
            distance[c] += step * share;
            m2[c] += squares[c] - sum[c] * rest + step * step * spread;
        }
    }
    for (int64_t c = 0; c < channels && rms && sizeof(REAL) == 8; c++)
        m2[c] += s->rests[1][c];
}

/* A sum in four chains, for there may be many channels, and what these lost. */
typedef struct NAME(chains) {
    double sum[4], rest[4];
} NAME(chains);

INLINE void NAME(add_in_chains)(NAME(chains) * to, int64_t i, double value) {
    NAME(add_keeping)(&to->sum[i % 4], &to->rest[i % 4], value);
}
INLINE double NAME(chains_sum)(const NAME(chains) * of) {
    const double *const sum = of->sum, *const rest = of->rest;
    const double whole = (sum[0] + sum[2]) + (sum[1] + sum[3]);
    return sizeof(REAL) == 8 ? whole + ((rest[0] + rest[2]) + (rest[1] + rest[3])) : whole;
}

/* The mean of a group, as its distance from the pivot of the first channel, and its m2: from those
 * of its channels, which have as many pixels each. */
INLINE void NAME(merge_channels)(const NAME(strip_channels) * s, int64_t first, int64_t depth,
                                 int64_t pixels, const bool rms, double *distance, double *m2) {
    const REAL *const pivots = s->factor[NAME(F_MEAN)] + first;
    const double *const distances = s->sums[0] + first, *const m2s = s->sums[1] + first;
    NAME(chains) sum = {{0}, {0}}, squares = {{0}, {0}};
    *distance = 0;
    if (!rms) {
        for (int64_t c = 0; c < depth; c++)
            NAME(add_in_chains)(&sum, c, ((double)pivots[c] - pivots[0]) + distances[c]);
        *distance = NAME(chains_sum)(&sum) / (double)depth;
    }
    for (int64_t c = 0; c < depth; c++) {
        const double d = rms ? 0 : ((double)pivots[c] - pivots[0]) + distances[c] - *distance;
        NAME(add_in_chains)(&squares, c, m2s[c] + d * d * (double)pixels);
    }
    *m2 = NAME(chains_sum)(&squares);
}

/* What makes y of a strip's channels; false where a group is not in range. */
INLINE bool NAME(strip_normalizers)(const strip_forward_args *a, const NAME(strip_channels) * s,
                                    const bool rms) {
    const REAL *const weights = a->weight, *const biases = a->bias;
    const double inverse = a->rule.inverse;
    const double least = NAME(least_moment)(&a->rule, (double)(a->depth * a->pixels));
    bool all_in_range = true;
    for (int64_t g = 0; g < a->groups; g++) {
        const int64_t first = g * a->depth;
        double pivot = 0, distance = 0, m2 = 0, rstd;
        bool in_range;
        if (a->given) {
            pivot = rms ? 0 : stat_load(&a->mean, g);
            rstd = stat_load(&a->rstd, g);
            in_range = fabs(pivot) < BIG && rstd < BIG;
        } else {
            pivot = rms ? 0 : s->factor[NAME(F_MEAN)][first];
            NAME(merge_channels)(s, first, a->depth, a->pixels, rms, &distance, &m2);
            rstd = NAME(rstd_of)(m2, &a->rule);
            in_range = m2 * inverse < BIG && m2 * inverse >= least;
        }
        const REAL mean = (REAL)(pivot + distance);
        all_in_range &= in_range;
        s->sums[2][g] = in_range;
        if (in_range && !a->given) {
            stat_store(&a->mean, g, pivot + distance);
            stat_store(&a->rstd, g, rstd);
            stat_store(&a->m2, g, m2);
        }
        for (int64_t c = first; c < first + a->depth; c++) {
            s->factor[NAME(F_MEAN)][c] = mean;
            s->factor[NAME(F_RSTD)][c] = (REAL)rstd;
            s->factor[NAME(F_MINUS_DELTA)][c] = (REAL)((mean - pivot - distance) * rstd);
            s->factor[NAME(F_WEIGHT)][c] = weights ? weights[c] + (REAL)a->weight_offset : 1;
            s->factor[NAME(F_BIAS)][c] = biases ? biases[c] : (REAL)-0.0;
        }
    }
    return all_in_range;
}

/* y of a vector of channels of up to QUAD pixels, by its packed factors. */
INLINE void NAME(apply_vector)(const char *x, int64_t x_pitch, char *y, int64_t y_pitch,
                               const int count, int64_t left, const REAL *factors, const bool rms,
                               const planish_activation f) {
    const NAME(normalizer) s = NAME(packed_normalizer)(factors);
    const NAME(epilogue) of = {f, LOAD_REAL(factors + NAME(F_WEIGHT) * VEC_LANES),
                               LOAD_REAL(factors + NAME(F_BIAS) * VEC_LANES)};
    UNROLL for (int k = 0; k < count; k++) {
        const VEC v = NAME(load_x)((const ELEMENT_T *)(x + k * x_pitch), left);
        NAME(store_x)((ELEMENT_T *)(y + k * y_pitch), NAME(result)(v, s, of, rms), left);
    }
}

INLINE void NAME(apply_pixels)(const char *x, int64_t x_pitch, char *y, int64_t y_pitch,
                               const int count, int64_t channels, const REAL *factors,
                               const bool rms, const planish_activation f) {

    const int64_t bytes = sizeof(ELEMENT_T);
    int64_t c = 0;
    for (; c + VEC_LANES <= channels; c += VEC_LANES, factors += NAME(FACTORS) * VEC_LANES)
        NAME(apply_vector)(x + c * bytes, x_pitch, y + c * bytes, y_pitch, count, VEC_LANES,
                           factors, rms, f);
    if (c < channels)
        NAME(apply_vector)(x + c * bytes, x_pitch, y + c * bytes, y_pitch, count, channels - c,
                           factors, rms, f);
}

/* The same of one pixel, by non-temporal stores. */
INLINE void NAME(apply_streamed)(const char *x, char *y, int64_t channels, const REAL *factors,
                                 const bool rms, const planish_activation f) {
    const int64_t bytes = sizeof(ELEMENT_T);
    _Alignas(64) ELEMENT_T piece[NAME(PIECE)];
    for (int64_t c = 0; c < channels; c += NAME(PIECE)) {
        const int64_t n = NAME(min)(channels - c, NAME(PIECE));
        NAME(apply_pixels)(x + c * bytes, 0, (char *)piece, 0, 1, n, factors + c * NAME(FACTORS),
                           rms, f);
        stream_lines(y + c * bytes, piece, n * bytes);
    }
}

/* y of channels [first, last) of every pixel. */
INLINE void NAME(strip_apply)(const strip_forward_args *a, const NAME(strip_channels) * s,
                              int64_t first, int64_t last, const bool rms,
                              const planish_activation f) {
    const int64_t channels = last - first;
    const char *x = a->x + first * (int64_t)sizeof(ELEMENT_T);
    char *y = a->y + first * (int64_t)sizeof(ELEMENT_T);
    const bool lines = NAME(strip_is_lines)(a->traffic, y, a->y_pitch, channels);
    const bool prefetches = a->hints->prefetch_groups && a->traffic != TRAFFIC_CACHED;
    const int64_t ahead = NAME(pixels_ahead)(channels) * a->x_pitch;
    NAME(pack_factors)(s, first, last, NAME(FACTORS));
    for (int64_t p = 0; p < a->pixels;) {
        const int count = a->pixels - p >= NAME(QUAD) && !lines ? NAME(QUAD) : 1;
        for (int k = 0; k < count; k++)
            NAME(prefetch_row)((const ELEMENT_T *)(x + k * a->x_pitch), ahead, channels, prefetches,
                               0);
        if (lines)
            NAME(apply_streamed)(x, y, channels, s->packed, rms, f);
        else if (count == NAME(QUAD))
            NAME(apply_pixels)(x, a->x_pitch, y, a->y_pitch, NAME(QUAD), channels, s->packed, rms,
                               f);
        else
            NAME(apply_pixels)(x, a->x_pitch, y, a->y_pitch, 1, channels, s->packed, rms, f);
        p += count;
        x += count * a->x_pitch;
        y += count * a->y_pitch;
    }
}

/* A group whose arithmetic would leave the range. */
OUTLINE void NAME(strip_wide_forward)(const strip_forward_args *a, int64_t group, bool rms) {
    const int64_t first = group * a->depth;
    const REAL *const weights = a->weight, *const biases = a->bias;
    const forward_args row = {
        .rows = 1,
        .cols = a->depth * a->pixels,
        .x = a->x + first * (int64_t)sizeof(ELEMENT_T),
        .x_pitch = a->x_pitch,
        .y = a->y ? a->y + first * (int64_t)sizeof(ELEMENT_T) : NULL,
        .y_pitch = a->y_pitch,
        .weight = weights ? weights + first : NULL,
        .bias = biases ? biases + first : NULL,
        .weight_offset = a->weight_offset,
        .rule = a->rule,
        .mean = stat_at(&a->mean, group),
        .rstd = stat_at(&a->rstd, group),
        .m2 = stat_at(&a->m2, group),
        .given = a->given,
        .weight_span = a->pixels,
        .by_pixel = true,
        .activation = a->activation,
    };
    overflow_forward_row(&row, 0, rms ? PLANISH_RMS : PLANISH_LAYER, DTYPE_OF(ELEMENT),
                         DTYPE_OF(REAL_TOKEN));
}

INLINE void NAME(strip_forward)(const strip_forward_args *a, const bool rms,
                                const planish_activation f) {
    const bool plain_rms = rms && f == PLANISH_IDENTITY; /* as in group_forward */
    const int64_t channels = a->groups * a->depth;
    const NAME(strip_channels) s = NAME(strip_layout)(a->scratch, channels);
    if (!a->given)
        NAME(strip_moments)(a, &s, rms);
    const bool in_range = NAME(strip_normalizers)(a, &s, rms);
    /* All groups at once, or each by itself where one leaves the range. */
    const int64_t step = in_range ? channels : a->depth;
    for (int64_t first = 0; first < channels; first += step)
        if (!in_range && s.sums[2][first / a->depth] == 0)
            NAME(strip_wide_forward)(a, first / a->depth, rms);
        else if (a->y)
            NAME(strip_apply)(a, &s, first, first + step, plain_rms, f);
}
