/* Backward of a tile of pixels; part of cpu/channels/channels.h, whose parameters and helpers it
 * uses. */
#include "cpu/common/saved_mean.h"

/* Pixels of a tile are added up for dweight and dbias in this many lanes. */
enum { NAME(PIXEL_LANES) = LANES / 2, NAME(PIXEL_PARTS) = LANES / 2 / VEC_LANES };

/* What the gradients of a tile's pixels are made of: xhat = (x - mean) * rstd + minus_delta and
 * dx = (dy * weight - c1 - xhat * c2) * rstd. */
typedef struct NAME(pixel_gradients) {
    _Alignas(64) REAL mean[TILE_PIXELS], rstd[TILE_PIXELS],
        minus_delta[TILE_PIXELS], c1[TILE_PIXELS], minus_c2[TILE_PIXELS];
    bool out_of_range[TILE_PIXELS], any_out_of_range;
} NAME(pixel_gradients);

INLINE void NAME(find_gradients)(const channel_backward_args *a, const bool rms,
                                 NAME(pixel_gradients) * s) {
    const channel_tile *t = &a->tile;
    const REAL *const x = a->scratch, *const dy = x + t->channels * t->pitch;
    const double inverse = a->rule.inverse;
    _Alignas(64) REAL sums[3][TILE_PIXELS];
    double delta[TILE_PIXELS] = {0}, c1[TILE_PIXELS] = {0}, c2[TILE_PIXELS] = {0};
    double *const total[3] = {delta, c1, c2};
    double rest[3][TILE_PIXELS] = {{0}};
    for (int64_t p = 0; p < t->padded; p++) {
        const bool real = p < t->pixels;
        s->rstd[p] = real ? (REAL)stat_load(&a->rstd, p) : 0;
        s->mean[p] = real && !rms ? (REAL)stat_load(&a->mean, p) : 0;
    }
    for (int64_t at = 0; at < t->channels; at += NAME(SEGMENT)) {
        const int64_t n = NAME(smaller)(t->channels - at, NAME(SEGMENT));
        NAME(column)
        col = {.pitch = t->pitch,
               .offset = (REAL)a->weight_offset,
               .weight = a->weight ? (const REAL *)a->weight + at : NULL};
        for (int64_t p = 0; p < t->padded; p += VEC_LANES) {
            col.x = x + at * t->pitch + p;
            col.dy = dy + at * t->pitch + p;
            col.mean = LOAD_REAL(s->mean + p);
            col.rstd = LOAD_REAL(s->rstd + p);
            if (rms) {
                STORE_REAL(sums[2] + p, NAME(column_sums)(&col, n, NAME(GRADIENT_RMS)).c);
                continue;
            }
            const NAME(trio) sum = NAME(column_sums)(&col, n, NAME(GRADIENT));
            STORE_REAL(sums[0] + p, sum.a);
            STORE_REAL(sums[1] + p, sum.b);
            STORE_REAL(sums[2] + p, sum.c);
        }
        for (int i = rms ? 2 : 0; i < 3; i++)
            for (int64_t p = 0; p < t->padded; p++)
                exact_add(&total[i][p], &rest[i][p], sums[i][p]);
    }
    for (int i = rms ? 2 : 0; i < 3; i++)
        for (int64_t p = 0; p < t->padded; p++)
            total[i][p] += rest[i][p];
    const mean_reach reach =
        mean_reach_of(rms ? REAL_DTYPE : a->mean.type, REAL_DTYPE == DTYPE_F64);
    for (int64_t p = 0; p < t->pixels; p++)
        delta[p] = rest_of_mean(&reach, &a->mean, p, delta[p] * inverse, s->mean[p], s->rstd[p]);
    s->any_out_of_range = false;
    for (int64_t p = 0; p < t->padded; p++) {
        c1[p] *= inverse;
        c2[p] = rule_c2(&a->rule, c2[p] * inverse - c1[p] * delta[p], s->rstd[p]);
        s->out_of_range[p] = !(fabs(delta[p]) < BIG) | !(fabs(c1[p]) < BIG) | !(fabs(c2[p]) < BIG);
        s->any_out_of_range |= s->out_of_range[p];
        s->minus_delta[p] = (REAL)-delta[p];
        s->c1[p] = (REAL)c1[p];
        s->minus_c2[p] = (REAL)-c2[p];
    }
}

