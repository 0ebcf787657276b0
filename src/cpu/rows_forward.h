/* The forward row kernel; part of cpu/rows.h, whose parameters and helpers it uses. */

static void NAME(forward_row)(const forward_args *a, int64_t row, bool rms, bool stream);

OUTLINE VEC NAME(row_sum)(const ELEMENT_T *x, int64_t n) {
    NAME(lanes) sum = NAME(lanes_zero)();
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        UNROLL for (int k = 0; k < NAME(PARTS); k++) sum.part[k] =
            V(add)(sum.part[k], LOAD_X(x + i + k * VEC_LANES));
    UNROLL for (int k = 0; k < NAME(PARTS) && i < n; k++, i += VEC_LANES) sum.part[k] =
        V(add)(sum.part[k], NAME(load_x)(x + i, n - i));
    return NAME(lanes_fold)(sum);
}

/* Sums of x - center and of its square. */
OUTLINE void NAME(row_centered_sums)(const ELEMENT_T *x, int64_t n, REAL center, VEC *deviations,
                                     VEC *squares) {
    const VEC m = V(set1)(center);
    NAME(lanes) sum = NAME(lanes_zero)(), sum_squares = NAME(lanes_zero)();
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        UNROLL for (int k = 0; k < NAME(PARTS); k++) {
            const VEC d = V(sub)(LOAD_X(x + i + k * VEC_LANES), m);
            sum.part[k] = V(add)(sum.part[k], d);
            sum_squares.part[k] = V(fma)(d, d, sum_squares.part[k]);
        }
    UNROLL for (int k = 0; k < NAME(PARTS) && i < n; k++, i += VEC_LANES) {
        const VEC d = NAME(keep)(V(sub)(NAME(load_x)(x + i, n - i), m), n - i);
        sum.part[k] = V(add)(sum.part[k], d);
        sum_squares.part[k] = V(fma)(d, d, sum_squares.part[k]);
    }
    *deviations = NAME(lanes_fold)(sum);
    *squares = NAME(lanes_fold)(sum_squares);
}

OUTLINE VEC NAME(row_squares)(const ELEMENT_T *x, int64_t n) {
    NAME(lanes) sum = NAME(lanes_zero)();
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        UNROLL for (int k = 0; k < NAME(PARTS); k++) {
            const VEC v = LOAD_X(x + i + k * VEC_LANES);
            sum.part[k] = V(fma)(v, v, sum.part[k]);
        }
    UNROLL for (int k = 0; k < NAME(PARTS) && i < n; k++, i += VEC_LANES) {
        const VEC v = NAME(load_x)(x + i, n - i);
        sum.part[k] = V(fma)(v, v, sum.part[k]);
    }
    return NAME(lanes_fold)(sum);
}

/* Mean and sum of squared deviations of one segment of up to GROUP rows. */
OUTLINE void NAME(segment_moments)(const ELEMENT_T *const x[], int count, int64_t n, const bool rms,
                                   double mean[GROUP], double m2[GROUP]) {
    const double inverse = 1.0 / (double)n;
    VEC sums[GROUP], squares[GROUP];
    REAL total[GROUP], center[GROUP], deviation[GROUP];
    if (rms) {
        for (int r = 0; r < count; r++)
            squares[r] = NAME(row_squares)(x[r], n);
        NAME(fold_rows)(squares, count, total);
        for (int r = 0; r < GROUP; r++)
            m2[r] = total[r];
        return;
    }
    for (int r = 0; r < count; r++)
        sums[r] = NAME(row_sum)(x[r], n);
    NAME(fold_rows)(sums, count, total);
    for (int r = 0; r < GROUP; r++)
        center[r] = (REAL)(total[r] * inverse);
    for (int r = 0; r < count; r++)
        NAME(row_centered_sums)(x[r], n, center[r], &sums[r], &squares[r]);
    NAME(fold_rows)(sums, count, deviation);
    NAME(fold_rows)(squares, count, total);
    for (int r = 0; r < GROUP; r++) {
        const double delta = deviation[r] * inverse;
        const double corrected = total[r] - deviation[r] * delta;
        mean[r] = center[r] + delta;
        m2[r] = corrected < 0 ? 0 : corrected;
    }
}

