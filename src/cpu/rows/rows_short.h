/*
 * Forward of rows with no more elements than twice the canonical lanes, or of 16 bits and no more
 * than eight vectors; part of cpu/rows/rows.h. Such a row is a few vectors, their number a
 * constant, and costs less for its elements than for waiting: y waits for the root, the root for
 * the squares, the squares for the mean. So SHORT_ROWS rows, or half of them, are taken through
 * each of these together, and what a row has once is done in vectors of rows. The sums are those of
 * rows_moments.h: a lane that no element goes to holds 0.
 */

/* The most vectors of a row. */
enum { NAME(SHORT_VECS) = NAME(CONVERTS) ? 2 * SHORT_PARTS : 2 * NAME(PARTS) };
/* The most bytes of 16-bit rows that are taken together with non-temporal stores. */
enum { NAME(SHORT_STEP_BYTES) = 2048 };

/* What normalises the rows of a step, as row_normalizer for each of them. */
typedef struct NAME(row_normalizers) {
    REAL mean[SHORT_ROWS], rstd[SHORT_ROWS], minus_delta[SHORT_ROWS];
} NAME(row_normalizers);

/* That of TOGETHER rows, from row r on. */
INLINE void NAME(put_normalizers)(NAME(row_normalizers) * to, int r, const double mean[],
                                  const double excess[], const double rstd[]) {
    rows_f64 means, rstds;
    memcpy(&means, mean + r, sizeof means);
    memcpy(&rstds, rstd + r, sizeof rstds);
    const NAME(rows_real) near = __builtin_convertvector(means, NAME(rows_real));
    const NAME(rows_real) real_rstds = __builtin_convertvector(rstds, NAME(rows_real));
    memcpy(to->mean + r, &near, sizeof near);
    memcpy(to->rstd + r, &real_rstds, sizeof real_rstds);
    NAME(find_minus_delta)(&near, &means, excess + r, &rstds, to->minus_delta + r);
}

INLINE NAME(row_normalizer) NAME(normalizer_at)(const NAME(row_normalizers) * by, int r) {
    return (NAME(row_normalizer)){by->mean[r], by->rstd[r], by->minus_delta[r]};
}

/* Ends the moments of a step's rows: their normalizers and statistics. False where a row leaves the
 * range of REAL, and then the rows are done one by one. */
INLINE bool NAME(finish_step)(const forward_args *a, int64_t row, const int count, const bool rms,
                              const double mean[], const double excess[], const double m2[],
                              NAME(row_normalizers) * by) {
    double rstd[SHORT_ROWS];
    bool in_range = true;
    for (int r = 0; r < count; r += TOGETHER) {
        in_range &= NAME(finish_moments)(a, m2 + r, rstd + r);
        NAME(put_normalizers)(by, r, mean, excess, rstd);
    }
    if (__builtin_expect(!in_range, 0)) {
        for (int r = 0; r < count; r++)
            EXPORT(one_row)(a, row + r, rms);
        return false;
    }
    stat_store_rows(&a->mean, row, count, mean);
    stat_store_rows(&a->rstd, row, count, rstd);
    stat_store_rows(&a->m2, row, count, m2);
    return true;
}

INLINE void NAME(short_add_square)(VEC part[], int k, VEC v) {
    part[k % NAME(PARTS)] = k < NAME(PARTS) ? V(mul)(v, v) : V(fma)(v, v, part[k % NAME(PARTS)]);
}

/* The first sums of FOLD_ROWS rows, as segment_sums. */
INLINE void NAME(short_totals)(const char *x, int64_t pitch, const int vecs, int last,
                               const bool rms, REAL total[]) {
    const int summed = rms || vecs < NAME(PARTS) ? vecs : NAME(PARTS);
    VEC sums[FOLD_ROWS];
    for (int r = 0; r < FOLD_ROWS; r++) {
        const ELEMENT_T *const row = (const ELEMENT_T *)(x + r * pitch);
        VEC part[NAME(PARTS)];
        UNROLL for (int k = 0; k < summed; k++) {
            const VEC v = NAME(load_x)(row + k * VEC_LANES, NAME(short_left)(k, vecs, last));
            if (rms)
                NAME(short_add_square)(part, k, v);
            else
                NAME(short_add)(part, k, v);
        }
        sums[r] = NAME(short_fold)(part, summed);
    }
    V(fold8)(sums, total);
}

