/* Forward of a tile of pixels; part of cpu/channels/channels.h, whose parameters and helpers it
 * uses. */

/* The moments of a vector of pixels, from pixel p on, about their centers. Returns a bit for each
 * that is far from its mean, as center_moments of cpu/rows/rows_moments.h. */
INLINE unsigned NAME(center_pixels)(const channel_tile *t, const REAL *x, int64_t n, int64_t p,
                                    const REAL center[], double rest[], double m2[]) {
    const double inverse = 1.0 / (double)n;
    _Alignas(64) REAL deviation[VEC_LANES], squares[VEC_LANES];
    const NAME(column) col = {.x = x + p, .pitch = t->pitch, .mean = LOAD_REAL(center + p)};
    const NAME(trio) sums = NAME(column_sums)(&col, n, NAME(CENTERED));
    unsigned far = 0;
    STORE_REAL(deviation, sums.a);
    STORE_REAL(squares, sums.b);
    for (int k = 0; k < VEC_LANES; k++) {
        const double delta = deviation[k] * inverse, taken = deviation[k] * delta;
        const double corrected = squares[k] - taken;
        rest[p + k] = delta;
        m2[p + k] = corrected < 0 ? 0 : corrected;
        far |= (unsigned)(corrected < taken) << k;
    }
    return far;
}

/* Mean (center + rest) and sum of squared deviations of every pixel over `n` channels, up to a
 * segment; center is as aligned as a tile. */
OUTLINE void NAME(segment_of_pixels)(const channel_tile *t, const REAL *x, int64_t n,
                                     const bool rms, REAL center[], double rest[], double m2[]) {
    const int64_t first =
        rms || n < LANES ? n : LANES; /* as summed_first of cpu/rows/rows_moments.h */
    _Alignas(64) REAL squares[TILE_PIXELS];
    NAME(column) col = {.pitch = t->pitch};
    for (int64_t p = 0; p < t->padded; p += VEC_LANES) {
        col.x = x + p;
        if (rms)
            STORE_REAL(squares + p, NAME(column_sums)(&col, n, NAME(SQUARES)).b);
        else
            STORE_REAL(center + p, NAME(column_sums)(&col, first, NAME(SUM)).a);
    }
    if (rms) {
        for (int64_t p = 0; p < t->padded; p++)
            m2[p] = squares[p];
        return;
    }
    for (int64_t p = 0; p < t->padded; p++)
        center[p] = (REAL)(center[p] * (1.0 / (double)first));
    for (int64_t p = 0; p < t->padded; p += VEC_LANES) {
        const unsigned far = NAME(center_pixels)(t, x, n, p, center, rest, m2);
        if (__builtin_expect(far == 0, 1))
            continue;
        for (int k = 0; k < VEC_LANES; k++)
            if (far >> k & 1)
                center[p + k] = (REAL)(center[p + k] + rest[p + k]);
        NAME(center_pixels)(t, x, n, p, center, rest, m2);
    }
}

/* Over all channels: their segments, merged in order as those of a row. */
INLINE void NAME(pixel_moments)(const channel_tile *t, const REAL *x, const bool rms, double mean[],
                                double excess[], double m2[]) {
    _Alignas(64) REAL pivot[TILE_PIXELS], center[TILE_PIXELS];
    double *const distance = mean;
    double m2_rest[TILE_PIXELS] = {0};
    NAME(segment_of_pixels)(t, x, NAME(smaller)(t->channels, NAME(SEGMENT)), rms, pivot, distance,
                            m2);
    for (int64_t at = NAME(SEGMENT); at < t->channels; at += NAME(SEGMENT)) {
        const int64_t length = NAME(smaller)(t->channels - at, NAME(SEGMENT)), total = at + length;
        const double share = (double)length / (double)total;
        double rest[TILE_PIXELS], segment_m2[TILE_PIXELS];
        NAME(segment_of_pixels)(t, x + at * t->pitch, length, rms, center, rest, segment_m2);
        for (int64_t p = 0; p < t->padded; p++)
            exact_add(&m2[p], &m2_rest[p], segment_m2[p]);
        for (int64_t p = 0; p < t->padded && !rms; p++) {
            const double step = ((double)center[p] - pivot[p]) + rest[p] - distance[p];
            distance[p] += step * share;
            exact_add(&m2[p], &m2_rest[p], step * step * ((double)at * share));
        }
    }
    for (int64_t p = 0; p < t->padded; p++) {
        m2[p] += m2_rest[p];
        const double rest = distance[p];
        mean[p] = rms ? 0 : pivot[p] + rest;
        excess[p] = rms ? 0 : sum_excess(mean[p], pivot[p], rest);
    }
}