/* Mean and sum of squared deviations of up to GROUP rows: their segments, merged in order. */
OUTLINE void NAME(moments)(const ELEMENT_T *const x[], int count, int64_t n, const bool rms,
                           double mean[GROUP], double m2[GROUP]) {
    NAME(segment_moments)(x, count, NAME(min)(n, SEGMENT), rms, mean, m2);
    for (int64_t at = SEGMENT; at < n; at += SEGMENT) {
        const int64_t length = NAME(min)(n - at, SEGMENT), total = at + length;
        const ELEMENT_T *segment[GROUP];
        double segment_mean[GROUP], segment_m2[GROUP];
        for (int r = 0; r < count; r++)
            segment[r] = x[r] + at;
        NAME(segment_moments)(segment, count, length, rms, segment_mean, segment_m2);
        const double share = (double)length / (double)total;
        for (int r = 0; r < count; r++) {
            m2[r] += segment_m2[r];
            if (rms)
                continue;
            const double step = segment_mean[r] - mean[r];
            mean[r] += step * share;
            m2[r] += step * step * ((double)at * share);
        }
    }
}

/* What normalises a row: xhat = (x - mean) * rstd + shift, the shift the rest of the mean. */
typedef struct NAME(row_scale) {
    REAL mean, rstd, shift;
} NAME(row_scale);

INLINE VEC NAME(normalize)(VEC x, NAME(row_scale) s, const bool rms) {
    if (rms)
        return V(mul)(x, V(set1)(s.rstd));
    return V(fma)(V(sub)(x, V(set1)(s.mean)), V(set1)(s.rstd), V(set1)(s.shift));
}

/* y of one or two rows, weight and bias read once for both. An absent bias is -0, which changes no
 * sum, not even a zero's sign. */
INLINE void NAME(apply)(const forward_args *a, const ELEMENT_T *const rows_x[],
                        ELEMENT_T *const rows_y[], const int count, const NAME(row_scale) scale[],
                        const bool rms, const bool stream) {
    /* Everything the loop reads is local: a store to y could change what a pointer reaches. */
    const ELEMENT_T *const x0 = rows_x[0], *const x1 = rows_x[count - 1];
    ELEMENT_T *const y0 = rows_y[0], *const y1 = rows_y[count - 1];
    const NAME(row_scale) s0 = scale[0], s1 = scale[count - 1];
    const WEIGHT_T *const weights = a->weight, *const biases = a->bias;
    const VEC offset = V(set1)((REAL)a->weight_offset);
    const int64_t n = a->cols;
    VEC weight = V(set1)(1), bias = V(set1)((REAL)-0.0);
    int64_t i = 0;
    for (; i + VEC_LANES <= n; i += VEC_LANES) {
        if (weights)
            weight = V(add)(LOAD_W(weights + i), offset);
        if (biases)
            bias = LOAD_W(biases + i);
        const VEC v0 = V(fma)(NAME(normalize)(LOAD_X(x0 + i), s0, rms), weight, bias);
        if (stream)
            STREAM_X(y0 + i, v0);
        else
            STORE_X(y0 + i, v0);
        if (count == 1)
            continue;
        const VEC v1 = V(fma)(NAME(normalize)(LOAD_X(x1 + i), s1, rms), weight, bias);
        if (stream)
            STREAM_X(y1 + i, v1);
        else
            STORE_X(y1 + i, v1);
    }
    if (i == n)
        return;
    const int left = (int)(n - i);
    if (weights)
        weight = V(add)(LOAD_W_PART(weights + i, left), offset);
    if (biases)
        bias = LOAD_W_PART(biases + i, left);
    VEC v = V(fma)(NAME(normalize)(LOAD_X_PART(x0 + i, left), s0, rms), weight, bias);
    STORE_X_PART(y0 + i, v, left);
    if (count == 1)
        return;
    v = V(fma)(NAME(normalize)(LOAD_X_PART(x1 + i, left), s1, rms), weight, bias);
    STORE_X_PART(y1 + i, v, left);
}

