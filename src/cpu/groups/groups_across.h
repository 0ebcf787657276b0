/*
 * Backward of rows of short channels, in the vectors of the row; part of
 * cpu/groups/groups_backward.h. Vectors that began with each channel would seldom lie in whole
 * lines, and each channel would end with a part of one. Here only the row does: of a vector that
 * two channels share, each takes its lanes.
 */

/* The lanes of these sums, half the canonical ones: element i of a row goes to lane i mod ACROSS.
 * No two channels end in one vector of them. */
enum { NAME(ACROSS) = LANES / 2, NAME(ACROSS_PARTS) = NAME(ACROSS) / VEC_LANES };

/* Whether the channels of a row are summed so. Elements that are converted gain by it only where
 * channels are short, and a channel alone does not. */
INLINE bool NAME(sums_across)(const group_backward_args *a) {
    const int64_t most = NAME(CONVERTS) ? NAME(CHAINED) : NAME(SEGMENT);
    return a->channels > 1 && a->span >= NAME(ACROSS) && a->span <= most;
}

typedef struct NAME(across) {
    VEC part[NAME(ACROSS_PARTS)];
} NAME(across);
typedef struct NAME(across_sums) {
    NAME(across) xhat, dy, product;
} NAME(across_sums);

INLINE NAME(across_sums) NAME(across_zero)(void) {
    NAME(across_sums) s;
    UNROLL for (int k = 0; k < NAME(ACROSS_PARTS); k++) s.xhat.part[k] = s.dy.part[k] =
        s.product.part[k] = V(set1)(0);
    return s;
}
INLINE void NAME(across_add)(NAME(across) * total, NAME(across) sum) {
    UNROLL for (int k = 0; k < NAME(ACROSS_PARTS); k++) total->part[k] =
        V(add)(total->part[k], sum.part[k]);
}
INLINE VEC NAME(across_fold)(NAME(across) sum) {
    for (int half = NAME(ACROSS_PARTS) / 2; half; half /= 2)
        for (int k = 0; k < half; k++)
            sum.part[k] = V(add)(sum.part[k], sum.part[k + half]);
    return sum.part[0];
}

/* Of n elements, how many are in part k. */
INLINE int NAME(across_in)(int64_t n, int k) {
    const int64_t in = n - k * VEC_LANES;
    return in < 0 ? 0 : in > VEC_LANES ? VEC_LANES : (int)in;
}

/* Adds ACROSS elements that are one channel's. */
INLINE void NAME(add_across)(NAME(across_sums) * s, const ELEMENT_T *x, const ELEMENT_T *dy,
                             NAME(row_gradient) row) {
    UNROLL for (int k = 0; k < NAME(ACROSS_PARTS); k++) {
        const VEC d = LOAD_X(dy + k * VEC_LANES), v = LOAD_X(x + k * VEC_LANES);
        const VEC xhat = V(mul)(V(sub)(v, V(set1)(row.mean)), V(set1)(row.xhat_rstd));
        s->xhat.part[k] = V(add)(s->xhat.part[k], xhat);
        s->dy.part[k] = V(add)(s->dy.part[k], d);
        s->product.part[k] = V(fma)(d, xhat, s->product.part[k]);
    }
}

/* Adds those where a channel has its last `own`, of `left` that the row has; what is the next
 * channel's begins its sums. */
INLINE void NAME(add_last_across)(NAME(across_sums) * s, NAME(across_sums) * next,
                                  const ELEMENT_T *x, const ELEMENT_T *dy, int64_t own,
                                  int64_t left, NAME(row_gradient) row) {
    const VEC zero = V(set1)(0);
    UNROLL for (int k = 0; k < NAME(ACROSS_PARTS); k++) {
        const int there = NAME(across_in)(left, k), mine = NAME(across_in)(own, k);
        const VEC d = NAME(load_x)(dy + k * VEC_LANES, there);
        const VEC v = NAME(load_x)(x + k * VEC_LANES, there);
        const VEC xhat = V(mul)(V(sub)(v, V(set1)(row.mean)), V(set1)(row.xhat_rstd));
        const VEC first = V(keep)(d, mine), second = V(join)(zero, d, mine);
        s->xhat.part[k] = V(add)(s->xhat.part[k], NAME(keep)(xhat, there));
        s->dy.part[k] = V(add)(s->dy.part[k], first);
        s->product.part[k] = V(fma)(first, xhat, s->product.part[k]);
        next->dy.part[k] = second;
        next->product.part[k] = V(mul)(second, xhat);
    }
}

/* The sums of a row's channels, to its dbias and dweight: of dy, and of dy * xhat by the saved
 * mean; and over the row, of xhat, and of those of the channels times their weights. */
