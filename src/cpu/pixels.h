/*
 * Groups of channels of an image stored by pixel, its channels neighbours (GroupNorm and
 * InstanceNorm, channels last); part of cpu/rows.h, whose parameters and helpers it uses, once for
 * each element dtype. A strip is some groups beside each other, with all pixels. Every sum is one
 * channel's first: of QUAD pixels by a fixed tree, of the quads of a block in their order, of the
 * blocks in f64. So it depends neither on how groups are cut into strips nor on the vectors.
 */

/* A block of a strip stays near while it is summed twice. */
enum { NAME(PIXEL_BLOCK) = 128, NAME(QUAD) = 4, NAME(PIXELS_AHEAD) = 8 };

/* What is known of a strip's channels, an array each, in its scratch. */
typedef struct NAME(strip_channels) {
    double *sums[3]; /* forward: mean, m2, in range; backward: sums of xhat, dy, dy * xhat */
    REAL *mean, *rstd, *shift, *weight, *bias;
    REAL *minus_c2; /* backward, whose c1 is in bias */
    REAL *block[3]; /* sums of a block */
} NAME(strip_channels);

INLINE NAME(strip_channels) NAME(strip_layout)(void *scratch, int64_t channels) {
    NAME(strip_channels) s;
    double *at = scratch;
    for (int i = 0; i < 3; i++, at += channels)
        s.sums[i] = at;
    REAL *const real = (REAL *)at;
    s.mean = real;
    s.rstd = real + channels;
    s.shift = real + 2 * channels;
    s.weight = real + 3 * channels;
    s.bias = real + 4 * channels;
    s.minus_c2 = real + 5 * channels;
    for (int i = 0; i < 3; i++)
        s.block[i] = real + (6 + i) * channels;
    return s;
}