/* dx of one or two channels from `c` on to `to`, in whole vectors or up to the last pixel only, and
 * what the tile adds to their dweight and dbias. */
INLINE void NAME(gradient_channels)(const channel_backward_args *a, const NAME(pixel_gradients) * s,
                                    int64_t c, const int count, const REAL *dsum, char *to,
                                    int64_t to_step, const bool whole, const dtype made,
                                    const bool sums, const bool rms) {
    const channel_tile *t = &a->tile;
    const REAL *const x = (const REAL *)a->scratch + c * t->pitch;
    const REAL *const dy = x + t->channels * t->pitch;
    const REAL *const weights = a->weight;
    const int64_t x_pitch = t->pitch, pixels = t->pixels, padded = t->padded;
    const bool wants_dx = to != NULL;
    const VEC zero = V(set1)(0);
    VEC weight[2], dweight[2][NAME(PIXEL_PARTS)], dbias[2][NAME(PIXEL_PARTS)];
    UNROLL for (int k = 0; k < 2; k++) {
        weight[k] = V(set1)(weights && k < count ? weights[c + k] + (REAL)a->weight_offset : 1);
        UNROLL for (int j = 0; j < NAME(PIXEL_PARTS); j++) dweight[k][j] = dbias[k][j] = zero;
    }
    for (int64_t p = 0; p < padded; p += NAME(PIXEL_LANES))
        UNROLL for (int j = 0; j < NAME(PIXEL_PARTS); j++) {
            const int64_t at = p + j * VEC_LANES;
            const NAME(normalizer) of = {LOAD_REAL(s->mean + at), LOAD_REAL(s->rstd + at),
                                         LOAD_REAL(s->minus_delta + at)};
            const VEC c1 = LOAD_REAL(s->c1 + at), minus_c2 = LOAD_REAL(s->minus_c2 + at);
            UNROLL for (int k = 0; k < count; k++) {
                const VEC d = LOAD_REAL(dy + k * x_pitch + at);
                const VEC xhat = NAME(normalize)(LOAD_REAL(x + k * x_pitch + at), of, rms);
                if (sums) {
                    dweight[k][j] = V(fma)(d, xhat, dweight[k][j]);
                    dbias[k][j] = V(add)(d, dbias[k][j]);
                }
                if (!wants_dx)
                    continue;
                VEC g = V(mul)(d, weight[k]);
                if (!rms)
                    g = V(sub)(g, c1);
                VEC dx = V(mul)(V(fma)(xhat, minus_c2, g), of.rstd);
                if (dsum)
                    dx = V(add)(dx, LOAD_REAL(dsum + k * padded + at));
                if (whole || at + VEC_LANES <= pixels)
                    NAME(store_made)(to + k * to_step, at, dx, made);
                else if (at < pixels)
                    NAME(store_made_part)(to + k * to_step, at, dx, (int)(pixels - at), made);
            }
        }
    if (!sums)
        return;
    UNROLL for (int half = NAME(PIXEL_PARTS) / 2; half; half /= 2)
        UNROLL for (int k = 0; k < count; k++) UNROLL for (int j = 0; j < half; j++) {
        dweight[k][j] = V(add)(dweight[k][j], dweight[k][j + half]);
        dbias[k][j] = V(add)(dbias[k][j], dbias[k][j + half]);
    }
    REAL folded[4];
    V(fold4)(dweight[0][0], dweight[1][0], dbias[0][0], dbias[1][0], folded);
    for (int k = 0; k < count; k++) {
        if (a->dweight_sum)
            a->dweight_sum[c + k] += folded[k];
        if (a->dbias_sum)
            a->dbias_sum[c + k] += folded[2 + k];
    }
}

