/* A part of backward.cu: dx of a row whose sums are there, and what the row adds to the columns. */

/* What a row's sums come to. */
struct row_factors {
    real mean, delta, rstd, slope, constant; /* slope: of xhat, or of d where SHORT_RANGE */
    real back;                               /* what delta takes from xhat */
};

/* The means of g and of g * xhat, and what the saved mean lacks. */
struct row_means {
    real c1, c2, delta;
};

__device__ __forceinline__ row_means means_of(const row_args &args, const real *sum, stored_mean mean, real rstd) {
    const real delta = LAYER && CORRECT ? rest_of_mean(mean, sum[2] * (real)(1.0 / count_of(COLS))) : 0;
    const real c1 = LAYER ? sum[0] * (real)(1.0 / count_of(COLS)) : 0;
    const real both = LAYER && CORRECT ? multiply_add(-delta, sum[0], sum[1]) : sum[1];
    const real c2 = c2_of(both * (real)(1.0 / count_of(COLS)) * rstd, rstd, args.clamped);
    return {c1, c2, delta};
}

__device__ __forceinline__ row_factors factors_from(real c1, real c2, real delta, stored_mean mean, real rstd) {
    return {(real)mean, delta, rstd, SHORT_RANGE ? -c2 * rstd * rstd : -c2 * rstd, -c1 * rstd,
            -delta * rstd};
}

__device__ __forceinline__ row_factors factors_of(const row_args &args, const real *sum, stored_mean mean, real rstd) {
    const row_means m = means_of(args, sum, mean, rstd);
    return factors_from(m.c1, m.c2, m.delta, mean, rstd);
}

/* dx of an element, whose part of its column's sums is added. */
__device__ __forceinline__ real element_output(real d, real g, real w, const row_factors &f,
                                               real &dweight, real &dbias) {
    if (LAYER)
        d -= f.mean;
    if (LAYER && CORRECT && SHORT_RANGE)
        d -= f.delta;
    if (WANT_DBIAS)
        dbias += g;
    if (SHORT_RANGE)
        g *= f.rstd;
    else
        d = LAYER && CORRECT ? multiply_add(d, f.rstd, f.back) : d * f.rstd;
    if (WANT_DWEIGHT)
        dweight = multiply_add(g, d, dweight);
    const real rest = LAYER ? multiply_add(d, f.slope, f.constant) : d * f.slope;
    const real scaled = WEIGHT_TYPE == NONE ? g : g * w;
    if (SHORT_RANGE)
        return WEIGHT_TYPE == NONE ? g + rest : multiply_add(g, w, rest);
    return multiply_add(scaled, f.rstd, rest);
}

constexpr int DX_BYTES = WIDTH * bytes_of(DX_TYPE);

/* A row of dx in memory, from this thread's first chunk on. */
struct dx_in_memory {
    char *first;
    bool there;

    __device__ __forceinline__ void put(int k, const chunk<DX_BYTES> &c) const {
        store_chunk<DX_BYTES, DX_ACCESS>(first + (i64)k * (SPREAD * DX_BYTES), c);
    }
};

/* The outputs of a thread's rows of a turn, put to dx, and their part of the columns' sums. */
template <typename row_source, typename weight_source, typename dx_place, typename dsum_source = no_dsum>
__device__ __forceinline__ void row_output(const team_state &t, const row_source &row,
                                           const weight_source &weights, const row_factors &f,
                                           real (*dweight)[WIDTH], real (*dbias)[WIDTH],
                                           const dx_place &dx, const dsum_source &dsum = {}) {
    chunk<DSUM_BYTES> s[dsum_source::AT_ONCE];
#pragma unroll
    for (int k = 0; k < CHUNKS_PER_THREAD; k++) {
        if constexpr (HAS_DSUM)
            if (k % dsum_source::AT_ONCE == 0)
#pragma unroll
                for (int j = 0; j < dsum_source::AT_ONCE && k + j < CHUNKS_PER_THREAD; j++)
                    s[j] = dsum.at(t, k + j);
        real w[COLUMNS], out[WIDTH];
        const auto x = row.x(k);
        const auto g = row.g(k);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            if (i % COLUMNS == 0)
                weights.take(t, k, i / COLUMNS, w);
            out[i] = element_output(element<X_TYPE>(x.word, i),
                                    element<row_source::GRADIENT>(g.word, i), w[i % COLUMNS], f,
                                    dweight[k][i], dbias[k][i]);
            if constexpr (HAS_DSUM)
                out[i] += element<DSUM_TYPE>(s[k % dsum_source::AT_ONCE].word, i);
        }
        if constexpr (WANT_DX)
            if (dx.there && t.has(k))
                dx.put(k, pack<DX_TYPE, WIDTH>(out));
    }
}