/* A vector of channels of which `left` are left, from and to arrays of the compute type. */
INLINE VEC NAME(load_channels)(const REAL *p, int64_t left) {
    return left >= VEC_LANES ? LOAD_REAL(p) : LOAD_REAL_PART(p, (int)left);
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

/* ---- Forward --------------------------------------------------------------------------------- */

enum { NAME(OF_X), NAME(OF_SQUARES), NAME(ABOUT_CENTER) };

/* Adds the quad at x, of `count` pixels, to the block's sums: of x (to block[0]), of squares
 * (block[1]), or of both about the center (block[2]). */
INLINE void NAME(add_quad)(const char *x, int64_t pitch, const int count, int64_t channels,
                           const NAME(strip_channels) * s, int64_t ahead, const int what) {
    for (int64_t c = 0; c < channels; c += VEC_LANES) {
        const int64_t left = channels - c;
        const char *const at = x + c * (int64_t)sizeof(ELEMENT_T);
        VEC v[NAME(QUAD)];
        NAME(load_quad)(at, pitch, count, left, v);
        UNROLL for (int k = 0; k < NAME(QUAD); k++)
            NAME(ask_for)((const ELEMENT_T *)(at + k * pitch), ahead, TRAFFIC_AHEAD);
        if (what == NAME(ABOUT_CENTER)) {
            const VEC center = NAME(load_channels)(s->block[2] + c, left);
            UNROLL for (int k = 0; k < NAME(QUAD); k++) if (k < count) v[k] = V(sub)(v[k], center);
        }
        if (what != NAME(OF_SQUARES))
            NAME(add_to_channels)(s->block[0] + c, NAME(quad_sum)(v), left);
        if (what != NAME(OF_X))
            NAME(add_to_channels)(s->block[1] + c, NAME(quad_dot)(v, v), left);
    }
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
    const int64_t ahead = NAME(PIXELS_AHEAD) * pitch;
    double *const distance = s->sums[0], *const m2 = s->sums[1];
    REAL *const sum = s->block[0], *const squares = s->block[1], *const center = s->block[2];
    memset(m2, 0, (size_t)channels * sizeof *m2);
    for (int64_t p = 0; p < a->pixels; p += NAME(PIXEL_BLOCK)) {
        const char *const x = a->x + p * pitch;
        const int64_t n = NAME(min)(NAME(PIXEL_BLOCK), a->pixels - p);
        if (rms) {
            NAME(sum_block)(x, pitch, n, channels, s, ahead, NAME(OF_SQUARES));
            for (int64_t c = 0; c < channels; c++)
                m2[c] += squares[c];
            continue;
        }
        const double inverse = 1.0 / (double)n, share = (double)n / (double)(p + n);
        const double spread = (double)p * share;
        NAME(sum_block)(x, pitch, n, channels, s, ahead, NAME(OF_X));
        for (int64_t c = 0; c < channels; c++)
            center[c] = sum[c] * (REAL)inverse;
        if (p == 0) {
            memcpy(s->mean, center, (size_t)channels * sizeof *center);
            memset(distance, 0, (size_t)channels * sizeof *distance);
        }
        NAME(sum_block)(x, pitch, n, channels, s, 0, NAME(ABOUT_CENTER));
        for (int64_t c = 0; c < channels; c++) {
            const double rest = sum[c] * inverse;
            const double step = ((double)center[c] - s->mean[c]) + rest - distance[c];
            distance[c] += step * share;
            m2[c] += squares[c] - sum[c] * rest + step * step * spread;
        }
    }
}

/* A sum in four chains, for there may be many channels. */
INLINE void NAME(add_in_chains)(double chains[4], int64_t i, double value) {
    chains[i % 4] += value;
}
INLINE double NAME(chains_sum)(const double chains[4]) {
    return (chains[0] + chains[2]) + (chains[1] + chains[3]);
}

/* The mean of a group, as its distance from the pivot of the first channel, and its m2: from those
 * of its channels, which have as many pixels each. */
INLINE void NAME(merge_channels)(const NAME(strip_channels) * s, int64_t first, int64_t depth,
                                 int64_t pixels, const bool rms, double *distance, double *m2) {
    const REAL *const pivots = s->mean + first;
    const double *const distances = s->sums[0] + first, *const m2s = s->sums[1] + first;
    double sum[4] = {0}, squares[4] = {0};
    *distance = 0;
    if (!rms) {
        for (int64_t c = 0; c < depth; c++)
            NAME(add_in_chains)(sum, c, ((double)pivots[c] - pivots[0]) + distances[c]);
        *distance = NAME(chains_sum)(sum) / (double)depth;
    }
    for (int64_t c = 0; c < depth; c++) {
        const double d = rms ? 0 : ((double)pivots[c] - pivots[0]) + distances[c] - *distance;
        NAME(add_in_chains)(squares, c, m2s[c] + d * d * (double)pixels);
    }
    *m2 = NAME(chains_sum)(squares);
}

/* What makes y of a strip's channels; false where a group is not in range. */
INLINE bool NAME(strip_scales)(const strip_forward_args *a, const NAME(strip_channels) * s,
                               const bool rms) {
    const REAL *const weights = a->weight, *const biases = a->bias;
    const double inverse = 1.0 / (double)(a->depth * a->pixels);
    const double least = a->eps < TINY_EPS ? TINY_VAR : -1;
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
            pivot = rms ? 0 : s->mean[first];
            NAME(merge_channels)(s, first, a->depth, a->pixels, rms, &distance, &m2);
            rstd = 1 / sqrt(m2 * inverse + a->eps);
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
            s->mean[c] = mean;
            s->rstd[c] = (REAL)rstd;
            s->shift[c] = (REAL)((mean - pivot - distance) * rstd);
            s->weight[c] = weights ? weights[c] + (REAL)a->weight_offset : 1;
            s->bias[c] = biases ? biases[c] : (REAL)-0.0;
        }
    }
    return all_in_range;
}

/* y of channels [first, last) of the pixel at x, to `to`. */
INLINE void NAME(pixel_apply)(const ELEMENT_T *x, ELEMENT_T *to, const NAME(strip_channels) * s,
                              int64_t first, int64_t last, const bool rms) {
    for (int64_t c = first; c < last; c += VEC_LANES) {
        const int64_t left = last - c;
        const VEC rstd = NAME(load_channels)(s->rstd + c, left);
        VEC v = NAME(load_x)(x + c, left);
        if (rms)
            v = V(mul)(v, rstd);
        else
            v = V(fma)(V(sub)(v, NAME(load_channels)(s->mean + c, left)), rstd,
                       NAME(load_channels)(s->shift + c, left));
        NAME(store_x)(to + (c - first),
                      V(fma)(v, NAME(load_channels)(s->weight + c, left),
                             NAME(load_channels)(s->bias + c, left)),
                      left);
    }
}

