/*
 * Backward of rows of a few hundred bytes; part of cpu/rows.h, and to rows_backward.h what
 * rows_step.h is to rows_forward.h: STEP_ROWS rows are taken through their sums and constants
 * together, and weight, dweight and dbias are loaded once for all of them. For gradients of
 * everything there is; others are left to rows_backward.h.
 */

/* The constants of GROUP rows from their sums. False where one left the range. */
INLINE bool NAME(constants_of)(const REAL xhat[], const REAL g[], const REAL gxhat[],
                               double inverse, double inverse_delta, NAME(row_gradient) row[]) {
    NAME(group_real) sum_xhat, sum_g, sum_gxhat;
    memcpy(&sum_xhat, xhat, sizeof sum_xhat);
    memcpy(&sum_g, g, sizeof sum_g);
    memcpy(&sum_gxhat, gxhat, sizeof sum_gxhat);
    const group_f64 delta = __builtin_convertvector(sum_xhat, group_f64) * inverse_delta;
    const group_f64 c1 = __builtin_convertvector(sum_g, group_f64) * inverse;
    const group_f64 c2 = __builtin_convertvector(sum_gxhat, group_f64) * inverse - c1 * delta;
    const NAME(group_real) shift = __builtin_convertvector(-delta, NAME(group_real));
    const NAME(group_real) mean_g = __builtin_convertvector(c1, NAME(group_real));
    const NAME(group_real) minus_c2 = __builtin_convertvector(-c2, NAME(group_real));
    for (int r = 0; r < GROUP; r++) {
        row[r].shift = shift[r];
        row[r].c1 = mean_g[r];
        row[r].minus_c2 = minus_c2[r];
    }
    const group_mask in_range =
        (delta < BIG) & (delta > -BIG) & (c1 < BIG) & (c1 > -BIG) & (c2 < BIG) & (c2 > -BIG);
    return group_all(&in_range);
}

/* Finishes the constants of a step's rows. False where one left the range. */
INLINE bool NAME(step_constants)(const backward_args *a, const ELEMENT_T *const x[],
                                 const ELEMENT_T *const dy[], ELEMENT_T *const dx[], const bool rms,
                                 bool asks, NAME(row_gradient) row[]) {
    const double inverse = 1.0 / (double)a->cols, inverse_delta = a->x_is_xhat ? 0 : inverse;
    VEC sums[3][STEP_ROWS];
    REAL xhat[STEP_ROWS] = {0}, g[STEP_ROWS] = {0}, gxhat[STEP_ROWS];
    for (int r = 0; r < STEP_ROWS; r++) {
        NAME(gradient_sums_as)(a, x[r], dy[r], a->weight, a->cols, row[r], rms, false, &sums[0][r],
                               &sums[1][r], &sums[2][r]);
        NAME(ask_for_row)(dx[r], 0, a->cols, asks, 1);
    }
    for (int r = 0; r < STEP_ROWS; r += GROUP) {
        if (!rms) {
            NAME(fold_rows)(sums[0] + r, GROUP, xhat + r);
            NAME(fold_rows)(sums[1] + r, GROUP, g + r);
        }
        NAME(fold_rows)(sums[2] + r, GROUP, gxhat + r);
    }
    bool in_range = true;
    for (int r = 0; r < STEP_ROWS; r += GROUP)
        in_range &= NAME(constants_of)(xhat + r, g + r, gxhat + r, inverse, inverse_delta, row + r);
    return in_range;
}

INLINE VEC NAME(load_real)(const REAL *p, int64_t left) {
    return left >= VEC_LANES ? LOAD_REAL(p) : LOAD_REAL_PART(p, (int)left);
}
INLINE void NAME(store_real)(REAL *p, VEC v, int64_t left) {
    if (left >= VEC_LANES)
        STORE_REAL(p, v);
    else
        STORE_REAL_PART(p, v, (int)left);
}