/* A strip of channels to `to`, two at a time; dsum's strip is added unless that is NULL. */
INLINE void NAME(gradient_as)(const channel_backward_args *a, const NAME(pixel_gradients) * s,
                              int64_t c, int64_t channels, const REAL *dsum, char *to,
                              int64_t to_step, const bool whole, const dtype made, const bool sums,
                              const bool rms) {
    const int64_t padded = a->tile.padded;
    int64_t k = 0;
    for (; k + 2 <= channels; k += 2)
        NAME(gradient_channels)(a, s, c + k, 2, dsum ? dsum + k * padded : NULL,
                                to ? to + k * to_step : NULL, to_step, whole, made, sums, rms);
    if (k < channels)
        NAME(gradient_channels)(a, s, c + k, 1, dsum ? dsum + k * padded : NULL,
                                to ? to + k * to_step : NULL, to_step, whole, made, sums, rms);
}

INLINE void NAME(gradient_strip)(const channel_backward_args *a, const NAME(pixel_gradients) * s,
                                 int64_t c, int64_t channels, const REAL *dsum, char *to,
                                 int64_t to_step, bool whole, dtype made, const bool sums,
                                 const bool rms) {
    if (made == REAL_DTYPE && whole)
        NAME(gradient_as)(a, s, c, channels, dsum, to, to_step, true, REAL_DTYPE, sums, rms);
    else if (made == REAL_DTYPE)
        NAME(gradient_as)(a, s, c, channels, dsum, to, to_step, false, REAL_DTYPE, sums, rms);
    else if (made == DTYPE_BF16)
        NAME(gradient_as)(a, s, c, channels, dsum, to, to_step, whole, DTYPE_BF16, sums, rms);
    else
        NAME(gradient_as)(a, s, c, channels, dsum, to, to_step, whole, DTYPE_F16, sums, rms);
}

/* Brings a strip of dsum's channels to scratch, as a tile is; NULL: there is no dsum. */
OUTLINE const REAL *NAME(strip_of_dsum)(const channel_backward_args *a, int64_t c, int64_t channels,
                                        REAL *strip) {
    channel_tile part = a->tile;
    tile_side from = a->dsum;
    part.channels = channels;
    part.pitch = part.padded;
    from.data += c * from.step;
    NAME(bring)(&part, strip, &from, a->traffic);
    return strip;
}

/*
 * Pixels whose arithmetic would leave the range, one by one. Their place in the tile is cleared:
 * they add nothing to the sums of the others, and what the tile makes of them is not written.
 */
OUTLINE void NAME(overflow_gradients)(const channel_backward_args *a, NAME(pixel_gradients) * s,
                                      bool rms) {
    const channel_tile *t = &a->tile;
    REAL *const tile_x = a->scratch, *const tile_dy = tile_x + t->channels * t->pitch;
    REAL *const x = a->rows, *const dy = x + t->channels, *const dx = dy + t->channels;
    for (int64_t p = 0; p < t->pixels; p++) {
        if (!s->out_of_range[p])
            continue;
        NAME(read_pixel)(t, tile_x, p, x);
        NAME(read_pixel)(t, tile_dy, p, dy);
        /* The tile has gone through the activation already. */
        for (int64_t c = 0; a->activation != PLANISH_IDENTITY && c < t->channels; c++)
            dy[c] = (REAL)element_load(a->dy.data + c * a->dy.step + p * a->dy.pitch, a->dy.type);
        for (int64_t c = 0; a->dsum.data && c < t->channels; c++)
            dx[c] = (REAL)element_load(a->dsum.data + c * a->dsum.step + p * a->dsum.pitch,
                                       a->dsum.type);
        const backward_args row = {
            .rows = 1,
            .cols = t->channels,
            .dy = (const char *)dy,
            .x = (const char *)x,
            .dx = a->dx.data ? (char *)dx : NULL,
            .weight = a->weight,
            .weight_offset = a->weight_offset,
            .rule = a->rule,
            .mean = stat_at(&a->mean, p),
            .rstd = stat_at(&a->rstd, p),
            .dweight = a->dweight,
            .dbias = a->dbias,
            .activation = a->activation,
            .bias = a->bias,
            .dsum = a->dsum.data ? (const char *)dx : NULL,
        };
        overflow_backward_row(&row, 0, rms ? PLANISH_RMS : PLANISH_LAYER, REAL_DTYPE, REAL_DTYPE);
        if (a->dx.data)
            NAME(write_pixel)(t, &a->dx, p, dx);
        for (int64_t c = 0; c < t->channels; c++)
            tile_x[c * t->pitch + p] = tile_dy[c * t->pitch + p] = 0;
        s->mean[p] = s->rstd[p] = s->minus_delta[p] = s->c1[p] = s->minus_c2[p] = 0;
    }
}