INLINE void NAME(group_sums_across)(const group_backward_args *a, int r, NAME(row_gradient) row,
                                    double *delta, double *c1, double *c2) {
    enum { ACROSS = NAME(ACROSS) };
    const ELEMENT_T *const x = (const ELEMENT_T *)(a->x + r * a->x_pitch);
    const ELEMENT_T *const dy = (const ELEMENT_T *)(a->dy + r * a->dy_pitch);
    const ELEMENT_T *const dx =
        a->prefetch_dx ? (const ELEMENT_T *)(a->dx + r * a->dx_pitch) : NULL;
    const REAL *const weights = a->weight ? (const REAL *)a->weight + r * a->weight_step : NULL;
    double *const dweight = a->dweight + r * a->channels;
    double *const dbias = a->dbias + r * a->channels;
    const int64_t all = a->channels * a->span;
    const VEC zero = V(set1)(0);
    NAME(across_sums) next = NAME(across_zero)();
    rows_f64 sum1 = {0}, sum2 = {0};
    double sum_xhat = 0, rest1 = 0, rest2 = 0;
    int64_t i = 0, end = a->span;
    for (int64_t first = 0; first < a->channels; first += TOGETHER) {
        const int count = (int)NAME(min)(a->channels - first, TOGETHER);
        VEC lanes[2 * TOGETHER] = {zero, zero, zero, zero, zero, zero, zero, zero}, xhat_lanes;
        NAME(across) xhat = NAME(across_zero)().xhat;
        REAL folded[2 * TOGETHER], folded_xhat[TOGETHER];
        NAME(rows_real) dys, products, weight = {1, 1, 1, 1};
        for (int c = 0; c < count; c++, end += a->span) {
            NAME(across_sums) total = next;
            next = NAME(across_zero)();
            while (i + ACROSS <= end) {
                const int64_t stop = NAME(min)(end, i + CHAIN * ACROSS);
                NAME(across_sums) chain = NAME(across_zero)();
                for (; i + ACROSS <= stop; i += ACROSS) {
                    NAME(add_across)(&chain, x + i, dy + i, row);
                    if (dx)
                        __builtin_prefetch(dx + i, 1, 3);
                }
                NAME(across_add)(&total.xhat, chain.xhat);
                NAME(across_add)(&total.dy, chain.dy);
                NAME(across_add)(&total.product, chain.product);
            }
            if (i < end) {
                NAME(add_last_across)(&total, &next, x + i, dy + i, end - i, all - i, row);
                if (dx)
                    __builtin_prefetch(dx + i, 1, 3);
                i += ACROSS;
            }
            NAME(across_add)(&xhat, total.xhat); /* in all lanes, which no tier folds before */
            lanes[c] = NAME(across_fold)(total.dy);
            lanes[TOGETHER + c] = NAME(across_fold)(total.product);
        }
        V(fold8)(lanes, folded);
        xhat_lanes = NAME(across_fold)(xhat);
        NAME(fold_rows)(&xhat_lanes, 1, folded_xhat);
        sum_xhat += folded_xhat[0];
        memcpy(&dys, folded, sizeof dys);
        memcpy(&products, folded + TOGETHER, sizeof products);
        const rows_f64 sum_dy = __builtin_convertvector(dys + 0, rows_f64); /* never -0 */
        const rows_f64 sum_product = __builtin_convertvector(products + 0, rows_f64);
        if (count == TOGETHER) {
            if (weights) {
                memcpy(&weight, weights + first, sizeof weight);
                weight += (REAL)a->weight_offset;
            }
            sum1 += __builtin_convertvector(weight, rows_f64) * sum_dy;
            sum2 += __builtin_convertvector(weight, rows_f64) * sum_product;
            memcpy(dbias + first, &sum_dy, sizeof sum_dy);
            memcpy(dweight + first, &sum_product, sizeof sum_product);
            continue;
        }
        for (int c = 0; c < count; c++) {
            const double w = weights ? weights[first + c] + (REAL)a->weight_offset : 1;
            rest1 += w * (dbias[first + c] = 0.0 + folded[c]);
            rest2 += w * (dweight[first + c] = 0.0 + folded[TOGETHER + c]);
        }
    }
    *delta = sum_xhat;
    *c1 = (sum1[0] + sum1[1]) + (sum1[2] + sum1[3]) + rest1;
    *c2 = (sum2[0] + sum2[1]) + (sum2[2] + sum2[3]) + rest2;
}

/* dx of a row in the row's vectors, as in group_apply_across. */
INLINE void NAME(group_gradient_across)(const group_backward_args *a, int r, NAME(row_gradient) row,
                                        const bool rms, const bool summed) {
    const NAME(channel_place) first = {r, 0};
    const ELEMENT_T *const x = NAME(x_at)(a, first, 0), *const dy = NAME(dy_at)(a, first, 0);
    ELEMENT_T *const dx = (ELEMENT_T *)(a->dx + r * a->dx_pitch);
    const ELEMENT_T *const dsum = summed ? NAME(dsum_at)(a, first, 0) : NULL;
    NAME(epilogue) of = NAME(epilogue_of)(a, first, PLANISH_IDENTITY);
    /* As in group_apply, vectors that are made twice are quicker than parts. */
    const bool again = (const void *)x != (const void *)dx &&
                       (const void *)dy != (const void *)dx &&
                       (const void *)dsum != (const void *)dx;
    int64_t i = 0, end = a->span;
    if (again && (uintptr_t)dx % 64) {
        NAME(group_gradient_vector)(x, dy, dsum, dx, VEC_LANES, row, of, rms);
        i = (int64_t)((64 - (uintptr_t)dx % 64) / sizeof(ELEMENT_T)) % VEC_LANES;
    }
    for (int64_t c = 1; c <= a->channels; c++, end += a->span) {
        for (; i + VEC_LANES <= end; i += VEC_LANES)
            NAME(group_gradient_vector)(x + i, dy + i, dsum ? dsum + i : NULL, dx + i, VEC_LANES,
                                        row, of, rms);
        if (c == a->channels)
            break;
        const NAME(epilogue) next =
            NAME(epilogue_of)(a, (NAME(channel_place)){r, c}, PLANISH_IDENTITY);
        if (i < end) {
            of.weight = V(join)(of.weight, next.weight, (int)(end - i));
            NAME(group_gradient_vector)(x + i, dy + i, dsum ? dsum + i : NULL, dx + i, VEC_LANES,
                                        row, of, rms);
            i += VEC_LANES;
        }
        of = next;
    }
    if (i == end)
        return;
    const int left = again ? VEC_LANES : (int)(end - i);
    i = end - left;
    NAME(group_gradient_vector)(x + i, dy + i, dsum ? dsum + i : NULL, dx + i, left, row, of, rms);
}
