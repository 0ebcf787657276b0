/* A part of forward.cu: the moments of a row, again from scaled values where squares leave float's range. */

struct row_moments {
    real pivot, delta, rstd;
    int beyond; /* float's range: 1 above, -1 below, and then to be summed again, scaled */
};

__device__ __forceinline__ void save_moments(const forward_args &args, i64 row, const row_moments &m) {
    store_pair<MEAN_TYPE>((char *)args.mean + row * args.mean_stride, m.pivot, m.delta);
    store_element<RSTD_TYPE>((char *)args.rstd + row * args.rstd_stride, 0, m.rstd);
}

/* Whether a row's squares, which add up to b, leave float's range. */
__device__ __forceinline__ int leaves_range(total b, const forward_args &args) {
    return !(b < 1e36f) ? 1 : args.eps_is_small && b < 1e-28f ? -1 : 0;
}

/* The moments of a row from its sums about a pivot. */
__device__ __forceinline__ row_moments moments_from(real pivot, total a, total b,
                                                    const forward_args &args) {
    total delta = LAYER ? a * (total)(1.0 / COLS) : 0;
    total variance = (LAYER ? multiply_add(-a, delta, b) : b) * (total)(1.0 / COLS);
    row_moments m = {pivot, (real)delta,
                     reciprocal_root((variance < 0 ? 0 : variance) +
                                     (sizeof(total) == 4 ? (total)args.eps_rounded
                                                         : (total)args.eps)),
                     0};
    if constexpr (WIDE_RANGE && sizeof(real) == 4)
        m.beyond = leaves_range(b, args);
    return m;
}

__device__ __forceinline__ real scale_of(const row_moments &m) {
    return m.beyond > 0 ? 0x1p-64f : 0x1p64f;
}

/* The same from sums of scaled values. */
__device__ __forceinline__ void correct_moments(row_moments &m, total a, total b,
                                                const forward_args &args) {
    double back = m.beyond > 0 ? 0x1p64 : 0x1p-64, wide = a * (1.0 / COLS);
    double v = (LAYER ? b - a * wide : (double)b) * (1.0 / COLS);
    m.delta = LAYER ? (real)(wide * back) : 0;
    m.rstd = reciprocal_root((v < 0 ? 0 : v) * back * back + args.eps);
}

/* The moments of a row whose first chunk of this thread is at x, from scaled values about a pivot of
 * the thread, if m.beyond says so. From memory: to keep the row in registers for this would cost every
 * row. */
__device__ __forceinline__ void sum_scaled(place &p, bool there, const char *x, real own,
                                           row_moments &m, const forward_args &args) {
    const real scale = scale_of(m);
    real pivot = own;
    total a = 0, b = 0;
#pragma unroll 1
    for (int k = 0; k < VECS; k++)
        if (there && p.has(k))
            chunk_sums<true>(load_chunk<X_BYTES, X_ACCESS>(x + (i64)k * (SPREAD * X_BYTES)), true,
                             own, scale, a, b);
    merge<true>(p, pivot, scale, a, b);
    if (m.beyond) {
        m.pivot = pivot;
        correct_moments(m, a, b, args);
    }
}

/* The moments of row `row`. */
__device__ __forceinline__ row_moments moments_of(place &p, row_reader &r, i64 row,
                                                  const forward_args &args) {
    const real own = thread_pivot(p, r);
    real pivot = own;
    total a = 0, b = 0;
#pragma unroll UNROLL
    for (int k = 0; k < VECS; k++) {
        chunk<X_BYTES> c = r.take(p, k);
        chunk_sums<false>(c, p.has(k), own, 1, a, b);
    }
    /* Else the converted row stays in registers over the exchange, and spills. */
    if constexpr (HOLD == HOLD_IN_REGISTERS && bytes_of(X_TYPE) == 2)
#pragma unroll
        for (int k = 0; k < VECS; k++)
            for (u32 &w : r.held[k].word)
                forget(w, args.zero);
    merge<false>(p, pivot, 1, a, b);
    row_moments m = moments_from(pivot, a, b, args);
    if constexpr (WIDE_RANGE && sizeof(real) == 4) {
        /* Decided by the row alone: its whole team, and no other row, takes the scaled sums. */
        if (WITHIN_WARP ? __any_sync(EVERY_LANE, m.beyond) : m.beyond)
            sum_scaled(p, r.there, (const char *)args.x + row * args.x_stride + (i64)p.rank * X_BYTES,
                       own, m, args);
    }
    return m;
}
