/*
 * What follows from the sums of channels: moments, and the factors that make y and dx; part of
 * cpu/batch/kernels_batch.c. In f64, channel by channel, parts in their order.
 */

/* The moments of all parts; their means are pairs. */
static void NAME(merge_moments)(const batch_finish_args *a) {
    double *const distance = a->total[RECORD_DISTANCE], *const m2 = a->total[RECORD_M2];
    double *const center = a->total[RECORD_CENTER];
    for (int k = 0; k < RECORDS; k++)
        if (a->total[k] != a->record[k])
            memcpy(a->total[k], a->record[k], (size_t)a->channels * sizeof(double));
    double before = (double)(a->parts > 1 ? a->part_count : a->last_count);
    for (int64_t part = 1; part < a->parts; part++) {
        const double n = (double)(part < a->parts - 1 ? a->part_count : a->last_count);
        const double share = n / (before + n), spread = before * share;
        const int64_t at = part * a->part_step;
        const double *const own_center = a->record[RECORD_CENTER] + at;
        const double *const own_distance = a->record[RECORD_DISTANCE] + at;
        const double *const own_m2 = a->record[RECORD_M2] + at;
        for (int64_t c = 0; c < a->channels; c++) {
            const double step = (own_center[c] - center[c]) + own_distance[c] - distance[c];
            exact_add(&center[c], &distance[c], step * share);
            m2[c] += own_m2[c] + step * step * spread;
        }
        before += n;
    }
}

static void NAME(add_parts)(const batch_finish_args *a) {
    for (int k = 0; k < RECORDS; k++) {
        double *const total = a->total[k];
        if (total != a->record[k])
            memcpy(total, a->record[k], (size_t)a->channels * sizeof *total);
        for (int64_t part = 1; part < a->parts; part++) {
            const double *const own = a->record[k] + part * a->part_step;
            for (int64_t c = 0; c < a->channels; c++)
                total[c] += own[c];
        }
    }
}

INLINE double NAME(elements)(const batch_finish_args *a) {
    return (double)((a->parts - 1) * a->part_count + a->last_count);
}

/* Whether a factor is in the range of the compute type, and holds all its digits. */
INLINE bool NAME(holds)(double factor) {
    const double size = fabs(factor);
    return size < BIG && (size == 0 || size > (sizeof(REAL) == 8 ? 1e-300 : 2e-38));
}

/* z = (x - mean) * scale + offset, with what the mean lost when it was rounded. */
INLINE void NAME(set_z)(const batch_finish_args *a, int64_t c, REAL mean, double minus_delta) {
    REAL *const *const f = (REAL *const *)a->factor;
    const REAL *const weights = a->weight, *const biases = a->bias;
    const REAL rstd = (REAL)a->rstd[c];
    const REAL weight = weights ? weights[c] + (REAL)a->weight_offset : 1;
    const double scale = (double)weight * (double)rstd;
    f[FACTOR_MEAN][c] = mean;
    f[FACTOR_RSTD][c] = rstd;
    f[FACTOR_SCALE][c] = (REAL)scale;
    f[FACTOR_OFFSET][c] =
        (REAL)((double)(biases ? biases[c] : (REAL)-0.0) + (double)weight * minus_delta);
    a->wide[c] = !(NAME(holds)(a->rstd[c]) && NAME(holds)(scale) && fabs(a->mean[c]) < BIG);
}

static void NAME(finish_forward)(const batch_finish_args *a) {
    const double n = NAME(elements)(a), inverse = 1.0 / n;
    const double least = a->eps < TINY_EPS ? TINY_VAR : -1;
    const bool made = a->record[0] != NULL;
    if (made)
        NAME(merge_moments)(a);
    for (int64_t c = 0; c < a->channels; c++) {
        double center = a->mean[c], distance = 0, var = 0;
        if (made) {
            center = a->total[RECORD_CENTER][c];
            distance = a->total[RECORD_DISTANCE][c];
            var = a->total[RECORD_M2][c] * inverse;
            a->rstd[c] = 1 / sqrt(var + a->eps);
            a->mean[c] = center + distance;
        }
        /* In f32 a mean of f64 has all digits that count: what is made of it is made so again by a
         * backward that is given it. */
        const REAL mean = (REAL)a->mean[c];
        const double minus_delta = sizeof(REAL) == 8
                                       ? ((double)mean - center - distance) * a->rstd[c]
                                       : ((double)mean - a->mean[c]) * (double)(REAL)a->rstd[c];
        NAME(set_z)(a, c, mean, minus_delta);
        a->wide[c] |= !(var < BIG && var >= (made ? least : -1));
    }
}

static void NAME(finish_backward)(const batch_finish_args *a) {
    REAL *const *const f = (REAL *const *)a->factor;
    const REAL *const weights = a->weight;
    const double inverse = 1.0 / NAME(elements)(a);
    const bool made = a->record[0] != NULL;
    if (made)
        NAME(add_parts)(a);
    for (int64_t c = 0; c < a->channels; c++) {
        const REAL mean = (REAL)a->mean[c], rstd = (REAL)a->rstd[c];
        const double weight = weights ? (double)(weights[c] + (REAL)a->weight_offset) : 1;
        double delta = (a->mean[c] - (double)mean) * (double)rstd, c1 = 0, c2 = 0;
        double d = 0, product = 0;
        if (made) {
            d = a->total[RECORD_D][c];
            product = a->total[RECORD_PRODUCT][c];
            if (!a->reach.is_exact)
                delta = mended(&a->reach, a->total[RECORD_XHAT][c] * inverse, (double)mean,
                               (double)rstd);
            product -= delta * d;
        }
        if (a->c2) {
            c1 = a->c1[c];
            c2 = a->c2[c];
        } else if (!a->fixed) {
            c1 = weight * d * inverse;
            c2 = weight * product * inverse;
        }
        a->dweight[c] = product;
        a->dbias[c] = d;
        const double of_x = -c2 * (double)rstd * (double)rstd;
        f[FACTOR_OF_X][c] = (REAL)of_x;
        f[FACTOR_REST][c] = (REAL)(-(c1 - delta * c2) * (double)rstd);
        a->wide[c] |= !(fabs(delta) < BIG && fabs(c1) < BIG && fabs(c2) < BIG && fabs(d) < BIG &&
                        fabs(product) < BIG && fabs(c1 * (double)rstd) < BIG && NAME(holds)(of_x));
    }
}