/* A strip of dx to the pixels that are in range. */
OUTLINE void NAME(write_in_range)(const channel_backward_args *a, const NAME(pixel_gradients) * s,
                                  const void *strip, dtype made, int64_t c, int64_t channels) {
    const channel_tile *t = &a->tile;
    for (int64_t first = 0, last; first < t->pixels; first = last + 1) {
        for (last = first; last < t->pixels && !s->out_of_range[last];)
            last++;
        if (last > first)
            NAME(write_out)(t, strip, made, &a->dx, c, channels, first, last, false);
    }
}

INLINE void NAME(gradient_tile)(const channel_backward_args *a, const NAME(pixel_gradients) * s,
                                const bool sums, const bool rms) {
    const channel_tile *t = &a->tile;
    const dtype made = NAME(made_as)(&a->dx);
    const bool stream =
        a->traffic == TRAFFIC_STREAM && !s->any_out_of_range && NAME(is_lines)(t, &a->dx);
    const bool direct =
        !stream && !s->any_out_of_range && made == a->dx.type && a->dx.pitch == dtype_bytes(made);
    _Alignas(64) REAL strip[NAME(STRIP) * TILE_PIXELS], added[NAME(STRIP) * TILE_PIXELS];
    for (int64_t c = 0; c < t->channels; c += NAME(STRIP)) {
        const int64_t channels = NAME(smaller)(NAME(STRIP), t->channels - c);
        const REAL *dsum = a->dsum.data ? NAME(strip_of_dsum)(a, c, channels, added) : NULL;
        if (a->traffic != TRAFFIC_CACHED) {
            NAME(prefetch_next)(t, &a->x, a->next_x, c, channels);
            NAME(prefetch_next)(t, &a->dy, a->next_dy, c, channels);
        }
        if (!a->dx.data) {
            NAME(gradient_strip)(a, s, c, channels, NULL, NULL, 0, true, REAL_DTYPE, sums, rms);
        } else if (direct) {
            if (a->traffic != TRAFFIC_CACHED)
                NAME(prefetch_output)(t, &a->dx, c + NAME(STRIP));
            NAME(gradient_strip)(a, s, c, channels, dsum, a->dx.data + c * a->dx.step, a->dx.step,
                                 false, made, sums, rms);
        } else {
            NAME(gradient_strip)(a, s, c, channels, dsum, (char *)strip,
                                 t->padded * dtype_bytes(made), true, made, sums, rms);
            if (s->any_out_of_range)
                NAME(write_in_range)(a, s, strip, made, c, channels);
            else
                NAME(write_out)(t, strip, made, &a->dx, c, channels, 0, t->pixels, stream);
        }
    }
}

INLINE void NAME(bring_both)(const channel_backward_args *a) {
    const channel_tile *t = &a->tile;
    REAL *const x = a->scratch;
    NAME(bring)(t, x, &a->x, a->traffic);
    NAME(bring)(t, x + t->channels * t->pitch, &a->dy, a->traffic);
}

/* What is done with a tile of x and of the gradient of what the norm alone returns. */
INLINE void NAME(backward_brought)(const channel_backward_args *a, const bool rms) {
    NAME(pixel_gradients) s;
    NAME(find_gradients)(a, rms, &s);
    if (__builtin_expect(s.any_out_of_range, 0))
        NAME(overflow_gradients)(a, &s, rms);
    if (a->dweight_sum || a->dbias_sum)
        NAME(gradient_tile)(a, &s, true, rms);
    else
        NAME(gradient_tile)(a, &s, false, rms);
}