/* Whether channels of every pixel are whole lines that may go past the cache. */
INLINE bool NAME(strip_is_lines)(traffic t, const char *output, int64_t pitch, int64_t channels) {
    const int64_t bytes = channels * (int64_t)sizeof(ELEMENT_T);
    return t == TRAFFIC_STREAM &&
           ((uintptr_t)output | (uintptr_t)pitch | (uintptr_t)bytes) % 64 == 0;
}

INLINE void NAME(strip_apply)(const strip_forward_args *a, const NAME(strip_channels) * s,
                              int64_t first, int64_t last, const bool rms) {
    const bool lines = last - first <= NAME(PIECE) &&
                       NAME(strip_is_lines)(a->traffic, a->y + first * (int64_t)sizeof(ELEMENT_T),
                                            a->y_pitch, last - first);
    _Alignas(64) ELEMENT_T piece[NAME(PIECE)];
    for (int64_t p = 0; p < a->pixels; p++) {
        const ELEMENT_T *const x = (const ELEMENT_T *)(a->x + p * a->x_pitch);
        ELEMENT_T *const y = (ELEMENT_T *)(a->y + p * a->y_pitch);
        NAME(ask_for_row)(x + first, NAME(PIXELS_AHEAD) * a->x_pitch, last - first,
                          a->traffic != TRAFFIC_CACHED, 0);
        NAME(pixel_apply)(x, lines ? piece : y + first, s, first, last, rms);
        if (lines)
            stream_lines(y + first, piece, (last - first) * (int64_t)sizeof(ELEMENT_T));
    }
    if (lines)
        VEC_FENCE();
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
        .eps = a->eps,
        .mean = stat_at(&a->mean, group),
        .rstd = stat_at(&a->rstd, group),
        .m2 = stat_at(&a->m2, group),
        .given = a->given,
        .weight_span = a->pixels,
        .by_pixel = true,
    };
    wide_forward_row(&row, 0, rms ? PLANISH_RMS : PLANISH_LAYER, DTYPE_OF(ELEMENT),
                     DTYPE_OF(REAL_TOKEN));
}

INLINE void NAME(strip_forward)(const strip_forward_args *a, const bool rms) {
    const int64_t channels = a->groups * a->depth;
    const NAME(strip_channels) s = NAME(strip_layout)(a->scratch, channels);
    if (!a->given)
        NAME(strip_moments)(a, &s, rms);
    const bool in_range = NAME(strip_scales)(a, &s, rms);
    if (__builtin_expect(in_range, 1)) {
        if (a->y)
            NAME(strip_apply)(a, &s, 0, channels, rms);
        return;
    }
    for (int64_t g = 0; g < a->groups; g++)
        if (s.sums[2][g] == 0)
            NAME(strip_wide_forward)(a, g, rms);
        else if (a->y)
            NAME(strip_apply)(a, &s, g * a->depth, (g + 1) * a->depth, rms);
}

/* ---- Backward -------------------------------------------------------------------------------- */

/* Adds a quad's xhat, dy and dy * xhat to the block's sums. */
INLINE void NAME(add_gradient_quad)(const strip_backward_args *a, const NAME(strip_channels) * s,
                                    int64_t p, const int count, const bool rms) {
    const int64_t channels = a->groups * a->depth;
    for (int64_t c = 0; c < channels; c += VEC_LANES) {
        const int64_t left = channels - c, bytes = c * (int64_t)sizeof(ELEMENT_T);
        const char *const x = a->x + p * a->x_pitch + bytes;
        const char *const dy = a->dy + p * a->dy_pitch + bytes;
        const VEC mean = NAME(load_channels)(s->mean + c, left);
        const VEC rstd = NAME(load_channels)(s->rstd + c, left);
        VEC v[NAME(QUAD)], d[NAME(QUAD)];
        NAME(load_quad)(x, a->x_pitch, count, left, v);
        NAME(load_quad)(dy, a->dy_pitch, count, left, d);
        UNROLL for (int k = 0; k < NAME(QUAD); k++) {
            NAME(ask_for)((const ELEMENT_T *)(x + k * a->x_pitch), NAME(PIXELS_AHEAD) * a->x_pitch,
                          TRAFFIC_AHEAD);
            NAME(ask_for)((const ELEMENT_T *)(dy + k * a->dy_pitch),
                          NAME(PIXELS_AHEAD) * a->dy_pitch, TRAFFIC_AHEAD);
            if (k < count)
                v[k] = V(mul)(rms ? v[k] : V(sub)(v[k], mean), rstd);
        }
        if (!rms)
            NAME(add_to_channels)(s->block[0] + c, NAME(quad_sum)(v), left);
        NAME(add_to_channels)(s->block[1] + c, NAME(quad_sum)(d), left);
        NAME(add_to_channels)(s->block[2] + c, NAME(quad_dot)(d, v), left);
    }
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
            s->mean[c] = mean;
            s->rstd[c] = rstd;
            s->weight[c] = weights ? weights[c] + (REAL)a->weight_offset : 1;
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
        c1 += s->weight[c] * s->sums[1][c];
        c2 += s->weight[c] * s->sums[2][c];
    }
    delta = rms ? 0 : delta * inverse;
    c1 = rms ? 0 : c1 * inverse;
    c2 = c2 * inverse - c1 * delta;
    for (int64_t c = first; c < last; c++) {
        a->dweight[c] = s->sums[2][c] - delta * s->sums[1][c];
        a->dbias[c] = s->sums[1][c];
        s->shift[c] = (REAL)-delta;
        s->bias[c] = (REAL)c1;
        s->minus_c2[c] = (REAL)-c2;
    }
    return fabs(delta) < BIG && fabs(c1) < BIG && fabs(c2) < BIG;
}

