/*
 * Forward of rows with no more elements than there are canonical lanes; part of cpu/rows.h. Such a
 * row is a few vectors, their number a constant, so that GROUP rows are done without a loop or a
 * call. The sums are those of rows_forward.h: a lane that no element goes to holds 0. For f32 and
 * f64: 16-bit rows wait for their conversions, not for this.
 */

INLINE int NAME(short_left)(int k, const int vecs, int last) {
    return k + 1 < vecs ? VEC_LANES : last;
}

/* The lanes of `vecs` vectors folded to one vector. */
INLINE VEC NAME(short_fold)(VEC part[], const int vecs) {
    UNROLL for (int half = NAME(PARTS) / 2; half; half /= 2)
        UNROLL for (int k = 0; k < half; k++) if (k + half < vecs) part[k] =
            V(add)(part[k], part[k + half]);
    return part[0];
}

INLINE void NAME(short_moments)(const ELEMENT_T *const x[], int64_t n, const int vecs, int last,
                                const bool rms, double mean[GROUP], double m2[GROUP]) {
    const double inverse = 1.0 / (double)n;
    VEC sums[GROUP], squares[GROUP];
    REAL total[GROUP], center[GROUP], deviation[GROUP];
    double rest[GROUP];
    UNROLL for (int r = 0; r < GROUP; r++) {
        VEC part[NAME(PARTS)];
        UNROLL for (int k = 0; k < vecs; k++) {
            const VEC v = NAME(load_x)(x[r] + k * VEC_LANES, NAME(short_left)(k, vecs, last));
            part[k] = rms ? V(mul)(v, v) : v;
        }
        sums[r] = NAME(short_fold)(part, vecs);
    }
    NAME(fold_rows)(sums, GROUP, total);
    if (rms) {
        for (int r = 0; r < GROUP; r++)
            m2[r] = total[r];
        return;
    }
    NAME(scale_totals)(total, inverse, center);
    UNROLL for (int r = 0; r < GROUP; r++) {
        const VEC m = V(set1)(center[r]);
        VEC part[NAME(PARTS)], square[NAME(PARTS)];
        UNROLL for (int k = 0; k < vecs; k++) {
            const int left = NAME(short_left)(k, vecs, last);
            part[k] = NAME(keep)(V(sub)(NAME(load_x)(x[r] + k * VEC_LANES, left), m), left);
            square[k] = V(mul)(part[k], part[k]);
        }
        sums[r] = NAME(short_fold)(part, vecs);
        squares[r] = NAME(short_fold)(square, vecs);
    }
    NAME(fold_rows)(sums, GROUP, deviation);
    NAME(fold_rows)(squares, GROUP, total);
    NAME(center_moments)(deviation, total, inverse, rest, m2);
    NAME(mean_of)(center, rest, mean);
}

INLINE void NAME(short_apply)(const forward_args *a, const ELEMENT_T *const x[],
                              ELEMENT_T *const y[], const int vecs, int last,
                              const NAME(row_scale) scale[], const bool rms) {
    const VEC offset = V(set1)((REAL)a->weight_offset);
    const WEIGHT_T *const weights = a->weight, *const biases = a->bias;
    VEC weight[NAME(PARTS)], bias[NAME(PARTS)];
    UNROLL for (int k = 0; k < vecs; k++) {
        const int left = NAME(short_left)(k, vecs, last);
        weight[k] =
            weights ? V(add)(NAME(load_weight)(weights + k * VEC_LANES, left), offset) : V(set1)(1);
        bias[k] = biases ? NAME(load_weight)(biases + k * VEC_LANES, left) : V(set1)((REAL)-0.0);
    }
    UNROLL for (int r = 0; r < GROUP; r++) UNROLL for (int k = 0; k < vecs; k++) {
        const int left = NAME(short_left)(k, vecs, last);
        const VEC v = NAME(load_x)(x[r] + k * VEC_LANES, left);
        const VEC out = V(fma)(NAME(normalize)(v, scale[r], rms), weight[k], bias[k]);
        NAME(store_x)(y[r] + k * VEC_LANES, out, left);
    }
}

/* Rows [0, rows), a multiple of GROUP. Where `lines`, each group of y is whole lines, written past
 * the cache. */
INLINE void NAME(short_rows_of)(const forward_args *a, int64_t rows, const bool rms, const int vecs,
                                bool lines) {
    _Alignas(64) ELEMENT_T piece[GROUP * LANES];
    const int64_t n = a->cols;
    const int last = (int)n - (vecs - 1) * VEC_LANES;
    for (int64_t row = 0; row < rows; row += GROUP) {
        const ELEMENT_T *x[GROUP];
        ELEMENT_T *y[GROUP];
        double mean[GROUP] = {0}, m2[GROUP], rstd[GROUP];
        NAME(row_scale) scale[GROUP];
        for (int r = 0; r < GROUP; r++) {
            x[r] = (const ELEMENT_T *)(a->x + (row + r) * a->x_pitch);
            y[r] = lines ? piece + r * n : (ELEMENT_T *)(a->y + (row + r) * a->y_pitch);
        }
        NAME(short_moments)(x, n, vecs, last, rms, mean, m2);
        if (__builtin_expect(!NAME(finish_moments)(a, m2, rstd), 0)) {
            for (int r = 0; r < GROUP; r++)
                NAME(forward_row)(a, row + r, rms, TRAFFIC_CACHED);
            continue;
        }
        stat_store_rows(&a->mean, row, GROUP, mean);
        stat_store_rows(&a->rstd, row, GROUP, rstd);
        stat_store_rows(&a->m2, row, GROUP, m2);
        NAME(scale_rows)(scale, GROUP, mean, rstd);
        NAME(short_apply)(a, x, y, vecs, last, scale, rms);
        if (lines)
            stream_lines(a->y + row * a->y_pitch, piece, GROUP * a->y_pitch);
    }
    if (lines)
        VEC_FENCE();
}

/* Does what it can of the rows, and returns how many. */
INLINE int64_t NAME(short_rows)(const forward_args *a, const bool rms) {
    const int64_t rows = a->rows / GROUP * GROUP, vecs = (a->cols + VEC_LANES - 1) / VEC_LANES;
    if (DTYPE_OF(ELEMENT) != DTYPE_OF(REAL_TOKEN) || !rows || a->cols > LANES || a->given || !a->y)
        return 0;
    const bool lines = NAME(groups_are_lines)(a->traffic, a->y, a->y_pitch, a->cols);
    UNROLL for (int v = 1; v <= NAME(PARTS); v++) if (v == vecs)
        NAME(short_rows_of)(a, rows, rms, v, lines);
    return rows;
}
