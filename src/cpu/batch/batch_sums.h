/* The backward's sums of channels, and how it comes from dy to the gradient of what the norm
 * returns; part of cpu/batch/kernels_batch.c. */

/* Of a channel, or of a vector of channels. */
typedef struct NAME(behind) {
    VEC mean, rstd, scale, shift, least;
} NAME(behind);

INLINE NAME(behind) NAME(behind_at)(const batch_gradient_args *a, int64_t c) {
    const REAL *const *const f = (const REAL *const *)a->factor;
    return (NAME(behind)){V(set1)(f[FACTOR_MEAN][c]), V(set1)(f[FACTOR_RSTD][c]),
                          V(set1)(f[FACTOR_SCALE][c]), V(set1)(f[FACTOR_SHIFT][c]),
                          V(set1)((REAL)a->least)};
}
INLINE NAME(behind) NAME(behind_vector)(const batch_gradient_args *a, int64_t c, int64_t left) {
    const REAL *const *const f = (const REAL *const *)a->factor;
    return (NAME(behind)){NAME(load_real)(f[FACTOR_MEAN] + c, left),
                          NAME(load_real)(f[FACTOR_RSTD] + c, left),
                          NAME(load_real)(f[FACTOR_SCALE] + c, left),
                          NAME(load_real)(f[FACTOR_SHIFT] + c, left), V(set1)((REAL)a->least)};
}

/* d of dy, by x - mean and by what else this way reads: y, or the addend, -0 where there is none.
 */
INLINE VEC NAME(gradient_of_z)(VEC dy, VEC centered, VEC other, NAME(behind) b,
                               const batch_through way, planish_activation f) {
    if (way == THROUGH_NOTHING)
        return dy;
    if (way == THROUGH_MASK)
        return V(drop)(dy, other, V(set1)(0));
    const VEC z = V(add)(V(fma)(centered, b.scale, b.shift), other);
    if (way == THROUGH_RELU)
        return V(drop)(dy, z, b.least);
    const NAME(epilogue) of = {f, V(set1)(1), V(set1)((REAL)-0.0)};
    return NAME(through)(of, dy, z);
}

/* What a way reads beside dy and x; data NULL: nothing. */
INLINE batch_side NAME(other_side)(const batch_gradient_args *a, const batch_through way) {
    return way == THROUGH_MASK ? a->y : way == THROUGH_NOTHING ? (batch_side){0} : a->addend;
}

/* ---- By channel ------------------------------------------------------------------------------ */

typedef struct NAME(three) {
    NAME(lanes) xhat, d, product;
} NAME(three);

INLINE void NAME(add_gradient)(NAME(three) * s, NAME(lanes) x, NAME(lanes) dy, NAME(lanes) other,
                               NAME(behind) b, const batch_through way, planish_activation f) {
    UNROLL for (int k = 0; k < NAME(PARTS); k++) {
        const VEC centered = V(sub)(x.part[k], b.mean), t = V(mul)(centered, b.rstd);
        const VEC d = NAME(gradient_of_z)(dy.part[k], centered, other.part[k], b, way, f);
        s->xhat.part[k] = V(add)(s->xhat.part[k], t);
        s->d.part[k] = V(add)(s->d.part[k], d);
        s->product.part[k] = V(fma)(d, t, s->product.part[k]);
    }
}

INLINE NAME(lanes) NAME(lanes_of)(REAL value) {
    NAME(lanes) v;
    UNROLL for (int k = 0; k < NAME(PARTS); k++) v.part[k] = V(set1)(value);
    return v;
}

/* The same of the last elements of a piece. */
INLINE void NAME(add_last_gradient)(NAME(three) * s, const ELEMENT_T *x, const ELEMENT_T *dy,
                                    const ELEMENT_T *other, int64_t span, int64_t left,
                                    const NAME(lanes) * own, NAME(behind) b,
                                    const batch_through way, planish_activation f) {
    NAME(lanes) v = NAME(load_last)(x, span, left), d = NAME(load_last)(dy, span, left);
    const NAME(lanes) o = other ? NAME(load_last)(other, span, left) : NAME(lanes_of)((REAL)-0.0);
    UNROLL for (int k = 0; k < NAME(PARTS); k++) {
        const VEC centered = V(sub)(v.part[k], b.mean);
        const VEC t = V(mul)(V(mul)(centered, b.rstd), own->part[k]);
        const VEC made =
            V(mul)(NAME(gradient_of_z)(d.part[k], centered, o.part[k], b, way, f), own->part[k]);
        s->xhat.part[k] = V(add)(s->xhat.part[k], t);
        s->d.part[k] = V(add)(s->d.part[k], made);
        s->product.part[k] = V(fma)(made, t, s->product.part[k]);
    }
}