/* What normalises the pixels of a tile: xhat = (x - mean) * rstd + minus_delta. */
typedef struct NAME(pixel_normalizers) {
    _Alignas(64) REAL mean[TILE_PIXELS], rstd[TILE_PIXELS], minus_delta[TILE_PIXELS];
    bool out_of_range[TILE_PIXELS], any_out_of_range;
} NAME(pixel_normalizers);

INLINE void NAME(find_normalizers)(const channel_forward_args *a, const double mean[],
                                   const double excess[], const double m2[], bool rms,
                                   NAME(pixel_normalizers) * s) {
    const channel_tile *t = &a->tile;
    const double inverse = a->rule.inverse;
    const double least = NAME(least_moment)(&a->rule, (double)t->channels);
    double rstd[TILE_PIXELS];
    s->any_out_of_range = false;
    for (int64_t p = 0; p < t->padded; p++)
        rstd[p] = a->given ? m2[p] : NAME(rstd_of)(m2[p], &a->rule);
    for (int64_t p = 0; p < t->pixels; p++) {
        const double var = m2[p] * inverse;
        s->out_of_range[p] =
            a->given ? !(fabs(mean[p]) < BIG) | !(rstd[p] < BIG) : !(var < BIG) | (var < least);
        s->any_out_of_range |= s->out_of_range[p];
    }
    if (!a->given) {
        stat_store_rows(&a->mean, 0, (int)t->pixels, mean);
        stat_store_rows(&a->rstd, 0, (int)t->pixels, rstd);
        stat_store_rows(&a->m2, 0, (int)t->pixels, m2);
    }
    /* With a mean of 0 and this minus_delta the layer's formula is RMSNorm's, to the sign of 0. */
    for (int64_t p = 0; p < t->padded; p++) {
        s->mean[p] = (REAL)mean[p];
        s->rstd[p] = (REAL)rstd[p];
        const double above = sizeof(REAL) == 8 ? excess[p] : s->mean[p] - mean[p];
        s->minus_delta[p] = (REAL)(rms ? -0.0 : above * rstd[p]);
    }
}

/* y of one or two channels from `c` on: to `to`, in whole vectors or up to the last pixel only. */
INLINE void NAME(apply_channels)(const channel_forward_args *a, const NAME(pixel_normalizers) * s,
                                 int64_t c, const int count, char *to, int64_t to_step,
                                 const bool whole, const dtype made, const bool rms,
                                 const planish_activation f) {
    const channel_tile *t = &a->tile;
    const REAL *const weights = a->weight, *const biases = a->bias;
    const REAL *const x0 = (const REAL *)a->scratch + c * t->pitch;
    const REAL *const x1 = x0 + (count - 1) * t->pitch;
    char *const y0 = to, *const y1 = to + (count - 1) * to_step;
    const int64_t pixels = t->pixels, n = whole ? t->padded : pixels;
    const NAME(epilogue) of0 = NAME(epilogue_at)(weights, biases, a->weight_offset, c, f);
    const NAME(epilogue) of1 =
        NAME(epilogue_at)(weights, biases, a->weight_offset, c + count - 1, f);
    for (int64_t p = 0; p < n; p += VEC_LANES) {
        const NAME(normalizer)
            of = {LOAD_REAL(s->mean + p), LOAD_REAL(s->rstd + p), LOAD_REAL(s->minus_delta + p)};
        const VEC v0 = NAME(result)(LOAD_REAL(x0 + p), of, of0, rms);
        const VEC v1 = count == 2 ? NAME(result)(LOAD_REAL(x1 + p), of, of1, rms) : v0;
        if (whole || p + VEC_LANES <= pixels) {
            NAME(store_made)(y0, p, v0, made);
            if (count == 2)
                NAME(store_made)(y1, p, v1, made);
        } else {
            NAME(store_made_part)(y0, p, v0, (int)(pixels - p), made);
            if (count == 2)
                NAME(store_made_part)(y1, p, v1, (int)(pixels - p), made);
        }
    }
}