/* The sums of x - center and of its square. */
INLINE void NAME(short_centered)(const char *x, int64_t pitch, const int vecs, int last,
                                 const REAL center[], REAL deviation[], REAL total[]) {
    VEC sums[FOLD_ROWS], squares[FOLD_ROWS];
    for (int r = 0; r < FOLD_ROWS; r++) {
        const ELEMENT_T *const row = (const ELEMENT_T *)(x + r * pitch);
        const VEC m = V(set1)(center[r]);
        VEC part[NAME(PARTS)], square[NAME(PARTS)];
        UNROLL for (int k = 0; k < vecs; k++) {
            const int left = NAME(short_left)(k, vecs, last);
            const VEC d = NAME(keep)(V(sub)(NAME(load_x)(row + k * VEC_LANES, left), m), left);
            NAME(short_add)(part, k, d);
            NAME(short_add_square)(square, k, d);
        }
        sums[r] = NAME(short_fold)(part, vecs);
        squares[r] = NAME(short_fold)(square, vecs);
    }
    V(fold8)(sums, deviation);
    V(fold8)(squares, total);
}

INLINE void NAME(short_moments)(const char *x, int64_t pitch, int64_t n, int count, const int vecs,
                                int last, const bool rms, double mean[], double excess[],
                                double m2[]) {
    const double inverse = 1.0 / (double)n;
    REAL total[SHORT_ROWS], center[SHORT_ROWS], deviation[SHORT_ROWS];
    for (int r = 0; r < count; r += FOLD_ROWS)
        NAME(short_totals)(x + r * pitch, pitch, vecs, last, rms, total + r);
    if (rms) {
        for (int r = 0; r < count; r++)
            m2[r] = total[r];
        return;
    }
    for (int r = 0; r < count; r += TOGETHER)
        NAME(scale_totals)(total + r, 1.0 / (double)NAME(summed_first)(n, false), center + r);
    for (int r = 0; r < count; r += FOLD_ROWS)
        NAME(short_centered)(x + r * pitch, pitch, vecs, last, center + r, deviation + r,
                             total + r);
    for (int r = 0; r < count; r += TOGETHER) {
        double rest[TOGETHER];
        const unsigned far = NAME(center_moments)(deviation + r, total + r, inverse, rest, m2 + r);
        if (__builtin_expect(far != 0, 0)) {
            const ELEMENT_T *rows[TOGETHER];
            for (int k = 0; k < TOGETHER; k++)
                rows[k] = (const ELEMENT_T *)(x + (r + k) * pitch);
            NAME(recenter)(far, rows, n, center + r, rest, m2 + r);
        }
        NAME(mean_of)(center + r, rest, mean + r, excess + r);
    }
}

/* y of `count` rows from row `first` of a step on, whole vectors: the last one of a row may reach
 * into the next. */
INLINE void NAME(short_apply)(const forward_args *a, const char *x, char *y, int64_t y_pitch,
                              int first, int count, const int vecs, int last,
                              const NAME(row_normalizers) * by, const bool rms) {
    const VEC offset = V(set1)((REAL)a->weight_offset);
    const WEIGHT_T *const weights = a->weight, *const biases = a->bias;
    const int64_t x_pitch = a->x_pitch;
    VEC weight[NAME(SHORT_VECS)], bias[NAME(SHORT_VECS)];
    UNROLL for (int k = 0; k < vecs; k++) {
        const int left = NAME(short_left)(k, vecs, last);
        weight[k] =
            weights ? V(add)(NAME(load_weight)(weights + k * VEC_LANES, left), offset) : V(set1)(1);
        bias[k] = biases ? NAME(load_weight)(biases + k * VEC_LANES, left) : V(set1)((REAL)-0.0);
    }
    for (int r = first; r < first + count; r++) {
        const NAME(row_normalizer) own = NAME(normalizer_at)(by, r);
        UNROLL for (int k = 0; k < vecs; k++) {
            const int left = NAME(short_left)(k, vecs, last);
            const VEC v = NAME(load_x)((const ELEMENT_T *)(x + r * x_pitch) + k * VEC_LANES, left);
            STORE_X((ELEMENT_T *)(y + r * y_pitch) + k * VEC_LANES,
                    NAME(row_result)(v, own, weight[k], bias[k], rms, PLANISH_IDENTITY));
        }
    }
}

/* Rows [0, rows), in steps of `count`. y is made in place where its rows are whole vectors.
 * Where `lines`, the rows of a step are whole lines, written by non-temporal stores. */