INLINE void NAME(add_gradients)(const batch_gradient_args *a, const batch_side *others, int64_t c,
                                int64_t piece, int64_t at, int64_t n, const NAME(lanes) * own,
                                REAL *kept, const batch_through way, planish_activation f) {
    const int64_t span = a->tile.span;
    const ELEMENT_T *const x = NAME(side_at)(&a->x, c, piece);
    const ELEMENT_T *const dy = NAME(side_at)(&a->dy, c, piece);
    const ELEMENT_T *const other = NAME(is_there)(others) ? NAME(side_at)(others, c, piece) : NULL;
    const NAME(behind) b = NAME(behind_at)(a, c);
    const NAME(lanes) none = NAME(lanes_of)((REAL)-0.0);
    NAME(three)
    s = {NAME(read_lanes)(kept), NAME(read_lanes)(kept + LANES),
         NAME(read_lanes)(kept + 2 * LANES)};
    int64_t i = at;
    for (; i + LANES <= at + n; i += LANES)
        NAME(add_gradient)(&s, NAME(load_lanes)(x + i), NAME(load_lanes)(dy + i),
                           other ? NAME(load_lanes)(other + i) : none, b, way, f);
    if (i < at + n)
        NAME(add_last_gradient)(&s, x, dy, other, span, at + n - i, own, b, way, f);
    NAME(write_lanes)(kept, s.xhat);
    NAME(write_lanes)(kept + LANES, s.d);
    NAME(write_lanes)(kept + 2 * LANES, s.product);
}

INLINE void NAME(sums_by_channel)(const batch_gradient_args *a, const batch_through way,
                                  planish_activation f) {
    const int64_t channels = a->tile.channels, pieces = a->tile.pieces, span = a->tile.span;
    /* A chain of a lane is CHAIN elements long; short pieces are added together. */
    const int64_t most = CHAIN * LANES;
    _Alignas(64) REAL kept[BATCH_TILE_CHANNELS][3 * LANES];
    double *to[RECORDS * BATCH_TILE_CHANNELS];
    const batch_side others = NAME(other_side)(a, way);
    const NAME(lanes) own = NAME(own_lanes)(span % LANES, span < LANES);
    int64_t pending = 0;
    memset(kept, 0, sizeof kept);
    for (int64_t c = 0; c < channels; c++)
        for (int k = 0; k < RECORDS; k++) {
            to[RECORDS * c + k] = &a->record[k][c];
            a->record[k][c] = 0;
        }
    for (int64_t piece = 0; piece < pieces; piece++)
        for (int64_t at = 0, n; at < span; at += n) {
            n = NAME(min)(most, span - at);
            for (int64_t c = 0; c < channels; c++)
                NAME(add_gradients)(a, &others, c, piece, at, n, &own, kept[c], way, f);
            pending += n;
            if (pending >= most) {
                NAME(flush_lanes)(kept[0], RECORDS * (int)channels, to);
                pending = 0;
            }
        }
    if (pending)
        NAME(flush_lanes)(kept[0], RECORDS * (int)channels, to);
}

/* ---- By pixel -------------------------------------------------------------------------------- */

/* Sums of a vector of channels over pixels, as oct_sum and oct_dot add them, half a tree at once.
 */
typedef struct NAME(oct_sums) {
    VEC xhat, d, even, odd;
} NAME(oct_sums);

/* `count` of half a tree's pixels, from p and channel c on. */
INLINE NAME(oct_sums)
    NAME(half_gradient)(const batch_gradient_args *a, const batch_side *others, int64_t p,
                        const int count, int64_t c, int64_t left, NAME(behind) b,
                        const batch_through way, planish_activation f) {
    enum { MOST = NAME(OCT) / 2 };
    const VEC none = V(set1)((REAL)-0.0), zero = V(set1)(0);
    VEC t[MOST] = {zero, zero, zero, zero}, d[MOST] = {zero, zero, zero, zero};
    UNROLL for (int k = 0; k < MOST; k++) {
        if (k >= count)
            continue;
        const VEC x = NAME(load_x)(NAME(side_at)(&a->x, 0, p + k) + c, left);
        const VEC dy = NAME(load_x)(NAME(side_at)(&a->dy, 0, p + k) + c, left);
        const VEC other =
            NAME(is_there)(others) ? NAME(load_x)(NAME(side_at)(others, 0, p + k) + c, left) : none;
        const VEC centered = V(sub)(x, b.mean);
        t[k] = V(mul)(centered, b.rstd);
        d[k] = NAME(gradient_of_z)(dy, centered, other, b, way, f);
    }
    if (count == 1)
        return (NAME(oct_sums)){t[0], d[0], V(mul)(d[0], t[0]), zero};
    return (NAME(oct_sums)){V(add)(V(add)(t[0], t[1]), V(add)(t[2], t[3])),
                            V(add)(V(add)(d[0], d[1]), V(add)(d[2], d[3])),
                            V(fma)(d[2], t[2], V(mul)(d[0], t[0])),
                            V(fma)(d[3], t[3], V(mul)(d[1], t[1]))};
}