/* A strip of channels to `to`, two at a time. */
INLINE void NAME(apply_as)(const channel_forward_args *a, const NAME(pixel_normalizers) * s,
                           int64_t c, int64_t channels, char *to, int64_t to_step, const bool whole,
                           const dtype made, const bool rms, const planish_activation f) {
    int64_t k = 0;
    for (; k + 2 <= channels; k += 2)
        NAME(apply_channels)(a, s, c + k, 2, to + k * to_step, to_step, whole, made, rms, f);
    if (k < channels)
        NAME(apply_channels)(a, s, c + k, 1, to + k * to_step, to_step, whole, made, rms, f);
}

INLINE void NAME(apply_strip)(const channel_forward_args *a, const NAME(pixel_normalizers) * s,
                              int64_t c, int64_t channels, char *to, int64_t to_step, bool whole,
                              dtype made, const bool rms, const planish_activation f) {
    if (made == REAL_DTYPE && whole)
        NAME(apply_as)(a, s, c, channels, to, to_step, true, REAL_DTYPE, rms, f);
    else if (made == REAL_DTYPE)
        NAME(apply_as)(a, s, c, channels, to, to_step, false, REAL_DTYPE, rms, f);
    else if (made == DTYPE_BF16 && whole)
        NAME(apply_as)(a, s, c, channels, to, to_step, true, DTYPE_BF16, rms, f);
    else if (made == DTYPE_BF16)
        NAME(apply_as)(a, s, c, channels, to, to_step, false, DTYPE_BF16, rms, f);
    else if (whole)
        NAME(apply_as)(a, s, c, channels, to, to_step, true, DTYPE_F16, rms, f);
    else
        NAME(apply_as)(a, s, c, channels, to, to_step, false, DTYPE_F16, rms, f);
}

/* Pixels whose arithmetic would leave the range, one by one. */
OUTLINE void NAME(overflow_pixels)(const channel_forward_args *a, const NAME(pixel_normalizers) * s,
                                   bool rms) {
    const channel_tile *t = &a->tile;
    REAL *const x = a->rows, *const y = x + t->channels;
    for (int64_t p = 0; p < t->pixels; p++) {
        if (!s->out_of_range[p])
            continue;
        NAME(read_pixel)(t, a->scratch, p, x);
        const forward_args row = {
            .rows = 1,
            .cols = t->channels,
            .x = (const char *)x,
            .y = a->y.data ? (char *)y : NULL,
            .weight = a->weight,
            .bias = a->bias,
            .weight_offset = a->weight_offset,
            .rule = a->rule,
            .mean = stat_at(&a->mean, p),
            .rstd = stat_at(&a->rstd, p),
            .m2 = stat_at(&a->m2, p),
            .given = a->given,
            .activation = a->activation,
        };
        overflow_forward_row(&row, 0, rms ? PLANISH_RMS : PLANISH_LAYER, REAL_DTYPE, REAL_DTYPE);
        if (a->y.data)
            NAME(write_pixel)(t, &a->y, p, y);
    }
}

