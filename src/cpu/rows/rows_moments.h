/*
 * Sums and moments of rows; part of cpu/rows/rows.h, whose parameters and helpers it uses. A row is
 * read once: its deviations are taken from a center that a few of its elements give
 * (docs/internals/numerics.md).
 */

/*
 * The sum of one chain in every lane. A short row has fewer elements than there are canonical
 * lanes, so that each part takes one vector at most; its sums are made in line, without the loop.
 */
INLINE NAME(lanes) NAME(chain_sum)(const ELEMENT_T *x, int64_t n, const bool is_short) {
    NAME(lanes) sum = NAME(lanes_zero)();
    int64_t i = 0;
    for (; !is_short && i + LANES <= n; i += LANES)
        NAME(lanes_add)(&sum, NAME(load_lanes)(x + i));
    NAME(lanes_in_order)(&sum);
    UNROLL for (int k = 0; k < NAME(PARTS) && i < n; k++, i += VEC_LANES) sum.part[k] =
        V(add)(sum.part[k], NAME(load_x)(x + i, n - i));
    return sum;
}

/* The sums of x - center and of its square. */
typedef struct NAME(centered_sums) {
    NAME(lanes) deviations, squares;
} NAME(centered_sums);

INLINE NAME(centered_sums)
    NAME(chain_centered_sums)(const ELEMENT_T *x, int64_t n, REAL center, const bool is_short) {
    const VEC m = V(set1)(center);
    NAME(lanes) sum = NAME(lanes_zero)(), sum_squares = NAME(lanes_zero)();
    int64_t i = 0;
    for (; !is_short && i + LANES <= n; i += LANES) {
        const NAME(lanes) v = NAME(load_lanes)(x + i);
        UNROLL for (int k = 0; k < NAME(PARTS); k++) {
            const VEC d = V(sub)(v.part[k], m);
            sum.part[k] = V(add)(sum.part[k], d);
            sum_squares.part[k] = V(fma)(d, d, sum_squares.part[k]);
        }
    }
    NAME(lanes_in_order)(&sum);
    NAME(lanes_in_order)(&sum_squares);
    UNROLL for (int k = 0; k < NAME(PARTS) && i < n; k++, i += VEC_LANES) {
        const VEC d = NAME(keep)(V(sub)(NAME(load_x)(x + i, n - i), m), n - i);
        sum.part[k] = V(add)(sum.part[k], d);
        sum_squares.part[k] = V(fma)(d, d, sum_squares.part[k]);
    }
    return (NAME(centered_sums)){sum, sum_squares};
}

INLINE NAME(lanes) NAME(chain_squares)(const ELEMENT_T *x, int64_t n) {
    NAME(lanes) sum = NAME(lanes_zero)();
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        const NAME(lanes) v = NAME(load_lanes)(x + i);
        UNROLL for (int k = 0; k < NAME(PARTS); k++) sum.part[k] =
            V(fma)(v.part[k], v.part[k], sum.part[k]);
    }
    NAME(lanes_in_order)(&sum);
    UNROLL for (int k = 0; k < NAME(PARTS) && i < n; k++, i += VEC_LANES) {
        const VEC v = NAME(load_x)(x + i, n - i);
        sum.part[k] = V(fma)(v, v, sum.part[k]);
    }
    return sum;
}

/* The same over a segment: its chains, added in order. What lies `ahead` bytes on is prefetched,
 * where that is not 0. */
OUTLINE void NAME(row_centered_sums)(const ELEMENT_T *x, int64_t n, REAL center, int64_t ahead,
                                     VEC *deviations, VEC *squares) {
    NAME(prefetch_chain)(x, ahead, NAME(min)(n, NAME(CHAINED)));
    NAME(centered_sums)
    total = NAME(chain_centered_sums)(x, NAME(min)(n, NAME(CHAINED)), center, false);
    for (int64_t at = NAME(CHAINED); at < n; at += NAME(CHAINED)) {
        const int64_t length = NAME(min)(n - at, NAME(CHAINED));
        NAME(prefetch_chain)(x + at, ahead, length);
        const NAME(centered_sums) sums = NAME(chain_centered_sums)(x + at, length, center, false);
        NAME(lanes_add)(&total.deviations, sums.deviations);
        NAME(lanes_add)(&total.squares, sums.squares);
    }
    *deviations = NAME(lanes_fold)(total.deviations);
    *squares = NAME(lanes_fold)(total.squares);
}
OUTLINE VEC NAME(row_squares)(const ELEMENT_T *x, int64_t n, int64_t ahead) {
    NAME(prefetch_chain)(x, ahead, NAME(min)(n, NAME(CHAINED)));
    NAME(lanes) total = NAME(chain_squares)(x, NAME(min)(n, NAME(CHAINED)));
    for (int64_t at = NAME(CHAINED); at < n; at += NAME(CHAINED)) {
        const int64_t length = NAME(min)(n - at, NAME(CHAINED));
        NAME(prefetch_chain)(x + at, ahead, length);
        NAME(lanes_add)(&total, NAME(chain_squares)(x + at, length));
    }
    return NAME(lanes_fold)(total);
}

