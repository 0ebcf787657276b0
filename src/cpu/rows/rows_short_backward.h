/*
 * Backward of rows with no more elements than there are canonical lanes, or than twice these where
 * that was timed; part of cpu/rows/rows.h, and to rows_step_backward.h what rows_short.h is to
 * rows_step.h: SHORT_ROWS rows at a time, each a constant number of vectors.
 */

/* The most vectors of a row. */
enum {
    NAME(SHORT_GRADIENTS) = LINE_VECTORS && DTYPE_OF(ELEMENT) == DTYPE_F32 ? 2 * NAME(PARTS)
                                                                           : NAME(PARTS)
};

/* The sums of xhat, g = dy * weight and g * xhat of FOLD_ROWS rows, from row `first` on. */
INLINE void NAME(short_gradient_sums)(const backward_args *a, const char *x, const char *dy,
                                      int first, const int vecs, int last, const bool rms,
                                      const VEC weight[], const NAME(row_gradients) * rows,
                                      REAL sum_xhat[], REAL sum_g[], REAL sum_gxhat[]) {
    const int64_t x_pitch = a->x_pitch, dy_pitch = a->dy_pitch;
    VEC xhats[FOLD_ROWS], gs[FOLD_ROWS], gxhats[FOLD_ROWS];
    UNROLL for (int r = 0; r < FOLD_ROWS; r++) {
        const ELEMENT_T *const row_x = (const ELEMENT_T *)(x + (first + r) * x_pitch);
        const ELEMENT_T *const row_dy = (const ELEMENT_T *)(dy + (first + r) * dy_pitch);
        const VEC mean = V(set1)(rows->mean[first + r]);
        const VEC xhat_rstd = V(set1)(rows->xhat_rstd[first + r]);
        const int parts = vecs < NAME(PARTS) ? vecs : NAME(PARTS);
        VEC xhat[NAME(PARTS)], g[NAME(PARTS)], gxhat[NAME(PARTS)];
        UNROLL for (int k = 0; k < vecs; k++) {
            const int left = NAME(short_left)(k, vecs, last);
            VEC v = NAME(load_x)(row_x + k * VEC_LANES, left);
            if (!rms)
                v = V(sub)(v, mean);
            v = V(mul)(v, xhat_rstd);
            const VEC d = V(mul)(NAME(load_x)(row_dy + k * VEC_LANES, left), weight[k]);
            const int lane = k % NAME(PARTS);
            gxhat[lane] = k < NAME(PARTS) ? V(mul)(d, v) : V(fma)(d, v, gxhat[lane]);
            NAME(short_add)(xhat, k, NAME(keep)(v, left));
            NAME(short_add)(g, k, d);
        }
        gxhats[r] = NAME(short_fold)(gxhat, parts);
        if (rms)
            continue;
        xhats[r] = NAME(short_fold)(xhat, parts);
        gs[r] = NAME(short_fold)(g, parts);
    }
    V(fold8)(gxhats, sum_gxhat + first);
    if (rms)
        return;
    V(fold8)(xhats, sum_xhat + first);
    V(fold8)(gs, sum_g + first);
}

/* dx of SHORT_ROWS rows, and what these add to dweight and dbias. Where a row is not `exact` it is
 * whole vectors, of which the last one may reach into the next row. */
