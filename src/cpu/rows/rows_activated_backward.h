/*
 * Backward of rows that an activation follows; part of cpu/rows/kernels_rows_backward.c, beside
 * rows_backward.h, whose sums these are. Each row by itself, in two sweeps: the first makes d, the
 * gradient of what went into the activation, and sums; the second makes dx, and d again where a row
 * is too long to keep it. As z = xhat * weight + bias is made of xhat with all its digits, what the
 * saved mean lacks is found before anything is summed.
 */

/* The longest rows whose d is kept. */
enum { NAME(KEPT) = 32768 / sizeof(REAL) };

/* What the loops read is local: a store could change what a pointer reaches. */
typedef struct NAME(activated_gradient) {
    const ELEMENT_T *x, *dy;
    const WEIGHT_T *weights, *biases;
    VEC offset;
    NAME(row_gradient) row;
    planish_activation f;
} NAME(activated_gradient);

/* d, xhat and weight of a vector of which `left` elements are there. */
typedef struct NAME(activated_vector) {
    VEC d, xhat, weight, x;
} NAME(activated_vector);

/* `kept`: where d is already, or NULL. */
INLINE NAME(activated_vector) NAME(activated_vector_at)(NAME(activated_gradient) g, int64_t i,
                                                        int64_t left, const REAL *kept) {
    NAME(activated_vector) v = {.x = NAME(load_x)(g.x + i, left), .weight = V(set1)(1)};
    NAME(epilogue) of = {.kind = g.f, .bias = V(set1)((REAL)-0.0)};
    v.xhat = NAME(xhat_of)(v.x, g.row, false);
    if (g.weights)
        v.weight = V(add)(NAME(load_weight)(g.weights + i, left), g.offset);
    if (kept) {
        v.d = LOAD_REAL(kept + i);
        return v;
    }
    if (g.biases)
        of.bias = NAME(load_weight)(g.biases + i, left);
    of.weight = v.weight;
    v.d = NAME(through)(of, NAME(load_x)(g.dy + i, left), v.xhat);
    return v;
}

/* The sums of d * weight, and of that times xhat by the saved mean, over a segment from `at` on; d
 * goes to `kept`, where that is given. */
ONE_COPY void NAME(activated_segment)(NAME(activated_gradient) g, int64_t at, int64_t end,
                                      REAL *kept, VEC *sum_g, VEC *sum_gxhat) {
    const VEC mean = V(set1)(g.row.mean), xhat_rstd = V(set1)(g.row.xhat_rstd);
    NAME(lanes) total_g = NAME(lanes_zero)(), total_gxhat = NAME(lanes_zero)();
    for (int64_t i = at; i < end;) {
        const int64_t stop = NAME(min)(end, i + NAME(CHAINED));
        NAME(lanes) gs = NAME(lanes_zero)(), gxhats = NAME(lanes_zero)();
        while (i < stop)
            for (int k = 0; k < NAME(PARTS) && i < stop; k++, i += VEC_LANES) {
                const NAME(activated_vector) v = NAME(activated_vector_at)(g, i, stop - i, NULL);
                const VEC d = NAME(keep)(v.d, stop - i), gradient = V(mul)(d, v.weight);
                if (kept)
                    STORE_REAL(kept + i, d);
                gs.part[k] = V(add)(gs.part[k], gradient);
                gxhats.part[k] =
                    V(fma)(gradient, V(mul)(V(sub)(v.x, mean), xhat_rstd), gxhats.part[k]);
            }
        NAME(lanes_add)(&total_g, gs);
        NAME(lanes_add)(&total_gxhat, gxhats);
    }
    *sum_g = NAME(lanes_fold)(total_g);
    *sum_gxhat = NAME(lanes_fold)(total_gxhat);
}

/* The constants of a row, but those that its sums give. */
INLINE NAME(row_gradient)
    NAME(activated_saved)(const backward_args *a, int64_t row, const ELEMENT_T *x, double *delta) {
    NAME(row_gradient) saved = {.rstd = (REAL)stat_load(&a->rstd, row), .minus_delta = (REAL)-0.0};
    saved.xhat_rstd = saved.rstd;
    *delta = 0;
    if (a->kind == PLANISH_RMS)
        return saved;
    const mean_reach reach = NAME(reach_of)(a, false);
    double total[3][TOGETHER] = {{0}};
    saved.mean = (REAL)stat_load(&a->mean, row);
    if (!reach.is_exact) {
        const backward_args of_x = {.hints = a->hints, .cols = a->cols};
        NAME(gradient_totals)(&of_x, &x, &x, 1, false, &saved, total);
    }
    *delta =
        rest_of_mean(&reach, &a->mean, row, total[0][0] * a->rule.inverse, saved.mean, saved.rstd);
    saved.minus_delta = (REAL) - *delta;
    return saved;
}