/* OCT pixels, or one. */
INLINE void NAME(oct_gradient)(const batch_gradient_args *a, const batch_side *others, int64_t p,
                               const int count, int64_t c, int64_t left, REAL *sum[RECORDS],
                               const batch_through way, planish_activation f) {
    enum { HALF = NAME(OCT) / 2 };
    const NAME(behind) b = NAME(behind_vector)(a, c, left);
    NAME(oct_sums) s = NAME(half_gradient)(a, others, p, count == 1 ? 1 : HALF, c, left, b, way, f);
    if (count > 1) {
        const NAME(oct_sums) more =
            NAME(half_gradient)(a, others, p + HALF, HALF, c, left, b, way, f);
        s.xhat = V(add)(s.xhat, more.xhat);
        s.d = V(add)(s.d, more.d);
        s.even = V(add)(V(add)(s.even, s.odd), V(add)(more.even, more.odd));
    }
    NAME(add_real)(sum[RECORD_XHAT] + c, s.xhat, left);
    NAME(add_real)(sum[RECORD_D] + c, s.d, left);
    NAME(add_real)(sum[RECORD_PRODUCT] + c, s.even, left);
}

INLINE void NAME(sums_by_pixel)(const batch_gradient_args *a, const batch_through way,
                                planish_activation f) {
    const int64_t channels = a->tile.channels, pixels = a->tile.pieces;
    const batch_side others = NAME(other_side)(a, way);
    REAL *sum[RECORDS];
    for (int k = 0; k < RECORDS; k++) {
        sum[k] = (REAL *)a->scratch + k * channels;
        memset(sum[k], 0, (size_t)channels * sizeof(REAL));
        memset(a->record[k], 0, (size_t)channels * sizeof(double));
    }
    for (int64_t p = 0, n; p < pixels; p += n) {
        n = NAME(min)(NAME(FLUSH_PIXELS), pixels - p);
        for (int64_t near = 0; near < channels; near += NAME(NEAR_CHANNELS)) {
            const int64_t last = NAME(min)(near + NAME(NEAR_CHANNELS), channels);
            int64_t q = p;
            for (; q + NAME(OCT) <= p + n; q += NAME(OCT)) {
                int64_t c = near;
                NAME(prefetch_pixels)(NAME(side_at)(&a->x, 0, q) + near, a->x.piece, NAME(OCT),
                                      last - near, a->tile.prefetches);
                NAME(prefetch_pixels)(NAME(side_at)(&a->dy, 0, q) + near, a->dy.piece, NAME(OCT),
                                      last - near, a->tile.prefetches);
                for (; c + VEC_LANES <= last; c += VEC_LANES)
                    NAME(oct_gradient)(a, &others, q, NAME(OCT), c, VEC_LANES, sum, way, f);
                if (c < last)
                    NAME(oct_gradient)(a, &others, q, NAME(OCT), c, last - c, sum, way, f);
            }
            for (; q < p + n; q++)
                for (int64_t c = near; c < last; c += VEC_LANES)
                    NAME(oct_gradient)(a, &others, q, 1, c, last - c, sum, way, f);
            for (int k = 0; k < RECORDS; k++)
                NAME(flush_sums)(a->record[k] + near, sum[k] + near, last - near);
        }
    }
}

/* One text for each way, but for the activations, which share one. */
#define EACH_WAY(of, a)                                                                            \
    do {                                                                                           \
        if ((a)->through == THROUGH_NOTHING)                                                       \
            of(a, THROUGH_NOTHING, PLANISH_IDENTITY);                                              \
        else if ((a)->through == THROUGH_MASK)                                                     \
            of(a, THROUGH_MASK, PLANISH_IDENTITY);                                                 \
        else if ((a)->through == THROUGH_RELU)                                                     \
            of(a, THROUGH_RELU, PLANISH_IDENTITY);                                                 \
        else                                                                                       \
            of(a, THROUGH_ACTIVATION, (a)->activation);                                            \
    } while (0)

static void NAME(batch_sums)(const batch_gradient_args *a) {
    if (a->tile.by_pixel)
        EACH_WAY(NAME(sums_by_pixel), a);
    else
        EACH_WAY(NAME(sums_by_channel), a);
}