INLINE void NAME(short_gradient)(const backward_args *a, const char *x, const char *dy, char *dx,
                                 int64_t dx_pitch, const int vecs, int last, const bool rms,
                                 const VEC weight[], const NAME(row_gradients) * rows,
                                 const bool exact, const traffic t) {
    const int64_t x_pitch = a->x_pitch, dy_pitch = a->dy_pitch;
    REAL *const dweights = a->dweight, *const dbiases = a->dbias;
    VEC dweight[NAME(SHORT_GRADIENTS)], dbias[NAME(SHORT_GRADIENTS)];
    UNROLL for (int k = 0; k < vecs; k++) {
        const int left = NAME(short_left)(k, vecs, last), at = k * VEC_LANES;
        dweight[k] = NAME(load_real)(dweights + at, left);
        if (!rms)
            dbias[k] = NAME(load_real)(dbiases + at, left);
    }
    for (int r = 0; r < SHORT_ROWS; r++) {
        const ELEMENT_T *const row_x = (const ELEMENT_T *)(x + r * x_pitch);
        const ELEMENT_T *const row_dy = (const ELEMENT_T *)(dy + r * dy_pitch);
        ELEMENT_T *const row_dx = (ELEMENT_T *)(dx + r * dx_pitch);
        const NAME(row_gradient) row = NAME(gradient_at)(rows, r);
        UNROLL for (int k = 0; k < vecs; k++) {
            const int left = NAME(short_left)(k, vecs, last), at = k * VEC_LANES;
            const VEC d = NAME(load_x)(row_dy + at, left);
            const VEC xhat = NAME(xhat_of)(NAME(load_x)(row_x + at, left), row, rms);
            NAME(store_as)(row_dx + at, NAME(gradient_of)(d, weight[k], xhat, row, rms),
                           exact ? left : VEC_LANES, t);
            dweight[k] = V(fma)(d, xhat, dweight[k]);
            if (!rms)
                dbias[k] = V(add)(d, dbias[k]);
        }
    }
    UNROLL for (int k = 0; k < vecs; k++) {
        const int left = NAME(short_left)(k, vecs, last), at = k * VEC_LANES;
        NAME(store_real)(dweights + at, dweight[k], left);
        if (!rms)
            NAME(store_real)(dbiases + at, dbias[k], left);
    }
}

/*
 * Whether rows that are not whole vectors are made in place. In a piece of the stack the lines wait
 * for stores that lie across them, which costs more than to store a part of a vector where that
 * takes a mask (bench/results/zen4-3). Parts of 16 bits were not timed.
 */
INLINE bool NAME(stores_parts)(void) {
    return LINE_VECTORS && DTYPE_OF(ELEMENT) == DTYPE_F32;
}

/* Rows [0, rows), a multiple of SHORT_ROWS. dx is made in place where its rows are whole vectors,
 * or parts are stored. */
INLINE void NAME(short_rows_backward_of)(const backward_args *a, int64_t rows, const bool rms,
                                         const int vecs, const bool whole, const traffic t) {
    _Alignas(64) ELEMENT_T piece[(SHORT_ROWS * NAME(SHORT_GRADIENTS) + 1) * VEC_LANES];
    const bool in_place = whole || NAME(stores_parts)();
    const bool lines = LINE_VECTORS && !in_place &&
                       NAME(rows_are_lines)(a->traffic, a->dx, a->dx_pitch, a->cols, SHORT_ROWS);
    const int64_t n = a->cols, x_pitch = a->x_pitch, dy_pitch = a->dy_pitch;
    /* A remainder, so that the compiler sees that such a vector is not whole. */
    const int last = whole ? VEC_LANES : (int)(n % VEC_LANES);
    const int64_t made_pitch = in_place ? a->dx_pitch : n * (int64_t)sizeof(ELEMENT_T);
    const bool prefetches = a->hints->prefetch_steps;
    const WEIGHT_T *const weights = a->weight;
    const VEC offset = V(set1)((REAL)a->weight_offset);
    VEC weight[NAME(SHORT_GRADIENTS)];
    UNROLL for (int k = 0; k < vecs; k++) weight[k] =
        V(add)(NAME(load_weight)(weights + k * VEC_LANES, NAME(short_left)(k, vecs, last)), offset);
    for (int64_t first = 0; first < rows; first += SHORT_ROWS) {
        const char *const x = a->x + first * x_pitch, *const dy = a->dy + first * dy_pitch;
        char *const dx = a->dx + first * a->dx_pitch;
        REAL xhat[SHORT_ROWS] = {0}, g[SHORT_ROWS] = {0}, gxhat[SHORT_ROWS];
        NAME(row_gradients) constants;
        NAME(saved_of)(a, first, SHORT_ROWS, rms, &constants);
        for (int r = 0; r < SHORT_ROWS; r += FOLD_ROWS)
            NAME(short_gradient_sums)(a, x, dy, r, vecs, last, rms, weight, &constants, xhat, g,
                                      gxhat);
        /* No sum may be -0: lanes start from 0 elsewhere. */
        for (int r = 0; r < SHORT_ROWS; r++) {
            xhat[r] += 0;
            g[r] += 0;
            gxhat[r] += 0;
        }
        NAME(prefetch_rows)(x, 2 * SHORT_ROWS * x_pitch, x_pitch, n, SHORT_ROWS, prefetches, 0);
        NAME(prefetch_rows)(dy, 2 * SHORT_ROWS * dy_pitch, dy_pitch, n, SHORT_ROWS, prefetches, 0);
        if (__builtin_expect(
                !NAME(finish_constants)(a, first, xhat, g, gxhat, SHORT_ROWS, rms, &constants),
                0)) {
            EXPORT(one_by_one)(a, first, SHORT_ROWS, rms);
            continue;
        }
        NAME(short_gradient)(a, x, dy, in_place ? dx : (char *)piece, made_pitch, vecs, last, rms,
                             weight, &constants, in_place, t);
        if (lines)
            stream_lines(dx, piece, SHORT_ROWS * a->dx_pitch);
        else if (!in_place)
            NAME(place_rows)(dx, a->dx_pitch, piece, n, SHORT_ROWS);
    }
}

