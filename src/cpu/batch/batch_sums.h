/* The backward's sums of channels, and how it comes from dy to the gradient of what the norm
 * returns; part of cpu/batch/kernels_batch.c. */

/* Of a channel, or of a vector of channels. */
typedef struct NAME(behind) {
    VEC mean, rstd, scale, offset, least;
} NAME(behind);

INLINE NAME(behind) NAME(behind_at)(const batch_gradient_args *a, int64_t c) {
    const REAL *const *const f = (const REAL *const *)a->factor;
    return (NAME(behind)){V(set1)(f[FACTOR_MEAN][c]), V(set1)(f[FACTOR_RSTD][c]),
                          V(set1)(f[FACTOR_SCALE][c]), V(set1)(f[FACTOR_OFFSET][c]),
                          V(set1)((REAL)a->least)};
}
/* Of a strip of channels from c on. */
INLINE void NAME(behind_strip)(const batch_gradient_args *a, int64_t c, const int width,
                               int64_t left, NAME(behind) to[]) {
    const REAL *const *const f = (const REAL *const *)a->factor;
    VEC mean[NAME(STRIP)], rstd[NAME(STRIP)], scale[NAME(STRIP)], offset[NAME(STRIP)];
    NAME(load_strip_real)(f[FACTOR_MEAN] + c, width, left, mean);
    NAME(load_strip_real)(f[FACTOR_RSTD] + c, width, left, rstd);
    NAME(load_strip_real)(f[FACTOR_SCALE] + c, width, left, scale);
    NAME(load_strip_real)(f[FACTOR_OFFSET] + c, width, left, offset);
    UNROLL for (int w = 0; w < width; w++) to[w] =
        (NAME(behind)){mean[w], rstd[w], scale[w], offset[w], V(set1)((REAL)a->least)};
}

/* d of dy, by x - mean and by what else this way reads: y, or the addend, -0 where there is none.
 */
INLINE VEC NAME(gradient_of_z)(VEC dy, VEC centered, VEC other, NAME(behind) b,
                               const batch_through way, planish_activation f) {
    if (way == THROUGH_NOTHING)
        return dy;
    if (way == THROUGH_MASK)
        return V(drop)(dy, other, V(set1)(0));
    const VEC z = V(add)(V(fma)(centered, b.scale, b.offset), other);
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

/* Vectors of these strips: there are as many sums. */
enum { NAME(SUMMED) = NAME(STRIP) / 2 > 1 ? NAME(STRIP) / 2 : 1 + NAME(PAIRED) };
enum { NAME(SUMMED_LANES) = NAME(SUMMED) * VEC_LANES };

/* Sums of a vector over pixels; products by halves of a tree, each in two chains. */
typedef struct NAME(oct_sums) {
    NAME(oct_tree) xhat, d;
    VEC even, odd, product;
} NAME(oct_sums);

/* Pixel k of a tree. */
INLINE void NAME(oct_add)(NAME(oct_sums) * s, const int k, VEC d, VEC t) {
    NAME(tree_add)(&s->xhat, k, t);
    NAME(tree_add)(&s->d, k, d);
    if (k % 2)
        s->odd = k % 4 == 3 ? V(fma)(d, t, s->odd) : V(mul)(d, t);
    else
        s->even = k % 4 == 2 ? V(fma)(d, t, s->even) : V(mul)(d, t);
    if (k % 4 == 3) {
        const VEC half = V(add)(s->even, s->odd);
        s->product = k > 4 ? V(add)(s->product, half) : half;
    }
}

/* OCT pixels of a strip, or one, from p and channel c on. */
INLINE void NAME(oct_gradient)(const batch_gradient_args *a, const batch_side *others, int64_t p,
                               const int count, int64_t c, const int width, int64_t left,
                               REAL *sum[RECORDS], const batch_through way, planish_activation f) {
    NAME(behind) b[NAME(STRIP)];
    NAME(oct_sums) s[NAME(SUMMED)];
    VEC x[NAME(SUMMED)], dy[NAME(SUMMED)], other[NAME(SUMMED)];
    NAME(behind_strip)(a, c, width, left, b);
    UNROLL for (int w = 0; w < width; w++) other[w] = V(set1)((REAL)-0.0);
    UNROLL for (int k = 0; k < count; k++) {
        NAME(load_strip)(NAME(side_at)(&a->x, 0, p + k) + c, width, left, x);
        NAME(load_strip)(NAME(side_at)(&a->dy, 0, p + k) + c, width, left, dy);
        if (NAME(is_there)(others))
            NAME(load_strip)(NAME(side_at)(others, 0, p + k) + c, width, left, other);
        UNROLL for (int w = 0; w < width; w++) {
            const VEC centered = V(sub)(x[w], b[w].mean), t = V(mul)(centered, b[w].rstd);
            NAME(oct_add)(&s[w], k, NAME(gradient_of_z)(dy[w], centered, other[w], b[w], way, f),
                          t);
        }
    }
    UNROLL for (int w = 0; w < width; w++) {
        x[w] = NAME(tree_sum)(&s[w].xhat, count);
        dy[w] = NAME(tree_sum)(&s[w].d, count);
        other[w] = count == 1 ? s[w].even : s[w].product;
    }
    NAME(add_strip_real)(sum[RECORD_XHAT] + c, width, left, x);
    NAME(add_strip_real)(sum[RECORD_D] + c, width, left, dy);
    NAME(add_strip_real)(sum[RECORD_PRODUCT] + c, width, left, other);
}

INLINE void NAME(sums_by_pixel)(const batch_gradient_args *a, const batch_through way,
                                planish_activation f) {
    const int64_t channels = a->tile.channels, pixels = a->tile.pieces;
    const int64_t step = NAME(OCT) * NAME(SUMMED_LANES) * (int64_t)sizeof(ELEMENT_T);
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
                NAME(next_lines)
                x = NAME(lines_after)(NAME(side_at)(&a->x, 0, q) + near, a->x.piece, NAME(OCT),
                                      last - near);
                NAME(next_lines)
                dy = NAME(lines_after)(NAME(side_at)(&a->dy, 0, q) + near, a->dy.piece, NAME(OCT),
                                       last - near);
                for (; c + NAME(SUMMED_LANES) <= last; c += NAME(SUMMED_LANES)) {
                    NAME(ask)(&x, step, a->tile.prefetches);
                    NAME(ask)(&dy, step, a->tile.prefetches);
                    NAME(oct_gradient)(a, &others, q, NAME(OCT), c, NAME(SUMMED), 0, sum, way, f);
                }
                for (; c < last; c += VEC_LANES)
                    NAME(oct_gradient)(a, &others, q, NAME(OCT), c, 1, last - c, sum, way, f);
            }
            for (; q < p + n; q++)
                for (int64_t c = near; c < last; c += VEC_LANES)
                    NAME(oct_gradient)(a, &others, q, 1, c, 1, last - c, sum, way, f);
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