/* Rows [row, row + count), count 1 or GROUP. */
INLINE void NAME(forward_group)(const forward_args *a, int64_t row, const int count, const bool rms,
                                const bool stream) {
    const double inverse = 1.0 / (double)a->cols;
    const ELEMENT_T *x[GROUP];
    ELEMENT_T *y[GROUP];
    double mean[GROUP] = {0}, m2[GROUP] = {0}, rstd[GROUP];
    NAME(row_scale) scale[GROUP];
    unsigned wide = 0;
    for (int r = 0; r < count; r++) {
        x[r] = (const ELEMENT_T *)(a->x + (row + r) * a->x_pitch);
        y[r] = (ELEMENT_T *)(a->y + (row + r) * a->y_pitch);
    }
    if (!a->given)
        NAME(moments)(x, count, a->cols, rms, mean, m2);
    for (int r = 0; r < count; r++) {
        const double var = m2[r] * inverse;
        bool in_range = var < BIG && (var >= TINY_VAR || a->eps >= TINY_EPS);
        rstd[r] = 1 / sqrt(var + a->eps);
        if (a->given) {
            mean[r] = rms ? 0 : stat_load(&a->mean, row + r);
            rstd[r] = stat_load(&a->rstd, row + r);
            in_range = fabs(mean[r]) < BIG && rstd[r] < BIG;
        }
        wide |= (unsigned)!in_range << r;
        scale[r].mean = (REAL)mean[r];
        scale[r].rstd = (REAL)rstd[r];
        scale[r].shift = (REAL)((scale[r].mean - mean[r]) * rstd[r]);
    }
    if (__builtin_expect(wide != 0, 0)) {
        if (count > 1) {
            for (int r = 0; r < count; r++)
                NAME(forward_row)(a, row + r, rms, stream);
        } else {
            wide_forward_row(a, row, rms ? PLANISH_RMS : PLANISH_LAYER, DTYPE_OF(ELEMENT),
                             DTYPE_OF(WEIGHT));
        }
        return;
    }
    for (int r = 0; r < count && !a->given; r++) {
        stat_store(&a->mean, row + r, mean[r]);
        stat_store(&a->rstd, row + r, rstd[r]);
        stat_store(&a->m2, row + r, m2[r]);
    }
    if (!a->y)
        return;
    if (count == 1)
        NAME(apply)(a, x, y, 1, scale, rms, stream);
    for (int r = 0; r + 1 < count; r += 2)
        NAME(apply)(a, x + r, y + r, 2, scale + r, rms, stream);
}

OUTLINE void NAME(forward_row)(const forward_args *a, int64_t row, bool rms, bool stream) {
    if (rms)
        NAME(forward_group)(a, row, 1, true, stream);
    else
        NAME(forward_group)(a, row, 1, false, stream);
}

INLINE void NAME(forward_rows)(const forward_args *a, const bool rms) {
    /* A group's rows stay in the first-level cache between the sweeps, or go alone. */
    const int64_t grouped =
        a->cols * (int64_t)sizeof(ELEMENT_T) <= GROUP_ROW_BYTES ? a->rows / GROUP * GROUP : 0;
    const bool stream = a->stream && ((uintptr_t)a->y | (uintptr_t)a->y_pitch) % 64 == 0;
    int64_t row = 0;
    for (; row < grouped; row += GROUP)
        NAME(forward_group)(a, row, GROUP, rms, stream);
    for (; row < a->rows; row++)
        NAME(forward_row)(a, row, rms, stream);
    if (stream)
        VEC_FENCE();
}

static void NAME(forward_layer)(const forward_args *a) {
    NAME(forward_rows)(a, false);
}
static void NAME(forward_rms)(const forward_args *a) {
    NAME(forward_rows)(a, true);
}
