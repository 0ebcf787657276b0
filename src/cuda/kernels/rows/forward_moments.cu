/* A part of forward.cu and of stages_forward.cu: the moments of a row, again from scaled values where squares leave float's range. */

template <bool KEEPS_SQUARES> struct moments_kept {
    real pivot, delta, rstd;
    int beyond; /* float's range: 1 above, -1 below, and then to be summed again, scaled */

    __device__ __forceinline__ void keep_squares(double) {}
    __device__ __forceinline__ double kept_squares() const { return 0; }
};
template <> struct moments_kept<true> {
    real pivot, delta, rstd;
    int beyond;
    double squares; /* of all distances from the mean */

    __device__ __forceinline__ void keep_squares(double v) { squares = v < 0 ? 0 : v; }
    __device__ __forceinline__ double kept_squares() const { return squares; }
};
typedef moments_kept<MOMENTS_ALONE> row_moments;

/* Whether a row's squares, which add up to b, leave float's range. */
__device__ __forceinline__ int leaves_range(total b, const row_args &args) {
    return !(b < 1e36f) ? 1 : args.eps_is_small && b < 1e-28f ? -1 : 0;
}

/* The moments of a row from its sums about a pivot. */
__device__ __forceinline__ row_moments moments_from(real pivot, total a, total b,
                                                    const row_args &args) {
    total delta = LAYER ? a * (total)(1.0 / count_of(COLS)) : 0;
    total squares = LAYER ? multiply_add(-a, delta, b) : b;
    total variance = squares * (total)(1.0 / count_of(COLS));
    row_moments m = {pivot, (real)delta,
                     reciprocal_root(with_eps(variance < 0 ? 0 : variance,
                                              sizeof(total) == 4 ? (total)args.eps_rounded
                                                                 : (total)args.eps)),
                     0};
    m.keep_squares(squares);
    if constexpr (WIDE_RANGE && sizeof(real) == 4)
        m.beyond = leaves_range(b, args);
    return m;
}

__device__ __forceinline__ real scale_of(const row_moments &m) {
    return m.beyond > 0 ? 0x1p-64f : 0x1p64f;
}

/* The same from sums of scaled values. */
__device__ __forceinline__ void correct_moments(row_moments &m, total a, total b,
                                                const row_args &args) {
    double back = m.beyond > 0 ? 0x1p64 : 0x1p-64, wide = a * (1.0 / count_of(COLS));
    double squares = LAYER ? b - a * wide : (double)b, v = squares * (1.0 / count_of(COLS));
    m.keep_squares(squares * back * back);
    m.delta = LAYER ? (real)(wide * back) : 0;
    m.rstd = reciprocal_root(with_eps((v < 0 ? 0 : v) * back * back, args.eps));
}

/* Chunk k of a row once more; its first of this thread is at x. */
__device__ __forceinline__ chunk<X_BYTES> chunk_again(const char *x, int k) {
    return load_chunk<X_BYTES, X_ACCESS>(x + (i64)k * (SPREAD * X_BYTES));
}

/* Where a row of x begins, found where it is wanted: it takes no registers before. */
template <typename arguments>
__device__ __forceinline__ const char *begun(const arguments &args, const place &p, i64 row) {
    return (const char *)args.x + row_begin(args.levels, row, args.x_stride, args.x_jump) +
           (i64)p.rank * X_BYTES;
}
template <typename arguments, typename again>
__device__ __forceinline__ const again &begun(const arguments &, const place &, const again &x) {
    return x;
}

/* The moments of a row that chunk_again gives of x, from scaled values about a pivot of
 * the thread, if m.beyond says so. From memory: to keep the row in registers for this would cost every
 * row. */
template <typename again>
__device__ __forceinline__ void sum_scaled(place &p, bool there, const again &x, real own,
                                           row_moments &m, const row_args &args) {
    const real scale = scale_of(m);
    real pivot = own;
    total a = 0, b = 0;
#pragma unroll 1
    for (int k = 0; k < CHUNKS_PER_THREAD; k++)
        if (there && p.has(k))
            chunk_sums<true>(chunk_again(x, k), true, own, scale, a, b);
    merge<true>(p, pivot, scale, a, b);
    if (m.beyond) {
        m.pivot = pivot;
        correct_moments(m, a, b, args);
    }
}

/* The moments of a row that chunk_again gives of x. */
template <typename again>
__device__ __forceinline__ row_moments moments_of(place &p, row_reader &r, const again &x,
                                                  const row_args &args) {
    const real own = thread_pivot(p, r);
    real pivot = own;
    total a = 0, b = 0;
#pragma unroll UNROLL
    for (int k = 0; k < CHUNKS_PER_THREAD; k++) {
        const auto c = r.take(p, k);
        chunk_sums<false>(c, p.has(k), own, 1, a, b);
    }
    /* Else the converted row stays in registers over the exchange, and spills. */
    if constexpr (FORGETS_NUMBERS)
#pragma unroll
        for (int k = 0; k < CHUNKS_PER_THREAD; k++)
            forget_numbers(r.held[k], args.zero);
    merge<false>(p, pivot, 1, a, b);
    row_moments m = moments_from(pivot, a, b, args);
    if constexpr (WIDE_RANGE && sizeof(real) == 4) {
        /* Decided by the row alone: its whole team, and no other row, takes the scaled sums. */
        if (WITHIN_WARP ? __any_sync(EVERY_LANE, m.beyond) : m.beyond)
            sum_scaled(p, r.there, begun(args, p, x), own, m, args);
    }
    return m;
}

__device__ __forceinline__ real normalized(real x, const row_moments &m) {
    if (FOLDED)
        return multiply_add(x - m.pivot, m.rstd, -m.delta * m.rstd);
    return (LAYER ? (x - m.pivot) - m.delta : x) * m.rstd;
}

/* Adding 0 would be an addition: it changes -0. */
__device__ __forceinline__ real plus_offset(real w) {
    return WEIGHT_OFFSET ? w + (real)WEIGHT_OFFSET : w;
}