/* The sums of a row that is one chain. */
INLINE VEC NAME(row_sum_as)(const ELEMENT_T *x, int64_t n, const bool is_short) {
    return NAME(lanes_fold)(NAME(chain_sum)(x, n, is_short));
}
INLINE void NAME(row_centered_sums_as)(const ELEMENT_T *x, int64_t n, REAL center, VEC *deviations,
                                       VEC *squares, const bool is_short) {
    const NAME(centered_sums) sums = NAME(chain_centered_sums)(x, n, center, is_short);
    *deviations = NAME(lanes_fold)(sums.deviations);
    *squares = NAME(lanes_fold)(sums.squares);
}
INLINE VEC NAME(row_squares_as)(const ELEMENT_T *x, int64_t n) {
    return NAME(lanes_fold)(NAME(chain_squares)(x, n));
}

/* Sums to means. Lanes start from 0 or are left out: no sum may be -0. */
INLINE void NAME(scale_totals)(const REAL total[TOGETHER], double inverse, REAL center[TOGETHER]) {
    NAME(rows_real) sum;
    memcpy(&sum, total, sizeof sum);
    const rows_f64 mean = __builtin_convertvector(sum + 0, rows_f64) * inverse;
    const NAME(rows_real) near = __builtin_convertvector(mean, NAME(rows_real));
    memcpy(center, &near, sizeof near);
}

/*
 * Moments from the sums about a center: the mean's rest is what the deviations sum to. Returns a
 * bit for each row whose center is more than a standard deviation from its mean: the correction
 * then takes more than half of the squares, and their digits.
 */
INLINE unsigned NAME(center_moments)(const REAL deviation[TOGETHER], const REAL squares[TOGETHER],
                                     double inverse, double rest[TOGETHER], double m2[TOGETHER]) {
    NAME(rows_real) deviations, sum;
    memcpy(&deviations, deviation, sizeof deviations);
    memcpy(&sum, squares, sizeof sum);
    const rows_f64 d = __builtin_convertvector(deviations, rows_f64), delta = d * inverse;
    const rows_f64 taken = d * delta;
    const rows_f64 corrected = __builtin_convertvector(sum, rows_f64) - taken;
    const rows_mask not_below_0 = ~(corrected < 0), kept = (rows_mask)corrected & not_below_0;
    const rows_mask far = corrected < taken;
    memcpy(rest, &delta, sizeof delta);
    memcpy(m2, &kept, sizeof kept);
    return group_bits(&far);
}
/* The mean, rounded once to f64; and how far that is above it, which counts where rows are f64
 * (sum_excess of cpu/common/exact.h). */
INLINE void NAME(mean_of)(const REAL center[TOGETHER], const double rest[TOGETHER],
                          double mean[TOGETHER], double excess[TOGETHER]) {
    NAME(rows_real) about;
    rows_f64 delta;
    memcpy(&about, center, sizeof about);
    memcpy(&delta, rest, sizeof delta);
    const rows_f64 means = __builtin_convertvector(about, rows_f64) + delta;
    memcpy(mean, &means, sizeof means);
    if (sizeof(REAL) == 8) {
        const rows_f64 above = (means - __builtin_convertvector(about, rows_f64)) - delta;
        const rows_f64 size = (rows_f64)((rows_mask)delta & INT64_MAX) * 0x1p-50;
        const rows_mask counts = (above > size) | (-above > size);
        const rows_mask kept = (rows_mask)above & counts;
        memcpy(excess, &kept, sizeof kept);
    }
}

/* How many of a segment's n elements its first sums are of: one in each lane is enough to know
 * about where x lies. With RMSNorm, whose squares these are, all of them. */
INLINE int64_t NAME(summed_first)(int64_t n, const bool rms) {
    return rms || n < LANES ? n : LANES;
}

/* The first sums of one segment of up to TOGETHER rows: of some of x, or with RMSNorm of the
 * squares of all of it. */
INLINE void NAME(segment_sums)(const ELEMENT_T *const x[], const int count, int64_t n,
                               int64_t ahead, const bool rms, REAL total[TOGETHER]) {
    VEC sums[TOGETHER];
    for (int r = 0; r < count; r++)
        sums[r] = rms         ? NAME(row_squares)(x[r], n, ahead)
                  : n < LANES ? NAME(row_sum_as)(x[r], n, true)
                              : NAME(row_sum_as)(x[r], LANES, false);
    NAME(fold_rows)(sums, count, total);
}