/* The same of dx. */
INLINE void NAME(pixel_gradient)(const ELEMENT_T *x, const ELEMENT_T *dy, ELEMENT_T *to,
                                 const NAME(strip_channels) * s, int64_t first, int64_t last,
                                 const bool rms) {
    for (int64_t c = first; c < last; c += VEC_LANES) {
        const int64_t left = last - c;
        const VEC rstd = NAME(load_channels)(s->rstd + c, left);
        VEC xhat = NAME(load_x)(x + c, left);
        VEC g = V(mul)(NAME(load_x)(dy + c, left), NAME(load_channels)(s->weight + c, left));
        if (rms) {
            xhat = V(mul)(xhat, rstd);
        } else {
            xhat = V(fma)(V(sub)(xhat, NAME(load_channels)(s->mean + c, left)), rstd,
                          NAME(load_channels)(s->shift + c, left));
            g = V(sub)(g, NAME(load_channels)(s->bias + c, left));
        }
        const VEC minus_c2 = NAME(load_channels)(s->minus_c2 + c, left);
        NAME(store_x)(to + (c - first), V(mul)(V(fma)(xhat, minus_c2, g), rstd), left);
    }
}

INLINE void NAME(strip_gradient)(const strip_backward_args *a, const NAME(strip_channels) * s,
                                 int64_t first, int64_t last, const bool rms) {
    const bool lines = last - first <= NAME(PIECE) &&
                       NAME(strip_is_lines)(a->traffic, a->dx + first * (int64_t)sizeof(ELEMENT_T),
                                            a->dx_pitch, last - first);
    const bool asks = a->traffic != TRAFFIC_CACHED;
    _Alignas(64) ELEMENT_T piece[NAME(PIECE)];
    for (int64_t p = 0; p < a->pixels; p++) {
        const ELEMENT_T *const x = (const ELEMENT_T *)(a->x + p * a->x_pitch);
        const ELEMENT_T *const dy = (const ELEMENT_T *)(a->dy + p * a->dy_pitch);
        ELEMENT_T *const dx = (ELEMENT_T *)(a->dx + p * a->dx_pitch);
        NAME(ask_for_row)(x + first, NAME(PIXELS_AHEAD) * a->x_pitch, last - first, asks, 0);
        NAME(ask_for_row)(dy + first, NAME(PIXELS_AHEAD) * a->dy_pitch, last - first, asks, 0);
        NAME(pixel_gradient)(x, dy, lines ? piece : dx + first, s, first, last, rms);
        if (lines)
            stream_lines(dx + first, piece, (last - first) * (int64_t)sizeof(ELEMENT_T));
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

static void NAME(strip_forward_layer)(const strip_forward_args *a) {
    NAME(strip_forward)(a, false);
}
static void NAME(strip_forward_rms)(const strip_forward_args *a) {
    NAME(strip_forward)(a, true);
}
static void NAME(strip_backward_layer)(const strip_backward_args *a) {
    NAME(strip_backward)(a, false);
}
static void NAME(strip_backward_rms)(const strip_backward_args *a) {
    NAME(strip_backward)(a, true);
}