ONE_COPY void NAME(backward_brought_layer)(const channel_backward_args *a) {
    NAME(backward_brought)(a, false);
}
ONE_COPY void NAME(backward_brought_rms)(const channel_backward_args *a) {
    NAME(backward_brought)(a, true);
}

static void NAME(backward_layer)(const channel_backward_args *a) {
    NAME(bring_both)(a);
    NAME(backward_brought_layer)(a);
}
static void NAME(backward_rms)(const channel_backward_args *a) {
    NAME(bring_both)(a);
    NAME(backward_brought_rms)(a);
}

/* ---- Where an activation follows ------------------------------------------------------------- */

/* What normalises the pixels of a tile by their saved means, mended as find_gradients mends them
 * after the sums. */
OUTLINE void NAME(saved_normalizers)(const channel_backward_args *a, NAME(pixel_normalizers) * s) {
    const channel_tile *t = &a->tile;
    const bool rms = a->kind == PLANISH_RMS;
    const REAL *const x = a->scratch;
    const mean_reach reach =
        mean_reach_of(rms ? REAL_DTYPE : a->mean.type, REAL_DTYPE == DTYPE_F64);
    const double inverse = a->rule.inverse;
    _Alignas(64) REAL sums[TILE_PIXELS];
    double total[TILE_PIXELS] = {0}, rest[TILE_PIXELS] = {0};
    for (int64_t p = 0; p < t->padded; p++) {
        const bool real = p < t->pixels;
        s->rstd[p] = real ? (REAL)stat_load(&a->rstd, p) : 0;
        s->mean[p] = real && !rms ? (REAL)stat_load(&a->mean, p) : 0;
        s->minus_delta[p] = (REAL)-0.0;
    }
    for (int64_t at = 0; at < t->channels && !rms && !reach.is_exact; at += NAME(SEGMENT)) {
        const int64_t n = NAME(smaller)(t->channels - at, NAME(SEGMENT));
        for (int64_t p = 0; p < t->padded; p += VEC_LANES) {
            const REAL *const from = x + at * t->pitch + p;
            const NAME(column) col = {.x = from,
                                      .dy = from,
                                      .pitch = t->pitch,
                                      .mean = LOAD_REAL(s->mean + p),
                                      .rstd = LOAD_REAL(s->rstd + p)};
            STORE_REAL(sums + p, NAME(column_sums)(&col, n, NAME(GRADIENT)).a);
        }
        for (int64_t p = 0; p < t->padded; p++)
            exact_add(&total[p], &rest[p], sums[p]);
    }
    for (int64_t p = 0; p < t->pixels && !rms; p++)
        s->minus_delta[p] = (REAL)-rest_of_mean(&reach, &a->mean, p, (total[p] + rest[p]) * inverse,
                                                s->mean[p], s->rstd[p]);
}

/* Makes dy of a tile the gradient of what went into the activation. */
OUTLINE void NAME(tile_through)(const channel_backward_args *a, const NAME(pixel_normalizers) * s) {
    const channel_tile *t = &a->tile;
    const REAL *x = a->scratch;
    REAL *dy = (REAL *)a->scratch + t->channels * t->pitch;
    for (int64_t c = 0; c < t->channels; c++, x += t->pitch, dy += t->pitch) {
        const NAME(epilogue) of =
            NAME(epilogue_at)(a->weight, a->bias, a->weight_offset, c, a->activation);
        for (int64_t p = 0; p < t->padded; p += VEC_LANES) {
            const NAME(normalizer) by = {LOAD_REAL(s->mean + p), LOAD_REAL(s->rstd + p),
                                         LOAD_REAL(s->minus_delta + p)};
            const VEC xhat = NAME(normalize)(LOAD_REAL(x + p), by, false);
            STORE_REAL(dy + p, NAME(through)(of, LOAD_REAL(dy + p), xhat));
        }
    }
}

static void NAME(backward_activated)(const channel_backward_args *a) {
    NAME(pixel_normalizers) s;
    NAME(bring_both)(a);
    NAME(saved_normalizers)(a, &s);
    NAME(tile_through)(a, &s);
    if (a->kind == PLANISH_RMS)
        NAME(backward_brought_rms)(a);
    else
        NAME(backward_brought_layer)(a);
}