/* `vecs` vectors of every row, from element i on; the last has `last` elements. */
INLINE void NAME(step_gradient)(const backward_args *a, const ELEMENT_T *const x[],
                                const ELEMENT_T *const dy[], ELEMENT_T *const dx[], int64_t i,
                                const int vecs, int last, const bool rms,
                                const NAME(row_gradient) row[]) {
    const WEIGHT_T *const weights = (const WEIGHT_T *)a->weight + i;
    REAL *const dweights = (REAL *)a->dweight + i, *const dbiases =
                                                       rms ? NULL : (REAL *)a->dbias + i;
    const VEC offset = V(set1)((REAL)a->weight_offset);
    const bool asks = a->traffic != TRAFFIC_CACHED;
    VEC weight[NAME(PARTS)], dweight[NAME(PARTS)], dbias[NAME(PARTS)];
    UNROLL for (int k = 0; k < vecs; k++) {
        const int left = NAME(short_left)(k, vecs, last), at = k * VEC_LANES;
        weight[k] = V(add)(NAME(load_weight)(weights + at, left), offset);
        dweight[k] = NAME(load_real)(dweights + at, left);
        if (!rms)
            dbias[k] = NAME(load_real)(dbiases + at, left);
    }
    for (int r = 0; r < STEP_ROWS; r++) {
        UNROLL for (int k = 0; k < vecs; k++) {
            const int left = NAME(short_left)(k, vecs, last);
            const int64_t at = i + k * VEC_LANES;
            const VEC d = NAME(load_x)(dy[r] + at, left);
            const VEC xhat = NAME(xhat_of)(NAME(load_x)(x[r] + at, left), row[r], rms);
            NAME(store_x)(dx[r] + at, NAME(gradient_of)(d, weight[k], xhat, row[r], rms), left);
            dweight[k] = V(fma)(d, xhat, dweight[k]);
            if (!rms)
                dbias[k] = V(add)(d, dbias[k]);
        }
        NAME(ask_for_row)(x[r] + i, STEP_ROWS * a->x_pitch, vecs * VEC_LANES, asks, 0);
        NAME(ask_for_row)(dy[r] + i, STEP_ROWS * a->dy_pitch, vecs * VEC_LANES, asks, 0);
    }
    UNROLL for (int k = 0; k < vecs; k++) {
        const int left = NAME(short_left)(k, vecs, last), at = k * VEC_LANES;
        NAME(store_real)(dweights + at, dweight[k], left);
        if (!rms)
            NAME(store_real)(dbiases + at, dbias[k], left);
    }
}

/* Does what it can of the rows, in steps, and returns how many. */
INLINE int64_t NAME(step_rows_backward)(const backward_args *a, const bool rms) {
    const int64_t n = a->cols;
    const bool usual = a->dx && a->weight && a->dweight && !a->dbias == rms;
    /* From memory, what is asked for ahead must not push out what is at hand. */
    const int64_t most = a->traffic == TRAFFIC_STREAM ? NAME(STEP_COLS) / 2 : NAME(STEP_COLS);
    if (DTYPE_OF(ELEMENT) != DTYPE_OF(REAL_TOKEN) || n > most || !usual)
        return 0;
    _Alignas(64) ELEMENT_T piece[STEP_ROWS * NAME(STEP_COLS) / 2];
    const bool lines = NAME(groups_are_lines)(a->traffic, a->dx, a->dx_pitch, n);
    const bool asks = a->traffic != TRAFFIC_CACHED;
    int64_t done = 0;
    for (; done + STEP_ROWS <= a->rows; done += STEP_ROWS) {
        const ELEMENT_T *x[STEP_ROWS], *dy[STEP_ROWS];
        ELEMENT_T *dx[STEP_ROWS];
        NAME(row_gradient) row[STEP_ROWS];
        for (int r = 0; r < STEP_ROWS; r++) {
            x[r] = (const ELEMENT_T *)(a->x + (done + r) * a->x_pitch);
            dy[r] = (const ELEMENT_T *)(a->dy + (done + r) * a->dy_pitch);
            dx[r] = lines ? piece + r * n : (ELEMENT_T *)(a->dx + (done + r) * a->dx_pitch);
        }
        double mean[STEP_ROWS] = {0}, rstd[STEP_ROWS];
        stat_load_rows(&a->rstd, done, STEP_ROWS, rstd);
        if (!rms && !a->x_is_xhat)
            stat_load_rows(&a->mean, done, STEP_ROWS, mean);
        for (int r = 0; r < STEP_ROWS; r++) {
            row[r].rstd = (REAL)rstd[r];
            row[r].mean = (REAL)mean[r];
            row[r].scale = a->x_is_xhat ? 1 : row[r].rstd;
        }
        if (__builtin_expect(!NAME(step_constants)(a, x, dy, dx, rms, asks && !lines, row), 0)) {
            for (int r = 0; r < STEP_ROWS; r++)
                NAME(backward_row)(a, done + r, rms, TRAFFIC_CACHED);
            continue;
        }
        int64_t i = 0;
        for (; i + LANES <= n; i += LANES)
            NAME(step_gradient)(a, x, dy, dx, i, NAME(PARTS), VEC_LANES, rms, row);
        const int vecs = (int)(n - i + VEC_LANES - 1) / VEC_LANES;
        const int last = (int)(n - i) - (vecs - 1) * VEC_LANES;
        UNROLL for (int v = 1; v <= NAME(PARTS); v++) if (v == vecs)
            NAME(step_gradient)(a, x, dy, dx, i, v, last, rms, row);
        if (lines)
            stream_lines(a->dx + done * a->dx_pitch, piece, STEP_ROWS * a->dx_pitch);
    }
    if (lines)
        VEC_FENCE();
    return done;
}