/* Moments of a segment again, about the mean, of the rows whose bit is set. */
OUTLINE void NAME(recenter)(unsigned far, const ELEMENT_T *const x[], int64_t n,
                            REAL center[TOGETHER], double rest[TOGETHER], double m2[TOGETHER]) {
    for (int r = 0; r < TOGETHER; r++) {
        REAL deviation[TOGETHER], squared[TOGETHER];
        double rests[TOGETHER], m2s[TOGETHER];
        VEC sums, squares;
        if (!(far >> r & 1))
            continue;
        center[r] = (REAL)(center[r] + rest[r]);
        NAME(row_centered_sums)(x[r], n, center[r], 0, &sums, &squares);
        NAME(fold_rows)(&sums, 1, deviation);
        NAME(fold_rows)(&squares, 1, squared);
        NAME(center_moments)(deviation, squared, 1.0 / (double)n, rests, m2s);
        rest[r] = rests[0];
        m2[r] = m2s[0];
    }
}

/* And what follows from them: mean (center + rest) and sum of squared deviations. The rows y, where
 * given, are prefetched between: no memory is read there. */
INLINE void NAME(segment_rest)(const ELEMENT_T *const x[], ELEMENT_T *const y[], const int count,
                               int64_t n, int64_t ahead, const bool rms, const REAL total[TOGETHER],
                               REAL center[TOGETHER], double rest[TOGETHER], double m2[TOGETHER]) {
    VEC sums[TOGETHER], squares[TOGETHER];
    REAL deviation[TOGETHER], squared[TOGETHER];
    if (rms) {
        for (int r = 0; r < TOGETHER; r++)
            m2[r] = total[r];
        return;
    }
    NAME(scale_totals)(total, 1.0 / (double)NAME(summed_first)(n, false), center);
    for (int r = 0; r < count; r++) {
        if (n < LANES)
            NAME(row_centered_sums_as)(x[r], n, center[r], &sums[r], &squares[r], true);
        else
            NAME(row_centered_sums)(x[r], n, center[r], ahead, &sums[r], &squares[r]);
        NAME(prefetch_row)(y ? y[r] : NULL, 0, n, y != NULL, 1);
    }
    NAME(fold_rows)(sums, count, deviation);
    NAME(fold_rows)(squares, count, squared);
    const unsigned far = NAME(center_moments)(deviation, squared, 1.0 / (double)n, rest, m2);
    if (__builtin_expect(far != 0, 0))
        NAME(recenter)(far, x, n, center, rest, m2);
}

OUTLINE void NAME(segment_moments)(const ELEMENT_T *const x[], int count, int64_t n, int64_t ahead,
                                   const bool rms, REAL center[TOGETHER], double rest[TOGETHER],
                                   double m2[TOGETHER]) {
    REAL total[TOGETHER];
    if (count < 1) /* it never is: the compiler is to know */
        __builtin_unreachable();
    NAME(segment_sums)(x, count, n, ahead, rms, total);
    NAME(segment_rest)(x, NULL, count, n, ahead, rms, total, center, rest, m2);
}

/*
 * Mean and sum of squared deviations of up to TOGETHER rows: their segments, merged in order. The
 * mean on the way is a distance from the first segment's center: in f64 the digits that squares are
 * made of would be lost in the mean itself. `ahead` as for row_centered_sums.
 */
OUTLINE void NAME(moments)(const ELEMENT_T *const x[], int count, int64_t n, int64_t ahead,
                           const bool rms, double mean[TOGETHER], double excess[TOGETHER],
                           double m2[TOGETHER]) {
    REAL pivot[TOGETHER];
    double distance[TOGETHER], m2_rest[TOGETHER] = {0};
    NAME(segment_moments)(x, count, NAME(min)(n, NAME(SEGMENT)), ahead, rms, pivot, distance, m2);
    for (int64_t at = NAME(SEGMENT); at < n; at += NAME(SEGMENT)) {
        const int64_t length = NAME(min)(n - at, NAME(SEGMENT)), total = at + length;
        const ELEMENT_T *segment[TOGETHER];
        REAL center[TOGETHER];
        double rest[TOGETHER], segment_m2[TOGETHER];
        for (int r = 0; r < count; r++)
            segment[r] = x[r] + at;
        NAME(segment_moments)(segment, count, length, ahead, rms, center, rest, segment_m2);
        const double share = (double)length / (double)total;
        for (int r = 0; r < count; r++) {
            exact_add(&m2[r], &m2_rest[r], segment_m2[r]);
            if (rms)
                continue;
            const double step = ((double)center[r] - pivot[r]) + rest[r] - distance[r];
            distance[r] += step * share;
            exact_add(&m2[r], &m2_rest[r], step * step * ((double)at * share));
        }
    }
    if (!rms)
        NAME(mean_of)(pivot, distance, mean, excess);
    for (int r = 0; r < TOGETHER && n > NAME(SEGMENT); r++)
        m2[r] += m2_rest[r];
}