/* Those of a number of vectors: as in rows_short.h. */
INLINE void NAME(short_rows_backward_as)(const backward_args *a, int64_t rows, const bool rms,
                                         const int vecs, bool whole, bool by_line) {
    if (vecs > NAME(SHORT_GRADIENTS))
        return;
    if (whole && by_line && vecs > NAME(PARTS))
        NAME(short_rows_backward_of)(a, rows, rms, vecs, true, TRAFFIC_LINES);
    else if (whole)
        NAME(short_rows_backward_of)(a, rows, rms, vecs, true, TRAFFIC_CACHED);
    else
        NAME(short_rows_backward_of)(a, rows, rms, vecs, false, TRAFFIC_CACHED);
}
#define EACH_SHORT(vecs)                                                                           \
    ONE_COPY void NAME(short_rows_backward_##vecs)(const backward_args *a, int64_t rows, bool rms, \
                                                   bool whole, bool by_line) {                     \
        if (rms)                                                                                   \
            NAME(short_rows_backward_as)(a, rows, true, vecs, whole, by_line);                     \
        else                                                                                       \
            NAME(short_rows_backward_as)(a, rows, false, vecs, whole, by_line);                    \
    }
EACH_SHORT(1)
EACH_SHORT(2)
EACH_SHORT(3)
EACH_SHORT(4)

/* Does what it can of the rows, and returns how many. */
INLINE int64_t NAME(short_rows_backward)(const backward_args *a, const bool rms) {
    static void (*const of[])(const backward_args *, int64_t, bool, bool, bool) = {
        NAME(short_rows_backward_1),
        NAME(short_rows_backward_2),
        NAME(short_rows_backward_3),
        NAME(short_rows_backward_4),
    };
    _Static_assert(!NAME(SHORT_COLS) || NAME(SHORT_GRADIENTS) <= sizeof of / sizeof *of,
                   "a kernel for each");
    const int64_t rows = a->rows / SHORT_ROWS * SHORT_ROWS;
    const int64_t vecs = (a->cols + VEC_LANES - 1) / VEC_LANES;
    const bool whole = a->cols % VEC_LANES == 0;
    const bool by_line =
        NAME(goes_by_line)(a->hints, NAME(traffic_to)(a->traffic, a->dx, a->dx_pitch, a->cols));
    of[vecs - 1](a, rows, rms, whole, by_line);
    return rows;
}

/* The most columns of such rows. */
INLINE int64_t NAME(short_gradient_cols)(const backward_args *a) {
    return a->hints->more_short_rows ? NAME(SHORT_GRADIENTS) * VEC_LANES : NAME(SHORT_COLS);
}