INLINE void NAME(write_tile)(const channel_forward_args *a, const NAME(pixel_normalizers) * s,
                             const bool rms, const bool activated) {
    const channel_tile *t = &a->tile;
    const planish_activation f = activated ? a->activation : PLANISH_IDENTITY;
    /* A text for each dtype would be long; what follows takes longer than a conversion does. */
    const dtype made = activated ? REAL_DTYPE : NAME(made_as)(&a->y);
    const bool stream = a->traffic == TRAFFIC_STREAM && (!activated || made == a->y.type) &&
                        NAME(is_lines)(t, &a->y);
    const bool direct = !stream && made == a->y.type && a->y.pitch == dtype_bytes(made);
    _Alignas(64) REAL strip[NAME(STRIP) * TILE_PIXELS];
    for (int64_t c = 0; c < t->channels; c += NAME(STRIP)) {
        const int64_t channels = NAME(smaller)(NAME(STRIP), t->channels - c);
        if (a->traffic != TRAFFIC_CACHED)
            NAME(prefetch_next)(t, &a->x, a->next_x, c, channels);
        if (direct) {
            if (a->traffic != TRAFFIC_CACHED)
                NAME(prefetch_output)(t, &a->y, c + NAME(STRIP));
            NAME(apply_strip)(a, s, c, channels, a->y.data + c * a->y.step, a->y.step, false, made,
                              rms, f);
            continue;
        }
        NAME(apply_strip)(a, s, c, channels, (char *)strip, t->padded * dtype_bytes(made), true,
                          made, rms, f);
        NAME(write_out)(t, strip, made, &a->y, c, channels, 0, t->pixels, stream);
    }
}

/* The statistics of a tile, and what makes y of them. */
INLINE void NAME(tile_normalizers)(const channel_forward_args *a, const bool rms,
                                   NAME(pixel_normalizers) * s) {
    const channel_tile *t = &a->tile;
    REAL *const x = a->scratch;
    double mean[TILE_PIXELS], m2[TILE_PIXELS]; /* where they are given, rstd in place of m2 */
    double excess[TILE_PIXELS] = {0};
    NAME(bring)(t, x, &a->x, a->traffic);
    if (a->given || rms)
        memset(mean, 0, sizeof mean);
    if (a->given) {
        memset(m2, 0, sizeof m2);
        for (int64_t p = 0; p < t->pixels; p++) {
            mean[p] = rms ? 0 : stat_load(&a->mean, p);
            m2[p] = stat_load(&a->rstd, p);
        }
    } else {
        NAME(pixel_moments)(t, x, rms, mean, excess, m2);
    }
    NAME(find_normalizers)(a, mean, excess, m2, rms, s);
}

INLINE void NAME(forward_tile)(const channel_forward_args *a, const bool rms) {
    NAME(pixel_normalizers) s;
    NAME(tile_normalizers)(a, rms, &s);
    if (a->y.data)
        NAME(write_tile)(a, &s, rms, false);
    if (__builtin_expect(s.any_out_of_range, 0))
        NAME(overflow_pixels)(a, &s, rms);
}

static void NAME(forward_layer)(const channel_forward_args *a) {
    NAME(forward_tile)(a, false);
}
static void NAME(forward_rms)(const channel_forward_args *a) {
    NAME(forward_tile)(a, true);
}
static void NAME(forward_activated)(const channel_forward_args *a) {
    NAME(pixel_normalizers) s;
    if (a->kind == PLANISH_RMS)
        NAME(tile_normalizers)(a, true, &s);
    else
        NAME(tile_normalizers)(a, false, &s);
    if (a->y.data)
        NAME(write_tile)(a, &s, false, true);
    if (__builtin_expect(s.any_out_of_range, 0))
        NAME(overflow_pixels)(a, &s, a->kind == PLANISH_RMS);
}