/* What the sums of a row give; false where something is out of range. */
INLINE bool NAME(activated_constants)(const backward_args *a, NAME(activated_gradient) * g,
                                      double delta, REAL *kept) {
    const double inverse = a->rule.inverse;
    double sum[2] = {0}, rest[2] = {0};
    for (int64_t at = 0; at < a->cols; at += NAME(SEGMENT)) {
        VEC lanes[2];
        REAL folded[TOGETHER];
        NAME(activated_segment)(*g, at, NAME(min)(a->cols, at + NAME(SEGMENT)), kept, &lanes[0],
                                &lanes[1]);
        NAME(fold_rows)(lanes, 2, folded);
        for (int s = 0; s < 2; s++)
            exact_add(&sum[s], &rest[s], folded[s]);
    }
    const double c1 = a->kind == PLANISH_RMS ? 0 : (sum[0] + rest[0]) * inverse;
    const double c2 = rule_c2(&a->rule, (sum[1] + rest[1]) * inverse - c1 * delta, g->row.rstd);
    g->row.c1 = (REAL)c1;
    g->row.minus_c2 = (REAL)-c2;
    return fabs(delta) < BIG && fabs(c1) < BIG && fabs(c2) < BIG;
}

/* n elements of dx from `at` on, to `dx` where that is wanted, and what they add to dweight and
 * dbias. */
ONE_COPY void NAME(activated_piece)(const backward_args *a, NAME(activated_gradient) g, int64_t at,
                                    int64_t n, const REAL *kept, ELEMENT_T *dx, int64_t ahead) {
    REAL *const dweight = a->dweight, *const dbias = a->dbias;
    for (int64_t i = at; i < at + n; i += VEC_LANES) {
        const int64_t left = at + n - i;
        const int part = left < VEC_LANES ? (int)left : 0;
        const NAME(activated_vector) v = NAME(activated_vector_at)(g, i, left, kept);
        if (dx)
            NAME(store_x)(dx + (i - at), NAME(gradient_of)(v.d, v.weight, v.xhat, g.row, false),
                          left);
        if (dweight && part)
            STORE_REAL_PART(dweight + i, V(fma)(v.d, v.xhat, LOAD_REAL_PART(dweight + i, part)),
                            part);
        else if (dweight)
            STORE_REAL(dweight + i, V(fma)(v.d, v.xhat, LOAD_REAL(dweight + i)));
        if (dbias && part)
            STORE_REAL_PART(dbias + i, V(add)(v.d, LOAD_REAL_PART(dbias + i, part)), part);
        else if (dbias)
            STORE_REAL(dbias + i, V(add)(v.d, LOAD_REAL(dbias + i)));
        if (ahead) {
            NAME(prefetch_vector)(g.x + i, ahead * a->x_pitch, TRAFFIC_AHEAD);
            NAME(prefetch_vector)(g.dy + i, ahead * a->dy_pitch, TRAFFIC_AHEAD);
        }
    }
}

ONE_COPY void NAME(activated_gradient_row)(const backward_args *a, int64_t row, traffic t) {
    _Alignas(64) REAL keeps[NAME(KEPT) + VEC_LANES];
    _Alignas(64) ELEMENT_T piece[NAME(PIECE)];
    const bool lines = a->dx && t == TRAFFIC_STREAM;
    REAL *const kept = a->cols <= NAME(KEPT) ? keeps : NULL;
    ELEMENT_T *const dx = a->dx ? (ELEMENT_T *)(a->dx + row * a->dx_pitch) : NULL;
    const ELEMENT_T *const x = (const ELEMENT_T *)(a->x + row * a->x_pitch);
    double delta;
    NAME(activated_gradient)
    g = {.x = x,
         .dy = (const ELEMENT_T *)(a->dy + row * a->dy_pitch),
         .weights = a->weight,
         .biases = a->bias,
         .offset = V(set1)((REAL)a->weight_offset),
         .row = NAME(activated_saved)(a, row, x, &delta),
         .f = a->activation};
    if (__builtin_expect(!NAME(activated_constants)(a, &g, delta, kept), 0)) {
        overflow_backward_row(a, row, a->kind, DTYPE_OF(ELEMENT), DTYPE_OF(WEIGHT));
        return;
    }
    const int64_t most = lines ? NAME(PIECE) : a->cols;
    for (int64_t at = 0; at < a->cols; at += most) {
        const int64_t n = NAME(min)(a->cols - at, most);
        NAME(activated_piece)(a, g, at, n, kept,
                              lines ? piece
                              : dx  ? dx + at
                                    : NULL,
                              t != TRAFFIC_CACHED);
        if (lines)
            stream_lines(dx + at, piece, n * (int64_t)sizeof(ELEMENT_T));
    }
}

static void NAME(backward_activated)(const backward_args *a) {
    const traffic t = NAME(traffic_to)(a->traffic, a->dx, a->dx_pitch, a->cols);
    for (int64_t row = 0; row < a->rows; row++)
        NAME(activated_gradient_row)(a, row, t);
}
