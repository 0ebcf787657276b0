/*
 * A backward that is cut in two, for rows of which this is a part: c1 and c2, which the caller
 * merges with those of the other parts, then dx. Part of cpu/rows/kernels_rows_backward.c, beside
 * rows_backward.h, whose sums and sweeps these are. The mean is the whole row's, so nothing of it
 * is mended by what this part adds up to; what f32 has not of a mean in f64 is kept beside it.
 */

typedef struct NAME(half_rows) {
    const ELEMENT_T *x[TOGETHER], *dy[TOGETHER];
    ELEMENT_T *dx[TOGETHER];
    NAME(row_gradient) row[TOGETHER];
    double delta[TOGETHER];
} NAME(half_rows);

INLINE void NAME(half_rows_at)(const backward_args *a, int64_t first, int count, bool rms,
                               NAME(half_rows) * of) {
    for (int r = 0; r < count; r++) {
        of->x[r] = (const ELEMENT_T *)(a->x + (first + r) * a->x_pitch);
        of->dy[r] = (const ELEMENT_T *)(a->dy + (first + r) * a->dy_pitch);
        of->dx[r] = a->dx ? (ELEMENT_T *)(a->dx + (first + r) * a->dx_pitch) : NULL;
        const double mean = rms ? 0 : stat_load(&a->mean, first + r);
        NAME(row_gradient) *row = &of->row[r];
        *row =
            (NAME(row_gradient)){.mean = (REAL)mean, .rstd = (REAL)stat_load(&a->rstd, first + r)};
        row->xhat_rstd = row->rstd;
        of->delta[r] = (mean - (double)row->mean) * (double)row->rstd;
        row->minus_delta = (REAL)-of->delta[r];
    }
}

/* c1 and c2 of `count` rows; false where one is out of range, and then nothing is written. */
INLINE bool NAME(half_statistics)(const backward_args *a, int64_t first, int count, bool rms,
                                  const NAME(half_rows) * of) {
    const double inverse = a->rule.inverse;
    double total[3][TOGETHER] = {{0}};
    double *const c1 = total[1], *const c2 = total[2];
    NAME(gradient_totals)(a, of->x, of->dy, count, rms, of->row, total);
    int out_of_range = 0;
    for (int r = 0; r < count; r++) {
        c1[r] *= inverse;
        c2[r] = rule_c2(&a->rule, c2[r] * inverse - c1[r] * of->delta[r], of->row[r].rstd);
        out_of_range |= !(fabs(total[0][r] * inverse) < BIG) | !(fabs(of->delta[r]) < BIG) |
                        !(fabs(c1[r]) < BIG) | !(fabs(c2[r]) < BIG);
    }
    if (out_of_range)
        return false;
    if (!rms)
        stat_store_rows(&a->c1, first, count, c1);
    stat_store_rows(&a->c2, first, count, c2);
    return true;
}

/* The constants of dx from the whole rows' c1 and c2; false where one is out of range. */
INLINE bool NAME(half_constants)(const backward_args *a, int64_t first, int count, bool rms,
                                 NAME(half_rows) * of) {
    int out_of_range = 0;
    for (int r = 0; r < count; r++) {
        const double c1 = rms ? 0 : stat_load(&a->c1, first + r);
        const double c2 = stat_load(&a->c2, first + r);
        of->row[r].c1 = (REAL)c1;
        of->row[r].minus_c2 = (REAL)-c2;
        out_of_range |= !(fabs(of->delta[r]) < BIG) | !(fabs(c1) < BIG) | !(fabs(c2) < BIG);
    }
    return !out_of_range;
}

INLINE void NAME(half_group)(const backward_args *a, int64_t first, const int count, const bool rms,
                             traffic t) {
    NAME(half_rows) of = {0};
    NAME(half_rows_at)(a, first, count, rms, &of);
    const bool in_range = a->half == HALF_STATISTICS
                              ? NAME(half_statistics)(a, first, count, rms, &of)
                              : NAME(half_constants)(a, first, count, rms, &of);
    if (__builtin_expect(!in_range, 0)) {
        NAME(pair_sums)(a, false);
        for (int r = 0; r < count; r++)
            overflow_backward_row(a, first + r, rms ? PLANISH_RMS : PLANISH_LAYER,
                                  DTYPE_OF(ELEMENT), DTYPE_OF(WEIGHT));
        NAME(pair_sums)(a, true);
        return;
    }
    if (!a->dx && !a->dweight && !a->dbias)
        return;
    const int64_t ahead = a->hints->rows_ahead > count ? a->hints->rows_ahead : count;
    const traffic to = a->dx || t != TRAFFIC_STREAM ? t : TRAFFIC_AHEAD;
    /* The texts that add to dx add nothing here: there is none more for halves. */
    if (count == 1)
        (rms ? NAME(gradients_summed_rms_1)
             : NAME(gradients_summed_layer_1))(a, of.x, of.dy, NULL, of.dx, of.row, ahead, to);
    else
        (rms ? NAME(gradients_summed_rms_4)
             : NAME(gradients_summed_layer_4))(a, of.x, of.dy, NULL, of.dx, of.row, ahead, to);
}

ONE_COPY void NAME(half_rows_of)(const backward_args *a, const bool rms) {
    const traffic t = NAME(traffic_to)(a->traffic, a->dx, a->dx_pitch, a->cols);
    int64_t row = 0;
    NAME(pair_sums)(a, true);
    for (; row + TOGETHER <= a->rows; row += TOGETHER)
        NAME(half_group)(a, row, TOGETHER, rms, t);
    for (; row < a->rows; row++)
        NAME(half_group)(a, row, 1, rms, t);
    NAME(pair_sums)(a, false);
}

static void NAME(halves_layer)(const backward_args *a) {
    NAME(half_rows_of)(a, false);
}
static void NAME(halves_rms)(const backward_args *a) {
    NAME(half_rows_of)(a, true);
}