INLINE void NAME(short_rows_of)(const forward_args *a, int64_t rows, int count, const bool rms,
                                const int vecs, const bool whole, bool lines) {
    _Alignas(64) ELEMENT_T piece[(SHORT_ROWS * NAME(SHORT_VECS) + 1) * VEC_LANES];
    const int64_t n = a->cols, x_pitch = a->x_pitch;
    /* Where whole vectors are constants: a remainder, so that the compiler sees that this is not.
     */
    const int rest = vecs <= NAME(PARTS) ? (int)(n % VEC_LANES) : (int)n - (vecs - 1) * VEC_LANES;
    const int last = whole ? VEC_LANES : rest;
    const bool in_place = n % VEC_LANES == 0 && !lines;
    /* Where y fits the cache it comes soon enough by itself. */
    const bool writes = a->traffic == TRAFFIC_STREAM && !lines;
    const int64_t made_pitch = in_place ? a->y_pitch : n * (int64_t)sizeof(ELEMENT_T);
    /* Fewer lines at once by non-temporal stores, as stream_runs says. */
    const bool halves = lines && NAME(goes_by_run)(a->hints) && FOLD_ROWS * made_pitch % 64 == 0;
    const int at_once = halves ? FOLD_ROWS : count;
    const bool prefetches = a->hints->prefetch_steps;
    for (int64_t row = 0; row < rows; row += count) {
        const char *const x = NAME(x_at)(a, row);
        char *const y = a->y + row * a->y_pitch;
        double mean[SHORT_ROWS] = {0}, excess[SHORT_ROWS] = {0}, m2[SHORT_ROWS];
        NAME(row_normalizers) by;
        NAME(prefetch_rows)(y, 0, a->y_pitch, n, count, writes, 1);
        NAME(short_moments)(x, x_pitch, n, count, vecs, last, rms, mean, excess, m2);
        NAME(prefetch_rows)(x, 2 * count * x_pitch, x_pitch, n, count, prefetches, 0);
        if (!NAME(finish_step)(a, row, count, rms, mean, excess, m2, &by))
            continue;
        for (int r = 0; r < count; r += at_once) {
            NAME(short_apply)(a, x, in_place ? y : (char *)piece, made_pitch, r, at_once, vecs,
                              last, &by, rms);
            if (lines)
                stream_lines(y + r * made_pitch, (char *)piece + r * made_pitch,
                             at_once * made_pitch);
        }
        if (lines)
            continue;
        if (!in_place)
            NAME(place_rows)(y, a->y_pitch, piece, n, count);
    }
}

/* Those of a number of vectors: a function for each, which is quicker to compile than all in one.
 * Whole vectors are constants where they are few: with more, a mask costs less than it takes to
 * compile both. */
INLINE void NAME(short_rows_as)(const forward_args *a, int64_t rows, int count, const bool rms,
                                const int vecs, bool whole, bool lines) {
    if (vecs > NAME(SHORT_VECS))
        return;
    if (whole && vecs <= NAME(PARTS))
        NAME(short_rows_of)(a, rows, count, rms, vecs, true, lines);
    else
        NAME(short_rows_of)(a, rows, count, rms, vecs, false, lines);
}
#define EACH_SHORT(vecs)                                                                           \
    ONE_COPY void NAME(short_rows_##vecs)(const forward_args *a, int64_t rows, int count,          \
                                          bool rms, bool whole, bool lines) {                      \
        if (rms)                                                                                   \
            NAME(short_rows_as)(a, rows, count, true, vecs, whole, lines);                         \
        else                                                                                       \
            NAME(short_rows_as)(a, rows, count, false, vecs, whole, lines);                        \
    }
EACH_SHORT(1)
EACH_SHORT(2)
EACH_SHORT(3)
EACH_SHORT(4)
EACH_SHORT(5)
EACH_SHORT(6)
EACH_SHORT(7)
EACH_SHORT(8)

/* Does what it can of the rows, and returns how many. */
INLINE int64_t NAME(short_rows)(const forward_args *a, const bool rms) {
    static void (*const of[])(const forward_args *, int64_t, int, bool, bool, bool) = {
        NAME(short_rows_1), NAME(short_rows_2), NAME(short_rows_3), NAME(short_rows_4),
        NAME(short_rows_5), NAME(short_rows_6), NAME(short_rows_7), NAME(short_rows_8),
    };
    _Static_assert(!NAME(SHORT_COLS) || NAME(SHORT_VECS) <= sizeof of / sizeof *of,
                   "a kernel for each");
    const int64_t bytes = SHORT_ROWS * a->cols * (int64_t)sizeof(ELEMENT_T);
    const bool half =
        NAME(CONVERTS) && a->traffic == TRAFFIC_STREAM && bytes > NAME(SHORT_STEP_BYTES);
    const int count = half ? FOLD_ROWS : SHORT_ROWS;
    const int64_t rows = a->rows / count * count;
    const int64_t vecs = (a->cols + VEC_LANES - 1) / VEC_LANES;
    const bool lines = NAME(rows_are_lines)(a->traffic, a->y, a->y_pitch, a->cols, count);
    const bool whole = a->cols % VEC_LANES == 0;
    of[vecs - 1](a, rows, count, rms, whole, lines);
    return rows;
}
