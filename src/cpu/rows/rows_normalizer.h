/*
 * What normalises a row, from its moments; part of cpu/rows/rows.h, whose parameters and helpers it
 * uses, for rows and for rows of channels.
 */

/* What normalises a row: xhat = (x - mean) * rstd + minus_delta (cpu/common/epilogue.h). */
typedef struct NAME(row_normalizer) {
    REAL mean, rstd, minus_delta;
} NAME(row_normalizer);

/*
 * minus_delta of TOGETHER rows. By how much a row's mean in the compute type is above its mean in
 * f64 is known from these; of an f64 row that is `excess` (mean_of).
 */
INLINE void NAME(find_minus_delta)(const NAME(rows_real) * near, const rows_f64 *means,
                                   const double excess[], const rows_f64 *rstds,
                                   REAL minus_delta[]) {
    rows_f64 above = __builtin_convertvector(*near, rows_f64) - *means;
    if (sizeof(REAL) == 8)
        memcpy(&above, excess, sizeof above);
    const NAME(rows_real) made = __builtin_convertvector(above * *rstds, NAME(rows_real));
    memcpy(minus_delta, &made, sizeof made);
}

INLINE void NAME(normalizers_of)(NAME(row_normalizer) to[], int count, const double mean[],
                                 const double excess[], const double rstd[]) {
    for (int at = 0; at + TOGETHER <= count; at += TOGETHER) {
        rows_f64 means, rstds;
        memcpy(&means, mean + at, sizeof means);
        memcpy(&rstds, rstd + at, sizeof rstds);
        const NAME(rows_real) near = __builtin_convertvector(means, NAME(rows_real));
        const NAME(rows_real) real_rstds = __builtin_convertvector(rstds, NAME(rows_real));
        REAL minus_delta[TOGETHER];
        NAME(find_minus_delta)(&near, &means, excess + at, &rstds, minus_delta);
        for (int r = 0; r < TOGETHER; r++)
            to[at + r] = (NAME(row_normalizer)){near[r], real_rstds[r], minus_delta[r]};
    }
    for (int r = count / TOGETHER * TOGETHER; r < count; r++) {
        to[r].mean = (REAL)mean[r];
        to[r].rstd = (REAL)rstd[r];
        const double above = sizeof(REAL) == 8 ? excess[r] : to[r].mean - mean[r];
        to[r].minus_delta = (REAL)(above * rstd[r]);
    }
}

/* For every lane. */
INLINE NAME(normalizer) NAME(spread)(NAME(row_normalizer) s) {
    return (NAME(normalizer)){V(set1)(s.mean), V(set1)(s.rstd), V(set1)(s.minus_delta)};
}

/* What a vector is in the rows' dtype. */
INLINE VEC NAME(rounded)(VEC v) {
    _Alignas(64) ELEMENT_T room[VEC_LANES];
    STORE_X(room, v);
    return LOAD_X(room);
}

/* y of a vector of a row by its own weight and bias. */
INLINE VEC NAME(row_result)(VEC x, NAME(row_normalizer) s, VEC weight, VEC bias, const bool rms,
                            const planish_activation f) {
    if (sizeof(ELEMENT_T) == 2 && (int)f == ROUNDED_XHAT) {
        const VEC xhat = NAME(rounded)(NAME(normalize)(x, NAME(spread)(s), rms));
        return V(add)(NAME(rounded)(V(mul)(xhat, weight)), bias);
    }
    return NAME(result)(x, NAME(spread)(s), (NAME(epilogue)){f, weight, bias}, rms);
}

/* mended_rstd of TOGETHER rows (cpu/common/exact.h). */
INLINE void NAME(mend_rstds)(const rows_f64 *v, rows_f64 *rstd) {
    const rows_f64 was = *rstd, root = *v * was;
    rows_f64 rest, error, mended;
    for (int r = 0; r < TOGETHER; r++)
        rest[r] = __builtin_fma((*v)[r], was[r], -root[r]);
    for (int r = 0; r < TOGETHER; r++)
        error[r] = __builtin_fma(-root[r], was[r], 1);
    error -= rest * was;
    const rows_f64 half = error * .5;
    for (int r = 0; r < TOGETHER; r++)
        mended[r] = __builtin_fma(was[r], half[r], was[r]);
    const rows_mask sound = (error < 1) & (error > -1);
    *rstd = (rows_f64)(((rows_mask)mended & sound) | ((rows_mask)was & ~sound));
}

/* One value for some of TOGETHER rows. */
INLINE void NAME(put_where)(const rows_mask *where, double value, rows_f64 *rows) {
    const rows_f64 values = {value, value, value, value};
    *rows = (rows_f64)(((rows_mask)values & *where) | ((rows_mask)*rows & ~*where));
}

/* Mean and rstd of TOGETHER rows from their moments. False where one is out of the compute type's
 * range: the arithmetic is done for all lanes, so that it runs in vectors. */
INLINE bool NAME(finish_moments)(const forward_args *a, const double m2[TOGETHER],
                                 double rstd[TOGETHER]) {
    const norm_rule *const rule = &a->rule;
    const double least = NAME(least_moment)(rule, (double)a->cols);
    rows_f64 sum;
    memcpy(&sum, m2, sizeof sum);
    const rows_f64 var = sizeof(REAL) == 8 ? sum / rule->count : sum * rule->inverse;
    const rows_f64 shifted = var + rule->eps;
    rows_f64 root = shifted;
    group_sqrt(&root);
    const rows_mask clamped = root < rule->least;
    NAME(put_where)(&clamped, rule->least, &root);
    root = 1 / root;
    if (sizeof(REAL) == 8) {
        NAME(mend_rstds)(&shifted, &root);
        NAME(put_where)(&clamped, 1 / rule->least, &root);
    }
    memcpy(rstd, &root, sizeof root);
    const rows_mask in_range = (var < BIG) & (var >= least);
    return group_all(&in_range);
}

INLINE bool NAME(given_moments)(const forward_args *a, int64_t row, const int count, const bool rms,
                                double mean[TOGETHER], double rstd[TOGETHER]) {
    bool in_range = true;
    for (int r = 0; r < count; r++) {
        mean[r] = rms ? 0 : stat_load(&a->mean, row + r);
        rstd[r] = stat_load(&a->rstd, row + r);
        in_range &= fabs(mean[r]) < BIG && rstd[r] < BIG;
    }
    return in_range;
}
